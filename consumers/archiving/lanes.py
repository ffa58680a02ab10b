"""The partitions of one topic on their way into an archive: read, put into chunks, stored.

A lane goes on where the chain of its manifest entries ends. Its chunk ends at its day's end, at `chunk_bytes`, or when
its first record is `chunk_s` old.

Not here  the process around it: consumers.archiving.archiver

Needs     the extra `archive`
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rolloutlog import __version__
from rolloutlog.consumers.archiving.chunk import Chunk, day_of
from rolloutlog.consumers.archiving.entries import Entry, encode_entry, entry_name
from rolloutlog.consumers.archiving.errors import ArchiveDamaged
from rolloutlog.consumers.archiving.joints import Last, check_joints
from rolloutlog.consumers.archiving.log import read_last
from rolloutlog.consumers.archiving.manifest import chain, gap_end, names_of, read_entries
from rolloutlog.eventstore.errors import InvalidSettings, LogUnavailable, OffsetOutOfRange
from rolloutlog.eventstore.log import Range, Reader, Record

if TYPE_CHECKING:
    from rolloutlog.consumers.archiving.archiver import Archiver

CHUNK_BYTES = 64 * 2**20  # of values
CHUNK_S = 300.0
CHUNK_S_MAX = 24 * 3600.0
FETCH_WAIT_S = 0.5
RETRY_S = 5.0
UNTIL_END_RETRIES = 5
TOUCH_S = 600.0
WAITING_BYTES_MAX = 64 * 2**20  # of a topic's records in memory, of all partitions

logger = logging.getLogger("rolloutlog.archive")


@dataclass(frozen=True, slots=True)
class ArchiverSettings:
    """How an archiver works.

    chunk_bytes      of values: a chunk ends when they are reached
    chunk_s          seconds after which a chunk ends however small it is: how old what is not archived yet can be
    on_history_lost  `fail`, or `skip` what retention removed before it was archived
    Raises           InvalidSettings naming the setting
    """

    chunk_bytes: int = CHUNK_BYTES
    chunk_s: float = CHUNK_S
    on_history_lost: str = "fail"

    def __post_init__(self) -> None:
        if self.chunk_bytes < 1:
            raise InvalidSettings(f"chunk_bytes: expected an integer from 1, got {self.chunk_bytes!r}")
        if not 0 < self.chunk_s <= CHUNK_S_MAX:
            raise InvalidSettings(f"chunk_s: expected seconds above 0 up to {CHUNK_S_MAX:g}, got {self.chunk_s!r}")
        if self.on_history_lost not in ("fail", "skip"):
            raise InvalidSettings(f"on_history_lost: expected fail or skip, got {self.on_history_lost!r}")


@dataclass(slots=True)
class Archived:
    """What an archiver stored. `lost`: entries of what retention had removed."""

    chunks: int = 0
    records: int = 0
    refused: int = 0
    lost: list[Entry] = field(default_factory=list)
    orphans_removed: int = 0


@dataclass(slots=True)
class Lane:
    """One partition.

    position   read up to here; `chained`: archived up to here; `begun`: where this run began
    gap_end    where entries go on beyond a missing one: the chunk ends there, and reading goes on after them
    held       the last entry of the chain that has records; `last`: the last of them, once it was read
    end        where reading ends, None = never
    opened_at  when the first record of the chunk came, or the position moved without one; by the monotonic clock
    """

    topic: str
    partition: int
    end: int | None
    position: int = 0
    chained: int = 0
    begun: int = 0
    gap_end: int | None = None
    held: Entry | None = None
    last: Last | None = None
    chunk: Chunk | None = None
    opened_at: float | None = None


class TopicArchiver:
    """Archives some partitions of one topic."""

    def __init__(self, archiver: "Archiver", topic: str, run_id: str, lanes: Mapping[int, Lane]) -> None:
        self.topic = topic
        self.lanes = lanes
        self._archiver = archiver
        self._settings = archiver.settings
        self._storage = archiver.storage
        self._log = archiver.log
        self._run_id = run_id
        self._touched_at = archiver.monotonic()
        self._work = archiver.work
        self._reader: Reader | None = None
        self._retries = 0
        self._overrun = False  # retention was faster
        self._moved: set[int] = set()  # partitions that are to be read from another place: their lane's position

    async def run(self) -> None:
        """The steps, until `stop` is set or the ends are reached and stored."""
        try:
            while not self._ended():
                await self._cycle()
                if self._ended():
                    await self._work(self._finish_all)  # overtaken, a lane may stand before its end again
                    await self._move()
        finally:
            await self._close()

    async def _cycle(self) -> None:
        try:
            records = await self._read()
        except LogUnavailable as error:
            self._retries += 1
            if self._ends() and self._retries > UNTIL_END_RETRIES:
                raise
            logger.warning("%s; again in %g s", error, RETRY_S)
            await self._close()
            # what was read gets old meanwhile
            await self._work(self._take, (), {p: lane.position for p, lane in self.lanes.items()})
            await self._move()
            await self._sleep(RETRY_S)
        else:
            self._retries = 0
            if self._reader is not None:
                await self._work(self._take, records, {p: self._reader.position(p) for p in self.lanes})
                await self._move()

    async def _read(self) -> Sequence[Record]:
        """The next records. None, and no reader, where retention has removed what was to be read."""
        if self._overrun:
            await self._find_all_positions()
            self._overrun = False
        try:
            if self._reader is None:
                await self._archiver.check_log()
                await self._check_joints()
                starts = {p: lane.position for p, lane in self.lanes.items()}
                self._reader = await self._log.reader(self.topic, starts)
            return await self._reader.fetch(wait_s=min(FETCH_WAIT_S, self._settings.chunk_s))
        except OffsetOutOfRange as error:
            logger.warning("%s", error)
            await self._close()
            self._overrun = True
            return ()

    async def _move(self) -> None:
        """Read on from where another archiver has got to."""
        for partition in self._moved:
            if self._reader is not None:
                await self._reader.seek(partition, self.lanes[partition].position)
        self._moved.clear()

    async def find_ends(self, spans: Mapping[int, Range]) -> None:
        """Stand where the chains of entries end. Raises InvalidSettings when that is not this log's archive."""
        for partition, lane in self.lanes.items():
            await self._work(self._follow, lane)
            if lane.chained > spans[partition].end:
                raise InvalidSettings(
                    f"log {self._log.url}: expected {self.topic}/{partition} to go on from offset {lane.chained}, "
                    f"where archive {self._storage.url} ends, got its end {spans[partition].end}: it is not the log "
                    "that was archived"
                )
        await self._check_joints()

    async def pass_lost(self, spans: Mapping[int, Range]) -> None:
        """Go on after what the log has lost."""
        for partition, lane in self.lanes.items():
            while lane.chained < spans[partition].first:
                await self._work(self._record_lost, lane, spans[partition].first)

    async def _check_joints(self) -> None:
        lasts = await self._work(self._lasts)
        await check_joints(self._storage.url, self._log, self.topic, lasts)

    async def _find_all_positions(self) -> None:
        """After retention overtook the reader: store what was read, then go on at what is left."""
        await self._work(self._finish_all)
        await self._archiver.check_log()
        spans = await self._log.ranges(self.topic, list(self.lanes))
        await self.find_ends(spans)
        await self.pass_lost(spans)

    def _ends(self) -> bool:
        return any(lane.end is not None for lane in self.lanes.values())

    def _ended(self) -> bool:
        return self._archiver.stop.is_set() or all(
            lane.end is not None and lane.position >= lane.end for lane in self.lanes.values()
        )

    # What follows waits, and is called by `work`.

    def _lasts(self) -> dict[int, Last]:
        """The last archived record by partition. What is damaged keeps nothing from being archived."""
        found = {}
        for partition, lane in self.lanes.items():
            if lane.last is None and lane.held is not None:
                try:
                    lane.last = read_last(self._storage, lane.held)
                except ArchiveDamaged as error:
                    logger.warning("%s. It cannot tell whether the log is still the one that was archived", error)
            if lane.last is not None:
                found[partition] = lane.last
        return found

    def _take(self, records: Sequence[Record], positions: Mapping[int, int]) -> None:
        """Add records to chunks and store those that are due."""
        for record in records:
            if record.partition not in self._moved:
                self._add(self.lanes[record.partition], record)
        now = self._archiver.monotonic()
        for partition, lane in self.lanes.items():
            if partition in self._moved:
                continue
            self._pass(lane, positions[partition])  # markers too
            if partition in self._moved:
                continue
            if lane.position > lane.chained and lane.opened_at is None:
                lane.opened_at = now
            if lane.opened_at is not None and now - lane.opened_at >= self._settings.chunk_s:
                self._finish(lane)
        self._bound_memory()
        self._touch(now)

    def _pass(self, lane: Lane, position: int) -> None:
        """Read up to here. At the end of a gap between entries: store what fills it, and go on after them."""
        if lane.gap_end is None or position < lane.gap_end:
            lane.position = position
            return
        lane.position = lane.gap_end
        self._finish(lane)
        if lane.partition not in self._moved:
            self._follow(lane)
            self._moved.add(lane.partition)

    def _add(self, lane: Lane, record: Record) -> None:
        self._pass(lane, record.offset)
        if lane.partition in self._moved:
            return
        day = day_of(record.log_time_ns)
        if lane.chunk is not None and lane.chunk.day != day:
            self._finish(lane)
            if lane.partition in self._moved:
                return
        if lane.chunk is None:
            # From the chain's end on: what lies between holds no record.
            lane.chunk = Chunk(self._storage, self._run_id, lane.topic, lane.partition, lane.chained, day)
            lane.opened_at = self._archiver.monotonic() if lane.opened_at is None else lane.opened_at
        lane.chunk.add(record)
        lane.position = record.offset + 1
        if lane.chunk.value_bytes >= self._settings.chunk_bytes:
            self._finish(lane)

    def _finish_all(self) -> None:
        for lane in self.lanes.values():
            self._finish(lane)

    def _finish(self, lane: Lane) -> None:
        """Store what was read of a partition: its chunk, or that there is no record."""
        if lane.position > lane.chained:
            chunk, archived = lane.chunk, self._archiver.archived
            if chunk is None:
                entry = self._store_entry(lane, lane.position)
            else:
                entry = chunk.finish(lane.position, self._archiver.clock)
            if entry is None:
                self._overtaken(lane)
            else:
                lane.chained = entry.end
                self._hold(lane, [entry])
                archived.chunks += chunk is not None
                archived.records += entry.count
                archived.refused += sum(entry.refused.values())
        lane.chunk, lane.opened_at = None, None

    def _store_entry(self, lane: Lane, end: int, lost: str | None = None) -> Entry | None:
        """An entry without files. None: there is one from that offset on."""
        entry = Entry(
            run_id=self._run_id,
            topic=lane.topic,
            partition=lane.partition,
            first=lane.chained,
            end=end,
            lost=lost,
            rolloutlog=__version__,
            written_ns=self._archiver.clock(),
        )
        return entry if self._storage.create(entry.name, encode_entry(entry)) else None

    def _overtaken(self, lane: Lane) -> None:
        logger.warning(
            "%s/%d: another archiver has stored what follows offset %d; going on after it",
            lane.topic,
            lane.partition,
            lane.chained,
        )
        first = lane.chained
        self._follow(lane, first)
        if lane.chained <= first:
            raise ArchiveDamaged(
                f"archive {self._storage.url}: {entry_name(lane.topic, lane.partition, first)}: expected a manifest "
                "entry, got what is neither that nor nothing; remove it, and what follows is archived"
            )
        self._moved.add(lane.partition)

    def _follow(self, lane: Lane, position: int = 0) -> None:
        """Stand where the chain of entries ends, which is known to reach this position."""
        start = entry_name(lane.topic, lane.partition, position)
        names = [name for name in names_of(self._storage, lane.topic, lane.partition) if name >= start]
        entries = read_entries(self._storage, names, self._run_id)
        chained = chain(entries, position)
        lane.chained = lane.position = chained[-1].end if chained else position
        self._hold(lane, chained)
        lane.gap_end = gap_end(entries, lane.chained)

    def _hold(self, lane: Lane, chained: Sequence[Entry]) -> None:
        for entry in chained:
            if entry.count:
                lane.held, lane.last = entry, None

    def _record_lost(self, lane: Lane, first: int) -> None:
        """Say of offsets below `first` that they are lost; up to the next entry where there are some beyond a gap."""
        first = first if lane.gap_end is None else min(first, lane.gap_end)
        what = f"{lane.topic}/{lane.partition}: offsets {lane.chained} to {first - 1} were removed from the log"
        if self._settings.on_history_lost == "fail":
            raise OffsetOutOfRange(
                f"archive {self._storage.url}: {what} {self._log.url} before they were archived; `--on-history-lost "
                "skip` records that they are lost and goes on"
            )
        logger.warning("%s before they were archived", what)
        entry = self._store_entry(lane, first, "removed from the log before they were archived")
        if entry is None:
            self._overtaken(lane)
        else:
            self._archiver.archived.lost.append(entry)
            self._follow(lane)

    def _bound_memory(self) -> None:
        chunks = [lane.chunk for lane in self.lanes.values() if lane.chunk is not None]
        waiting_bytes = sum(chunk.waiting_bytes for chunk in chunks)
        for chunk in sorted(chunks, key=lambda each: each.waiting_bytes, reverse=True):
            if waiting_bytes <= WAITING_BYTES_MAX:
                return
            waiting_bytes -= chunk.waiting_bytes
            chunk.flush()

    def _touch(self, now: float) -> None:
        if now - self._touched_at > TOUCH_S:
            self._touched_at = now
            for lane in self.lanes.values():
                if lane.chunk is not None:
                    lane.chunk.touch()

    async def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._archiver.stop.wait()
