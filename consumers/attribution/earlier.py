"""What was recorded before a moment: "the last earlier call", "beneath this span", "operations begun by then".

The moment only moves forward, so rewards are looked at in the order of their moments. What is asked then costs the
logarithm of the number of spans, however deep the tree and however many rewards ask.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter

from rolloutlog.consumers.attribution.calls import Call, Calls, in_turn_order
from rolloutlog.consumers.attribution.model import RewardEntry
from rolloutlog.consumers.attribution.ranges import EMPTY, Latest


def after_call(calls: Calls, reward: RewardEntry) -> Call | None:
    """The call that a reward says it came after, by span id or else response id; a judge's too."""
    if reward.after_call is None:
        return None
    return calls.by_span(reward.after_call) or calls.by_response(reward.after_call)


def moment(position: int, after: Call | None) -> int:
    """The position in the log before which something is "before the reward" at `position`."""
    return position if after is None else max(position, after.recorded + 1)


class Earlier:
    """The calls except judges', and the operations, that were recorded before the present moment."""

    def __init__(self, calls: Calls, positions: Sequence[int]) -> None:
        self._tree = tree = calls.tree
        self._counted = [call for call in calls.every if not call.judge]
        self._places = sorted(tree.place[v] for call in self._counted for v in call.spans)
        self._latest = Latest(len(self._places))
        self._count = 0  # of the counted calls that are earlier
        self._operations = [
            (positions[v], span.start_ns, v) for v, span in enumerate(tree.spans) if span.kind == "operation"
        ]
        self._operation_count = 0
        self._newest: dict[str, tuple[int, int]] = {}
        self._by_start: dict[str, list[tuple[int, int]]] = {}
        for _, start_ns, v in self._operations:
            self._by_start.setdefault(tree.spans[v].name, []).append((start_ns, v))
        for begun in self._by_start.values():
            begun.sort()

    def advance(self, moment: int) -> None:
        """Move to a moment that is not before the present one."""
        while self._count < len(self._counted) and self._counted[self._count].recorded < moment:
            for v in self._counted[self._count].spans:
                self._latest.set(bisect_left(self._places, self._tree.place[v]), self._count)
            self._count += 1
        while self._operation_count < len(self._operations):
            position, start_ns, v = self._operations[self._operation_count]
            if position >= moment:
                break
            name = self._tree.spans[v].name
            self._newest[name] = max((start_ns, v), self._newest.get(name, (start_ns, v)))
            self._operation_count += 1

    @property
    def count(self) -> int:
        """How many calls are earlier, judges' not counted: the first so many of those in the log."""
        return self._count

    def last(self) -> Call | None:
        """The last earlier call of the rollout."""
        return self._counted[self._count - 1] if self._count else None

    def last_beneath(self, v: int) -> Call | None:
        index = self._latest.latest(*self._range(v))
        return None if index == EMPTY else self._counted[index]

    def all_beneath(self, v: int) -> list[Call]:
        """Every earlier call beneath a span, in turn order."""
        return in_turn_order(self._counted[index] for index in set(self._latest.all(*self._range(v))))

    def operation(self, name: str, time_ns: int) -> int | None:
        """The operation of that name that started last, among those earlier or started by `time_ns`."""
        begun = self._by_start.get(name, [])
        count = bisect_right(begun, time_ns, key=itemgetter(0))
        candidates = [begun[count - 1]] if count else []
        if name in self._newest:
            candidates.append(self._newest[name])
        return max(candidates)[1] if candidates else None

    def _range(self, v: int) -> tuple[int, int]:
        return bisect_left(self._places, self._tree.begin[v]), bisect_left(self._places, self._tree.end[v])
