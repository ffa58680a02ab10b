"""Verdicts as rewards: their identity, their records in the rewards topic, their place in a rollout.

Identity  source `{scorer}.{16 hex digits}` of scorer, version, rollout and attempt; sequence from 0; time: when the
          group closed. The same verdicts are the same bytes, whoever computes them and however often
Records   key: the group; header `e` as of an event; header `set` = `index/count/{16 hex digits}` of all values
          together, so that of two that were recorded for one identity no half is mixed with the other's. A count of 0:
          no reward
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from rolloutlog.consumers.named_function import WrongAnswer
from rolloutlog.consumers.scoring.reward import Reward
from rolloutlog.consumers.scoring.view import RolloutView
from rolloutlog.consumers.settings import digest
from rolloutlog.consumers.state import Rollout, Source, Stored
from rolloutlog.eventstore.checks import check_event
from rolloutlog.eventstore.codec import HEADER, encode_event, header_of
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import ROLLOUT, RewardRecorded, Target
from rolloutlog.eventstore.extra_info import encode_extra_info
from rolloutlog.eventstore.log import REWARDS, NewRecord

SET_HEADER = "set"
NO_OFFSET = -1  # of a reward that stands in no event

_SOURCE_HEX, _SET_BYTES = 16, 8


@dataclass(frozen=True, slots=True)
class Failure:
    """A scorer gave no verdict about a rollout. `reason`: in words, with the innermost lines of its traceback."""

    rollout_id: str
    attempt: int
    scorer: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class NoReward(RewardRecorded):
    """Recorded where a scorer gave no reward, so that it is not asked again, and what an older version of it gave does
    not count any more. In the log a reward without a value, in a set of none: it counts for nothing."""


def no_reward(scorer: str, version: str, rollout: RolloutView) -> NoReward:
    return NoReward(
        rollout_id=rollout.rollout_id,
        attempt=rollout.attempt,
        source=source_of(scorer, version, rollout.rollout_id, rollout.attempt),
        sequence=0,
        time_ns=rollout.closed_ns,
        scope=ROLLOUT,
        scorer=scorer,
        scorer_version=version,
    )


def source_of(scorer: str, version: str, rollout_id: str, attempt: int) -> str:
    """The source of a scorer's rewards for one attempt."""
    return f"{scorer}.{digest([scorer, version, rollout_id, attempt])[:_SOURCE_HEX]}"


def events_of(
    verdicts: Iterable[Reward], scorer: str, version: str, rollout: RolloutView
) -> tuple[RewardRecorded, ...]:
    """A scorer's verdicts about a rollout as events. Raises WrongAnswer when one of them can't be recorded."""
    source = source_of(scorer, version, rollout.rollout_id, rollout.attempt)
    known = dict.fromkeys((reward.reward_id for reward in rollout.rewards), "which the rollout has")
    events = []
    for sequence, verdict in enumerate(verdicts):
        target = None if verdict.target is None else Target(*next(iter(verdict.target.items())))
        try:
            event = RewardRecorded(
                rollout_id=rollout.rollout_id,
                attempt=rollout.attempt,
                source=source,
                sequence=sequence,
                time_ns=rollout.closed_ns,
                reward_id=verdict.reward_id,
                name=verdict.name,
                value=verdict.value,
                scope=verdict.scope,
                target=target,
                parent_id=verdict.parent_id,
                after_call=verdict.after_call,
                supersedes=verdict.supersedes,
                scorer=scorer,
                scorer_version=version,
                extra_info=encode_extra_info(verdict.extra_info) if verdict.extra_info else b"",
            )
            check_event(event)
        except InvalidEvent as error:
            raise WrongAnswer(str(error)) from error
        if event.id in known:
            raise WrongAnswer(f"expected each reward id once, got {event.id!r} again, {known[event.id]}")
        known[event.id] = "which another reward of this answer has"
        events.append(event)
    return tuple(events)


def records_of(rewards: Sequence[RewardRecorded], group_id: str, partition: int) -> list[NewRecord]:
    """Records for the rewards topic, to be stored in one transaction. Each scorer's rewards of a rollout are whole."""
    values = [encode_event(reward) for reward in rewards]
    sets: dict[tuple[str, int, str], list[int]] = {}
    for at, reward in enumerate(rewards):
        sets.setdefault((reward.rollout_id, reward.attempt, reward.source), []).append(at)
    headers = [b""] * len(rewards)
    for places in sets.values():
        named = set_digest([values[at] for at in places])
        count = 0 if isinstance(rewards[places[0]], NoReward) else len(places)
        for index, at in enumerate(places):
            headers[at] = f"{index}/{count}/{named}".encode()
    return [
        NewRecord(
            REWARDS,
            partition,
            group_id.encode(),
            value,
            ((HEADER, header_of(reward).text()), (SET_HEADER, header)),
        )
        for reward, value, header in zip(rewards, values, headers, strict=True)
    ]


def set_digest(values: Iterable[bytes]) -> str:
    """Of the values of one scorer's rewards for an attempt, in order, as 16 hex digits."""
    found = blake2b(digest_size=_SET_BYTES)
    for value in values:
        found.update(len(value).to_bytes(8, "little") + value)
    return found.hexdigest()


def add_rewards(rollout: Rollout, rewards: Sequence[RewardRecorded]) -> None:
    """Add rewards behind all records of a closed, unsettled rollout, in their order; none of them has an offset."""
    sources: dict[str, Source] = {}
    for reward in rewards:
        source = sources.setdefault(reward.source, Source(reward.source))
        rollout.attempt.records.append(
            Stored(NO_OFFSET, RewardRecorded.record, "-", reward.sequence, source, None, None, reward)
        )


def add_failures(rollout: Rollout, failures: Sequence[Failure]) -> None:
    """Make a rollout incomplete, so that nothing is trained on half of its rewards."""
    rollout.attempt.faults += tuple(f"scorer {failure.scorer} failed: {failure.reason}" for failure in failures)
