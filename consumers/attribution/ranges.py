"""Two arrays over a fixed number of places that answer in logarithmic time what a walk would answer in linear time."""

from collections.abc import Iterator
from math import inf

EMPTY = -1


class Latest:
    """Values ≥ 0 set at places, each greater than all set before. What is the latest within a range of places?"""

    __slots__ = ("_leaves", "_tree")

    def __init__(self, places: int) -> None:
        self._leaves = 1 << max(places - 1, 0).bit_length()
        self._tree = [EMPTY] * (2 * self._leaves)

    def set(self, place: int, value: int) -> None:
        node = place + self._leaves
        tree = self._tree
        while node:
            tree[node] = value  # the greatest so far, so of every range that holds it
            node >>= 1

    def latest(self, begin: int, end: int) -> int:
        """The greatest value in [begin, end), or EMPTY."""
        tree, best = self._tree, EMPTY
        begin += self._leaves
        end += self._leaves
        while begin < end:
            if begin & 1:
                if tree[begin] > best:
                    best = tree[begin]
                begin += 1
            if end & 1:
                end -= 1
                if tree[end] > best:
                    best = tree[end]
            begin >>= 1
            end >>= 1
        return best

    def all(self, begin: int, end: int) -> Iterator[int]:
        """Every value in [begin, end), by place. Work grows with their number, not with the range."""
        stack = [(1, 0, self._leaves)]
        while stack:
            node, low, width = stack.pop()
            if self._tree[node] == EMPTY or low >= end or low + width <= begin:
                continue
            if width == 1:
                yield self._tree[node]
            else:
                half = width // 2
                stack.append((2 * node + 1, low + half, half))
                stack.append((2 * node, low, half))


class Waiting:
    """A list that grows to at most `places` entries. Take the newest whose time is not later than a given one."""

    __slots__ = ("_count", "_leaves", "_tree")

    def __init__(self, places: int) -> None:
        self._leaves = 1 << max(places - 1, 0).bit_length()
        self._tree: list[float] = [inf] * (2 * self._leaves)  # earliest time in each range
        self._count = 0

    def append(self, time: int) -> None:
        self._put(self._count, time)
        self._count += 1

    def take(self, time: int) -> int | None:
        """Index of the newest entry with a time ≤ `time`, which is taken off; None when there is none."""
        tree = self._tree
        if tree[1] > time:
            return None
        node = 1
        while node < self._leaves:
            node = 2 * node + 1 if tree[2 * node + 1] <= time else 2 * node
        index = node - self._leaves
        self._put(index, inf)
        return index

    def _put(self, index: int, time: float) -> None:
        tree, node = self._tree, index + self._leaves
        tree[node] = time
        while node > 1:
            node >>= 1
            tree[node] = min(tree[2 * node], tree[2 * node + 1])
