"""The N greatest of many."""

from rolloutlog.consumers.comparing.largest import Largest


def test_largest_of_many_are_kept_in_order():
    largest = Largest[int](3, lambda value: -value)
    for value in range(10_000):
        largest.add(value)
    assert largest.items() == [9_999, 9_998, 9_997]
    assert len(largest._items) < 2 * 3 + 100


def test_largest_none_keeps_nothing():
    largest = Largest[int](0, lambda value: -value)
    largest.add(1)
    assert largest.items() == []
