"""The assembler, killed with SIGKILL at any moment and started again, publishes what an uninterrupted run does.

Each round takes a fresh log that already holds half of a workload's events; the other half arrives between two kills.
A kill is aimed at one step of the cycle, each step in turn, and falls where the last step printed before death says. It
counts only between the first fold and the exit.
"""

import os
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from support.processes import Command, assemble
from support.store import PARTITIONS, Store
from support.workload import (
    BAD_KINDS,
    Published,
    Workload,
    assert_same,
    make_workload,
    outputs_expected,
    outputs_of,
)

from .conftest import NewUrl

CYCLE = ("receive", "fold", "pack", "commit", "confirm")
COMMIT_EVENTS = 30  # so that a log of some thousand events takes many cycles
COMMIT_INTERVAL_S = 0.005
CYCLES_BEFORE_KILL_MAX = 24
KILLS_A_ROUND = 6


@dataclass
class Kills:
    """Where kills were aimed at, and where they fell. `attempts`: kills that came too late included."""

    attempts: int = 0
    aimed: Counter[str] = field(default_factory=Counter)
    fell: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return ", ".join(f"{step} {self.fell[step]} (aimed {self.aimed[step]})" for step in CYCLE)


class Killer:
    """Kills an assembler when it begins its target step for the `count`-th time after the first fold."""

    def __init__(self, target: str, count: int) -> None:
        self.target = target
        self.left = count
        self.folded = False

    def __call__(self, command: Command, partition: int, step: str) -> None:
        if self.folded and step == self.target:
            self.left -= 1
            if self.left == 0:
                command.kill()
        self.folded = self.folded or step == "fold"


def kill_once(store: Store, kills: Kills, rng: random.Random) -> bool:
    """Run the assembler until it is killed. False when it came to its end before: that kill does not count."""
    target = CYCLE[kills.attempts % len(CYCLE)]
    kills.attempts += 1
    command = assemble_quickly(store, Killer(target, rng.randint(1, CYCLES_BEFORE_KILL_MAX)))
    code = command.finish()
    if code == 0:
        return False
    assert code == -9, command.stderr
    kills.aimed[target] += 1
    kills.fell[command.steps[-1][1]] += 1
    return True


def kill_round(store: Store, workload: Workload, kills: Kills, count: int, rng: random.Random) -> None:
    """Kill up to `count` assemblers of a fresh log in succession, then let one finish."""
    half = len(workload.records) // 2
    store.append(workload.records[:half])
    for _ in range(count // 2):
        if not kill_once(store, kills, rng):
            break
    store.append(workload.records[half:])
    for _ in range(count - count // 2):
        if not kill_once(store, kills, rng):
            break
    finish(store)


def finish(store: Store) -> str:
    command = assemble_quickly(store)
    assert command.finish() == 0, command.stderr
    return command.stdout


def assemble_quickly(store: Store, on_step: Killer | None = None) -> Command:
    return assemble(store.url, on_step=on_step, commit_events=COMMIT_EVENTS, commit_interval_s=COMMIT_INTERVAL_S)


def uninterrupted(new_url: NewUrl, workload: Workload) -> Published:
    with Store(new_url()) as store:
        store.append(workload.records)
        finish(store)
        return outputs_of(store)


def check(new_url: NewUrl, kills_wanted: int) -> None:
    seed = int(os.environ.get("SEED", "0"))
    print(f"SEED={seed}")
    kills, rng = Kills(), random.Random(seed)
    rounds = 0
    while kills.aimed.total() < kills_wanted:
        round_seed = seed + rounds
        workload = make_workload(round_seed)
        expected = uninterrupted(new_url, workload)
        check_workload(workload, expected)
        with Store(new_url()) as store:
            kill_round(store, workload, kills, min(KILLS_A_ROUND, kills_wanted - kills.aimed.total()), rng)
            assert_same(outputs_of(store), expected, f"SEED={seed}, round {rounds}, kills so far: {kills}")
        rounds += 1
        assert kills.attempts < 3 * kills_wanted, f"SEED={seed}: assemblers end before they are killed: {kills}"
    print(f"{kills.aimed.total()} kills in {kills.attempts} attempts and {rounds} rounds: {kills}")


def check_workload(workload: Workload, expected: Published) -> None:
    """What is compared is not empty, and one pass of the fold without any log gives the same."""
    assert_same(expected, outputs_expected(workload.records), "uninterrupted run against the fold alone")
    statuses = Counter(
        result.status for batches in expected.batches.values() for batch in batches for result in batch.rollouts
    )
    assert {*statuses} >= {"emitted", "incomplete", "failed", "expired", "surplus", "group_dropped"}, statuses
    reasons = {why["reason"] for letters in expected.letters.values() for _, why, *_ in letters}
    assert reasons == {kind.reason for kind in BAD_KINDS}
    wanted = {"judged", "superseded", "late", "orphan", "reused", "stale_start", "closed_by_host", "repeated", "gap"}
    assert {*workload.counts} >= wanted, workload.counts
    assert sum(statuses.values()) > 150
    ends = [end for found in expected.ends.values() for end in found]
    assert any(trigger > own for trigger, own, _ in ends), f"no end of the run was held back: {ends}"
    assert len(ends) < workload.counts["run_ended"] * PARTITIONS, "none was held back for good"


@pytest.mark.timeout(120)
def test_assembler_killed_3_times_publishes_what_an_uninterrupted_run_does(new_url: NewUrl) -> None:
    check(new_url, 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_assembler_killed_30_times_publishes_what_an_uninterrupted_run_does(new_url: NewUrl) -> None:
    check(new_url, 30)
