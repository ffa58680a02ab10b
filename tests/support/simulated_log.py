"""A log in memory that keeps what the port promises: transactions, fencing, log times, gaps in offsets, and cutting.

It asks for no real time, so that hundreds of histories with restarts can be tried in a test.
"""

import asyncio
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from rolloutlog.eventstore.errors import Fenced, LogMissing, OffsetOutOfRange
from rolloutlog.eventstore.log import (
    ACKS,
    META,
    Difference,
    NewRecord,
    Owner,
    Position,
    Range,
    Reader,
    Record,
    Stored,
    TopicSettings,
)

Place = tuple[str, int]


class SimulatedLog:
    """Appends and transactions of one process.

    clock        UTC nanoseconds; a log time never falls within a partition, as with the embedded log
    gap          offsets that a transaction leaves unused in each partition it wrote to, as Kafka's markers do
    records_max  told at each fetch, how many records it may give
    """

    url = "sqlite:///simulated.db"

    def __init__(
        self, clock: Callable[[], int], *, gap: int = 0, records_max: Callable[[], int] = lambda: 2_000
    ) -> None:
        self._clock = clock
        self._gap = gap
        self.records_max = records_max
        self._counts: dict[str, int] = {}
        self._kept: defaultdict[Place, list[Record]] = defaultdict(list)
        self._first: defaultdict[Place, int] = defaultdict(int)
        self._next: defaultdict[Place, int] = defaultdict(int)
        self._newest_ns: defaultdict[Place, int] = defaultdict(int)
        self._positions: defaultdict[tuple[str, str], dict[int, Position]] = defaultdict(dict)
        self.epochs: defaultdict[tuple[str, str, int | None], int] = defaultdict(int)

    def records(self, topic: str) -> list[Record]:
        """All that are left, by partition and offset."""
        return [record for p in range(self._counts.get(topic, 0)) for record in self._kept[topic, p]]

    def cut(self, topic: str, partition: int, first: int) -> None:
        """Remove what is below `first`, as retention does."""
        place = topic, partition
        self._first[place] = max(self._first[place], min(first, self._next[place]))
        self._kept[place] = [each for each in self._kept[place] if each.offset >= self._first[place]]

    def store(self, records: Sequence[NewRecord], *, gap: int = 0) -> list[Stored]:
        now_ns = self._clock()
        stored = []
        for record in records:
            place = record.topic, record.partition
            self._newest_ns[place] = max(self._newest_ns[place], now_ns)
            kept = Record(record.topic, record.partition, self._next[place], self._newest_ns[place], *record[2:])
            self._kept[place].append(kept)
            self._next[place] += 1
            stored.append(Stored(kept.offset, kept.log_time_ns))
        for place in {(record.topic, record.partition) for record in records}:
            self._next[place] += gap
        return stored

    def check(self, topic: str) -> None:
        if topic not in self._counts:
            raise LogMissing(f"log {self.url}: it has no topic {topic}")

    def read(self, place: Place, offset: int, count: int) -> list[Record]:
        if not self._first[place] <= offset <= self._next[place]:
            raise OffsetOutOfRange(f"reader of {place}: got {offset}, retention or a trim removed it")
        kept = self._kept[place]
        at = bisect_left(kept, offset, key=attrgetter("offset"))
        return kept[at : at + count]

    # The port

    async def create(self, topics: Iterable[TopicSettings]) -> list[str]:
        new = [each for each in topics if each.name not in self._counts]
        self._counts.update({each.name: 1 if each.name in (META, ACKS) else each.partitions for each in new})
        return [each.name for each in new]

    async def drop(self, topic: str, *, app: str) -> bool:
        raise NotImplementedError

    async def differences(self, topics: Iterable[TopicSettings]) -> list[Difference]:
        return []

    async def partitions(self, topic: str) -> int:
        self.check(topic)
        return self._counts[topic]

    async def append(self, records: Sequence[NewRecord]) -> list[Stored]:
        return self.store(records)

    async def ranges(self, topic: str, partitions: Iterable[int]) -> Mapping[int, Range]:
        self.check(topic)
        return {p: Range(self._first[topic, p], self._next[topic, p], self._next[topic, p]) for p in partitions}

    async def offsets_at(self, topic: str, partitions: Iterable[int], time_ns: int) -> Mapping[int, int]:
        self.check(topic)
        return {
            p: next((each.offset for each in self._kept[topic, p] if each.log_time_ns >= time_ns), self._next[topic, p])
            for p in partitions
        }

    async def reader(self, topic: str, offsets: Mapping[int, int]) -> Reader:
        self.check(topic)
        return SimulatedReader(self, topic, dict(offsets))

    async def own(self, app: str, topic: str, partition: int | None) -> Owner:
        self.check(topic)
        self.epochs[app, topic, partition] += 1
        return SimulatedOwner(self, (app, topic, partition), self._positions[app, topic], self._gap)

    async def close(self) -> None: ...

    def end_of(self, place: Place) -> int:
        return self._next[place]


class SimulatedReader:
    def __init__(self, log: SimulatedLog, topic: str, offsets: dict[int, int]) -> None:
        self._log = log
        self._topic = topic
        self._offsets = offsets

    async def fetch(self, *, wait_s: float, records_max: int = 2_000) -> list[Record]:
        count = min(records_max, self._log.records_max())
        found = []
        for partition, offset in self._offsets.items():
            place = self._topic, partition
            new = self._log.read(place, offset, count)
            self._offsets[partition] = new[-1].offset + 1 if new else self._log.end_of(place)
            found += new
        await asyncio.sleep(0 if found else min(wait_s, 0.001))
        return found

    def position(self, partition: int) -> int:
        return self._offsets[partition]

    async def seek(self, partition: int, offset: int) -> None:
        self._offsets[partition] = offset

    async def close(self) -> None: ...


class SimulatedOwner:
    def __init__(
        self, log: SimulatedLog, name: tuple[str, str, int | None], positions: dict[int, Position], gap: int
    ) -> None:
        self._log, self._name, self._positions, self._gap = log, name, positions, gap
        self._epoch = log.epochs[name]

    async def positions(self) -> Mapping[int, Position]:
        return dict(self._positions)

    async def commit(self, records: Sequence[NewRecord], positions: Mapping[int, Position]) -> None:
        await asyncio.sleep(0)
        if self._log.epochs[self._name] != self._epoch:
            raise Fenced(f"{self._name} has a newer owner")
        self._log.store(records, gap=self._gap)
        self._positions.update(positions)

    async def close(self) -> None: ...
