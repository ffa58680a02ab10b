"""A step reward without a target: how the policies `enclosing` and `nearest` find its call.

Not here  Agent Lightning 0.3's matching, which looks at all rewards together: attribution.matching
"""

from rolloutlog.consumers.attribution.calls import Call, Calls
from rolloutlog.consumers.attribution.earlier import Earlier, moment
from rolloutlog.consumers.attribution.model import AMBIGUOUS, UNATTRIBUTED, RewardEntry
from rolloutlog.consumers.attribution.tree import NONE, SpanTree


class Enclosing:
    """Climb from where the reward was emitted to the first span that has a call to offer."""

    def __init__(self, calls: Calls, earlier: Earlier) -> None:
        self._calls, self._earlier, self._tree = calls, earlier, calls.tree
        tree = calls.tree
        agents = [kind == "agent" for kind in tree.kind]
        owned = [call is not None and not call.judge for call in calls.of_span]
        self._agent, self._agent_steps = tree.nearest_above(agents)
        # the climb does not pass the nearest agent, which is still looked at
        self._owner, self._owner_steps = tree.nearest_above(owned, stop=agents)
        self._start = _starts(tree)
        self._first_call = _FirstCall(calls)

    def find(self, reward: RewardEntry, position: int, after: Call | None) -> list[Call] | str:
        """The call, or the outcome when there is none."""
        if reward.parent_id is None:
            return self._without_parent()
        start = self._start[self._tree.number[reward.parent_id]]
        if start == NONE:
            return UNATTRIBUTED
        call = self._climb(start, moment(position, after), None if after is None or after.judge else after)
        return UNATTRIBUTED if call is None else [call]

    def _without_parent(self) -> list[Call] | str:
        if len(self._calls.agents) > 1:
            return AMBIGUOUS  # guessing is what makes rewards leak between agents
        call = self._earlier.last()
        return UNATTRIBUTED if call is None else [call]

    def _climb(self, start: int, before: int, after: Call | None) -> Call | None:
        owner = None if self._owner[start] == NONE else self._calls.of_span[self._owner[start]]
        if after is not None:
            if owner is not None and self._owner_steps[start] == 0:
                return owner
            # a gateway records calls without a place in the tree: this one counts as beneath the start
            beneath = self._earlier.last_beneath(start)
            return after if beneath is None or beneath.recorded < after.recorded else beneath
        v = self._first_call.on_the_way_up(start, before)
        steps = self._tree.depth[start] - self._tree.depth[v]
        if owner is not None and (v == NONE or self._owner_steps[start] <= steps):
            return owner
        if v == NONE or (self._agent[start] != NONE and steps > self._agent_steps[start]):
            return None
        return self._earlier.last_beneath(v)


class _FirstCall:
    """When the first call was recorded beneath each span, and the nearest span above that had one by a moment.

    That moment never grows on the way up, so the way can be taken in jumps: each span keeps one ancestor some levels
    up, spaced so that any ancestor is reached in a logarithmic number of steps.
    """

    def __init__(self, calls: Calls) -> None:
        self._tree = tree = calls.tree
        never = 1 + max((call.recorded for call in calls.every), default=0)
        self._recorded = tree.least_beneath(
            [never if call is None or call.judge else call.recorded for call in calls.of_span]
        )
        self._jump = list(range(len(tree)))
        depth, jump = tree.depth, self._jump
        for v in tree.downward:
            p = tree.parent[v]
            if p != NONE:
                far = jump[p]
                jump[v] = jump[far] if depth[p] - depth[far] == depth[far] - depth[jump[far]] else p
        self._never = never

    def on_the_way_up(self, v: int, before: int) -> int:
        """The nearest span from v upwards with a call beneath it recorded before `before`, or NONE."""
        before = min(before, self._never)
        recorded, depth = self._recorded, self._tree.depth
        while recorded[v] >= before:
            if depth[v] == 0:  # a root, or a member of a cycle: the others have the same calls beneath them
                return NONE
            far = self._jump[v]
            v = far if recorded[far] >= before else self._tree.parent[v]
        return v


def _starts(tree: SpanTree) -> list[int]:
    """Where the climb of a reward emitted in each span starts: there, or above the outermost evaluator, or NONE."""
    evaluator = [kind == "evaluator" for kind in tree.kind]
    judged = tree.any_above(evaluator)
    start = list(range(len(tree)))
    for cycle in tree.cycles:
        _start_in_cycle(cycle, evaluator, start)
    for v in tree.downward:
        p = tree.parent[v]
        if p != NONE and judged[p]:
            start[v] = start[p]
        elif evaluator[v]:
            start[v] = p
    return start


def _start_in_cycle(cycle: list[int], evaluator: list[bool], start: list[int]) -> None:
    """From a member the way leads once round the cycle; the last evaluator on it is the outermost."""
    after_last: int | None = None
    for v, following in zip(cycle * 2, cycle[1:] + cycle + cycle[:1], strict=True):
        if after_last is not None:
            start[v] = NONE if after_last == v else after_last  # v would come a second time
        if evaluator[v]:
            after_last = following
