"""One reward name on two sides: how its values are spread, its mean by task, and which rollouts changed most. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from rolloutlog.consumers.comparing.held import ATTRIBUTED, FINAL, HeldReward, HeldRollout
from rolloutlog.consumers.comparing.largest import Largest
from rolloutlog.consumers.comparing.spread import difference
from rolloutlog.consumers.comparing.values import Spreads, Values, Version
from rolloutlog.consumers.metrics import Mean


@dataclass(frozen=True, slots=True)
class Change:
    """A rollout whose value changed; None = it has none there.

    by  the reward that gives the value after, or gave it before where there is none after; None where it is not told
    """

    rollout_id: str
    attempt: int
    group_id: str
    task_id: str
    before: float | None
    after: float | None
    by: HeldReward | None

    @property
    def difference(self) -> float | None:
        return difference(self.before, self.after)


@dataclass(frozen=True, slots=True)
class TaskMeans:
    """The means of one task's rollouts, of those with a value."""

    task_id: str
    before: float | None
    after: float | None
    before_count: int
    after_count: int

    @property
    def difference(self) -> float | None:
        return difference(self.before, self.after)


@dataclass(frozen=True, slots=True)
class RewardResult:
    """One (name, kind), of rollouts that were emitted: of a change, on both sides.

    changed, gained, lost  rollouts whose value changed; those that have one after alone, before alone
    apart                  rollouts with a value on the side alone where they were emitted
    not_emitted            rollouts that were not, before and after: in none of its values
    """

    name: str
    kind: str
    spreads: Spreads
    changed: int
    gained: int
    lost: int
    apart: int
    not_emitted: tuple[int, int]
    tasks: tuple[TaskMeans, ...]
    largest: tuple[Change, ...]

    @property
    def alike(self) -> bool:
        """Whether both sides have the same values, of the same rollouts."""
        return not (self.changed or self.gained or self.lost or self.apart)

    @property
    def only(self) -> int | None:
        """The side that has all values, 0 = before, 1 = after; None = both have some."""
        counts = self.spreads.before.count, self.spreads.after.count
        return counts.index(max(counts)) if not min(counts) and max(counts) else None


class RewardTally:
    """Takes in the values of one (name, kind)."""

    def __init__(self, name: str, kind: str, top: int) -> None:
        self.name, self.kind = name, kind
        self._values = Values()
        self._tasks: dict[str, tuple[Mean, Mean]] = {}
        self._changed = self._gained = self._lost = self._apart = 0
        self._largest = Largest[Change](top, _greatest_first)

    def add(
        self, version: Version, pair: tuple[HeldRollout, HeldRollout], before: float | None, after: float | None
    ) -> None:
        """A rollout with a value on one side or both."""
        self._values.add(version, before, after)
        means = self._tasks.setdefault(pair[1].task_id, (Mean(), Mean()))
        for mean, value in zip(means, (before, after), strict=True):
            if value is not None:
                mean.add(value)
        if before == after:
            return
        if not (pair[0].emitted and pair[1].emitted):
            self._apart += 1
            return  # how it ended has changed, which is told there
        self._gained += before is None
        self._lost += after is None
        self._changed += before is not None and after is not None
        rollout = pair[1]
        by = _by(self.name, self.kind, *pair) if after is not None else _by(self.name, self.kind, *pair[::-1])
        self._largest.add(
            Change(rollout.rollout_id, rollout.attempt, rollout.group_id, rollout.task_id, before, after, by)
        )

    def result(
        self, before_whole: Mapping[Version, int], after_whole: Mapping[Version, int], not_emitted: tuple[int, int]
    ) -> RewardResult:
        """`..._whole`: by policy version, the rollouts in both outputs that were emitted there."""
        tasks = (
            TaskMeans(task_id, before.value, after.value, before.count, after.count)
            for task_id, (before, after) in self._tasks.items()
        )
        return RewardResult(
            self.name,
            self.kind,
            self._values.spreads(before_whole, after_whole),
            self._changed,
            self._gained,
            self._lost,
            self._apart,
            not_emitted,
            tuple(sorted(tasks, key=_greatest_task_first)),
            tuple(self._largest.items()),
        )


def _greatest_first(change: Change) -> tuple[bool, float, str]:
    """Changes between two values; then those from or to none, by the value that there is. Ties by id."""
    known = change.difference
    value = change.after if change.before is None else change.before
    return known is None, -abs(known if known is not None else value or 0.0), change.rollout_id


def _greatest_task_first(task: TaskMeans) -> tuple[bool, float, str]:
    known = task.difference
    return known is None, -abs(known or 0.0), task.task_id


def _by(name: str, kind: str, other: HeldRollout, rollout: HeldRollout) -> HeldReward | None:
    """The reward that makes the rollout's value another than the other's: the newest that counts and is new there."""
    outcome = FINAL if kind == FINAL else ATTRIBUTED
    counts = [each for each in rollout.rewards if each.name == name and each.outcome == outcome]
    known = {(each.reward_id, each.value) for each in other.rewards if each.name == name and each.outcome == outcome}
    new = [each for each in counts if (each.reward_id, each.value) not in known]
    return next(reversed(new or counts), None)
