"""Hosts that follow a trainer, and the end of the run, on every log."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from support.processes import assemble
from support.store import PARTITIONS, Store

from rolloutlog.consumers.published import Joiner
from rolloutlog.eventstore import EventPublisher, StillBehind, progress
from rolloutlog.eventstore.acks import Rewound, StepAcknowledged, ack_records
from rolloutlog.eventstore.log import BATCHES, EVENTS, NewRecord, Owner, Position, Record

OLD_S = 2.0  # how old an answer may be here; on an idle machine it is half a second


class Trainer:
    """Commits acknowledgements as a trainer does: with its positions, in one transaction."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.owner: Owner = store.run(store.log.own("trainer", BATCHES, None))
        self.step = 0

    def ends(self) -> dict[int, int]:
        ranges = self.store.run(self.store.log.ranges(BATCHES, range(PARTITIONS)))
        return {partition: span.end for partition, span in ranges.items()}

    def ack(self, version: int, offsets: dict[int, int]) -> None:
        self._commit(StepAcknowledged("trainer", self.step, version, (), (), offsets, time.time_ns()))
        self.step += 1

    def rewind(self, step: int, version: int, offsets: dict[int, int]) -> None:
        self.step = step
        self._commit(Rewound("trainer", step, offsets, version, time.time_ns()))

    def _commit(self, ack: StepAcknowledged | Rewound) -> None:
        positions = {partition: Position(offset, "") for partition, offset in ack.offsets.items()}
        self.store.run(self.owner.commit(ack_records(ack), positions))


@pytest.fixture
def trainer(store: Store) -> Iterator[Trainer]:
    made = Trainer(store)
    yield made
    store.run(made.owner.close())


def publish(store: Store, *transactions: Sequence[int]) -> None:
    """Commit batches as an assembler does: each transaction so many to each partition."""
    owner = store.run(store.log.own("assembler", EVENTS, 0))
    for counts in transactions:
        records = [
            NewRecord(BATCHES, partition, b"g", b"batch") for partition, n in enumerate(counts) for _ in range(n)
        ]
        store.run(owner.commit(records, {}))
    store.run(owner.close())


def until(met: Callable[[], bool], deadline_s: float) -> None:
    deadline = time.monotonic() + deadline_s
    while not met():
        assert time.monotonic() < deadline, "not met in time"
        time.sleep(0.01)


def test_host_sees_the_trainers_version_and_lag(store: Store, trainer: Trainer) -> None:
    with EventPublisher.open(store.url) as events:
        assert (events.policy_version(), events.lag()) == (None, 0)
        publish(store, [3, 2], [1])
        until(lambda: 6 <= events.lag() <= 2 * 6, OLD_S)  # with Kafka, the transactions' markers too
        trainer.ack(1, trainer.ends())
        until(lambda: events.policy_version() == 1, OLD_S)
        until(lambda: events.lag() == 0, OLD_S)


def test_host_opened_late_sees_the_newest_version_at_its_first_question(store: Store, trainer: Trainer) -> None:
    publish(store, [3])
    for version in range(1, 6):
        trainer.ack(version, {0: version // 2})
    with EventPublisher.open(store.url) as events:
        assert events.policy_version() == 5


def test_host_sees_a_trainer_go_back_to_a_checkpoint(store: Store, trainer: Trainer) -> None:
    publish(store, [4])
    trainer.ack(1, {0: 1})
    trainer.ack(2, trainer.ends())
    with EventPublisher.open(store.url) as events:
        assert (events.policy_version(), events.lag()) == (2, 0)
        trainer.rewind(1, 1, {0: 1})
        until(lambda: events.policy_version() == 1, OLD_S)
        until(lambda: events.lag() >= 3, OLD_S)


def test_hosts_held_back_go_on_when_the_trainer_acknowledges(store: Store, trainer: Trainer) -> None:
    publish(store, [8])
    with EventPublisher.open(store.url) as events:
        with pytest.raises(StillBehind, match="it has acknowledged nothing yet"):
            events.hold(2, 0.1)
        ended: list[int] = []
        threads = [threading.Thread(target=lambda: ended.append(events.hold(2, 30.0))) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert not ended
        trainer.ack(1, trainer.ends())
        for thread in threads:
            thread.join(30)
        assert ended == [0] * 4


def test_host_is_not_held_back_by_offsets_without_a_batch(
    store: Store, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Kafka each transaction ends with a marker, which a trainer may not have seen when it acknowledged."""
    monkeypatch.setattr(progress, "STILL_S", 0.5)
    publish(store, [5, 5])
    trainer.ack(1, {0: 5, 1: 5})
    with EventPublisher.open(store.url) as events:
        assert events.hold(0, 30.0) == 0


def test_end_of_the_run_reaches_each_partition_after_the_groups_before_it(store: Store) -> None:
    with EventPublisher.open(store.url) as events:
        for task in range(8):
            with events.rollout(f"task-{task}") as rollout:
                rollout.finish(1.0)
        held_back = events.rollout("open")
        held_back.__enter__()
        events.end_run()
    assembled = assemble(store.url)
    assert assembled.finish() == 0, assembled.stderr
    assert f"the run ended: {PARTITIONS} RunEnded read, {PARTITIONS - 1} passed on" in assembled.stderr
    found = last_outputs(store.records(BATCHES))
    ended = [partition for partition, batch in found.items() if batch is None]
    assert len(ended) == PARTITIONS - 1


def last_outputs(records: Sequence[Record]) -> dict[int, object]:
    """The last batch of each partition, None where the run ended after it."""
    joiners = {partition: Joiner() for partition in range(PARTITIONS)}
    last: dict[int, object] = {}
    for record in records:
        if (published := joiners[record.partition].add(record)) is not None:
            last[record.partition] = published.batch
    return last
