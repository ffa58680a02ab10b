"""A replay, killed with SIGKILL at any moment and run again, gives what an uninterrupted one does: nothing doubled.

The process that is killed is the one that was started; the workers of several see that it is gone, and stop.
"""

import os
import random
from collections import Counter
from pathlib import Path

import pytest
from support.processes import Command, assemble, wait_until
from support.store import Store
from support.workload import make_workload

from rolloutlog.consumers.replaying.outputs import topic_of
from rolloutlog.eventstore.log import BATCHES, Record

from .conftest import NewUrl

pytestmark = pytest.mark.slow_on_kafka

STEPS = ("receive", "fold", "commit", "confirm")
STEPS_BEFORE_KILL_MAX = 60
COMMIT_BYTES = 2_000  # a group or two
SCORER = """
import asyncio
from rolloutlog.consumers.scoring import Reward

async def judge(rollout):
    await asyncio.sleep(0.002)
    return Reward(float(len(rollout.calls)), name="judge")
"""


def running(process: Path) -> bool:
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Killer:
    """Kills a replay at its `count`-th step after the first fold."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.folded = False

    def __call__(self, command: Command, partition: int, step: str) -> None:
        self.folded = self.folded or step == "fold"
        self.left -= self.folded
        if self.left == 0:
            command.kill()


def replay(store: Store, folder: Path, *arguments: str, on_step: Killer | None = None) -> Command:
    return Command(
        "--log-level",
        "debug",
        "replay",
        "--log",
        store.url,
        *arguments,
        on_step=on_step,
        path=folder,
        commit_bytes=COMMIT_BYTES,
    )


def kill_until_done(store: Store, folder: Path, rng: random.Random, kills_wanted: int, *arguments: str) -> Counter[str]:
    """Replay into outputs of the same wish until so many were killed; each ends with one that is not. Returns where."""
    fell: Counter[str] = Counter()
    for number in range(3 * kills_wanted):
        name = f"killed-{len(arguments)}-{number}"
        while fell.total() < kills_wanted:
            command = replay(
                store, folder, "--output", name, *arguments, on_step=Killer(rng.randint(1, STEPS_BEFORE_KILL_MAX))
            )
            if command.finish() == 0:
                break
            assert command.process.returncode == -9, command.stderr
            fell[command.steps[-1][1]] += 1
        last = replay(store, folder, "--output", name, *arguments)
        assert last.finish() == 0, last.stderr
        assert_same(store, name, arguments)
        if fell.total() >= kills_wanted:
            return fell
    raise AssertionError(f"replays end before they are killed: {fell}")


def assert_same(store: Store, name: str, arguments: tuple[str, ...]) -> None:
    """What is in the output is what an uninterrupted replay gives: for live settings, what is published."""
    expected = store.records(topic_of("whole") if arguments else BATCHES)
    assert stored(store.records(topic_of(name))) == stored(expected), f"{name} {arguments}"


def stored(records: list[Record]) -> list[tuple[object, ...]]:
    return [(each.partition, each.key, each.value, each.headers) for each in records]


def check(new_url: NewUrl, folder: Path, kills_wanted: int) -> None:
    seed = int(os.environ.get("SEED", "0"))
    print(f"SEED={seed}")
    (folder / "judging.py").write_text(SCORER)
    rng = random.Random(seed)
    scored = ("--scorer", "judging:judge")
    with Store(new_url()) as store:
        store.append(make_workload(seed, groups=60).records)
        command = assemble(store.url)
        assert command.finish() == 0, command.stderr
        whole = replay(store, folder, "--output", "whole", *scored, "--no-cache")
        assert whole.finish() == 0, whole.stderr
        fell = kill_until_done(store, folder, rng, kills_wanted)
        fell += kill_until_done(store, folder, rng, kills_wanted, *scored)
    print(f"{fell.total()} kills: {dict(fell)}")


@pytest.mark.timeout(180)
def test_replay_killed_3_times_gives_what_an_uninterrupted_one_does(new_url: NewUrl, tmp_path: Path) -> None:
    check(new_url, tmp_path, 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_replay_killed_10_times_gives_what_an_uninterrupted_one_does(new_url: NewUrl, tmp_path: Path) -> None:
    check(new_url, tmp_path, 10)


@pytest.mark.timeout(180)
def test_replay_of_workers_that_is_killed_leaves_none_running_and_goes_on(new_url: NewUrl, tmp_path: Path) -> None:
    (tmp_path / "judging.py").write_text(SCORER.replace("0.002", "0.05"))
    scored = ("--output", "shared", "--scorer", "judging:judge", "--workers", "2", "--concurrency", "2")
    with Store(new_url()) as store:
        store.append(make_workload(3, groups=60).records)
        command = assemble(store.url)
        assert command.finish() == 0, command.stderr
        whole = replay(store, tmp_path, "--output", "whole", "--scorer", "judging:judge")
        assert whole.finish() == 0, whole.stderr
        first = replay(store, tmp_path, *scored)
        first.wait_for_steps(0, "fold")
        workers = Path(f"/proc/{first.pid}/task/{first.pid}/children")
        left = [Path(f"/proc/{pid}") for pid in workers.read_text().split()] if workers.exists() else []
        first.kill()
        assert first.process.wait() == -9  # its output stays open for as long as its workers live
        wait_until(lambda: not any(map(running, left)), "the end of its workers")
        again = replay(store, tmp_path, *scored)
        assert again.finish() == 0, again.stderr
        assert_same(store, "shared", scored)
