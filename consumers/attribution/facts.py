"""What can be looked up in one rollout to say why a reward went where it did.

The same tree and calls that the rules go by, with names: agents and operations of a call, what stands above a span, the
nearest calls before a reward. An answer costs the logarithm of the number of spans, or a climb of CLIMB_MAX levels.

Not here  the rules themselves: attribution.rules; the words: attribution.reasons
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from rolloutlog.consumers.attribution.calls import Call, Calls
from rolloutlog.consumers.attribution.earlier import after_call, moment
from rolloutlog.consumers.attribution.model import Entry, RewardEntry, SpanEntry
from rolloutlog.consumers.attribution.tree import NONE, SpanTree

CLIMB_MAX = 200  # levels: every reward of a deep tree climbs


class Facts:
    """The spans, calls and rewards of one rollout.

    rewards    by id, in log order, with their positions in the log
    positions  in the log, by span number
    counted    calls except judges', in the order in which they were recorded
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        spans: dict[str, SpanEntry] = {}
        self.positions: list[int] = []
        self.rewards: dict[str, tuple[int, RewardEntry]] = {}
        for position, entry in enumerate(entries):
            if isinstance(entry, RewardEntry):
                self.rewards.setdefault(entry.reward_id, (position, entry))
            elif entry.span_id not in spans:
                spans[entry.span_id] = entry
                self.positions.append(position)
        named = (each.parent_id for _, each in self.rewards.values() if each.parent_id is not None)
        self.tree = tree = SpanTree(list(spans.values()), named)
        self.calls = Calls(tree, self.positions)
        self.counted = [call for call in self.calls.every if not call.judge]
        self._recorded = [call.recorded for call in self.counted]
        placed = sorted((tree.place[v], call.recorded, call) for call in self.counted for v in call.spans)
        self._places, self._at_place = [each[0] for each in placed], [each[2] for each in placed]
        self._operation, _ = tree.nearest_above([kind == "operation" for kind in tree.kind])
        self._agent, _ = tree.nearest_above([kind == "agent" for kind in tree.kind])
        self._judged = tree.any_above([kind == "evaluator" for kind in tree.kind])

    def name(self, v: int) -> str:
        """A span in words, by kind and name: `operation write`."""
        if v >= len(self.tree.spans):
            return "a span that was never recorded"
        span = self.tree.spans[v]
        return f"{span.kind} {span.name or span.span_id}"

    def up_from(self, v: int) -> Iterator[int]:
        """The span and what it lies beneath, nearest first; at most CLIMB_MAX levels."""
        seen: set[int] = set()
        while v != NONE and v not in seen and len(seen) < CLIMB_MAX:
            seen.add(v)
            yield v
            v = self.tree.parent[v]

    def operation(self, call: Call) -> str | None:
        """The name of the nearest operation around a call."""
        found = next((self._operation[v] for v in call.spans if self._operation[v] != NONE), NONE)
        return None if found == NONE else self.tree.spans[found].name

    def operations(self, call: Call) -> list[str]:
        """The names of the operations around a call, nearest first."""
        names: dict[str, None] = {}
        for v in call.spans:
            for above in self.up_from(v):
                if self.tree.kind[above] == "operation":
                    names[self.tree.spans[above].name] = None
        return list(names)

    def agent_above(self, v: int) -> int:
        """The nearest agent at or above a span, or NONE."""
        return self._agent[v]

    def judged(self, v: int) -> bool:
        """Whether a span is an evaluator or lies beneath one."""
        return self._judged[v]

    def outermost_evaluator(self, v: int) -> int:
        found = NONE
        for above in self.up_from(v):
            if self.tree.kind[above] == "evaluator":
                found = above
        return found

    def moment(self, reward_id: str) -> int:
        """The position in the log before which something is earlier than the reward."""
        position, reward = self.rewards[reward_id]
        return moment(position, after_call(self.calls, reward))

    def last_before(self, before: int) -> Call | None:
        """The last call recorded before a position."""
        index = bisect_left(self._recorded, before)
        return self.counted[index - 1] if index else None

    def any_beneath(self, v: int) -> Call | None:
        """A call beneath a span, whenever it was recorded."""
        index = bisect_left(self._places, self.tree.begin[v])
        found = index < len(self._places) and self._places[index] < self.tree.end[v]
        return self._at_place[index] if found else None

    def holds(self, v: int, call: Call) -> bool:
        """Whether a call lies beneath a span."""
        tree = self.tree
        return any(tree.begin[v] <= tree.place[each] < tree.end[v] for each in call.spans)
