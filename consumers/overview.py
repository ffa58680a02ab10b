"""What stands where, for people who look on: partitions, dead letters and trainers of a running log.

Reads statuses and the tails of topics, and changes nothing. Exact sums over everything: consumers.ledger.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from rolloutlog.consumers.ledger_reading import why_of
from rolloutlog.consumers.status import Status, read_statuses
from rolloutlog.eventstore.acks import PARTITION as ACKS_PARTITION
from rolloutlog.eventstore.acks import StepAcknowledged, StepAwaited, read_said
from rolloutlog.eventstore.errors import InvalidEvent, OffsetOutOfRange
from rolloutlog.eventstore.log import ACKS, BATCHES, DEAD_LETTERS, EVENTS, Log, Range
from rolloutlog.eventstore.log.reading import read_range

DEAD_LETTERS_MAX = 100_000  # read at most, the newest ones
ACKS_MAX = 2_000  # records of acknowledgements that are looked at, the newest ones
FIRST_RECORD_S = 2.0
READERS_AT_ONCE = 8

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class PartitionView:
    """One partition. `status` None: no assembler ever wrote one.

    watermark_ns  log time of the event a restart begins at; None = nothing is held, or it could not be read
    """

    partition: int
    events: Range
    status: Status | None
    watermark_ns: int | None

    @property
    def lag(self) -> int:
        """Offsets that no output can come from yet: to the end as of now."""
        read_to = self.events.first if self.status is None else self.status.position
        return max(0, self.events.end - read_to)


@dataclass
class ReaderView:
    """One trainer, by what it acknowledged.

    next_step       that it will acknowledge next
    unacknowledged  records of batches behind its position; a partition it never acknowledged counts whole
    time_ns         of its last acknowledgement
    awaits          groups that its next step lacked when it said last that it waits; None = it went on since
    """

    reader: str
    next_step: int = 0
    policy_version: int | None = None
    time_ns: int | None = None
    awaits: int | None = None
    offsets: dict[int, int] = field(default_factory=dict)
    unacknowledged: int = 0


@dataclass(frozen=True)
class Overview:
    """All of it. `dead_letters`: by reason; `dead_letters_passed`: older ones that were not looked at."""

    partitions: tuple[PartitionView, ...]
    dead_letters: Counter[str]
    dead_letters_passed: int
    readers: tuple[ReaderView, ...]


class Onlooker:
    """Looks at a log, as often as it is asked to: what was read once is not read again."""

    def __init__(self, log: Log, on_progress: OnProgress = lambda topic, done, total: None) -> None:
        self._log, self._on_progress = log, on_progress
        self._next: dict[str, dict[int, int]] = {}  # topic → partition → offset not read yet
        self._dead_letters: Counter[str] = Counter()
        self._passed = 0
        self._readers: dict[str, ReaderView] = {}
        self._watermarks: dict[tuple[int, int], int] = {}  # partition, offset → log time

    async def look(self) -> Overview:
        count = await self._log.partitions(EVENTS)
        statuses = await read_statuses(self._log, partitions=count)
        events = await self._log.ranges(EVENTS, range(count))
        await self._read_dead_letters(count)
        await self._read_acks()
        batches = await self._log.ranges(BATCHES, range(count))
        for reader in self._readers.values():
            reader.unacknowledged = sum(
                span.end - min(span.end, max(span.first, reader.offsets.get(partition, 0)))
                for partition, span in batches.items()
            )
        watermarks = await self._watermark_times(statuses, events)
        views = [PartitionView(each, events[each], statuses.get(each), watermarks.get(each)) for each in range(count)]
        readers = tuple(self._readers[name] for name in sorted(self._readers))
        return Overview(tuple(views), self._dead_letters.copy(), self._passed, readers)

    async def _read_dead_letters(self, count: int) -> None:
        spans = await self._log.ranges(DEAD_LETTERS, range(count))
        passed, starts = self._starts(DEAD_LETTERS, spans, DEAD_LETTERS_MAX)
        self._passed += passed
        total, done = sum(spans[each].end - starts[each] for each in spans), 0
        for partition, span in spans.items():
            records = read_range(self._log, DEAD_LETTERS, partition, starts[partition], span.end)
            async with aclosing(records):
                async for record in records:
                    self._dead_letters[why_of(record)["reason"]] += 1
                    done += 1
                    self._on_progress(DEAD_LETTERS, done, total)

    async def _read_acks(self) -> None:
        spans = await self._log.ranges(ACKS, [ACKS_PARTITION])
        _, starts = self._starts(ACKS, spans, ACKS_MAX)
        end = spans[ACKS_PARTITION].end
        async with aclosing(read_range(self._log, ACKS, ACKS_PARTITION, starts[ACKS_PARTITION], end)) as records:
            async for record in records:
                try:
                    said = read_said(record)
                except InvalidEvent:
                    continue  # the ledger tells of it
                if said.topic != BATCHES:
                    continue  # of an output
                view = self._readers.setdefault(said.reader, ReaderView(said.reader))
                view.next_step = said.step + 1 if isinstance(said, StepAcknowledged) else said.step
                view.awaits = said.groups if isinstance(said, StepAwaited) else None
                if not isinstance(said, StepAwaited):
                    view.policy_version, view.time_ns = said.policy_version, said.time_ns
                    view.offsets.update(said.offsets)

    def _starts(self, topic: str, spans: Mapping[int, Range], records_max: int) -> tuple[int, dict[int, int]]:
        """How many records are passed over, and where reading goes on, so that at most about `records_max` are read."""
        known = self._next.get(topic, {})
        starts = {partition: max(span.first, known.get(partition, 0)) for partition, span in spans.items()}
        passed = 0
        if sum(span.end - starts[partition] for partition, span in spans.items()) > records_max:
            share = records_max // len(spans)
            for partition, span in spans.items():
                start = max(starts[partition], span.end - share)
                passed += start - starts[partition]
                starts[partition] = start
        self._next[topic] = {partition: span.end for partition, span in spans.items()}
        return passed, starts

    async def _watermark_times(self, statuses: Mapping[int, Status], events: Mapping[int, Range]) -> dict[int, int]:
        """Log times of the events that restarts begin at, where that is below what was read."""
        held = {
            partition: status.watermark
            for partition, status in statuses.items()
            if partition in events and events[partition].first <= status.watermark < status.position
        }
        gate = asyncio.Semaphore(READERS_AT_ONCE)

        async def find(partition: int, offset: int) -> None:
            async with gate:
                time_ns = await self._log_time(partition, offset)
                if time_ns is not None:
                    self._watermarks[partition, offset] = time_ns

        await asyncio.gather(*(find(*each) for each in held.items() if each not in self._watermarks))
        self._watermarks = {each: self._watermarks[each] for each in held.items() if each in self._watermarks}
        return {partition: time_ns for (partition, _), time_ns in self._watermarks.items()}

    async def _log_time(self, partition: int, offset: int) -> int | None:
        reader = await self._log.reader(EVENTS, {partition: offset})
        try:
            records = await reader.fetch(wait_s=FIRST_RECORD_S, records_max=1)
        except OffsetOutOfRange:
            return None
        finally:
            await reader.close()
        return records[0].log_time_ns if records else None
