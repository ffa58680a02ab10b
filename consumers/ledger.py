"""The ledger: where every started rollout and every published sample has gone, from topics alone.

Rollouts   started = emitted + failed + expired + incomplete + group_dropped + surplus + refused + open
Samples    published = trained + stale + filtered + rejected + in flight, for each reader

A start is refused, and apart from the rest, when it opened nothing: its group was closed, it came again too late, or it
could not be read. `Ledger` is pure: it is given what stands in the topics, and says what does not hold. Nothing a
process counts goes in. Memory grows with rollouts and samples: ids are kept, some 600 bytes a rollout and 300 a
sample.

Not here   reading the topics: consumers.ledger_reading
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rolloutlog.consumers.published import Published
from rolloutlog.eventstore.acks import Ack, Rewound, SampleEnd

ENDS = ("emitted", "failed", "expired", "incomplete", "group_dropped", "surplus")
NAMED = 3  # ids a problem names


class Cut(NamedTuple):
    """What was there of a partition when it was read.

    first, end     of the events
    batches_first  of the batches: above 0 = retention removed some
    """

    first: int
    end: int
    batches_first: int = 0


@dataclass(frozen=True)
class Rollouts:
    """Where started rollouts have gone.

    started     rollouts whose start is in the log
    ends        by final state
    refused     starts that opened nothing, by name
    missing     not among the rollouts of their published group: none should be
    cut         ended, but retention removed what says how
    superseded  attempts that a later one of the same rollout took the place of
    """

    started: int
    ends: Counter[str]
    refused: Counter[str]
    open: int
    missing: int
    cut: int
    superseded: int


@dataclass(frozen=True)
class Samples:
    """Where published samples have gone for one reader.

    skipped  before the place where it began, with the checkpoint of another reader
    cut      ends of samples whose batch retention removed
    """

    published: int
    ends: Counter[str]
    skipped: int
    in_flight: int
    cut: int


@dataclass(slots=True)
class _Start:
    partition: int
    offset: int
    attempt: int


@dataclass(slots=True)
class _Line:
    """Steps that were acknowledged one after the other, since the reader began or loaded a checkpoint.

    parent   the line on which the checkpoint was saved
    begin    its step: of the parent's, those below count
    ends     of samples by record, in log order
    skipped  by partition: offsets from and to which the reader was moved on without reading
    """

    parent: "_Line | None" = None
    begin: int = 0
    ends: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    skipped: dict[int, tuple[int, int]] = field(default_factory=dict)


class _Reader:
    """What one reader acknowledged. A checkpoint may bring back a line that it had left: none is forgotten."""

    def __init__(self) -> None:
        self.line = _Line()
        self.offsets: dict[int, int] = {}
        self._lines = {0: self.line}  # by name

    def rewind(self, ack: Rewound) -> None:
        known = None if ack.line is None else self._lines.get(ack.line)
        parent = known or self.line
        line = _Line(parent, ack.step, skipped=dict(parent.skipped))
        for partition, offset in ack.offsets.items():
            reached = self.offsets.get(partition, 0)
            first, end = parent.skipped.get(partition, (reached, 0))
            # A checkpoint of another reader leads to where this one has not been.
            end = offset if known is None and offset > reached else min(end, offset)
            line.skipped[partition] = (first, end)
        self.line = self._lines[ack.time_ns] = line

    def has_skipped(self, partition: int, end: int) -> bool:
        first, skipped_end = self.line.skipped.get(partition, (0, 0))
        return first < end <= skipped_end

    def last_words(self) -> dict[str, str]:
        lines: list[tuple[_Line, float]] = []
        line: _Line | None = self.line
        below = float("inf")
        while line is not None:
            lines.append((line, below))
            below, line = min(below, line.begin), line.parent
        words: dict[str, str] = {}
        for line, below in reversed(lines):
            for step, ends in line.ends:
                if step < below:
                    words.update(ends)
        return words


Key = tuple[str, str]  # group id, rollout id: ids of rollouts need to be unique in their group alone


class Ledger:
    """Give it everything of a topic's partition in offset order, then ask. Of what was added, order does not matter."""

    def __init__(self) -> None:
        self._cuts: dict[int, Cut] = {}
        self._starts: dict[Key, _Start] = {}
        self._again: dict[Key, list[_Start]] = {}
        self._refused: dict[tuple[int, int], str] = {}  # partition, offset
        self._closings: dict[str, tuple[int, int]] = {}  # group → its first and newest that an assembler wrote
        self._requested: dict[str, int] = {}  # group → its first closing by a host
        self._windows: dict[str, list[tuple[int, int]]] = {}  # group → first event and trigger of each of its batches
        self._results: dict[Key, tuple[int, int, int, str]] = {}  # partition, first event, attempt, status
        self._twice: list[Key] = []
        self._first_trigger: dict[int, int] = {}
        self._samples: dict[str, tuple[int, int]] = {}  # partition, end of its batch
        self._readers: dict[str, _Reader] = {}
        self.acks_cut = False  # retention removed the oldest acknowledgements
        self.unreadable: Counter[str] = Counter()
        self.dead_letters: Counter[str] = Counter()

    # What stands in the topics

    def add_cut(self, partition: int, cut: Cut) -> None:
        self._cuts[partition] = cut

    def add_start(self, partition: int, offset: int, group_id: str, rollout_id: str, attempt: int) -> None:
        """A RolloutStarted."""
        key = (group_id, rollout_id)
        start = _Start(partition, offset, attempt)
        if self._starts.setdefault(key, start) is not start:
            self._again.setdefault(key, []).append(start)

    def add_refused(self, partition: int, offset: int, name: str) -> None:
        """A start that opens nothing whatever its group: a dead letter, or one that was sent again too late."""
        self._refused[partition, offset] = name

    def add_dead_letter(self, reason: str) -> None:
        self.dead_letters[reason] += 1

    def add_closing(self, group_id: str, offset: int) -> None:
        """A GroupClosed (reason `complete`) that an assembler wrote: what started before it is not open."""
        first, newest = self._closings.get(group_id, (offset, offset))
        self._closings[group_id] = (min(first, offset), max(newest, offset))

    def add_request(self, group_id: str, offset: int) -> None:
        """Any other GroupClosed: its group may have been closed before anything started."""
        self._requested[group_id] = min(offset, self._requested.get(group_id, offset))

    def add_published(self, published: Published) -> None:
        batch = published.batch
        if batch is None:
            return
        partition = batch.input_partition
        first = self._first_trigger.get(partition)
        self._first_trigger[partition] = batch.trigger if first is None else min(first, batch.trigger)
        self._windows.setdefault(batch.group_id, []).append((batch.first_event, batch.trigger))
        for result in batch.rollouts:
            key = (batch.group_id, result.rollout_id)
            if key in self._results:
                self._twice.append(key)
            self._results[key] = (partition, result.first_event, result.attempt, result.status)
        for sample in batch.samples:
            self._samples[sample.sample_id] = (published.partition, published.end)

    def add_ack(self, ack: Ack) -> None:
        reader = self._readers.setdefault(ack.reader, _Reader())
        if isinstance(ack, Rewound):
            reader.rewind(ack)
        else:
            reader.line.ends.append((ack.step, dict(map(SampleEnd._make, ack.samples))))
        reader.offsets.update(ack.offsets)

    # What it comes to

    @property
    def readers(self) -> tuple[str, ...]:
        """Who acknowledged anything."""
        return tuple(sorted(self._readers))

    def rollouts(self) -> Rollouts:
        ends: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for key, start in self._starts.items():
            result = self._results.get(key)
            if result is not None:
                ends[result[3]] += 1
            else:
                where = self._without_end(key, start)
                (counts if where in ("open", "cut", "missing") else refused)[where] += 1
            counts["superseded"] += self._superseded(key, result)
        return Rollouts(
            started=len(self._starts),
            ends=ends,
            refused=refused,
            open=counts["open"],
            missing=counts["missing"],
            cut=counts["cut"],
            superseded=counts["superseded"],
        )

    def samples(self, reader: str) -> Samples:
        acked = self._readers.get(reader, _Reader())
        words = acked.last_words()
        ends = Counter(end for sample_id, end in words.items() if sample_id in self._samples)
        skipped = sum(acked.has_skipped(*where) for sample_id, where in self._samples.items() if sample_id not in words)
        published, known = len(self._samples), ends.total()
        return Samples(published, ends, skipped, published - known - skipped, len(words) - known)

    @property
    def history_cut(self) -> list[str]:
        """What retention removed, in words; sums are of what is left."""
        events = [partition for partition, cut in sorted(self._cuts.items()) if cut.first > 0]
        batches = [partition for partition, cut in sorted(self._cuts.items()) if cut.batches_first > 0]
        lines = []
        if events:
            lines.append(f"events: the oldest are gone in partitions {_listed(events)}; rollouts that started there "
                         "are not counted")  # fmt: skip
        if batches:
            lines.append(
                f"batches: the oldest are gone in partitions {_listed(batches)}; what they held is not counted"
            )
        if self.acks_cut:
            lines.append("acks: the oldest are gone; samples that ended there count as in flight")
        return lines

    def problems(self) -> list[str]:
        """What does not hold, in words; empty when all sums do."""
        return [*self._rollout_problems(), *self._sample_problems()]

    def _rollout_problems(self) -> Iterator[str]:
        unstarted, missing = [], []
        for key, (partition, first_event, _, _) in self._results.items():
            cut = self._cuts.get(partition)
            if key not in self._starts and cut is not None and cut.first <= first_event < cut.end:
                unstarted.append(key)
        for key, start in self._starts.items():
            if key not in self._results and self._without_end(key, start) == "missing":
                missing.append(key)
        if unstarted:
            yield f"{len(unstarted)} rollouts are published, but never started: {_ids(unstarted)}"
        if missing:
            yield f"{len(missing)} rollouts started, but are not among the rollouts of their group: {_ids(missing)}"
        if self._twice:
            yield f"{len(self._twice)} rollouts are published twice: {_ids(self._twice)}"
        for topic, count in sorted(self.unreadable.items()):
            yield f"{count} records of {topic} cannot be read"

    def _sample_problems(self) -> Iterator[str]:
        cut = any(each.batches_first > 0 for each in self._cuts.values())
        for name, reader in sorted(self._readers.items()):
            words = reader.last_words()
            unknown = [sample_id for sample_id in words if sample_id not in self._samples]
            if unknown and not cut:
                yield f"reader {name}: {len(unknown)} samples have ended, but were never published: {_listed(unknown)}"
            passed = [
                sample_id
                for sample_id, (partition, end) in self._samples.items()
                if sample_id not in words
                and end <= reader.offsets.get(partition, 0)
                and not reader.has_skipped(partition, end)
            ]
            if passed and not self.acks_cut:
                yield (
                    f"reader {name}: {len(passed)} samples are before what it acknowledged, but have no end: "
                    f"{_listed(passed)}"
                )

    def _without_end(self, key: Key, start: _Start) -> str:
        """What became of a rollout that is in no batch: open, cut, missing, or the name under which it was refused."""
        starts = [each for each in (start, *self._again.get(key, ())) if not self._is_refused(each)]
        if not starts:
            return self._refused[start.partition, start.offset]
        offset, group_id = starts[0].offset, key[0]
        windows = self._windows.get(group_id, ())
        if any(first <= offset <= trigger for first, trigger in windows):
            return "missing"
        first_closing, newest_closing = self._closings.get(group_id, (-1, -1))
        if newest_closing < starts[-1].offset:
            return "open"
        cut = self._cuts.get(start.partition)
        batches_cut = cut is not None and cut.batches_first > 0
        if batches_cut and offset < self._first_trigger.get(start.partition, offset + 1):
            return "cut"
        closed_before = [first_closing, self._requested.get(group_id, offset), *(trigger for _, trigger in windows)]
        if min(closed_before) < offset:
            return "late_start"
        # Its group was closed with it, and no batch says how.
        return "cut" if batches_cut else "missing"

    def _is_refused(self, start: _Start) -> bool:
        return (start.partition, start.offset) in self._refused

    def _superseded(self, key: Key, result: tuple[int, int, int, str] | None) -> int:
        again = self._again.get(key)
        if again is None:
            return 0
        attempts = {each.attempt for each in (self._starts[key], *again) if not self._is_refused(each)}
        newest = max(attempts, default=0) if result is None else result[2]
        return sum(attempt < newest for attempt in attempts)


def _ids(keys: list[Key]) -> str:
    return _listed([f"{rollout_id} (group {group_id})" for group_id, rollout_id in keys])


def _listed(items: list[str] | list[int]) -> str:
    more = len(items) - NAMED
    return ", ".join(map(str, items[:NAMED])) + (f" and {more} more" if more > 0 else "")
