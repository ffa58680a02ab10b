"""Decisions that are due in a partition: nothing in it waits without a limit.

Made by the partition's owner, and only once everything that was written is folded. A decision is an event: the fold
acts on it when it is read back, on every machine in the same way. Pure: state, observations and time are handed in.

state                                        ends by
a rollout that runs, without events          idle; held back where hosts are cut off, then age
a rollout that runs, with events             age
a completed rollout that lacks something     grace; while those it awaits send events, age
an attempt that failed or expired            retry, where another one may follow; else it closes at once
a group with a closed rollout, whatever it   group age: starts that never came, rollouts that run on, a host that never
lacks                                        closes it
a group without a closed rollout             as its rollouts do: each of them closes by age, then the group by its own
a group that a restart would read again      replay_bytes
from too far back
an end of the run                            as the groups opened before it

Held back  more than half of the running rollouts fell silent within a minute of each other: their hosts are cut off,
           not idle. Each gets idle_s more, again and again, until events come or its age is over
At the end no limit ends anything before grace_s after the owner had read to the end; idle, grace, retry and group age
           count anew from there. A rollout's age, and that of a group since its beginning, do not
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from rolloutlog.consumers.limits import Limits
from rolloutlog.consumers.observed import Observed
from rolloutlog.consumers.state import Attempt, Group, PartitionState, Rollout
from rolloutlog.eventstore.events import AGE, GRACE, IDLE, REPLAY_BYTES, RETRY, MissingEvents

DECISIONS_MAX = 1_000  # in one transaction
TOGETHER_S = 60.0  # rollouts that go idle within this go idle together
TOGETHER_SHARE = 0.1  # of idle_s, where that is less
ROLLOUTS_A_SLICE = 2_000
MISSING_MAX = 100  # of a kind that a decision names

logger = logging.getLogger("rolloutlog.assembler")


@dataclass(frozen=True, slots=True)
class Expiry:
    """A `RolloutExpired` to append. `missing_…`: what the rollout lacks, as far as known."""

    group_id: str
    rollout_id: str
    attempt: int
    reason: str
    as_of: int
    missing_events: tuple[MissingEvents, ...] = ()
    missing_names: tuple[str, ...] = ()
    missing_rewards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupEnd:
    """A `GroupClosed` to append."""

    group_id: str
    reason: str
    as_of: int


Decision = Expiry | GroupEnd


class Look:
    """One look at all that is open, as of one moment. `walk` fills it.

    idle       rollouts that are silent for too long
    others     what else is due
    running    rollouts that neither are completed nor wait for another attempt
    silent     those of them that are idle, or will be within a minute
    """

    def __init__(
        self, state: PartitionState, observed: Observed, limits: Limits, at_s: float, idle_from_s: float
    ) -> None:
        self.state, self.at_s = state, at_s
        self.idle: list[Expiry] = []
        self.others: list[Decision] = []
        self.running = self.silent = 0
        self._observed, self._limits = observed, limits
        # Offsets below which an event has waited for its limit: a rollout is then looked at by comparing integers.
        waited, since_held_s = observed.waited, at_s - idle_from_s
        soon_s = limits.idle_s - min(TOGETHER_S, TOGETHER_SHARE * limits.idle_s)
        self._idle_below = waited(limits.idle_s, at_s) if since_held_s >= limits.idle_s else -1
        self._silent_below = waited(soon_s, at_s) if since_held_s >= soon_s else -1
        self._grace_below, self._retry_below = waited(limits.grace_s, at_s), waited(limits.retry_s, at_s)
        self._group_below = waited(limits.group_age_s, at_s)
        self._old, self._old_group = observed.aged(limits.age_s, at_s), observed.aged(limits.open_s_max, at_s)
        self._is_settled = observed.since_end(at_s) >= limits.grace_s
        self._pin_bytes = True

    @property
    def any(self) -> bool:
        return bool(self.idle or self.others)

    def walk(self) -> Iterator[None]:
        """Look at everything; halts now and then, so that others get a turn. The state must not change meanwhile."""
        looked = 0
        for group in self.state.groups.values():
            self._group(group)
            looked += len(group.rollouts)
            if looked >= ROLLOUTS_A_SLICE:
                looked = 0
                yield

    def _group(self, group: Group) -> None:
        reason = self._group_reason(group) if self._is_settled else None
        if reason is not None:
            self.others.append(GroupEnd(group.group_id, reason, group.newest_offset))
            return
        for rollout in group.rollouts.values():
            if rollout.closed is None:
                self._rollout(group, rollout)

    def _group_reason(self, group: Group) -> str | None:
        if self._pin_bytes:  # groups stand in the order in which they were opened
            if self._observed.bytes_since(group.first_offset) > self._limits.replay_bytes_max:
                return REPLAY_BYTES
            self._pin_bytes = False
        if self._old_group.includes(group.first_offset, group.first_ns):
            return AGE
        if group.open_count == len(group.rollouts):
            return None
        first = min(each.closed.offset for each in group.rollouts.values() if each.closed is not None)
        return AGE if first < self._group_below else None

    def _rollout(self, group: Group, rollout: Rollout) -> None:
        attempt = rollout.attempt
        waits_from = attempt.waits_from
        reason = None
        if waits_from is None:
            self.running += 1
            if attempt.newest_offset < self._silent_below:
                self.silent += 1
                if attempt.newest_offset < self._idle_below:
                    reason = IDLE
        elif attempt.expired is not None or attempt.whole:
            reason = RETRY if waits_from < self._retry_below else None
        elif attempt.newest_offset < self._grace_below:  # whoever is awaited may be at work, and say so
            reason = GRACE
        if self._is_settled and self._old.includes(rollout.first_offset, rollout.first_ns):
            reason = AGE
        if reason is not None:
            (self.idle if reason == IDLE else self.others).append(_expiry(group, rollout, reason))


class Decider:
    """Decides for one partition, as long as one owner has it.

    Give `observed` what is seen. `look` whether anything is due; if so, read to the end, look again, and `decide`.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.observed = Observed(longest_s=limits.longest_s, bytes_max=limits.replay_bytes_max)
        self.held_count = 0  # times that idle decisions were held back
        self._idle_from_s = float("-inf")

    def look(self, state: PartitionState, at_s: float) -> Look:
        """A look, to be walked."""
        oldest = state.oldest_open()
        self.observed.forget_bytes(state.position if oldest is None else oldest)
        return Look(state, self.observed, self.limits, at_s, self._idle_from_s)

    def decide(self, look: Look) -> list[Decision]:
        """What is to be appended after a look that saw everything written until then."""
        if look.idle and look.silent > 1 and 2 * look.silent > look.running:
            self._idle_from_s = look.at_s
            self.held_count += 1
            logger.warning(
                "partition %d: %d of %d running rollouts are silent for idle_s (%g s): their hosts are cut off, or all "
                "dead. They get as long again; age_s (%g s) ends them at the latest, `events.close_group` at once",
                look.state.partition,
                look.silent,
                look.running,
                self.limits.idle_s,
                self.limits.age_s,
            )
            look.idle.clear()
        decisions = [*look.others, *look.idle]
        return decisions[:DECISIONS_MAX]


def _expiry(group: Group, rollout: Rollout, reason: str) -> Expiry:
    attempt = rollout.attempt
    events: list[MissingEvents] = []
    names: list[str] = []
    rewards: list[str] = []
    if reason != RETRY:
        for source in attempt.sources.values():
            if _holds_back(attempt, source.id, source.name):
                events += [MissingEvents(source.id, first, last) for first, last in source.gaps()]
        if attempt.awaited is not None:
            names, rewards = attempt.awaited.missing_names(), sorted(attempt.awaited.rewards)
    return Expiry(
        group.group_id,
        rollout.rollout_id,
        attempt.number,
        reason,
        attempt.newest_offset,
        tuple(events[:MISSING_MAX]),
        tuple(names[:MISSING_MAX]),
        tuple(rewards[:MISSING_MAX]),
    )


def _holds_back(attempt: Attempt, source_id: str, name: str) -> bool:
    """Whether the rollout waits for all events of this source."""
    if attempt.completed is None or attempt.awaited is None:
        return True
    return source_id == attempt.completed.source or name in attempt.awaited.names
