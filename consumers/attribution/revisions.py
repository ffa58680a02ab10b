"""Which rewards count for nothing because a later one took their place, or because they hold no verdict."""

from collections.abc import Iterable, Sequence

from rolloutlog.consumers.attribution.model import NO_VERDICT, REVISED, RewardEntry


def set_aside(rewards: Sequence[RewardEntry], *, revise_by_name: bool) -> dict[str, str]:
    """Rewards that count for nothing: reward id → "revised" or "no_verdict".

    rewards         in log order, each id once
    revise_by_name  a later rollout-scope reward with a value revises earlier ones of its name; the 0.3 policies
                    don't know that
    """
    recorded: set[str] = set()
    aside: dict[str, str] = {}
    last_verdict: dict[str, int] = {}
    for index, reward in enumerate(rewards):
        # by the log only: a reward that names itself or a later one supersedes nothing
        if reward.supersedes is not None and reward.supersedes in recorded:
            aside[reward.supersedes] = REVISED
        recorded.add(reward.reward_id)
        if revise_by_name and reward.scope == "rollout" and reward.value is not None:
            last_verdict[reward.name] = index
    for index, reward in enumerate(rewards):
        if reward.scope == "rollout" and index < last_verdict.get(reward.name, -1):
            aside[reward.reward_id] = REVISED
        elif reward.value is None:
            aside.setdefault(reward.reward_id, NO_VERDICT)
    return aside


class Revisers:
    """Says which reward took the place of a revised one, as far as they are known.

    rewards  of a rollout, in log order
    """

    def __init__(self, rewards: Iterable[RewardEntry]) -> None:
        self._superseded_by: dict[str, str] = {}
        self._last_verdict: dict[str, str] = {}
        recorded: set[str] = set()
        for reward in rewards:
            if reward.supersedes in recorded:
                self._superseded_by[reward.supersedes] = reward.reward_id
            recorded.add(reward.reward_id)
            if reward.scope == "rollout" and reward.value is not None:
                self._last_verdict[reward.name] = reward.reward_id

    def words(self, reward: RewardEntry) -> str:
        """Of a reward whose outcome is `revised`: `revised by b, which supersedes it`."""
        by = self._superseded_by.get(reward.reward_id)
        if by is not None:
            return f"revised by {by}, which supersedes it"
        by = self._last_verdict.get(reward.name) if reward.scope == "rollout" else None
        if by is None or by == reward.reward_id:
            return "revised, a later reward took its place"
        return f"revised by {by}, a later reward {reward.name!r} of the whole rollout"
