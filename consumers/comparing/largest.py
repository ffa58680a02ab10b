"""The N greatest of many, with memory for some more than N."""

import heapq
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Kept = TypeVar("Kept")


class Largest(Generic[Kept]):
    """Keeps the `count` items whose `key` is smallest: a key that sorts in the order in which they are to be shown."""

    def __init__(self, count: int, key: Callable[[Kept], Any]) -> None:
        self._count, self._key = count, key
        self._items: list[Kept] = []

    def add(self, item: Kept) -> None:
        if not self._count:
            return
        self._items.append(item)
        if len(self._items) >= 2 * self._count + 100:
            self._items = heapq.nsmallest(self._count, self._items, key=self._key)

    def items(self) -> list[Kept]:
        """In the order of their keys."""
        return heapq.nsmallest(self._count, self._items, key=self._key)
