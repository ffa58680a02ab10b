"""Finds one rollout in a log: how it ended, from its batch, and what was recorded of it, from its events.

A rollout that is in no batch is looked for in the events, whose group is folded to tell what it waits for, or why its
start opened nothing.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from rolloutlog.consumers.attribution import Entry
from rolloutlog.consumers.batches import Batch, RolloutResult
from rolloutlog.consumers.closing import entries_of
from rolloutlog.consumers.explaining.refolding import Refold
from rolloutlog.consumers.explaining.wanted import CUT_CHARACTERS_MIN, RolloutUnknown, Wanted
from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.outputs import BatchReady, DeadLetter
from rolloutlog.consumers.published import Published, read_published
from rolloutlog.consumers.samples import Sample
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState, Rollout
from rolloutlog.consumers.waiting import describe_open, describe_rollout
from rolloutlog.eventstore.checks import check_event
from rolloutlog.eventstore.codec import HEADER, Header, decode_event, parse_header
from rolloutlog.eventstore.errors import InvalidEvent, LogMissing, OffsetOutOfRange
from rolloutlog.eventstore.events import Event, RolloutStarted
from rolloutlog.eventstore.log import BATCHES, EVENTS, Log, Record
from rolloutlog.eventstore.log.reading import read_range

PUBLISHED, OPEN, CLOSED, UNPUBLISHED, SURPLUS, REFUSED, UNSTARTED = (
    "published", "open", "closed", "unpublished", "surplus", "refused", "unstarted")  # fmt: skip

_REFUSED = {
    "group_reused": "its group was closed before it started",
    "stale_resend": "its start was sent again so late that it may have been published before",
    "late": "it was closed before this attempt started",
}
_NO_ASSEMBLER = "no assembler has published it so far"
_NO_BATCHES = "its batch is not archived, and comes again with `rolloutlog replay --archive`"

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event, decoded, and its offset."""

    offset: int
    event: Event


@dataclass(frozen=True, slots=True)
class Found:
    """One rollout, with the events of the attempt that counts, in log order.

    state      PUBLISHED in a batch; OPEN, waiting for events; CLOSED, waiting for its group; UNPUBLISHED, its group is
               whole, but no assembler has come so far; SURPLUS of an open group; REFUSED, its start opened nothing;
               UNSTARTED, its start is not in the log
    words      what it waits for or why it is refused, in words; empty when it is published
    published  where its batch stands, without samples; None where there is none
    result     how it ended, as the batch says
    unread     offset and reason of its events that cannot be read
    cut        retention has removed its events, or some of them
    archived   its events are those of an archive
    entries    what attribution is given of it, so far; None where its events are gone or its start opened nothing
    """

    rollout_id: str
    group_id: str
    attempt: int
    partition: int
    state: str
    words: tuple[str, ...]
    first_event: int
    events: tuple[Recorded, ...]
    unread: tuple[tuple[int, str], ...]
    cut: bool = False
    archived: bool = False
    published: Published | None = None
    result: RolloutResult | None = None
    samples: tuple[Sample, ...] = ()
    entries: tuple[Entry, ...] | None = None

    @property
    def batch(self) -> Batch | None:
        return None if self.published is None else self.published.batch

    @property
    def started(self) -> RolloutStarted | None:
        """The start of the attempt that counts."""
        return next((each.event for each in self.events if isinstance(each.event, RolloutStarted)), None)


async def find_rollout(
    log: Log,
    rollout_id: str,
    *,
    topic: str = BATCHES,
    settings: FoldSettings | None = None,
    on_progress: OnProgress = lambda topic, done, total: None,
) -> Found:
    """Find a rollout by its id, or by the first or last CUT_CHARACTERS_MIN or more characters of it.

    An id goes before ids that begin with the text, those before ids that end with it.

    topic     of its batch; of an output, events are not looked through where it has none
    settings  those of the assembler, for what is not published yet
    Raises    RolloutUnknown
    """
    wanted = Wanted(rollout_id)
    batches = await _has_batches(log, topic)
    if batches:
        await _in_batches(log, topic, wanted, on_progress)
    # Of what is not published, an id may be this one or begin with it, and then goes before published endings.
    if not wanted.begins and topic == BATCHES:
        await _in_events(log, wanted, on_progress)
    found = wanted.only()
    if found is not None:
        name, place = found
        if isinstance(place, Published):
            return await _with_events(log, name, place, settings or FoldSettings())
        open_ = await _unpublished(log, name, *place, settings or FoldSettings())
        words = open_.words if batches else (each.replace(_NO_ASSEMBLER, _NO_BATCHES) for each in open_.words)
        return replace(open_, words=tuple(words), archived=_is_archive(log))
    starts = f" or of {wanted.started_count} starts in the events" if topic == BATCHES else ""
    among = f"published rollouts{starts}" if topic == BATCHES else f"rollouts of {topic}"
    raise RolloutUnknown(
        f"rollout {rollout_id}: expected one of {wanted.published_count} {among}, got none; an id may be cut to its "
        f"first or last {CUT_CHARACTERS_MIN} characters or more"
    )


async def _has_batches(log: Log, topic: str) -> bool:
    """An archive has none of its own."""
    if topic == BATCHES and _is_archive(log):
        try:
            await log.partitions(BATCHES)
        except LogMissing:
            return False
    return True


def _is_archive(log: Log) -> bool:
    return hasattr(log, "lost")


def _lost_within(log: Log, partition: int, first: int, end: int) -> bool:
    """Whether some of these events were gone before they were archived."""
    lost = getattr(log, "lost", ())  # of archives alone, which need an extra
    return any(
        each.topic == EVENTS and each.partition == partition and each.first < end and first < each.end for each in lost
    )


async def _in_batches(log: Log, topic: str, wanted: Wanted, on_progress: OnProgress) -> None:
    partitions = range(await log.partitions(topic))
    spans = await log.ranges(topic, partitions)
    total, done = sum(span.end - span.first for span in spans.values()), 0
    for partition, span in spans.items():
        async with aclosing(read_published(log, partition, topic=topic)) as found:
            async for published in found:
                batch = published.batch
                for result in batch.rollouts if batch is not None else ():
                    wanted.published_count += 1
                    wanted.take(result.rollout_id, published)
                    if wanted.exact:
                        return
                on_progress(BATCHES, min(total, done + published.end - span.first), total)
        done += span.end - span.first


async def _in_events(log: Log, wanted: Wanted, on_progress: OnProgress) -> None:
    spans = await log.ranges(EVENTS, range(await log.partitions(EVENTS)))
    total, done = sum(span.end - span.first for span in spans.values()), 0
    for partition, span in spans.items():
        async with aclosing(read_range(log, EVENTS, partition, span.first, span.end)) as records:
            async for record in records:
                value = _header_value(record)
                wanted.started_count += value.startswith(b"RolloutStarted/")
                if wanted.needle in value and (header := _header(record)) is not None:
                    wanted.take(header.rollout_id, (partition, record.key or b""))
                    if wanted.exact:
                        return
                on_progress(EVENTS, done + record.offset + 1 - span.first, total)
        done += span.end - span.first


async def _with_events(log: Log, rollout_id: str, published: Published, settings: FoldSettings) -> Found:
    batch = published.batch
    assert batch is not None
    index, result = next((index, each) for index, each in enumerate(batch.rollouts) if each.rollout_id == rollout_id)
    key = batch.group_id.encode()
    reading = _Events(rollout_id, key)
    again = _Again(batch.input_partition, settings, batch.group_id, rollout_id)
    cut = _lost_within(log, batch.input_partition, result.first_event, result.closing_event + 1)
    try:
        records = read_range(log, EVENTS, batch.input_partition, result.first_event, result.closing_event + 1)
        async with aclosing(records):
            async for record in records:
                if record.key == key:
                    reading.add(record)
                    again.add(record)
    except OffsetOutOfRange:
        cut = True
    return Found(
        rollout_id=rollout_id,
        group_id=batch.group_id,
        attempt=result.attempt,
        partition=batch.input_partition,
        state=PUBLISHED,
        words=(),
        first_event=result.first_event,
        events=reading.of_attempt(result.attempt),
        unread=tuple(reading.unread),
        cut=cut,
        archived=_is_archive(log),
        published=replace(published, batch=replace(batch, samples=())),
        result=result,
        samples=tuple(sample for sample in batch.samples if sample.rollout_index == index),
        entries=None if cut else again.entries(result.attempt),
    )


async def _unpublished(log: Log, rollout_id: str, partition: int, key: bytes, settings: FoldSettings) -> Found:
    """Fold the rollout's group alone: groups do not depend on each other."""
    group_id = key.decode(errors="replace")
    state = PartitionState(partition, settings)
    reading = _Events(rollout_id, key)
    again = _Again(partition, settings, group_id, rollout_id)
    refused: dict[str, None] = {}
    ready: int | None = None
    async with aclosing(_group_records(log, partition, key)) as records:
        async for record in records:
            before = Counter(state.counts)
            outputs = fold(state, record)
            again.add(record)
            header = reading.add(record)
            if header is not None and header.kind == RolloutStarted.record:
                refused.update(dict.fromkeys(_REFUSED[name] for name in state.counts - before if name in _REFUSED))
                letters = (each for each in outputs if isinstance(each, DeadLetter))
                refused.update({f"its start cannot be read: {letter.detail}": None for letter in letters})
            for output in outputs:
                if isinstance(output, BatchReady) and rollout_id in (each.rollout_id for each in output.batch.rollouts):
                    ready = output.trigger
    group = state.groups.get(group_id)
    rollout = None if group is None else group.rollouts.get(rollout_id)
    surplus = group is not None and rollout_id in group.surplus
    found_state, words = _state(state, rollout, surplus, ready, tuple(refused))
    attempt = reading.newest_attempt if rollout is None else rollout.attempt.number
    return Found(
        rollout_id=rollout_id,
        group_id=group_id,
        attempt=attempt,
        partition=partition,
        state=found_state,
        words=words,
        first_event=reading.first_offset,
        events=reading.of_attempt(attempt),
        unread=tuple(reading.unread),
        entries=again.entries(attempt),
    )


def _state(
    state: PartitionState, rollout: Rollout | None, surplus: bool, ready: int | None, refused: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    if ready is not None:
        return UNPUBLISHED, (f"its group is closed since offset {ready}; {_NO_ASSEMBLER}",)
    if rollout is not None and rollout.closed is None:
        return OPEN, (describe_rollout(rollout),)
    if rollout is not None and rollout.closed is not None:
        return CLOSED, (f"closed as {rollout.closed.status}; waits for its {describe_open(state, groups_max=1)[0]}",)
    if surplus:
        return SURPLUS, (f"beyond its group's size; waits for its {describe_open(state, groups_max=1)[0]}",)
    if refused:
        return REFUSED, refused
    return UNSTARTED, ("its start is not in the log: it was never stored, or retention has removed it",)


async def _group_records(log: Log, partition: int, key: bytes) -> AsyncGenerator[Record, None]:
    span = (await log.ranges(EVENTS, [partition]))[partition]
    async with aclosing(read_range(log, EVENTS, partition, span.first, span.end)) as records:
        async for record in records:
            if record.key == key:
                yield record


class _Again:
    """The events of one rollout that count, from those of its group, folded again."""

    def __init__(self, partition: int, settings: FoldSettings, group_id: str, rollout_id: str) -> None:
        self._partition, self._group_id, self._rollout_id = partition, group_id, rollout_id
        self._refold = Refold(partition, settings)
        self._closed: Rollout | None = None

    def add(self, record: Record) -> None:
        for rollout in self._refold.add(record).rollouts:
            if rollout.rollout_id == self._rollout_id and self._closed is None:
                self._closed = rollout

    def entries(self, attempt: int) -> tuple[Entry, ...] | None:
        """What attribution is given of that attempt; None when it is not the one that counts."""
        rollout = self._closed or self._refold.find(self._group_id, self._rollout_id)
        if rollout is None or rollout.attempt.number != attempt:
            return None
        return tuple(entries_of(rollout, self._partition))


class _Events:
    """The events of one rollout, each once, decoded."""

    def __init__(self, rollout_id: str, key: bytes) -> None:
        self._rollout_id, self._key = rollout_id, key
        self._seen: set[tuple[int, str, int]] = set()
        self._events: list[Recorded] = []
        self.unread: list[tuple[int, str]] = []
        self.first_offset = 0

    def add(self, record: Record) -> Header | None:
        """The header, when the event is the rollout's."""
        header = _header(record) if record.key == self._key else None
        if header is None or header.rollout_id != self._rollout_id:
            return None
        if not self._seen:
            self.first_offset = record.offset
        identity = (header.attempt, header.source, header.sequence)
        if identity not in self._seen:
            self._seen.add(identity)
            try:
                event = decode_event(header.kind, record.value)
                check_event(event)
                self._events.append(Recorded(record.offset, event))
            except InvalidEvent as error:
                self.unread.append((record.offset, str(error)))
        return header

    @property
    def newest_attempt(self) -> int:
        return max((attempt for attempt, _, _ in self._seen), default=0)

    def of_attempt(self, attempt: int) -> tuple[Recorded, ...]:
        return tuple(each for each in self._events if each.event.attempt == attempt)


def _header(record: Record) -> Header | None:
    try:
        return parse_header(_header_value(record))
    except InvalidEvent:
        return None


def _header_value(record: Record) -> bytes:
    return next((value or b"" for name, value in record.headers if name == HEADER), b"")
