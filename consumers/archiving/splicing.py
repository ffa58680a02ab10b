"""An archive and its log, read as one: below the archive's end the archive, from there on the log.

Writing is the log's. The log may have been made anew for the archive's run, and be empty: then all is the archive's.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from rolloutlog.consumers.archiving.joints import check_joints
from rolloutlog.consumers.archiving.log import ArchiveLog, Lost
from rolloutlog.consumers.archiving.manifest import TOPICS, check_run
from rolloutlog.eventstore.errors import InvalidSettings, OffsetOutOfRange
from rolloutlog.eventstore.log import Difference, Log, NewRecord, Owner, Range, Reader, Record, Stored, TopicSettings
from rolloutlog.eventstore.meta import read_run


async def spliced(archive: ArchiveLog, log: Log) -> Log:
    """Join an archive and a log of the same run. Closing what it returns closes both.

    Raises  InvalidSettings for a log of another run, one that ends below the archive although it holds records, or one
            that has another record where the archive ends; OffsetOutOfRange when retention removed what lies between
            the archive's end and the log's beginning
    """
    run = await read_run(log)
    check_run(archive.url, run.run_id if run else "none", archive.run_id, f"log {log.url}")
    for topic in TOPICS:
        partitions = range(await archive.partitions(topic))
        kept, archived = await log.ranges(topic, partitions), await archive.ranges(topic, partitions)
        for partition in partitions:
            _check_joint(f"{topic}/{partition}", archive, archived[partition], log, kept[partition])
        await check_joints(archive.url, log, topic, await archive.lasts(topic))
    return SplicedLog(archive, log)


def _check_joint(where: str, archive: ArchiveLog, archived: Range, log: Log, kept: Range) -> None:
    if 0 < kept.end < archived.end:
        raise InvalidSettings(
            f"log {log.url}: expected {where} to end at offset {archived.end} or later, where archive {archive.url} "
            f"ends, got {kept.end}: it is not the log that was archived"
        )
    if kept.first > archived.end:
        raise OffsetOutOfRange(
            f"{where}: archive {archive.url} ends at offset {archived.end}, log {log.url} begins at {kept.first}: "
            "retention removed what lies between before it was archived. Read the archive alone, or let `rolloutlog "
            "archive` go on with --on-history-lost skip"
        )


class SplicedLog:
    """Made by `spliced`."""

    def __init__(self, archive: ArchiveLog, log: Log) -> None:
        self.url = log.url
        self.archive = archive
        self.log = log

    @property
    def lost(self) -> list[Lost]:
        """What neither has: retention had removed it before it was archived."""
        return self.archive.lost

    async def partitions(self, topic: str) -> int:
        return await self.log.partitions(topic)

    async def ranges(self, topic: str, partitions: Iterable[int]) -> Mapping[int, Range]:
        wanted = list(partitions)
        kept = await self.log.ranges(topic, wanted)
        if topic not in TOPICS:
            return kept
        archived = await self.archive.ranges(topic, wanted)
        return {p: _joined(archived[p], kept[p]) for p in wanted}

    async def offsets_at(self, topic: str, partitions: Iterable[int], time_ns: int) -> Mapping[int, int]:
        wanted = list(partitions)
        kept = await self.log.offsets_at(topic, wanted, time_ns)
        if topic not in TOPICS:
            return kept
        ranges = await self.archive.ranges(topic, wanted)
        archived = await self.archive.offsets_at(topic, wanted, time_ns)
        return {p: archived[p] if archived[p] < ranges[p].end else max(kept[p], ranges[p].end) for p in wanted}

    async def reader(self, topic: str, offsets: Mapping[int, int]) -> Reader:
        if topic not in TOPICS:
            return await self.log.reader(topic, offsets)
        ends = {p: span.end for p, span in (await self.archive.ranges(topic, offsets)).items()}
        return SplicedReader(self, topic, offsets, ends)

    async def create(self, topics: Iterable[TopicSettings]) -> list[str]:
        return await self.log.create(topics)

    async def drop(self, topic: str, *, app: str) -> bool:
        return await self.log.drop(topic, app=app)

    async def differences(self, topics: Iterable[TopicSettings]) -> list[Difference]:
        return await self.log.differences(topics)

    async def append(self, records: Sequence[NewRecord]) -> list[Stored]:
        return await self.log.append(records)

    async def own(self, app: str, topic: str, partition: int | None) -> Owner:
        return await self.log.own(app, topic, partition)

    async def close(self) -> None:
        await self.archive.close()
        await self.log.close()


class SplicedReader:
    """Reads partitions that stand below the archive's end first, then all that stand in the log."""

    def __init__(self, spliced: SplicedLog, topic: str, offsets: Mapping[int, int], ends: Mapping[int, int]) -> None:
        self._spliced = spliced
        self._topic = topic
        self._offsets = dict(offsets)
        self._ends = ends
        self._old: Reader | None = None
        self._new: Reader | None = None
        self._live: list[int] = []

    async def fetch(self, *, wait_s: float, records_max: int = 2_000) -> list[Record]:
        """See the port."""
        while old := {p: offset for p, offset in self._offsets.items() if offset < self._ends[p]}:
            if self._old is None:
                self._old = await self._spliced.archive.reader(self._topic, old)
            records = await self._old.fetch(wait_s=0, records_max=records_max)
            for partition in old:
                self._offsets[partition] = self._old.position(partition)
            if records:
                return records
        if self._new is None:
            self._new = await self._open_new()
        if self._new is None:
            await asyncio.sleep(wait_s)
            return []
        records = await self._new.fetch(wait_s=wait_s, records_max=records_max)
        for partition in self._live:
            self._offsets[partition] = self._new.position(partition)
        return records

    def position(self, partition: int) -> int:
        return self._offsets[self._known(partition)]

    async def seek(self, partition: int, offset: int) -> None:
        self._offsets[self._known(partition)] = offset
        await self._close()

    async def close(self) -> None:
        await self._close()

    async def _open_new(self) -> Reader | None:
        """Read the log, but for partitions that it does not hold: it was made anew for the archive's run."""
        kept = await self._spliced.log.ranges(self._topic, self._offsets)
        self._live = [p for p in self._offsets if kept[p].end >= self._ends[p]]
        if not self._live:
            return None
        return await self._spliced.log.reader(self._topic, {p: self._offsets[p] for p in self._live})

    async def _close(self) -> None:
        readers, self._old, self._new = (self._old, self._new), None, None
        for reader in readers:
            if reader is not None:
                await reader.close()

    def _known(self, partition: int) -> int:
        if partition not in self._offsets:
            raise InvalidSettings(
                f"reader of {self._topic}: expected one of its partitions {sorted(self._offsets)}, got {partition}"
            )
        return partition


def _joined(archived: Range, kept: Range) -> Range:
    first = archived.first if archived.first < archived.end else kept.first
    return Range(first, max(archived.end, kept.end), max(archived.end, kept.written))
