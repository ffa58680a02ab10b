"""Samples on two sides: which are in one alone and why, and which have another total. Pure.

Only samples of rollouts that are in both outputs count here.
"""

from collections import Counter
from dataclasses import dataclass

from rolloutlog.consumers.comparing.held import HeldRollout, HeldSample
from rolloutlog.consumers.comparing.largest import Largest
from rolloutlog.consumers.comparing.spread import difference
from rolloutlog.consumers.comparing.values import Spreads, Values, Version

WAYS_MAX = 1_000  # reasons hold any text: memory is bounded
OTHERS = "(other reasons)"


@dataclass(frozen=True, slots=True)
class TotalChange:
    """A sample whose total changed; None = no reward reaches it there."""

    sample_id: str
    task_id: str
    before: float | None
    after: float | None

    @property
    def difference(self) -> float | None:
        return difference(self.before, self.after)


@dataclass(frozen=True, slots=True)
class Alone:
    """A sample of one side alone. `why`: what keeps it from the other side."""

    sample_id: str
    task_id: str
    total: float | None
    why: str


@dataclass(frozen=True, slots=True)
class SampleResult:
    """Samples in both; how many of them have another total; and for each side those in it alone, by why."""

    both: int
    changed: int
    totals: Spreads
    largest: tuple[TotalChange, ...]
    alone: tuple[int, int]
    why: tuple[dict[str, int], dict[str, int]]
    examples: tuple[tuple[Alone, ...], tuple[Alone, ...]]


class SampleTally:
    """Takes in the samples of rollouts that are in both outputs."""

    def __init__(self, top: int) -> None:
        self._both = self._changed = 0
        self._totals = Values()
        self._whole: tuple[Counter[Version], Counter[Version]] = (Counter(), Counter())
        self._largest = Largest[TotalChange](top, _greatest_first)
        self._alone = [0, 0]
        self._why: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._examples = tuple(Largest[Alone](top, lambda each: each.sample_id) for _ in range(2))

    def add(self, version: Version, before: HeldRollout, after: HeldRollout) -> None:
        sides = before, after
        named = [{each.name: each for each in rollout.samples} for rollout in sides]
        for side, samples in enumerate(named):
            self._whole[side][version] += len(samples)
            for sample in samples.values():
                total = sample.total
                self._totals.add(version, None if side else total, total if side else None)
                if sample.name not in named[1 - side]:
                    self._add_alone(side, sides[side], sides[1 - side], sample)
        for name in named[0].keys() & named[1].keys():
            self._both += 1
            one, other = named[0][name].total, named[1][name].total
            if one != other:
                self._changed += 1
                self._largest.add(TotalChange(_sample_id(after, name), after.task_id, one, other))

    def _add_alone(self, side: int, rollout: HeldRollout, other: HeldRollout, sample: HeldSample) -> None:
        why = _why(other, sample)
        counted = self._why[side]
        counted[why if why in counted or len(counted) < WAYS_MAX else OTHERS] += 1
        self._alone[side] += 1
        self._examples[side].add(Alone(_sample_id(rollout, sample.name), rollout.task_id, sample.total, why))

    def result(self) -> SampleResult:
        return SampleResult(
            self._both,
            self._changed,
            self._totals.spreads(*self._whole),
            tuple(self._largest.items()),
            (self._alone[0], self._alone[1]),
            (dict(self._why[0].most_common()), dict(self._why[1].most_common())),
            (tuple(self._examples[0].items()), tuple(self._examples[1].items())),
        )


def _why(other: HeldRollout, sample: HeldSample) -> str:
    """Why the other side's rollout doesn't have the sample."""
    if not other.emitted:
        return f"{other.status}: {other.reason}" if other.reason else other.status
    if not other.samples:
        return other.untrained or "none of its calls is selected"
    first = next(iter(sample.span_ids), sample.name)
    if any(first in each.span_ids for each in other.samples):
        return "its call is in another row"
    return "its call is not selected"


def _sample_id(rollout: HeldRollout, name: str) -> str:
    begin = f"{rollout.rollout_id}/{rollout.attempt}/"
    return name if name.startswith(begin) else begin + name


def _greatest_first(change: TotalChange) -> tuple[bool, float, str]:
    known = change.difference
    value = change.after if change.before is None else change.before
    return known is None, -abs(known if known is not None else value or 0.0), change.sample_id
