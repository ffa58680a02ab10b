"""Which events of a source have arrived."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlog.consumers.state import Source


def source(*sequences: int, end: int | None = None) -> Source:
    made = Source("main.00000000000000aa")
    for sequence in sequences:
        made.add(sequence)
    made.end = end
    return made


@pytest.mark.parametrize("arrived", [(), (0,), (2,), (0, 2), (2, 0)])
def test_source_takes_an_event_once(arrived: tuple[int, ...]):
    made = source(*arrived)
    assert made.add(1) is True
    assert made.add(1) is False


def test_source_without_end_is_never_whole():
    assert not source(0, 1, 2).whole


def test_source_with_all_up_to_its_end_is_whole():
    assert source(2, 0, 1, end=2).whole


def test_source_with_a_gap_is_not_whole():
    assert not source(0, 2, end=2).whole


@pytest.mark.parametrize(
    ("arrived", "end", "gaps"),
    [
        ((), None, []),
        ((), 0, [(0, 0)]),
        ((0, 1), None, []),
        ((0, 1), 1, []),
        ((0, 1), 3, [(2, 3)]),
        ((2,), None, [(0, 1)]),
        ((0, 3, 5), 7, [(1, 2), (4, 4), (6, 7)]),
    ],
)
def test_source_names_its_gaps(arrived: tuple[int, ...], end: int | None, gaps: list[tuple[int, int]]):
    assert source(*arrived, end=end).gaps() == gaps


@given(st.lists(st.integers(0, 30)), st.integers(0, 30))
def test_source_knows_what_a_set_would_know(sequences: list[int], end: int):
    made = source(end=end)
    seen: set[int] = set()
    for sequence in sequences:
        assert made.add(sequence) == (sequence not in seen)
        seen.add(sequence)
    assert made.whole == (set(range(end + 1)) <= seen)


def test_source_holds_no_more_than_what_is_scattered():
    made = source(*range(1, 1_000))
    made.add(0)
    assert (made.next, made.scattered) == (1_000, set())
