"""Training on a replay's output, by processes that are killed, while the live trainer's ledger stays as it is."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.batches import assert_ledger_holds, last_words, published_ids
from support.processes import Command, assemble, wait_until
from support.store import Store, batches_of
from support.workload import whole_group

from rolloutlog.consumers.ledger import Ledger
from rolloutlog.consumers.ledger_reading import read_ledger
from rolloutlog.consumers.trainer import BatchStream
from rolloutlog.eventstore import EventPublisher
from rolloutlog.eventstore.acks import StepAwaited, read_said
from rolloutlog.eventstore.log import ACKS

from .test_trainer import Trainer

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow_on_kafka]

GROUPS = 9
TOPIC = "output.judged"
SCORER = """
import asyncio
from rolloutlog.consumers.scoring import Reward

async def judge(rollout):
    await asyncio.sleep(0.02)
    return Reward(0.25, name="reward")
"""


@pytest.fixture
def history(store: Store) -> Store:
    """Groups of two rollouts, assembled; the live trainer has acknowledged one step of two groups."""
    for index in range(GROUPS):
        store.append(whole_group(f"g{index}", partition=index % store.partitions, rollouts=2))
    command = assemble(store.url)
    assert command.finish() == 0, command.stderr
    with BatchStream.open(store.url, groups_per_step=2, max_staleness=None, missing_reward="exclude") as live:
        live.ack(live.next_step(), policy_version=7)
    return store


@pytest.fixture
def trainers(history: Store, tmp_path: Path) -> Iterator[list[Trainer]]:
    started: list[Trainer] = []
    yield started
    for each in started:
        each.kill()


def train(trainers: list[Trainer], store: Store, folder: Path, *options: str) -> Trainer:
    trainers.append(Trainer(store.url, folder / "checkpoint", "--output", "judged", *options))
    return trainers[-1]


def replay(store: Store, folder: Path, **given: object) -> Command:
    (folder / "judging.py").write_text(SCORER)
    options = ("--output", "judged", "--scorer", "judging:judge", "--no-cache")
    return Command("--log-level", "debug", "replay", "--log", store.url, *options, path=folder, **given)  # type: ignore[arg-type]


def live_ledger(store: Store) -> tuple[object, ...]:
    ledger: Ledger = store.run(read_ledger(store.log))
    assert ledger.problems() == []
    return ledger.readers, ledger.samples("trainer"), ledger.rollouts()


def assert_all_is_trained_once(store: Store, folder: Path) -> None:
    assert assert_ledger_holds(store, in_flight=0, topic=TOPIC) == {"trained": 2 * GROUPS}
    weights = json.loads((folder / "checkpoint").read_text())["weights"]
    assert sorted(weights) == sorted(last_words(store, topic=TOPIC))


def test_trainer_of_an_output_killed_before_its_acknowledgement_goes_on_and_touches_nothing_live(
    history: Store, trainers: list[Trainer], tmp_path: Path
) -> None:
    before = live_ledger(history)
    command = replay(history, tmp_path)
    assert command.finish() == 0, command.stderr
    judged = [each.total for batch in batches_of(history.records(TOPIC)) for each in batch.samples]
    assert judged == [0.25] * 2 * GROUPS
    first = train(trainers, history, tmp_path, "--stop-at", "trained:2")
    first.wait_for("stopped")
    first.kill()
    in_flight = len(published_ids(history, TOPIC)) - len(last_words(history, topic=TOPIC))
    assert_ledger_holds(history, in_flight=in_flight, topic=TOPIC)
    second = train(trainers, history, tmp_path)
    assert second.finish() == 0, second.errors
    assert set(first.handed_out(2)) <= set(second.all_handed_out())
    assert_all_is_trained_once(history, tmp_path)
    assert live_ledger(history) == before
    with EventPublisher.open(history.url) as events:
        assert events.policy_version() == 7
    with BatchStream.open(history.url, groups_per_step=2, max_staleness=None, missing_reward="exclude") as live:
        live.ack(live.next_step(), policy_version=8)
    assert assert_ledger_holds(history, in_flight=2 * GROUPS - 8) == {"trained": 8}


def test_trainer_waits_for_a_replay_that_was_killed_and_ends_once_it_is_complete(
    history: Store, trainers: list[Trainer], tmp_path: Path
) -> None:
    def kill(command: Command, partition: int, step: str) -> None:
        if step == "confirm":  # the first transaction is stored
            command.kill()

    broken = replay(history, tmp_path, on_step=kill, commit_bytes=1)
    assert broken.finish() == -9, broken.stderr
    trainer = train(trainers, history, tmp_path)
    wait_until(lambda: [each for each in said(history) if each.topic == TOPIC], "the trainer to wait")
    assert trainer.process.poll() is None
    again = replay(history, tmp_path)
    assert again.finish() == 0, again.stderr
    assert trainer.finish() == 0, trainer.errors
    assert_all_is_trained_once(history, tmp_path)


def said(store: Store) -> list[StepAwaited]:
    """That trainers wait."""
    return [each for record in store.records(ACKS, [0]) if isinstance(each := read_said(record), StepAwaited)]
