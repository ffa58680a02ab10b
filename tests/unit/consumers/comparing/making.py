"""What a comparison holds, with literal defaults."""

from typing import Any

from rolloutlog.consumers.comparing.comparison import Compared, Comparison
from rolloutlog.consumers.comparing.held import HeldReward, HeldRollout, HeldSample

Pair = tuple[HeldRollout, HeldRollout]


def reward(reward_id: str = "m:1", value: float | None = 1.0, outcome: str = "final", **fields: Any) -> HeldReward:
    given = {"name": "reward", "rule": outcome if outcome == "final" else None, "calls": 0, "scorer": None,
             "scorer_version": None, **fields}  # fmt: skip
    return HeldReward(reward_id, value=value, outcome=outcome, **given)


def sample(name: str = "c", total: float | None = 1.0, *span_ids: str) -> HeldSample:
    return HeldSample(name, total, span_ids)


def rollout(rollout_id: str = "r", final: float | None = None, **fields: Any) -> HeldRollout:
    """`final`: the value of the reward named `reward`."""
    given: dict[str, Any] = {
        "attempt": 0, "group_id": "g", "task_id": "t", "status": "emitted", "reason": None, "policy_version": 3,
        "final": () if final is None else (("reward", final),), "rewards": (), "samples": (), "reward": final,
        "untrained": None, **fields,
    }  # fmt: skip
    return HeldRollout(rollout_id, **given)


def compared(*groups: list[Pair] | Pair, **settings: Any) -> Compared:
    """A comparison of pairs, each a group of its own, or of lists of pairs."""
    comparison = Comparison(**settings)
    for group in groups:
        comparison.add_pairs(group if isinstance(group, list) else [group])
    return comparison.result()
