"""Rewards that scorers recorded in the rewards topic, as they stand below an offset or before a time.

All rewards of one scorer, version and attempt are one set. Sets that are not whole are left out, and of several that
were recorded for one identity the first counts: a scorer that isn't deterministic may have been asked twice. Of a
scorer's versions the one that was recorded last counts alone.

Memory    the rewards' bytes, some 500 bytes a reward; decoded when asked for
"""

from collections.abc import Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Self

from rolloutlog.consumers.scoring.results import SET_HEADER, set_digest
from rolloutlog.eventstore.checks import check_agreement, check_event
from rolloutlog.eventstore.codec import HEADER, Header, decode_event, parse_header
from rolloutlog.eventstore.errors import InvalidEvent, LogMissing
from rolloutlog.eventstore.events import RewardRecorded
from rolloutlog.eventstore.log import REWARDS, Log, Record
from rolloutlog.eventstore.log.reading import read_range

UNREAD_KEPT = 1_000


@dataclass(slots=True)
class RecordedSet:
    """A scorer's rewards for one attempt, as one version gave them.

    rewards         offset in the rewards topic and reward, by sequence; empty = it gave none
    offset          where it was recorded last, and so when: `recorded_ns` is that record's log time
    """

    scorer: str
    version: str | None
    source: str
    rewards: tuple[tuple[int, RewardRecorded], ...]
    offset: int
    recorded_ns: int


@dataclass(slots=True)
class _Set:
    """As stored. `parts`: offset and value by sequence, `count` how many there are; None = nothing says."""

    source: str
    named: str | None
    count: int | None
    parts: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    offset: int = -1
    recorded_ns: int = 0

    @property
    def whole(self) -> bool:
        if self.count is None:
            return set(self.parts) == set(range(len(self.parts)))
        return len(self.parts) == max(self.count, 1)


class Recorded:
    """Rewards recorded for one partition. `unread`: offset and reason of records that are none, some of them."""

    def __init__(self) -> None:
        self._sets: dict[tuple[str, int], dict[tuple[str, str | None], _Set]] = {}
        self.unread: list[tuple[int, str]] = []

    @classmethod
    async def read(
        cls,
        log: Log,
        partition: int,
        end: int | None,
        *,
        rollouts: Collection[str] | None = None,
        before_ns: int | None = None,
    ) -> Self:
        """Read the rewards topic's partition from its beginning.

        end        offset below which rewards count; 0 or less: none do; None = the present end
        rollouts   keep those of these alone
        before_ns  leave out what was recorded at this log time or later
        """
        recorded = cls()
        try:
            stored = (await log.ranges(REWARDS, [partition]))[partition]
        except LogMissing:
            return recorded
        end = stored.end if end is None else min(end, stored.end)
        if end <= stored.first:
            return recorded
        async with aclosing(read_range(log, REWARDS, partition, stored.first, end)) as records:
            async for record in records:
                if before_ns is not None and record.log_time_ns >= before_ns:
                    break  # log time never falls
                recorded.add(record, rollouts)
        return recorded

    def add(self, record: Record, rollouts: Collection[str] | None = None) -> None:
        """Take note of a record of the topic. What is no reward is named in `unread`."""
        headers = dict(record.headers)
        try:
            header = parse_header(headers.get(HEADER))
            if header.kind != RewardRecorded.record:
                raise InvalidEvent(f"expected a {RewardRecorded.record}, got a {header.kind} in header e")
            index, count, named = _set_of(headers.get(SET_HEADER), header)
        except InvalidEvent as error:
            self._refuse(record.offset, error)
            return
        if record.value is None or (rollouts is not None and header.rollout_id not in rollouts):
            return
        sets = self._sets.setdefault((header.rollout_id, header.attempt), {})
        found = sets.setdefault((header.source, named), _Set(header.source, named, count))
        found.parts.setdefault(index, (record.offset, record.value))
        if record.offset > found.offset:
            found.offset, found.recorded_ns = record.offset, record.log_time_ns

    def of(self, rollout_id: str, attempt: int) -> list[tuple[int, RewardRecorded]]:
        """Offset and reward, in log order: of each scorer the version recorded last alone."""
        newest = {each.scorer: each for each in self.sets(rollout_id, attempt)}  # the last one stays
        return [reward for each in sorted(newest.values(), key=lambda one: one.offset) for reward in each.rewards]

    def sets(self, rollout_id: str, attempt: int) -> list[RecordedSet]:
        """Whole sets of every version, one for each identity, by where they were recorded last."""
        first: dict[str, _Set] = {}
        offsets: dict[str, tuple[int, int]] = {}
        for each in self._sets.get((rollout_id, attempt), {}).values():
            if each.whole:
                first.setdefault(each.source, each)
                offsets[each.source] = max(offsets.get(each.source, (-1, 0)), (each.offset, each.recorded_ns))
        found = []
        for source, each in first.items():
            rewards = self._decoded(each, rollout_id, attempt)
            if rewards:
                scorer, version = source.rpartition(".")[0], rewards[0][1].scorer_version
                counting = () if each.count == 0 else rewards
                found.append(RecordedSet(scorer, version, source, counting, *offsets[source]))
        return sorted(found, key=lambda each: each.offset)

    def _decoded(self, found: _Set, rollout_id: str, attempt: int) -> tuple[tuple[int, RewardRecorded], ...]:
        """All of it or nothing."""
        if found.named is not None and found.named != set_digest(
            found.parts[index][1] for index in sorted(found.parts)
        ):
            self._refuse(found.offset, InvalidEvent("expected the values that its header `set` names, got others"))
            return ()
        rewards = []
        for sequence, (offset, value) in sorted(found.parts.items()):
            try:
                event = decode_event(RewardRecorded.record, value)
                check_event(event)
                header = Header(RewardRecorded.record, "-", attempt, sequence, found.source, rollout_id)
                check_agreement(header, event, None)
            except InvalidEvent as error:
                self._refuse(offset, error)
                return ()
            assert isinstance(event, RewardRecorded)
            rewards.append((offset, event))
        return tuple(rewards)

    def _refuse(self, offset: int, error: InvalidEvent) -> None:
        if len(self.unread) < UNREAD_KEPT:
            self.unread.append((offset, str(error)))


def newest_of(sets: Iterable[RecordedSet]) -> dict[str, RecordedSet]:
    """Of each scorer the set that counts: the one recorded last."""
    return {each.scorer: each for each in sorted(sets, key=lambda one: one.offset)}


def _set_of(value: bytes | None, header: Header) -> tuple[int, int | None, str | None]:
    """Index, count and digest in header `set`; of a record without one, the sequence alone."""
    if value is None:
        return header.sequence, None, None
    index, _, rest = value.decode(errors="replace").partition("/")
    count, _, named = rest.partition("/")
    if not (index.isdecimal() and count.isdecimal() and len(index) < 10 and len(count) < 10):
        raise InvalidEvent("expected header `set` of index/count/digest, got other text", reason="bad_header")
    return int(index), int(count), named
