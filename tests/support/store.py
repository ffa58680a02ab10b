"""A log for tests that are not coroutines: they start and kill processes, and look at what is stored."""

import asyncio
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.published import Joiner
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.log import (
    BATCHES,
    DEAD_LETTERS,
    EVENTS,
    Log,
    NewRecord,
    Position,
    Record,
    Stored,
    open_log,
    parse_url,
)
from rolloutlog.eventstore.topics import create_topics

APP = "assembler"
PARTITIONS = 4
APPEND_RECORDS = 500
READ_DEADLINE_S = 30.0

T = TypeVar("T")


class Store:
    """A log with its topics, opened by the test itself. Other processes open it by `url`."""

    def __init__(self, url: str, *, partitions: int = PARTITIONS) -> None:
        self.url = url
        self.partitions = partitions
        self._runner = asyncio.Runner()
        self.log: Log = self.run(_create(url, partitions))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def append(self, records: Sequence[NewRecord]) -> list[Stored]:
        """Append in order, some hundred at a time."""
        stored: list[Stored] = []
        for start in range(0, len(records), APPEND_RECORDS):
            stored += self.run(self.log.append(records[start : start + APPEND_RECORDS]))
        return stored

    def records(self, topic: str, partitions: Sequence[int] | None = None) -> list[Record]:
        """All committed records, by partition and offset."""
        return self.run(_read(self.log, topic, range(self.partitions) if partitions is None else partitions))

    def batches(self) -> list[Batch]:
        """All batches, their parts joined, by partition and offset."""
        return batches_of(self.records(BATCHES))

    def dead_letters(self) -> list[Record]:
        return self.records(DEAD_LETTERS)

    def events(self) -> list[Record]:
        return self.records(EVENTS)

    def position(self, partition: int) -> Position | None:
        """The assembler's committed position. Becomes the owner: only when no assembler runs."""

        async def look() -> Position | None:
            owner = await self.log.own(APP, EVENTS, partition)
            try:
                return (await owner.positions()).get(partition)
            finally:
                await owner.close()

        return self.run(look())

    def commit_position(self, partition: int, position: Position) -> None:
        """Commit a position as if an assembler had."""

        async def commit() -> None:
            owner = await self.log.own(APP, EVENTS, partition)
            try:
                await owner.commit([], {partition: position})
            finally:
                await owner.close()

        self.run(commit())

    def cut(self, topic: str, partition: int, before_offset: int) -> None:
        """Remove a partition's records below an offset, as retention does."""
        self.run(cut_head(self.log, self.url, topic, partition, before_offset))

    def close(self) -> None:
        self.run(self.log.close())
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def batches_of(records: Sequence[Record]) -> list[Batch]:
    """Join the parts of batches that stand in `records` in the order of their partition, without ends of the run."""
    joiners: dict[int, Joiner] = {}
    found = [joiners.setdefault(record.partition, Joiner(_refuse)).add(record) for record in records]
    assert not any(joiner.waits for joiner in joiners.values()), "a batch without its last part"
    return [each.batch for each in found if each is not None and each.batch is not None]


def _refuse(record: Record, error: InvalidEvent) -> None:
    raise AssertionError(f"offset {record.partition}:{record.offset} of the batches") from error


async def _create(url: str, partitions: int) -> Log:
    log = await open_log(url, create=True)
    await create_topics(log, partitions=partitions, run_id="run")
    return log


async def _read(log: Log, topic: str, partitions: Sequence[int]) -> list[Record]:
    ranges = await log.ranges(topic, partitions)
    waiting = {partition: span for partition, span in ranges.items() if span.first < span.end}
    if not waiting:
        return []
    reader = await log.reader(topic, {partition: span.first for partition, span in waiting.items()})
    found: list[Record] = []
    try:
        async with asyncio.timeout(READ_DEADLINE_S):
            while any(reader.position(partition) < span.end for partition, span in waiting.items()):
                found += await reader.fetch(wait_s=0.05)
    finally:
        await reader.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


async def cut_head(log: Log, url: str, topic: str, partition: int, before_offset: int) -> None:
    """Remove a partition's records below an offset, as retention does."""
    parsed = parse_url(url)
    if parsed.scheme == "sqlite":
        from rolloutlog.eventstore.log.sqlite import SqliteLog

        assert isinstance(log, SqliteLog)
        await log.trim(topic, partition, before_offset)
        return
    from aiokafka import TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

    admin = AIOKafkaAdminClient(bootstrap_servers=list(parsed.servers))
    await admin.start()
    try:
        name = TopicPartition(f"{parsed.prefix}.{topic}", partition)
        await admin.delete_records({name: RecordsToDelete(before_offset=before_offset)})
    finally:
        await admin.close()
