"""What the rewards of batches come to: counts by outcome and rule, means of `final`, `step` and `total` apart.

final   one value a rollout: its final value of a name, whichever calls it reaches. No step reward moves it
step    one value a sample: its step value of a name, reduced, unweighted
total   one value a sample: all that reaches it, weighted; by name: of the samples that a reward of that name reached

Rollouts beyond their group's size never ran, and are left out. A rollout or sample without a value is in no mean: it is
counted, as `null_count`. Pure.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from rolloutlog.consumers.batches import Batch, RolloutResult
from rolloutlog.consumers.samples import Sample

_SCALE = 2.0**-64  # exact, and no sum of finite values so scaled leaves what a float holds


@dataclass(slots=True)
class Mean:
    """Of `count` values; None of none."""

    count: int = 0
    _sum: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self._sum += value * _SCALE

    @property
    def value(self) -> float | None:
        return self._sum / self.count / _SCALE if self.count else None


@dataclass(slots=True)
class NameMetrics:
    """The rewards of one name. `outcomes`: how many by (outcome, rule); the rule is None where nothing was found."""

    outcomes: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    final: Mean = field(default_factory=Mean)
    step: Mean = field(default_factory=Mean)
    total: Mean = field(default_factory=Mean)


@dataclass(slots=True)
class RewardMetrics:
    """The rewards of some rollouts. `names` has those of which there is a reward or value, in the order they came."""

    rollout_count: int = 0
    sample_count: int = 0
    total: Mean = field(default_factory=Mean)
    names: dict[str, NameMetrics] = field(default_factory=dict)

    def add(self, rollout: RolloutResult, samples: Iterable[Sample]) -> None:
        """Count a rollout and its samples in."""
        self.rollout_count += 1
        for outcome in rollout.outcomes:
            self._name(outcome.name).outcomes[outcome.outcome, outcome.rule] += 1
        for name, value in rollout.final.items():
            self._name(name).final.add(value)
        for sample in samples:
            self.sample_count += 1
            for name, value in sample.step.items():
                self._name(name).step.add(value)
            if sample.total is not None:
                self.total.add(sample.total)
                for name in {**sample.step, **sample.final}:
                    self._name(name).total.add(sample.total)

    def _name(self, name: str) -> NameMetrics:
        return self.names.setdefault(name, NameMetrics())


Key = str | int | None


def _policy_version(rollout: RolloutResult, samples: Iterable[Sample]) -> int | None:
    """The version it started with; where that is not told, the oldest that wrote a token of it."""
    if rollout.policy_version is not None:
        return rollout.policy_version
    runs = (run.policy_version for sample in samples for run in sample.policy_version_runs)
    return min((version for version in runs if version is not None), default=None)


GROUPINGS: dict[str, Callable[[RolloutResult, list[Sample]], Key]] = {
    "policy_version": _policy_version,
    "task": lambda rollout, samples: rollout.task_id,
    "split": lambda rollout, samples: rollout.split,
}


class Grouped:
    """Metrics of batches, apart by policy version, task or split; `by` None = all together, under the key None."""

    def __init__(self, by: str | None = None) -> None:
        self._key = None if by is None else GROUPINGS[by]
        self._metrics: dict[Key, RewardMetrics] = {}

    def add(self, batch: Batch) -> None:
        samples: list[list[Sample]] = [[] for _ in batch.rollouts]
        for sample in batch.samples:
            if 0 <= sample.rollout_index < len(samples):  # else of no rollout: trainers reject it
                samples[sample.rollout_index].append(sample)
        for rollout, own in zip(batch.rollouts, samples, strict=True):
            if rollout.status != "surplus":
                key = None if self._key is None else self._key(rollout, own)
                self._metrics.setdefault(key, RewardMetrics()).add(rollout, own)

    def metrics(self) -> dict[Key, RewardMetrics]:
        """By key in order; an unknown policy version comes last."""
        return dict(sorted(self._metrics.items(), key=lambda item: (item[0] is None, item[0])))


def flat_metrics(batches: Iterable[Batch]) -> dict[str, float]:
    """The same for a trainer's log, by split, such as `train/reward/final/mean`. A mean of nothing is left out."""
    grouped = Grouped("split")
    for batch in batches:
        grouped.add(batch)
    return {f"{split}/{name}": value for split, found in grouped.metrics().items() for name, value in _flat(found)}


def _flat(found: RewardMetrics) -> Iterator[tuple[str, float]]:
    yield "rollouts", found.rollout_count
    yield "samples", found.sample_count
    yield from _flat_mean("total", found.total, found.sample_count)
    for name, each in found.names.items():
        yield from _flat_mean(f"{name}/final", each.final, found.rollout_count)
        yield from _flat_mean(f"{name}/step", each.step, found.sample_count)
        yield from _flat_mean(f"{name}/total", each.total, found.sample_count)
        for (outcome, rule), count in each.outcomes.items():
            yield f"{name}/outcome/{outcome}" + (f"/{rule}" if rule not in (None, outcome) else ""), count


def _flat_mean(name: str, mean: Mean, whole: int) -> Iterator[tuple[str, float]]:
    if mean.value is not None:
        yield f"{name}/mean", mean.value
    yield f"{name}/null", whole - mean.count
