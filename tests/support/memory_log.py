"""A log in memory whose answers a test decides."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from rolloutlog.eventstore.log import (
    EVENTS,
    Difference,
    NewRecord,
    Owner,
    Range,
    Reader,
    Record,
    Stored,
    TopicSettings,
)

Fault = Callable[[Sequence[NewRecord]], None]


class MemoryLog:
    """Keeps the records of every append.

    before, after  called with the records before and after they are kept; what they raise is the append's answer
    gate           appends wait while it is clear
    """

    url = "sqlite:///memory.db"

    def __init__(self, *, partitions: int = 4, log_time_ns: Callable[[], int] = lambda: 0) -> None:
        self.count = partitions
        self.records: dict[tuple[str, int], list[Record]] = {}
        self.appends: list[Sequence[NewRecord]] = []
        self.before: Fault = lambda records: None
        self.after: Fault = lambda records: None
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = False
        self._log_time_ns = log_time_ns

    async def create(self, topics: Iterable[TopicSettings]) -> list[str]:
        return [topic.name for topic in topics]

    async def drop(self, topic: str, *, app: str) -> bool:
        places = [place for place in self.records if place[0] == topic]
        for place in places:
            del self.records[place]
        return bool(places)

    async def differences(self, topics: Iterable[TopicSettings]) -> list[Difference]:
        return []

    async def partitions(self, topic: str) -> int:
        return self.count

    async def append(self, records: Sequence[NewRecord]) -> list[Stored]:
        self.appends.append(records)
        await self.gate.wait()
        self.before(records)
        stored = []
        for record in records:
            kept = self.records.setdefault((record.topic, record.partition), [])
            kept.append(Record(record.topic, record.partition, len(kept), self._log_time_ns(), *record[2:]))
            stored.append(Stored(len(kept) - 1, kept[-1].log_time_ns))
        self.after(records)
        return stored

    async def ranges(self, topic: str, partitions: Iterable[int]) -> Mapping[int, Range]:
        counts = {p: len(self.records.get((topic, p), ())) for p in partitions}
        return {p: Range(0, count, count) for p, count in counts.items()}

    async def offsets_at(self, topic: str, partitions: Iterable[int], time_ns: int) -> Mapping[int, int]:
        kept = {p: self.records.get((topic, p), []) for p in partitions}
        return {p: next((each.offset for each in found if each.log_time_ns >= time_ns), len(found))
                for p, found in kept.items()}  # fmt: skip

    async def reader(self, topic: str, offsets: Mapping[int, int]) -> Reader:
        return MemoryReader(self, topic, dict(offsets))

    async def own(self, app: str, topic: str, partition: int | None) -> Owner:
        raise NotImplementedError

    async def close(self) -> None:
        self.closed = True

    @property
    def events(self) -> list[Record]:
        """The events of all partitions, each partition in its order."""
        return [record for (topic, _), kept in sorted(self.records.items()) if topic == EVENTS for record in kept]


class MemoryReader:
    def __init__(self, log: MemoryLog, topic: str, offsets: dict[int, int]) -> None:
        self._log = log
        self._topic = topic
        self._offsets = offsets

    async def fetch(self, *, wait_s: float, records_max: int = 2_000) -> list[Record]:
        found = []
        for partition, offset in self._offsets.items():
            new = self._log.records.get((self._topic, partition), [])[offset : offset + records_max]
            self._offsets[partition] += len(new)
            found += new
        if not found:
            await asyncio.sleep(min(wait_s, 0.005))
        return found

    def position(self, partition: int) -> int:
        return self._offsets[partition]

    async def seek(self, partition: int, offset: int) -> None:
        self._offsets[partition] = offset

    async def close(self) -> None: ...
