"""State of one events partition while it is folded. Only `consumers.fold` changes it.

A group holds its rollouts, a rollout its current attempt, an attempt the events of its sources. Spans stay raw bytes
until their rollout closes. A closed group is remembered for a while, so that late starts cannot open it again.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.events import RolloutCompleted, RolloutStarted, RunEnded


class Source:
    """Which events of one source have arrived. `end`: its last event's number, once that said so."""

    __slots__ = ("end", "id", "next", "scattered", "values")

    def __init__(self, source_id: str) -> None:
        self.id = source_id
        self.values: dict[int, bytes | None] | None = None  # by sequence, once an event came twice
        self.next = 0  # every event below this has arrived
        self.scattered: set[int] | None = None  # arrived events above it
        self.end: int | None = None

    def add(self, sequence: int) -> bool:
        """Take note of an event; False when it had arrived before."""
        if sequence < self.next:
            return False
        if sequence > self.next:
            if self.scattered is None:
                self.scattered = set()
            elif sequence in self.scattered:
                return False
            self.scattered.add(sequence)
            return True
        self.next += 1
        while self.scattered and self.next in self.scattered:
            self.scattered.remove(self.next)
            self.next += 1
        return True

    @property
    def name(self) -> str:
        return self.id.rpartition(".")[0]

    @property
    def whole(self) -> bool:
        """Every event up to its end is there."""
        return self.end is not None and self.next > self.end

    def gaps(self) -> list[tuple[int, int]]:
        """Missing (first, last) numbers up to the end, as far as known."""
        known = sorted(self.scattered or ())
        last = self.end if self.end is not None else (known[-1] if known else -1)
        gaps, at = [], self.next
        for sequence in known:
            if sequence > at:
                gaps.append((at, sequence - 1))
            at = sequence + 1
        if at <= last:
            gaps.append((at, last))
        return gaps


@dataclass(slots=True)
class Stored:
    """An event kept until its rollout closes. `headers` only where there is more than the header `e`."""

    offset: int
    kind: str
    flags: str
    sequence: int
    source: Source
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None
    event: Any = None  # decoded when folded: all kinds but spans


class Awaited:
    """What a completed attempt waits for from others, kept up to date event by event."""

    __slots__ = ("names", "rewards")

    def __init__(self, completed: RolloutCompleted, sources: Iterable[Source], reward_names: Iterable[str]) -> None:
        self.rewards = set(completed.awaited_rewards).difference(reward_names)
        self.names = {name: [0, 0] for name in completed.awaited_names}  # sources seen, sources whole
        for source in sources:
            self.source_seen(source.name)
            if source.whole:
                self.source_whole(source.name)

    def source_seen(self, name: str) -> None:
        if name in self.names:
            self.names[name][0] += 1

    def source_whole(self, name: str) -> None:
        if name in self.names:
            self.names[name][1] += 1

    def missing_names(self) -> list[str]:
        """Awaited source names that have not ended: none of their sources seen, or one without its end or with gaps."""
        return [name for name, (seen, whole) in self.names.items() if not seen or whole < seen]


@dataclass(slots=True)
class Attempt:
    """One try at a rollout.

    faults      why it is incomplete
    expired     reason and what was missing
    waits_from  offset of the event from which on it only waits: its completion, or its expiry with attempts left
    """

    number: int
    started: RolloutStarted
    first_offset: int
    newest_offset: int
    sources: dict[str, Source] = field(default_factory=dict)
    records: list[Stored] = field(default_factory=list)
    completed: RolloutCompleted | None = None
    awaited: Awaited | None = None
    faults: tuple[str, ...] = ()
    expired: str | None = None
    waits_from: int | None = None

    @property
    def whole(self) -> bool:
        """Completed, and nothing that it waits for is missing."""
        completed, awaited = self.completed, self.awaited
        if completed is None or awaited is None or not self.sources[completed.source].whole:
            return False
        return not awaited.rewards and not awaited.missing_names()

    @property
    def is_last(self) -> bool:
        """No attempt may follow it."""
        return self.number + 1 >= self.started.attempts_max


@dataclass(slots=True)
class Rollout:
    """One rollout of an open group, the `index`-th started.

    first_ns  the partition's log time at its first event: where the log's clock was set back, that before
    closed    how it closed, None while it is open
    """

    rollout_id: str
    index: int
    first_offset: int
    first_ns: int
    attempt: Attempt
    closed: "Closing | None" = None


@dataclass(slots=True)
class Closing:
    """A closed rollout. `settled`: its decoded result, absent where outputs below P made it needless."""

    offset: int
    status: str
    reason: str | None
    settled: Any = None


@dataclass(slots=True)
class Group:
    """An open group. `rollouts` in the order of their starts; `surplus` beyond the announced size.

    first_ns  the partition's log time at its first event, as of a rollout
    """

    group_id: str
    size: int | None
    first_offset: int
    newest_offset: int
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    surplus: dict[str, tuple[RolloutStarted, int]] = field(default_factory=dict)
    open_count: int = 0
    first_ns: int = 0


@dataclass(slots=True)
class ClosedGroup:
    """What is remembered of a closed group.

    pin         a restart must begin here or below to know that the group is closed: the group's first event until a
                GroupClosed is read back from the log, then that GroupClosed
    pending     a GroupClosed is owed: the group was published, or a start refused, after the newest one read
    expires_ns  log time from which the group is forgotten, unless one is pending
    """

    pin: int
    pending: bool
    expires_ns: int


@dataclass(slots=True)
class PartitionState:
    """State of one partition.

    position   offset of the newest folded record + 1
    now_ns     highest log time folded: the partition's only clock
    emit_from  P of the last commit: outputs triggered below it are out already
    settles    closed rollouts are decoded and groups made into batches; else both leave with their events, as they are
    run_ends   ends of the run that groups opened before them hold back, with their offsets. They need no pin: those
               groups have theirs, below
    """

    partition: int
    settings: FoldSettings
    position: int = 0
    now_ns: int = 0
    emit_from: int = 0
    settles: bool = True
    groups: dict[str, Group] = field(default_factory=dict)
    closed: dict[str, ClosedGroup] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    open_rollouts: int = 0
    run_ends: "deque[tuple[int, RunEnded]]" = field(default_factory=deque)
    # Pins in rising order, entries that no longer hold dropped lazily: the minimum is at hand without a search.
    pins: "deque[tuple[int, str]]" = field(default_factory=deque)
    closed_pins: "deque[tuple[int, str]]" = field(default_factory=deque)
    opened: "deque[tuple[int, str]]" = field(default_factory=deque)  # open groups, in the same way

    def watermark(self) -> int:
        """L: the lowest offset from which a restart rebuilds this state; the position when nothing is held."""
        pins = self.pins
        while pins and not self._holds(*pins[0]):
            pins.popleft()
        closed = self.closed_pins
        while closed and not self._pinned(*closed[0]):
            closed.popleft()
        lowest = self.position
        if pins:
            lowest = min(lowest, pins[0][0])
        if closed:
            lowest = min(lowest, closed[0][0])
        return lowest

    def oldest_open(self) -> int | None:
        """First offset of the open group that was opened first, None when no group is open."""
        opened = self.opened
        while opened and not self._is_open(*opened[0]):
            opened.popleft()
        return opened[0][0] if opened else None

    def remembered(self, group_id: str) -> ClosedGroup | None:
        """The closed group, None when there is none or its time is over."""
        memory = self.closed.get(group_id)
        if memory is not None and not memory.pending and self.now_ns >= memory.expires_ns:
            del self.closed[group_id]
            return None
        return memory

    def _is_open(self, offset: int, group_id: str) -> bool:
        group = self.groups.get(group_id)
        return group is not None and group.first_offset == offset

    def _holds(self, offset: int, group_id: str) -> bool:
        if self._is_open(offset, group_id):
            return True
        memory = self.closed.get(group_id)
        return memory is not None and memory.pin == offset

    def _pinned(self, offset: int, group_id: str) -> bool:
        memory = self.closed.get(group_id)
        if memory is None or memory.pin != offset:
            return False
        return self.remembered(group_id) is not None
