"""The archiver: a log's events, rewards and run go into an archive, each record once.

It has no position of its own: it goes on where the manifest ends. The log does not change and an entry is given its
name once, so an archiver that is killed, or a second one, neither doubles nor loses a record.

Steps of each topic, for ever:
1. receive   fetch records
2. chunk     add them; a chunk ends at its day's end, at `chunk_bytes`, or when its first record is `chunk_s` old
3. store     both files, then the manifest entry

Stopped, or at the ends that `until_end` saw, it stores what it has and returns.

Errors    StoreError. What the log had removed before it was archived: OffsetOutOfRange, or with `skip` an entry that
          says so
Needs     the extra `archive`
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from re import compile as regex
from typing import Any, TypeVar

from rolloutlog import __version__
from rolloutlog.consumers.archiving.entries import Entry
from rolloutlog.consumers.archiving.lanes import Archived, ArchiverSettings, Lane, TopicArchiver
from rolloutlog.consumers.archiving.manifest import (
    RUN_FILE,
    TOPICS,
    check_run,
    covers,
    encode_run,
    names_of,
    read_archived_run,
    read_entries,
)
from rolloutlog.consumers.archiving.storage import PART_SUFFIX, PARTS, Storage, old
from rolloutlog.eventstore.errors import LogMissing
from rolloutlog.eventstore.log import EVENTS, Log, Range
from rolloutlog.eventstore.meta import Run, read_run
from rolloutlog.eventstore.topics import check_partitions

ORPHAN_S = 3600.0  # a file without an entry, unchanged for so long, belongs to no running archiver

_PART = regex(rf"{PARTS}/[0-9a-f]{{16}}{PART_SUFFIX}")
_CHUNK = regex(r"(?:events|rewards)/day=[0-9-]+/(\d{1,19})-(\d{1,19})-(\d{1,19})-[0-9a-f]{8}\.(?:avro|parquet)")

Result = TypeVar("Result")


class Archiver:
    """Archives a log until `stop` is set.

    clock, monotonic   UTC nanoseconds; seconds
    """

    def __init__(
        self,
        log: Log,
        storage: Storage,
        settings: ArchiverSettings | None = None,
        *,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.log = log
        self.storage = storage
        self.settings = settings or ArchiverSettings()
        self.clock = clock
        self.monotonic = monotonic
        self.stop = asyncio.Event()
        self.archived = Archived()
        self.lanes: list[Lane] = []
        self.run_id = ""
        # One thread: what counts is changed by it alone, and a cancelled step has ended before its files are removed.
        self._thread = ThreadPoolExecutor(1, "archive")

    async def work(self, step: Callable[..., Result], *arguments: Any) -> Result:
        """Carry out a step that waits."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, step, *arguments)

    def progress(self) -> tuple[int, int | None]:
        """Offsets read, and up to which end; None = without an end."""
        done = sum(lane.position - lane.begun for lane in self.lanes)
        ends = [lane.end for lane in self.lanes]
        if None in ends:
            return done, None
        return done, sum(max(lane.begun, lane.end or 0) - lane.begun for lane in self.lanes)

    async def run(self, partitions: Sequence[int], *, until_end: bool = False) -> Archived:
        """Archive these partitions of all topics. With `until_end`: to the ends seen now."""
        run = await self._open()
        spans = {topic: await self._ranges(topic, partitions) for topic in TOPICS}
        topics = [self._topic(topic, spans[topic], run, until_end) for topic in TOPICS]
        for topic in topics:  # all of them, before anything is written
            await topic.find_ends(spans[topic.topic])
        for topic in topics:
            await topic.pass_lost(spans[topic.topic])
        for lane in self.lanes:
            lane.begun = lane.position
        working = [asyncio.create_task(topic.run()) for topic in topics if topic.lanes]
        try:
            await asyncio.gather(*working)
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            await asyncio.to_thread(self._thread.shutdown)
            for lane in self.lanes:
                if lane.chunk is not None:
                    lane.chunk.discard()
        return self.archived

    async def _open(self) -> Run:
        """Make the archive where it is missing, check that it is of this log's run, remove old leftovers."""
        run = await self._run()
        await self.work(self._make, run)
        self.run_id = run.run_id
        self.archived.orphans_removed = await self.work(remove_orphans, self.storage, run.run_id)
        return run

    async def check_log(self) -> None:
        """Is the log still that of the archive's run? One made anew goes on at offsets of its own."""
        check_run(self.storage.url, (await self._run()).run_id, self.run_id, f"log {self.log.url}")

    async def _run(self) -> Run:
        run = await read_run(self.log)
        if run is None:
            raise LogMissing(f"log {self.log.url}: its topics hold no run; create it with `rolloutlog topics create`")
        check_partitions(run, await self.log.partitions(EVENTS), self.log.url)
        return run

    def _make(self, run: Run) -> None:
        found = read_archived_run(self.storage)
        if found is None:
            self.storage.make()
            self.storage.create(RUN_FILE, encode_run(run, rolloutlog=__version__))
            found = read_archived_run(self.storage)
        check_run(self.storage.url, run.run_id, found.run_id if found else "none", f"log {self.log.url}")

    async def _ranges(self, topic: str, partitions: Sequence[int]) -> Mapping[int, Range]:
        try:
            return await self.log.ranges(topic, partitions)
        except LogMissing:
            return {}

    def _topic(self, topic: str, spans: Mapping[int, Range], run: Run, until_end: bool) -> TopicArchiver:
        lanes = [Lane(topic, partition, span.end if until_end else None) for partition, span in spans.items()]
        self.lanes += lanes
        return TopicArchiver(self, topic, run.run_id, {lane.partition: lane for lane in lanes})


def orphans(storage: Storage, run_id: str) -> list[str]:
    """Files of archivers that were killed: of the names that they give, named by no entry, unchanged for so long that
    no running archiver writes them, and with offsets that entries hold. What nothing else holds is left, even when a
    part of the manifest is gone; so is whatever else somebody keeps here.
    """
    found = [each.name for each in old(storage.find(PARTS), ORPHAN_S) if _PART.fullmatch(each.name)]
    for topic in TOPICS:
        # looked for first: a file whose entry comes in between is then young, or named
        files = old(storage.find(topic), ORPHAN_S)
        entries = read_entries(storage, names_of(storage, topic), run_id)
        named = {file.name for entry in entries for file in (entry.avro, entry.parquet) if file is not None}
        held: dict[int, list[Entry]] = {}
        for entry in entries:
            if entry.lost is None:
                held.setdefault(entry.partition, []).append(entry)
        for each in files:
            match = _CHUNK.fullmatch(each.name)
            if match is not None and each.name not in named:
                partition, first, end = map(int, match.groups())
                if covers(held.get(partition, ()), first, end):
                    found.append(each.name)
    return found


def remove_orphans(storage: Storage, run_id: str) -> int:
    """Remove what archivers that were killed left behind. Returns how many files."""
    names = orphans(storage, run_id)
    for name in names:
        storage.remove(name)
    return len(names)
