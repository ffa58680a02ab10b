"""An archive read as a log: the reading half of the port, for events, rewards and the run record.

What is read is what the manifest held when the archive was opened; an archiver may go on meanwhile. A reader takes the
blocks that it needs, each checked against the manifest before a record of it is handed out, and holds one at a time.

ranges    first = the lowest offset that is archived; end = where the chain of chunks ends. Offsets that retention had
          removed in between are a gap: `lost` names them
meta      one record: the run
Not here  the log beyond the archive: consumers.archiving.splicing
"""

import asyncio
import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NoReturn

from rolloutlog.consumers.archiving.avro_file import places, read_block
from rolloutlog.consumers.archiving.entries import Entry, Part
from rolloutlog.consumers.archiving.errors import ArchiveDamaged
from rolloutlog.consumers.archiving.joints import Last
from rolloutlog.consumers.archiving.manifest import (
    TOPICS,
    chain,
    check_partition,
    gap_end,
    missing_text,
    names_of,
    read_entries,
    require_run,
)
from rolloutlog.consumers.archiving.storage import Storage, open_storage
from rolloutlog.eventstore.codec import encode_record
from rolloutlog.eventstore.errors import InvalidSettings, LogMissing, OffsetOutOfRange, StoreError
from rolloutlog.eventstore.log import META, Difference, NewRecord, Owner, Range, Record, Stored, TopicSettings
from rolloutlog.eventstore.meta import RECORD as RUN_RECORD
from rolloutlog.eventstore.meta import Run


async def open_archive(url: str | os.PathLike[str]) -> "ArchiveLog":
    """Open an archive for reading.

    url     a folder, or what fsspec opens, such as `s3://bucket/archive`
    Raises  LogMissing where there is none; ArchiveUnavailable; ArchiveDamaged for a manifest that is not what was
            written; InvalidSettings for a newer format
    """
    return await asyncio.to_thread(_open, open_storage(url))


def _open(storage: Storage) -> "ArchiveLog":
    run = require_run(storage)
    chains, gaps = _read_chains(storage, run)
    if gaps:  # an archiver may have given two names while they were listed: the second was seen, the first not
        chains, gaps = _read_chains(storage, run)
    if gaps:
        raise ArchiveDamaged(
            f"archive {storage.url}: {gaps[0]}: put the entry back from a copy; or run `rolloutlog archive` again, "
            "which archives those offsets as long as the log has them"
        )
    return ArchiveLog(storage, run, chains)


def _read_chains(storage: Storage, run: Run) -> tuple[dict[tuple[str, int], list[Entry]], list[str]]:
    """The chain of each partition, and what is missing between entries, in words."""
    found: dict[tuple[str, int], list[Entry]] = {}
    for topic in TOPICS:
        for entry in read_entries(storage, names_of(storage, topic), run.run_id):
            found.setdefault((topic, entry.partition), []).append(entry)
    chains, gaps = {}, []
    for (topic, partition), entries in found.items():
        check_partition(storage.url, run, entries[0])
        chained = chains[topic, partition] = chain(entries)
        end = chained[-1].end if chained else 0
        if (after := gap_end(entries, end)) is not None:
            gaps.append(missing_text(topic, partition, end, after))
    return chains, gaps


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets that retention had removed before they were archived: first <= offset < end."""

    topic: str
    partition: int
    first: int
    end: int
    reason: str


class ArchiveLog:
    """An opened archive. `url` shows no secret."""

    def __init__(self, storage: Storage, run: Run, chains: Mapping[tuple[str, int], Sequence[Entry]]) -> None:
        self.url = storage.url
        self.run = run
        self._storage = storage
        self._lanes = {
            (topic, partition): Lane(chains.get((topic, partition), ()))
            for topic in TOPICS
            for partition in range(run.partitions)
        }

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def lost(self) -> list[Lost]:
        """What retention had removed before it was archived."""
        return [
            Lost(entry.topic, entry.partition, entry.first, entry.end, entry.lost)
            for lane in self._lanes.values()
            for entry in lane.entries
            if entry.lost is not None
        ]

    async def partitions(self, topic: str) -> int:
        if topic == META:
            return 1
        if topic not in TOPICS:
            raise LogMissing(f"archive {self.url}: expected topic {' or '.join((*TOPICS, META))}, got {topic}")
        return self.run.partitions

    async def ranges(self, topic: str, partitions: Iterable[int]) -> Mapping[int, Range]:
        if topic == META:
            return {p: Range(0, 1, 1) for p in partitions}
        return {p: Range(lane.first, lane.end, lane.end) for p, lane in (await self._of(topic, partitions)).items()}

    async def offsets_at(self, topic: str, partitions: Iterable[int], time_ns: int) -> Mapping[int, int]:
        if topic == META:
            return {p: int(self.run.created_ns < time_ns) for p in partitions}
        lanes = await self._of(topic, partitions)
        return {p: await asyncio.to_thread(self._offset_at, lane, time_ns) for p, lane in lanes.items()}

    async def reader(self, topic: str, offsets: Mapping[int, int]) -> "ArchiveReader":
        if topic == META:
            value = encode_record(RUN_RECORD, asdict(self.run))
            record = Record(META, 0, 0, self.run.created_ns, f"run/{self.run_id}".encode(), value, ())
            return ArchiveReader(self, topic, {0: Lane((), held=[record])}, offsets)
        return ArchiveReader(self, topic, await self._of(topic, offsets), offsets)

    async def create(self, topics: Iterable[TopicSettings]) -> list[str]:
        self._refuse("create topics")

    async def drop(self, topic: str, *, app: str) -> bool:
        self._refuse("drop topics")

    async def differences(self, topics: Iterable[TopicSettings]) -> list[Difference]:
        return []

    async def append(self, records: Sequence[NewRecord]) -> list[Stored]:
        self._refuse("append records")

    async def own(self, app: str, topic: str, partition: int | None) -> Owner:
        self._refuse("own partitions")

    async def close(self) -> None:
        await asyncio.to_thread(self._storage.close)

    def read_part(self, entry: Entry, place: int, part: Part) -> list[Record]:
        """The records of one block. Waits. Raises ArchiveDamaged naming the file."""
        return read_part(self._storage, entry, place, part)

    async def lasts(self, topic: str) -> dict[int, Last]:
        """The last archived record of each partition that has one."""

        def read() -> dict[int, Last]:
            found = {}
            for (name, partition), lane in self._lanes.items():
                entry = next((each for each in reversed(lane.entries) if each.count), None)
                if name == topic and entry is not None:
                    found[partition] = read_last(self._storage, entry)
            return found

        return await asyncio.to_thread(read)

    async def _of(self, topic: str, partitions: Iterable[int]) -> dict[int, "Lane"]:
        count = await self.partitions(topic)
        wanted = list(partitions)
        for partition in wanted:
            if not 0 <= partition < count:
                raise InvalidSettings(
                    f"archive {self.url}: topic {topic}: expected a partition from 0 to {count - 1}, got {partition}"
                )
        return {partition: self._lanes[topic, partition] for partition in wanted}

    def _offset_at(self, lane: "Lane", time_ns: int) -> int:
        index = lane.entry_at_time(time_ns)
        if index is None:
            return lane.end
        for record in self._from_time(lane, index, time_ns):
            if record.log_time_ns >= time_ns:
                return record.offset
        return lane.end

    def _from_time(self, lane: "Lane", index: int, time_ns: int) -> Iterable[Record]:
        """Records from the last block on that begins below the time."""
        for each, entry in enumerate(lane.entries[index:], index):
            parts = [(place, part) for place, part in places(entry.parts) if part.count]
            start = max(0, bisect_left([part.log_time_ns for _, part in parts], time_ns) - 1) if each == index else 0
            for place, part in parts[start:]:
                for record in self.read_part(entry, place, part):
                    if record.offset >= lane.begins[each]:
                        yield record

    def _refuse(self, what: str) -> NoReturn:
        raise StoreError(f"archive {self.url}: an archive is only read; it cannot {what}: give a log for that")


def read_part(storage: Storage, entry: Entry, place: int, part: Part) -> list[Record]:
    """The records of one block. Waits. Raises ArchiveDamaged naming the file."""
    assert entry.avro is not None, "entries with parts have a file"
    data = storage.read_part(entry.avro.name, place, part.size_bytes)
    try:
        return read_block(data, part, entry.topic, entry.partition)
    except ArchiveDamaged as error:
        raise ArchiveDamaged(
            f"archive {storage.url}: {entry.avro.name}: {error}; put that file back from a copy: `rolloutlog archive "
            "verify` names every fault"
        ) from error


def read_last(storage: Storage, entry: Entry) -> Last:
    """The last record of an entry that has some. Waits. Raises ArchiveDamaged, ArchiveUnavailable."""
    place, part = [(place, part) for place, part in places(entry.parts) if part.count][-1]
    return Last.of(read_part(storage, entry, place, part)[-1])


class Lane:
    """The chunks of one partition, in order.

    begins   from which offset each entry is read: where those before it end
    held     records that are in no file
    """

    def __init__(self, entries: Sequence[Entry], *, held: Sequence[Record] = ()) -> None:
        self.entries = entries
        self.held = held
        self.begins = [entry.first for entry in entries]
        for index in range(1, len(entries)):
            self.begins[index] = entries[index - 1].end
        self.end = entries[-1].end if entries else len(held)
        kept = [entry for entry in entries if entry.lost is None]
        self.first = self.end if entries and not kept else kept[0].first if kept else 0
        times: list[int] = []
        for entry in entries:
            times.append(max(entry.last_log_time_ns or 0, times[-1] if times else 0))
        self._times = times

    def entry_at(self, offset: int) -> int | None:
        """Index of the entry that offset falls into; None at the end."""
        index = bisect_right(self.begins, offset) - 1
        return index if index >= 0 and offset < self.end and self.entries else None

    def entry_at_time(self, time_ns: int) -> int | None:
        """Index of the first entry with a record of that log time or later."""
        index = bisect_left(self._times, time_ns)
        return index if index < len(self.entries) else None


class ArchiveReader:
    """Reads some partitions of an archived topic. A partition's block is handed out before another's is read."""

    def __init__(self, archive: ArchiveLog, topic: str, lanes: Mapping[int, Lane], offsets: Mapping[int, int]) -> None:
        self._archive = archive
        self._topic = topic
        self._lanes = lanes
        self._offsets = dict(offsets)
        self._order = deque(self._offsets)
        self._ready: deque[Record] = deque()  # of the first partition in order, from its position on
        self._after = 0  # where that partition's position is when all of them are handed out
        self._closed = False

    async def fetch(self, *, wait_s: float, records_max: int = 2_000) -> list[Record]:
        if self._closed:
            raise StoreError(f"reader of {self._topic}: it is closed")
        for _ in range(len(self._order)):
            if not self._ready:
                partition = self._order[0]
                lane, offset = self._lanes[partition], self._offsets[partition]
                found, after = await asyncio.to_thread(self._next, partition, lane, offset)
                self._ready, self._after = deque(found), after
            if self._ready:
                return self._hand_out(records_max)
            self._offsets[self._order[0]] = self._after
            self._order.rotate(-1)
        await asyncio.sleep(wait_s)
        return []

    def position(self, partition: int) -> int:
        self._check(partition)
        return self._offsets[partition]

    async def seek(self, partition: int, offset: int) -> None:
        self._check(partition)
        self._offsets[partition] = offset
        if self._order[0] == partition:
            self._ready.clear()

    async def close(self) -> None:
        self._closed = True
        self._ready.clear()

    def _hand_out(self, records_max: int) -> list[Record]:
        records = [self._ready.popleft() for _ in range(min(records_max, len(self._ready)))]
        self._offsets[self._order[0]] = records[-1].offset + 1 if self._ready else self._after
        if not self._ready:
            self._order.rotate(-1)
        return records

    def _next(self, partition: int, lane: Lane, offset: int) -> tuple[list[Record], int]:
        """The next block's records from `offset` on, and the offset after them; none at the end. Waits."""
        if not lane.first <= offset <= lane.end:
            raise OffsetOutOfRange(
                f"archive {self._archive.url}: reader of {self._topic}/{partition}: expected an offset from "
                f"{lane.first} to {lane.end}, got {offset}"
            )
        if lane.held:
            return list(lane.held[offset:]), lane.end
        index = lane.entry_at(offset)
        if index is None:
            return [], offset
        for each in range(index, len(lane.entries)):
            entry = lane.entries[each]
            parts = [(place, part) for place, part in places(entry.parts) if part.count]
            start = max(0, bisect_right([part.first for _, part in parts], offset) - 1)
            for number, (place, part) in enumerate(parts[start:], start):
                found = [record for record in self._archive.read_part(entry, place, part) if record.offset >= offset]
                if found:
                    return found, entry.end if number == len(parts) - 1 else found[-1].offset + 1
            offset = max(offset, entry.end)
        return [], lane.end

    def _check(self, partition: int) -> None:
        if partition not in self._offsets:
            raise InvalidSettings(
                f"reader of {self._topic}: expected one of its partitions {sorted(self._offsets)}, got {partition}"
            )
