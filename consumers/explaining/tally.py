"""Sums over compared rollouts: rewards that move by name, totals of calls by operation and agent, examples. Pure."""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from rolloutlog.consumers.explaining.comparison import CallMove, Comparison

EXAMPLES = 5
NAMES_MAX = 10_000  # of rewards, operations and agents each: names come from anyone, memory is bounded
OTHERS = "(others)"

Kept = TypeVar("Kept")


@dataclass(slots=True)
class Totals:
    """Calls that are selected, those of them that a reward reaches, and the sum of their totals; before and after."""

    calls: list[int] = field(default_factory=lambda: [0, 0])
    rewarded: list[int] = field(default_factory=lambda: [0, 0])
    total: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def add(self, call: CallMove) -> None:
        sides = ((call.selected_before, call.before), (call.selected_after, call.after))
        for side, (selected, total) in enumerate(sides):
            self.calls[side] += selected
            if total is not None:
                self.rewarded[side] += 1
                self.total[side] += total

    def mean(self, side: int) -> float | None:
        """Mean total of the calls that a reward reaches; None when there are none."""
        return self.total[side] / self.rewarded[side] if self.rewarded[side] else None


@dataclass(slots=True)
class Moves:
    """Rewards of one name. `ways`: (outcome before, outcome after) → how many went that way."""

    count: int = 0
    moved: int = 0
    ways: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Example:
    """A rollout that changed: sums of its calls' totals before and after, and one reward that moved, as text."""

    rollout_id: str
    task_id: str
    difference: float
    moved: int
    before: float
    after: float
    words: str


@dataclass(slots=True)
class Tally:
    """What was found.

    gone     published, but their events are not there any more
    missing  ids that were asked for and are not published
    faulty   rollouts for which a policy of the user's own failed, and `fault`, what it did first
    """

    before: str
    after: str
    rollouts: int = 0
    changed: int = 0
    gone: int = 0
    not_completed: int = 0
    missing: tuple[str, ...] = ()
    faulty: int = 0
    fault: str | None = None
    rewards: dict[str, Moves] = field(default_factory=dict)
    overall: Totals = field(default_factory=Totals)
    by_operation: dict[str, Totals] = field(default_factory=dict)
    by_agent: dict[str, Totals] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)

    def add(self, rollout_id: str, task_id: str, found: Comparison) -> None:
        self.rollouts += 1
        if found.faults:
            self.faulty += 1
            self.fault = self.fault or f"rollout {rollout_id}: {found.faults[0]}"
        for reward in found.rewards:
            moves = _of(self.rewards, reward.name, Moves)
            moves.count += 1
            if reward.moved and reward.before is not None and reward.after is not None:
                moves.moved += 1
                moves.ways[reward.before.outcome, reward.after.outcome] += 1
        for call in found.calls:
            self.overall.add(call)
            _of(self.by_operation, call.operation or "", Totals).add(call)
            _of(self.by_agent, call.agent or "", Totals).add(call)
        if not found.moved and not found.changed:
            return
        self.changed += 1
        self.examples.append(_example(rollout_id, task_id, found))
        if len(self.examples) >= 100 * EXAMPLES:
            self._keep_examples()

    def _keep_examples(self) -> None:
        self.examples = heapq.nlargest(
            EXAMPLES, self.examples, key=lambda each: (each.difference, each.moved, each.rollout_id)
        )

    def finish(self) -> "Tally":
        self._keep_examples()
        return self


def _example(rollout_id: str, task_id: str, found: Comparison) -> Example:
    words = ""
    for reward in found.rewards:
        if reward.moved and reward.before is not None and reward.after is not None:
            value = "no value" if reward.value is None else f"{reward.value:g}"
            words = f"{reward.name} {value}: {reward.before.text()} → {reward.after.text()}"
            break
    return Example(
        rollout_id=rollout_id,
        task_id=task_id,
        difference=sum(each.difference for each in found.calls),
        moved=found.moved,
        before=sum(each.before or 0.0 for each in found.calls),
        after=sum(each.after or 0.0 for each in found.calls),
        words=words,
    )


def _of(named: dict[str, Kept], name: str, make: Callable[[], Kept]) -> Kept:
    if name not in named and len(named) >= NAMES_MAX:
        name = OTHERS
    found = named.get(name)
    if found is None:
        found = named[name] = make()
    return found
