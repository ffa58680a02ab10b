"""What a comparison keeps of a batch: each rollout's end, values, rewards and samples, and no token.

A group that waits for its like is kept packed: some 200 bytes a rollout, where its objects would take thousands.

Values     numbers that are not finite, which only another writer's batches hold, count as none
Not here   which groups are alike: consumers.comparing.pairing
"""

import pickle
import zlib
from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from rolloutlog.consumers.batches import Batch, RewardOutcome, RolloutResult
from rolloutlog.consumers.samples import Sample
from rolloutlog.consumers.stream.advantages import rollout_rewards

FINAL, STEP = "final", "step"
SURPLUS = "surplus"
EMITTED = "emitted"
ATTRIBUTED = "attributed"
ZLIB_LEVEL = 1  # texts repeat within a group; a higher level takes twice the time for a tenth less


class HeldReward(NamedTuple):
    """One reward and what became of it. `calls`: stands for the calls that it counts for, in this process alone."""

    reward_id: str
    name: str
    value: float | None
    outcome: str
    rule: str | None
    calls: int
    scorer: str | None
    scorer_version: str | None


class HeldSample(NamedTuple):
    """One row. `name`: its id without the rollout's; `span_ids`: of its calls, empty when its name says it all."""

    name: str
    total: float | None
    span_ids: tuple[str, ...]


class HeldRollout(NamedTuple):
    """One rollout.

    policy_version  it started with; where that is not told, the oldest that wrote a token of it; None = unknown
    final           its final values by name
    reward          what it is compared by within its group: `consumers.stream.advantages`; None = no sample has any
    untrained       why its group has no samples; None = it has some
    """

    rollout_id: str
    attempt: int
    group_id: str
    task_id: str
    status: str
    reason: str | None
    policy_version: int | None
    final: tuple[tuple[str, float], ...]
    rewards: tuple[HeldReward, ...]
    samples: tuple[HeldSample, ...]
    reward: float | None
    untrained: str | None

    @property
    def ran(self) -> bool:
        """Whether it is in statistics: what came beyond its group's size never ran."""
        return self.status != SURPLUS

    @property
    def emitted(self) -> bool:
        """Whether it has values to compare: of one that ended otherwise, nothing is trained."""
        return self.status == EMITTED

    @property
    def names(self) -> set[str]:
        """Of all its rewards, whatever became of them."""
        return {name for name, _ in self.final} | {each.name for each in self.rewards}

    def values(self) -> dict[tuple[str, str], float]:
        """By (name, kind): FINAL its final value; STEP the sum of the step rewards that count for a call."""
        if not self.emitted:
            return {}
        found = {(name, FINAL): value for name, value in self.final}
        for each in self.rewards:
            if each.outcome == ATTRIBUTED and each.value is not None:
                key = each.name, STEP
                found[key] = found.get(key, 0.0) + each.value
        return {key: value for key, value in found.items() if isfinite(value)}


class HeldGroup(NamedTuple):
    """The rollouts of one batch, in its order."""

    group_id: str
    rollouts: tuple[HeldRollout, ...]

    def pack(self) -> bytes:
        # Pickle, because it stays within this process, and texts that are one object are packed once.
        return zlib.compress(pickle.dumps(self, pickle.HIGHEST_PROTOCOL), ZLIB_LEVEL)

    @staticmethod
    def unpack(packed: bytes) -> "HeldGroup":
        found = pickle.loads(zlib.decompress(packed))
        assert isinstance(found, HeldGroup)
        return found


def held_group(batch: Batch) -> HeldGroup:
    """What is kept of a batch. Samples of none of its rollouts, which trainers reject, are left out."""
    samples: list[list[Sample]] = [[] for _ in batch.rollouts]
    for sample in batch.samples:
        if 0 <= sample.rollout_index < len(samples):
            samples[sample.rollout_index].append(sample)
    rollouts = (_rollout(batch, each, own) for each, own in zip(batch.rollouts, samples, strict=True))
    return HeldGroup(batch.group_id, tuple(rollouts))


def _rollout(batch: Batch, result: RolloutResult, samples: Sequence[Sample]) -> HeldRollout:
    rewards = rollout_rewards(samples, [0] * len(samples), None)
    begin = f"{result.rollout_id}/{result.attempt}/"
    return HeldRollout(
        rollout_id=result.rollout_id,
        attempt=result.attempt,
        group_id=batch.group_id,
        task_id=result.task_id,
        status=result.status,
        reason=result.error if result.status == "failed" else result.reason,
        policy_version=_policy_version(result, samples),
        final=tuple((name, value) for name, value in result.final.items() if isfinite(value)),
        rewards=tuple(map(_reward, result.outcomes)),
        samples=tuple(_sample(each, begin) for each in samples),
        reward=_finite(next(iter(rewards.values()), None)),
        untrained=batch.reason,
    )


def _reward(outcome: RewardOutcome) -> HeldReward:
    return HeldReward(
        outcome.reward_id,
        outcome.name,
        _finite(outcome.value),
        outcome.outcome,
        outcome.rule,
        hash(outcome.calls),
        outcome.scorer,
        outcome.scorer_version,
    )


def _sample(sample: Sample, begin: str) -> HeldSample:
    name = sample.sample_id.removeprefix(begin)
    return HeldSample(name, _finite(sample.total), () if sample.span_ids == (name,) else sample.span_ids)


def _policy_version(result: RolloutResult, samples: Sequence[Sample]) -> int | None:
    if result.policy_version is not None:
        return result.policy_version
    runs = (run.policy_version for sample in samples for run in sample.policy_version_runs)
    return min((version for version in runs if version is not None), default=None)


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
