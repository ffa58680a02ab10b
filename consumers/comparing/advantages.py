"""Groups on two sides: which put their rollouts in another order, and whose advantages change their sign. Pure.

What a group-relative trainer such as GRPO learns from a group is which of its rollouts are above the group's mean.
Each rollout's reward is what trainers compare it by: `consumers.stream.advantages`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf

from rolloutlog.consumers.comparing.held import HeldRollout
from rolloutlog.consumers.comparing.largest import Largest

TOLERANCE = 1e-9  # of the group's greatest reward: what is left of value - mean by rounding is no advantage


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A group in another order or with other signs. `before`, `after`: rewards of its `rollouts`, in their order."""

    group_id: str
    task_id: str
    flips: int
    rollouts: tuple[str, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AdvantageResult:
    """Groups with two or more rollouts that have a reward on both sides, and what changes in them.

    reordered   groups in which of two rollouts the better one became the worse one
    flipped     groups in which an advantage changes its sign, and `flips`, of how many of `rollouts`
    flat_after  groups whose rewards differ before and are all the same after: nothing is learned from them any more
    flat_before the other way round
    """

    groups: int = 0
    rollouts: int = 0
    reordered: int = 0
    flipped: int = 0
    flips: int = 0
    flat_after: int = 0
    flat_before: int = 0
    largest: tuple[GroupChange, ...] = ()


class AdvantageTally:
    """Takes in groups."""

    def __init__(self, top: int) -> None:
        self._groups = self._rollouts = self._reordered = self._flipped = self._flips = 0
        self._flat = [0, 0]
        self._largest = Largest[GroupChange](top, lambda each: (-each.flips, each.group_id))

    def add(self, pairs: Sequence[tuple[HeldRollout, HeldRollout]]) -> None:
        """A group's rollouts that are in both outputs."""
        known = [
            (before.reward, after.reward, after)
            for before, after in pairs
            if before.reward is not None and after.reward is not None
        ]
        if len(known) < 2:
            return
        before, after, rollouts = zip(*known, strict=True)
        self._groups += 1
        self._rollouts += len(known)
        flat = [min(side) == max(side) for side in (before, after)]
        self._flat[0] += flat[0] and not flat[1]
        self._flat[1] += flat[1] and not flat[0]
        reordered = _inverted(before, after)
        signs = zip(_signs(before), _signs(after), strict=True)
        flips = sum(one * other < 0 for one, other in signs)
        if not reordered and not flips:
            return
        self._reordered += reordered
        self._flips += flips
        self._flipped += flips > 0
        ids = tuple(each.rollout_id for each in rollouts)
        self._largest.add(GroupChange(rollouts[0].group_id, rollouts[0].task_id, flips, ids, before, after))

    def result(self) -> AdvantageResult:
        return AdvantageResult(
            groups=self._groups,
            rollouts=self._rollouts,
            reordered=self._reordered,
            flipped=self._flipped,
            flips=self._flips,
            flat_after=self._flat[1],
            flat_before=self._flat[0],
            largest=tuple(self._largest.items()),
        )


def _inverted(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether there are two of which one is below the other before, and above it after."""
    greatest = -inf  # after, of those that are below before
    pairs = sorted(zip(before, after, strict=True))
    for _, tied in groupby(pairs, key=lambda pair: pair[0]):
        of_tied = [value for _, value in tied]
        if of_tied[0] < greatest:
            return True
        greatest = max(greatest, of_tied[-1])
    return False


def _signs(values: Sequence[float]) -> list[int]:
    """Of each value's advantage: 1 above the mean, -1 below, 0 at it."""
    greatest = max(map(abs, values)) or 1.0
    scaled = [value / greatest for value in values]
    mean = sum(scaled) / len(scaled)
    return [0 if abs(value - mean) <= TOLERANCE else 1 if value > mean else -1 for value in scaled]
