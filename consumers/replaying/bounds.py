"""Which events a replay reads: from the first event of the groups that it wants, to where the last of them closes.

Where groups begin is told by the header `o` of their published batches, without reading events. Groups that are not
published begin at the watermark of the assembler's newest status or later; where nothing is known of them, reading
begins with the partition.

Lost      an archive may lack offsets that retention had removed before they were archived. A wanted group that may have
          had events there is refused, as one whose beginning is gone
Clock     when it was set back, it is not known when a batch was published: in a range, a start of a group that closed
          before, and was published late, may open it again, where live assembly refused it
Margin    what closed shortly before is read too: a group that closed is remembered for a while, and so refuses starts
Not here  which groups are wanted: consumers.replaying.selection
"""

import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

from rolloutlog.consumers.batches import decode_part
from rolloutlog.consumers.origin import Origin, origin_of
from rolloutlog.consumers.recovery import HistoryLost
from rolloutlog.consumers.replaying.selection import Selection
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.status import Status, read_statuses
from rolloutlog.eventstore.errors import InvalidEvent, LogMissing
from rolloutlog.eventstore.log import BATCHES, EVENTS, Log, Range, Record
from rolloutlog.eventstore.log.reading import read_range
from rolloutlog.eventstore.partitioner import partition_of

MARGIN_NS = 3600 * 1_000_000_000

Within = tuple[int, int]  # offsets: from the first to below the second

logger = logging.getLogger("rolloutlog.replay")


@dataclass(frozen=True, slots=True)
class Bounds:
    """By partition of events: read `first` <= offset < `ends`.

    unfound  of ids: no batch tells of any, and an assembler has said how far it is, so that little is left to look in
    """

    first: tuple[int, ...]
    ends: tuple[int, ...]
    unfound: bool = False


async def find_bounds(
    log: Log | None, source: Log, selection: Selection, settings: FoldSettings, *, skip_lost: bool = False
) -> Bounds:
    """Bounds as of now.

    log        holds batches and statuses of the same run; None = there is none
    source     holds the events
    skip_lost  go on without events that retention removed
    Raises     HistoryLost when it removed some of a wanted group's, of those whose beginning is known; or when an
               archive has lost some between others, where those of a wanted group may have been
    """
    losses = _Losses(source, skip_lost)
    count = await source.partitions(EVENTS)
    spans = await source.ranges(EVENTS, range(count))
    ends = {partition: span.end for partition, span in spans.items()}
    if selection.to_ns is not None:
        cut = await source.offsets_at(EVENTS, range(count), selection.to_ns)
        ends = {partition: min(end, cut[partition]) for partition, end in ends.items()}
    if selection.from_ns is None and not selection.by_id:
        if any(span.first for span in spans.values()):
            logger.warning("retention has removed the beginning of the events: replay begins with what is left")
        for p, span in spans.items():
            losses.check(p, [(span.first, ends[p])])
        return _bounds(spans, {p: span.first for p, span in spans.items()}, ends, {}, skip_lost)
    published = await _Published.open(log, count)
    if selection.by_id:
        return await _by_id(published, selection, spans, ends, losses)
    first, needed = {}, {}
    before_ns = (selection.from_ns or 0) - max(MARGIN_NS, settings.late_window_ns)
    begins = await source.offsets_at(EVENTS, range(count), before_ns)
    closes = await source.offsets_at(EVENTS, range(count), selection.from_ns or 0)
    for p in range(count):
        triggers = begins[p], closes[p], ends[p]
        first[p], needed[p], wanted = await _by_time(published, selection, spans[p], before_ns, (p, *triggers))
        losses.check(p, wanted)
    return _bounds(spans, first, ends, needed, skip_lost)


def _bounds(
    spans: Mapping[int, Range],
    first: Mapping[int, int],
    ends: Mapping[int, int],
    needed: Mapping[int, int],
    skip_lost: bool,
) -> Bounds:
    for partition, offset in needed.items():
        if offset < spans[partition].first and not skip_lost:
            raise HistoryLost(
                f"partition {partition} of {EVENTS}: events {offset}-{spans[partition].first - 1} are gone, where "
                "wanted groups begin. Replay them from an archive with --archive, or go on without them with "
                "--on-history-lost skip"
            )
    order = sorted(spans)
    return Bounds(tuple(min(max(first[p], spans[p].first), ends[p]) for p in order), tuple(ends[p] for p in order))


class _Losses:
    """Events that are gone between others that are there: an archive says which."""

    def __init__(self, source: Log, skip: bool) -> None:
        lost = getattr(source, "lost", ())  # of archives alone, which need an extra
        self._lost = [(each.partition, each.first, each.end) for each in lost if each.topic == EVENTS]
        self._told: set[tuple[int, int]] = set()
        self.skip = skip

    def check(self, partition: int, wanted: Iterable[Within]) -> None:
        """Raise HistoryLost when some are lost where events of wanted groups are, or may be."""
        wanted = list(wanted)
        for where, first, end in self._lost:
            if where != partition or not any(begin < end and first < stop for begin, stop in wanted):
                continue
            lost = f"partition {partition} of {EVENTS}: events {first}-{end - 1} were lost before they were archived"
            if not self.skip:
                raise HistoryLost(
                    f"{lost}: wanted groups had events there, or may have had. Go on without them with "
                    "--on-history-lost skip"
                )
            if (partition, first) not in self._told:
                self._told.add((partition, first))
                logger.warning("%s; going on without them", lost)


class _Published:
    """What live assembly has published, and how far it is."""

    def __init__(self, log: Log | None, spans: Mapping[int, Range], statuses: Mapping[int, Status]) -> None:
        self._log, self.spans, self._statuses = log, spans, statuses

    @classmethod
    async def open(cls, log: Log | None, partitions: int) -> "_Published":
        if log is not None:
            with suppress(LogMissing):
                spans = await log.ranges(BATCHES, range(partitions))
                return cls(log, spans, await read_statuses(log, partitions=partitions))
        return cls(None, {p: Range(0, 0, 0) for p in range(partitions)}, {})

    async def first_triggered(self, partition: int, trigger: int, time_ns: int) -> int:
        """The offset of the first batch that was triggered from `trigger` on, or stored from a time on.

        By both: a clock that was set back lets batches be older than the events that triggered them.
        """
        if self._log is None:
            return 0
        first = self.spans[partition].first
        low, stride = (await self._log.offsets_at(BATCHES, [partition], time_ns))[partition], 1
        while low > first:
            start, older, found = max(first, low - stride), False, low
            async with aclosing(read_range(self._log, BATCHES, partition, start, low)) as records:
                async for record in records:
                    with suppress(InvalidEvent):
                        if origin_of(record).trigger < trigger:
                            older = True
                        else:
                            found = min(found, record.offset)
            if older:
                return found
            low, stride = start, stride * 8
        return low

    async def outputs(self, partition: int, first: int) -> AsyncGenerator[tuple[Record, Origin], None]:
        """Records of batches from an offset on, with their origins. Those of others are passed over."""
        if self._log is None:
            return
        end = self.spans[partition].end
        async with aclosing(read_range(self._log, BATCHES, partition, first, end)) as records:
            async for record in records:
                with suppress(InvalidEvent):
                    yield record, origin_of(record)

    def begin_of_rest(self, partition: int, span: Range) -> int:
        """Where groups that are not published begin at the earliest."""
        status = self._statuses.get(partition)
        return span.first if status is None else max(span.first, status.watermark)

    def known(self, partition: int) -> bool:
        """An assembler has said how far it is."""
        return partition in self._statuses

    def all_out(self, partition: int, end: int) -> bool:
        """Everything that is triggered below `end` is published."""
        status = self._statuses.get(partition)
        return status is not None and status.position >= end


async def _by_time(
    published: _Published, selection: Selection, span: Range, before_ns: int, triggers: tuple[int, int, int, int]
) -> tuple[int, int, list[Within]]:
    """Where reading begins for groups that close from a time on, and the lowest known first event of such a group.

    Last, offsets within which events of such groups are, or may be where nothing is known of them.

    before_ns  the time, less the margin
    triggers   the partition; its first offset from then on, from the time on, and from the end of what is wanted on
    """
    partition, begins, closes, end = triggers
    from_batch = await published.first_triggered(partition, begins, before_ns)
    if 0 < published.spans[partition].first >= from_batch:
        return span.first, end, [(span.first, end)]  # retention may have removed one that is wanted
    lowest = needed = end
    wanted: list[Within] = []
    passed = False
    async with aclosing(published.outputs(partition, from_batch)) as outputs:
        async for record, origin in outputs:
            if origin.trigger >= end:
                passed = True  # they are in trigger order: nothing that is wanted comes after
                break
            # Also of what closed long before, and was published late: starts of those groups were refused until then.
            lowest = min(lowest, origin.first_event)
            if origin.trigger >= closes if origin.trigger >= span.first else _closed_within(record, selection):
                needed = min(needed, origin.first_event)
                wanted.append((origin.first_event, origin.trigger + 1))
    rest = published.begin_of_rest(partition, span)
    if not passed and not published.all_out(partition, end):
        wanted.append((rest, end))
    if passed and not published.known(partition):
        return lowest, needed, wanted
    # Also where all that is wanted is out: a group that was open throughout took in, or refused, what started since.
    return min(lowest, rest), needed, wanted


async def _by_id(
    published: _Published, selection: Selection, spans: Mapping[int, Range], ends: dict[int, int], losses: _Losses
) -> Bounds:
    """From the first event of what was asked for to its closing; where some of it is not published, up to the end."""
    groups, rollouts = set(selection.groups), set(selection.rollouts)
    first, last = dict(ends), {partition: span.first for partition, span in spans.items()}
    found_groups, found_rollouts = set[str](), set[str]()
    for partition in spans:
        async with aclosing(published.outputs(partition, published.spans[partition].first)) as outputs:
            async for record, origin in outputs:
                group_id = (record.key or b"").decode(errors="replace")
                named = _rollout_ids(record) & rollouts if rollouts else set()
                if origin.trigger < ends[partition] and (named or group_id in groups):
                    found_groups.add(group_id)
                    found_rollouts |= named
                    first[partition] = min(first[partition], origin.first_event)
                    last[partition] = max(last[partition], origin.trigger + 1)
                    losses.check(partition, [(origin.first_event, origin.trigger + 1)])
    needed = dict(first)
    missing = {partition_of(each.encode(), len(spans)) for each in groups - found_groups}
    for partition in spans if rollouts - found_rollouts else missing:
        if published.spans[partition].first > 0:
            first[partition] = spans[partition].first  # retention may have removed its batch
        elif published.all_out(partition, ends[partition]):
            # What was not found is open, in another partition or nowhere. Read from its middle, it could seem to close.
            if first[partition] < last[partition]:
                first[partition] = min(first[partition], published.begin_of_rest(partition, spans[partition]))
            continue
        else:
            first[partition] = min(first[partition], published.begin_of_rest(partition, spans[partition]))
        losses.check(partition, [(first[partition], ends[partition])])
        last[partition] = ends[partition]
    bounds = _bounds(spans, first, last, needed, losses.skip)
    unfound = not found_groups and all(map(published.known, spans))
    return replace(bounds, unfound=unfound)


def _closed_within(record: Record, selection: Selection) -> bool:
    """Told by the batch itself: the event that closed the group is gone, and with it its log time."""
    try:
        return selection.wants_time(decode_part(record.value).closed_ns)
    except InvalidEvent:
        return False  # the end of the run


def _rollout_ids(record: Record) -> set[str]:
    try:
        return {each.rollout_id for each in decode_part(record.value).rollouts}
    except InvalidEvent:
        return set()  # the end of the run
