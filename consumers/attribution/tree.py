"""Which span lies beneath which.

Spans are numbered in log order; an id that is only ever named as a parent becomes a span of no kind after them. All
questions are answered from arrays that are filled in one pass upwards or downwards, without recursion: a tree may be
10,000 levels deep, and walking up for each reward would make it quadratic.

Cycles    parents are followed until one would come a second time. So every span of a cycle lies beneath all the
          others, and what hangs below the cycle lies beneath all of it. Members of a cycle have depth 0, as roots do.
Not here  which spans are one call: attribution.calls
"""

from collections.abc import Iterable, Sequence

from rolloutlog.consumers.attribution.model import SpanEntry

NONE = -1  # no span


class SpanTree:
    """The spans of a rollout as a forest.

    number    span id → number
    kind      per span; "" for one that was never recorded
    parent    number of the parent, or NONE
    cycles    each a list of numbers in which the parent of one is the next, and of the last the first
    downward  every number outside cycles, parents before children
    depth     levels below the root or the cycle
    place       a place of its own for each span, such that
    begin, end  what lies at or beneath span v has its place in begin[v] … end[v] - 1
    """

    __slots__ = ("begin", "cycles", "depth", "downward", "end", "kind", "number", "parent", "place", "spans")

    def __init__(self, spans: Sequence[SpanEntry], named: Iterable[str]) -> None:
        """spans  in log order, each id once
        named  ids that rewards name as their parent
        """
        self.spans = spans
        self.number = {span.span_id: number for number, span in enumerate(spans)}
        self.parent = [NONE if span.parent_id is None else self._number_of(span.parent_id) for span in spans]
        for span_id in named:
            self._number_of(span_id)
        unrecorded = len(self.number) - len(spans)
        self.kind = [span.kind for span in spans] + [""] * unrecorded
        self.parent += [NONE] * unrecorded
        upward = self._peel()
        self.downward = upward[::-1]
        self._number_places(upward)

    def __len__(self) -> int:
        return len(self.parent)

    def any_above(self, marked: Sequence[bool]) -> list[bool]:
        """Per span: is it, or anything it lies beneath, marked?"""
        above = list(marked)
        if True not in above:
            return above
        for cycle in self.cycles:
            if any(marked[v] for v in cycle):
                for v in cycle:
                    above[v] = True
        parent = self.parent
        for v in self.downward:
            if not above[v] and parent[v] != NONE:
                above[v] = above[parent[v]]
        return above

    def nearest_above(self, marked: Sequence[bool], stop: Sequence[bool] | None = None) -> tuple[list[int], list[int]]:
        """Per span: the first marked one on the way up, itself included, and how many steps away it is.

        stop     spans that the way does not pass; one that is marked too is still found
        Returns  numbers and steps; NONE and 0 where there is none
        """
        where, steps = [NONE] * len(self), [0] * len(self)
        if True not in marked:
            return where, steps
        parent = self.parent

        def look(v: int) -> None:
            if marked[v]:
                where[v], steps[v] = v, 0
            elif (stop is None or not stop[v]) and parent[v] != NONE and where[parent[v]] != NONE:
                where[v], steps[v] = where[parent[v]], steps[parent[v]] + 1

        for cycle in self.cycles:
            for v in (*reversed(cycle), *reversed(cycle)):  # twice: the first round starts without knowing what follows
                look(v)
        for v in self.downward:
            look(v)
        return where, steps

    def least_beneath(self, values: list[int]) -> list[int]:
        """Per span: the smallest of `values` at or beneath it."""
        least = list(values)
        parent = self.parent
        for v in reversed(self.downward):
            if parent[v] != NONE and least[v] < least[parent[v]]:
                least[parent[v]] = least[v]
        for cycle in self.cycles:
            smallest = min(least[v] for v in cycle)
            for v in cycle:
                least[v] = smallest
        return least

    def _number_of(self, span_id: str) -> int:
        return self.number.setdefault(span_id, len(self.number))

    def _peel(self) -> list[int]:
        """Take leaves off until only cycles are left. Returns what was taken, children before parents."""
        parent = self.parent
        children = [0] * len(parent)
        for p in parent:
            if p != NONE:
                children[p] += 1
        taken = [v for v in range(len(parent)) if not children[v]]
        for v in taken:  # grows while it is walked
            p = parent[v]
            if p != NONE:
                children[p] -= 1
                if not children[p]:
                    taken.append(p)
        self.cycles = [self._cycle_from(v, children) for v in range(len(parent)) if children[v]]
        return taken

    def _cycle_from(self, v: int, children: list[int]) -> list[int]:
        cycle = []
        while children[v]:
            children[v] = 0
            cycle.append(v)
            v = self.parent[v]
        return cycle

    def _number_places(self, upward: list[int]) -> None:
        """Fill depth, place, begin and end."""
        parent, size = self.parent, [1] * len(self)
        for v in upward:
            if parent[v] != NONE:
                size[parent[v]] += size[v]
        self.depth, self.place = [0] * len(self), [0] * len(self)
        self.begin, self.end = [0] * len(self), [0] * len(self)
        free = [0] * len(self)  # the next place for a child
        used = 0
        for cycle in self.cycles:
            # one range for all members: the whole cycle and what hangs below it lies beneath each of them
            begin, end = used, used + sum(size[v] for v in cycle)
            for v in cycle:
                self.place[v], free[v] = used, used + 1
                self.begin[v], self.end[v] = begin, end
                used += size[v]
        for v in self.downward:
            p = parent[v]
            if p == NONE:
                at, used = used, used + size[v]
            else:
                at = free[p]
                free[p] += size[v]
                self.depth[v] = self.depth[p] + 1
            self.place[v] = self.begin[v] = at
            self.end[v], free[v] = at + size[v], at + 1
