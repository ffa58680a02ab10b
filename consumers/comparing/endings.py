"""How rollouts ended, and what became of their rewards, on two sides. Pure."""

from collections import Counter
from dataclasses import dataclass

from rolloutlog.consumers.comparing.held import HeldReward, HeldRollout
from rolloutlog.consumers.comparing.largest import Largest

WAYS_MAX = 10_000  # names come from anyone: memory is bounded
OTHERS = "(others)"
OTHER_CALLS = "other calls"

RewardKey = tuple[str, str | None, str | None]  # name, scorer, its version


@dataclass(frozen=True, slots=True)
class StatusChange:
    """A rollout that ended otherwise; `attempt`s differ where another one counts."""

    rollout_id: str
    task_id: str
    attempts: tuple[int, int]
    statuses: tuple[str, str]
    reasons: tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class OutcomeChange:
    """A reward of which something else became."""

    rollout_id: str
    reward_id: str
    name: str
    value: float | None
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class EndingResult:
    """What changed.

    statuses  (before, after) → rollouts; `attempts`: rollouts of which another attempt counts
    outcomes  (name, before, after) → rewards of both sides; an outcome is followed by its rule where that says more
    alone     rewards of one side alone, by name and scorer
    """

    statuses: dict[tuple[str, str], int]
    attempts: int
    status_examples: tuple[StatusChange, ...]
    rewards: int
    outcomes: dict[tuple[str, str, str], int]
    outcome_examples: tuple[OutcomeChange, ...]
    alone: tuple[dict[RewardKey, int], dict[RewardKey, int]]


class EndingTally:
    """Takes in rollouts that are in both outputs."""

    def __init__(self, top: int) -> None:
        self._statuses: Counter[tuple[str, str]] = Counter()
        self._attempts = self._rewards = 0
        self._status_examples = Largest[StatusChange](top, lambda each: (each.statuses, each.rollout_id))
        self._outcomes: Counter[tuple[str, str, str]] = Counter()
        self._outcome_examples = Largest[OutcomeChange](top, lambda each: (each.rollout_id, each.reward_id))
        self._alone: tuple[Counter[RewardKey], Counter[RewardKey]] = (Counter(), Counter())

    def add_status(self, before: HeldRollout, after: HeldRollout) -> None:
        if before.status == after.status and before.attempt == after.attempt:
            return
        self._attempts += before.attempt != after.attempt
        if before.status != after.status:
            self._statuses[before.status, after.status] += 1
        self._status_examples.add(
            StatusChange(
                after.rollout_id,
                after.task_id,
                (before.attempt, after.attempt),
                (before.status, after.status),
                (before.reason, after.reason),
            )
        )

    def add_rewards(self, rollout_id: str, before: list[HeldReward], after: list[HeldReward]) -> None:
        """The rewards of one attempt of a rollout, by their ids."""
        sides = [{each.reward_id: each for each in rewards} for rewards in (before, after)]
        for side, rewards in enumerate(sides):
            for reward in rewards.values():
                if reward.reward_id not in sides[1 - side]:
                    key = reward.name, reward.scorer, reward.scorer_version
                    known = key in self._alone[side] or len(self._alone[side]) < WAYS_MAX
                    self._alone[side][key if known else (OTHERS, None, None)] += 1
        for reward_id, one in sides[0].items():
            other = sides[1].get(reward_id)
            if other is not None:
                self._rewards += 1
                self._add_outcome(rollout_id, one, other)

    def _add_outcome(self, rollout_id: str, one: HeldReward, other: HeldReward) -> None:
        if (one.outcome, one.rule, one.calls) == (other.outcome, other.rule, other.calls):
            return
        before, after = _words(one), _words(other)
        if before == after:
            after = OTHER_CALLS
        way = other.name, before, after
        known = way in self._outcomes or len(self._outcomes) < WAYS_MAX
        self._outcomes[way if known else (OTHERS, "", "")] += 1
        self._outcome_examples.add(OutcomeChange(rollout_id, other.reward_id, other.name, other.value, before, after))

    def result(self) -> EndingResult:
        return EndingResult(
            dict(self._statuses.most_common()),
            self._attempts,
            tuple(self._status_examples.items()),
            self._rewards,
            dict(self._outcomes.most_common()),
            tuple(self._outcome_examples.items()),
            (dict(self._alone[0].most_common()), dict(self._alone[1].most_common())),
        )


def _words(reward: HeldReward) -> str:
    """Such as `attributed (nearest)`; the rule is left out where it is the outcome's own."""
    return reward.outcome if reward.rule in (None, reward.outcome) else f"{reward.outcome} ({reward.rule})"
