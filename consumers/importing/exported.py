"""Records of the events topic, read for an export: by partition and offset, up to the ends as of now.

Memory is that of what is fetched at once, however much there is.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from rolloutlog.eventstore.codec import HEADER, parse_header
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.log import EVENTS, Log, Record
from rolloutlog.eventstore.log.reading import read_range


class Bound(NamedTuple):
    """Where an export begins or ends in each partition: an offset, or the first record of a log time or later."""

    offset: int | None = None
    time_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """What of the records is wanted; nothing given = all. Of groups every record, of rollouts those of their own."""

    groups: frozenset[bytes] = frozenset()
    rollouts: frozenset[str] = frozenset()

    def takes(self, record: Record) -> bool:
        if not self.groups and not self.rollouts:
            return True
        if record.key in self.groups:
            return True
        if not self.rollouts:
            return False
        try:
            return parse_header(dict(record.headers).get(HEADER)).rollout_id in self.rollouts
        except InvalidEvent:
            return False


async def each_record(
    log: Log,
    partitions: Sequence[int],
    *,
    begin: Bound | None = None,
    end: Bound | None = None,
    selection: Selection | None = None,
    on_progress: Callable[[str, int, int | None], None],
) -> AsyncGenerator[Record, None]:
    """The selected records, by partition and offset. Leaving early: as `eventstore.log.reading` says."""
    selection = Selection() if selection is None else selection
    ranges = await log.ranges(EVENTS, partitions)
    firsts = await _offsets(log, begin, {p: span.first for p, span in ranges.items()})
    ends = await _offsets(log, end, {p: span.end for p, span in ranges.items()})
    spans = {p: (max(firsts[p], span.first), min(ends[p], span.end)) for p, span in ranges.items()}
    total = sum(max(0, last - first) for first, last in spans.values())
    done = 0
    for partition, (first, last) in spans.items():
        async with aclosing(read_range(log, EVENTS, partition, first, last)) as records:
            async for record in records:
                on_progress("exporting", done + record.offset - first, total)
                if selection.takes(record):
                    yield record
        done += max(0, last - first)


async def _offsets(log: Log, bound: Bound | None, otherwise: Mapping[int, int]) -> Mapping[int, int]:
    if bound is None:
        return otherwise
    if bound.offset is not None:
        return dict.fromkeys(otherwise, bound.offset)
    assert bound.time_ns is not None
    return await log.offsets_at(EVENTS, list(otherwise), bound.time_ns)
