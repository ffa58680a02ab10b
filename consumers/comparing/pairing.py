"""Finds each rollout of one output in another one: the groups of one side wait, packed, for those of the other.

A rollout keeps its partition whatever is made of it, so each partition is paired alone, and only its rollouts are
held, of the side with fewer. Pure.

Twice   a rollout in several batches of the side that waits counts as its last one says, of the other side as the first
        that is matched says; the others are counted, `repeated`
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from rolloutlog.consumers.comparing.held import HeldGroup, HeldRollout


@dataclass(slots=True)
class Matched:
    """A group's rollouts. `pairs`: (the one that waited, the one that came); `alone`: those that came without like."""

    pairs: list[tuple[HeldRollout, HeldRollout]] = field(default_factory=list)
    alone: list[HeldRollout] = field(default_factory=list)


class Pairing:
    """One partition of two outputs. First `wait` for all groups of one side, then `match` those of the other."""

    def __init__(self) -> None:
        self.repeated = 0
        self._waiting: dict[str, bytes] = {}
        self._matched: dict[str, array[int]] = {}  # group → its matched rollouts, 8 bytes each

    def wait(self, group: HeldGroup) -> None:
        """Keep a group until its like comes."""
        rollouts = {each.rollout_id: each for each in group.rollouts}
        packed = self._waiting.get(group.group_id)
        if packed is not None:
            before = {each.rollout_id: each for each in HeldGroup.unpack(packed).rollouts}
            self.repeated += len(before.keys() & rollouts.keys())
            rollouts = {**before, **rollouts}
        self._waiting[group.group_id] = HeldGroup(group.group_id, tuple(rollouts.values())).pack()

    def match(self, group: HeldGroup) -> Matched:
        """The group's rollouts beside those that wait, which wait no more."""
        found = Matched()
        packed = self._waiting.pop(group.group_id, None)
        waiting = {} if packed is None else {each.rollout_id: each for each in HeldGroup.unpack(packed).rollouts}
        matched = self._matched.get(group.group_id, array("q"))
        before = set(matched)
        for rollout in group.rollouts:
            other = waiting.pop(rollout.rollout_id, None)
            if other is not None:
                found.pairs.append((other, rollout))
            elif hash(rollout.rollout_id) in before:
                self.repeated += 1
            else:
                found.alone.append(rollout)
        matched.extend(hash(rollout.rollout_id) for _, rollout in found.pairs)
        if matched:
            self._matched[group.group_id] = matched
        if waiting:
            self._waiting[group.group_id] = HeldGroup(group.group_id, tuple(waiting.values())).pack()
        return found

    def rest(self) -> Iterator[HeldRollout]:
        """Those whose like has not come."""
        for packed in self._waiting.values():
            yield from HeldGroup.unpack(packed).rollouts
