"""Following batches: stored ones first, then new ones, through outages, up to the end of the run or a stop."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

import pytest
from support.memory_log import MemoryLog
from unit.consumers.test_ledger import batch_of

from rolloutlog.consumers.batches import Batch, encode_parts
from rolloutlog.consumers.following import Follower
from rolloutlog.eventstore.codec import encode_event
from rolloutlog.eventstore.errors import LogUnavailable, OffsetOutOfRange, StoreError
from rolloutlog.eventstore.events import RunEnded
from rolloutlog.eventstore.log import BATCHES, NewRecord, Record

DEADLINE_S = 10.0
NO_WAIT = (0.001, 0.002)


def batch_record(group_id: str, partition: int = 0) -> NewRecord:
    (value,) = encode_parts(batch_of(group_id, "r"))
    return NewRecord(BATCHES, partition, group_id.encode(), value)


def end_record(partition: int = 0) -> NewRecord:
    event = RunEnded(rollout_id="", attempt=0, source="publisher.00000000000000ee", sequence=0, time_ns=0, run_id="run")
    return NewRecord(BATCHES, partition, b"run/run", encode_event(event))


IsWhole = Callable[[Collection[int]], Awaitable[bool]]


class Faulty(MemoryLog):
    """Readers raise the next of `faults` before they return anything, and yield to others."""

    def __init__(self) -> None:
        super().__init__(partitions=2)
        self.faults: list[StoreError | None] = []
        self.first = 0

    async def reader(self, topic: str, offsets: Mapping[int, int]):  # type: ignore[no-untyped-def]
        reader = await super().reader(topic, offsets)
        fetch = reader.fetch

        async def faulty(*, wait_s: float, records_max: int = 2_000) -> list[Record]:
            await asyncio.sleep(0.001)
            fault = self.faults.pop(0) if self.faults else None
            if fault is not None:
                raise fault
            return await fetch(wait_s=wait_s, records_max=1)

        reader.fetch = faulty  # type: ignore[method-assign]
        return reader


class Following:
    """A follower at work. `groups`: of the batches it was handed, in order."""

    def __init__(self, log: MemoryLog, partitions: tuple[int, ...] = (0, 1), is_whole: IsWhole | None = None) -> None:
        self.groups: list[str] = []
        self.warnings: list[float] = []
        self.refused: list[int] = []
        self.stop = asyncio.Event()
        self.take: Callable[[Batch], None] = lambda batch: self.groups.append(batch.group_id)
        self.follower = Follower(
            log,
            partitions,
            is_whole=is_whole,
            on_refused=lambda record, error: self.refused.append(record.offset),
            on_unavailable=lambda error, wait_s: self.warnings.append(wait_s),
            retry_s=NO_WAIT,
        )

    async def run(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.follower.run(lambda batch: self.take(batch), self.stop)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.groups) < count:  # noqa: ASYNC110 a log in memory has no event to wait for
                await asyncio.sleep(0.001)


def test_follower_hands_out_stored_batches_by_partition_and_then_new_ones():
    async def work() -> list[str]:
        log = Faulty()
        await log.append([batch_record("b", 1), batch_record("a", 0)])
        following = Following(log)
        task = asyncio.create_task(following.run())
        await following.until(2)
        await log.append([batch_record("c", 1)])
        await following.until(3)
        following.stop.set()
        await task
        return following.groups

    assert asyncio.run(work()) == ["a", "b", "c"]


def test_follower_ends_when_the_run_has_ended_in_all_of_its_partitions():
    async def work() -> list[str]:
        log = Faulty()
        await log.append([batch_record("a"), end_record(0)])
        following = Following(log)
        task = asyncio.create_task(following.run())
        await following.until(1)
        await log.append([batch_record("b", 1), end_record(1)])
        await task
        return following.groups

    assert asyncio.run(work()) == ["a", "b"]


def test_follower_of_one_partition_ends_with_that_ones_end():
    async def work() -> None:
        log = Faulty()
        await log.append([end_record(1)])
        await Following(log, (1,)).run()

    asyncio.run(work())


@pytest.mark.parametrize("reads", range(5), ids=lambda reads: f"after_{reads}_reads")
def test_follower_of_a_log_that_does_not_answer_goes_on_where_it_was(reads: int):
    async def work() -> Following:
        log = Faulty()
        log.faults = [*[None] * reads, LogUnavailable("no answer"), LogUnavailable("no answer")]
        await log.append([batch_record("a"), batch_record("b"), batch_record("c", 1)])
        following = Following(log)
        task = asyncio.create_task(following.run())
        await following.until(3)
        await log.append([batch_record("d"), end_record(0), end_record(1)])
        await task
        return following

    following = asyncio.run(work())
    assert following.groups == ["a", "b", "c", "d"]
    assert len(following.warnings) == 2


def test_follower_that_retention_overtakes_goes_on_with_what_is_there():
    async def work() -> list[str]:
        log = Faulty()
        await log.append([batch_record("a")])
        log.faults = [None, None, OffsetOutOfRange("offset 1 is gone")]
        following = Following(log)
        task = asyncio.create_task(following.run())
        await following.until(1)
        await log.append([batch_record("b"), end_record(0), end_record(1)])
        await task
        return following.groups

    assert asyncio.run(work()) == ["a", "b"]


def test_follower_passes_over_records_that_are_no_batch():
    async def work() -> Following:
        log = Faulty()
        await log.append([NewRecord(BATCHES, 0, b"g", b"nothing"), batch_record("a"), end_record(0), end_record(1)])
        following = Following(log)
        await following.run()
        return following

    following = asyncio.run(work())
    assert (following.groups, following.refused) == (["a"], [0])


def test_follower_whose_output_fails_raises_that():
    async def work() -> None:
        log = Faulty()
        await log.append([batch_record("a")])
        following = Following(log)

        def broken(batch: Batch) -> None:
            raise BrokenPipeError

        following.take = broken
        await following.run()

    with pytest.raises(BrokenPipeError):
        asyncio.run(work())


def test_follower_of_an_output_that_is_complete_ends_with_what_is_there():
    async def work() -> list[str]:
        log = Faulty()
        await log.append([batch_record("a"), batch_record("b", 1)])

        async def whole(partitions: Collection[int]) -> bool:
            return True

        following = Following(log, is_whole=whole)
        await following.run()
        return following.groups

    assert asyncio.run(work()) == ["a", "b"]


def test_follower_of_an_output_ends_when_it_becomes_complete_and_with_no_end_of_a_run():
    """What was written before it was said to be complete is taken."""

    async def work() -> list[str]:
        log = Faulty()
        await log.append([batch_record("a"), end_record(0), end_record(1)])
        complete = asyncio.Event()
        asked: list[list[int]] = []

        async def whole(partitions: Collection[int]) -> bool:
            asked.append(sorted(partitions))
            if len(asked) == 3:
                await log.append([batch_record("b", 1)])
                complete.set()
            return complete.is_set()

        following = Following(log, is_whole=whole)
        await following.run()
        assert asked[0] == [0, 1]
        return following.groups

    assert asyncio.run(work()) == ["a", "b"]
