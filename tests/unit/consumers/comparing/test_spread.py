"""How values are spread on two sides."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlog.consumers.comparing.spread import BINS_MAX, difference, histogram, spread_of

GREATEST = sys.float_info.max


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def test_spread_of_values_has_their_mean_and_standard_deviation():
    found = spread_of(floats(0.0, 1.0, 1.0, 0.0), 5)
    assert (found.count, found.without, found.share_without) == (4, 1, 0.2)
    assert (found.mean, found.std, found.least, found.greatest) == (0.5, 0.5, 0.0, 1.0)


def test_spread_of_nothing_has_no_numbers_and_no_zero():
    found = spread_of(floats(), 0)
    assert (found.mean, found.std, found.least, found.greatest, found.share_without) == (None, None, None, None, 0.0)


def test_spread_of_the_greatest_numbers_stays_finite():
    found = spread_of(floats(GREATEST, GREATEST, -GREATEST), 3)
    assert found.mean == pytest.approx(GREATEST / 3)
    assert found.std is not None
    assert math.isfinite(found.std)


def test_few_different_values_have_a_bin_each():
    found = histogram(floats(0.0, 1.0, 1.0), floats(0.5))
    assert found is not None
    assert (found.exact, found.edges, found.before, found.after) == (True, (0.0, 0.5, 1.0), (1, 0, 2), (0, 1, 0))


def test_many_different_values_have_bins_at_round_numbers():
    found = histogram(floats(*(each / 20 for each in range(20))), floats(0.97))
    assert found is not None
    assert not found.exact
    assert found.edges == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    assert (sum(found.before), found.after) == (20, (0,) * 9 + (1,))


def test_value_at_an_edge_is_in_the_bin_that_begins_there_and_the_greatest_in_the_last():
    found = histogram(floats(*range(0, 100, 10), 100.0), floats(30.0))
    assert found is not None
    assert (found.edges[3], found.after[3], found.before[-1]) == (30.0, 1, 2)


def test_histogram_without_a_value_on_either_side_is_none():
    assert histogram(floats(), floats()) is None


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_histogram_holds_every_value_once_whatever_they_are(values: list[float]):
    found = histogram(floats(*values), floats(*values[:3]))
    assert found is not None
    assert (sum(found.before), sum(found.after)) == (len(values), len(values[:3]))
    assert all(map(math.isfinite, found.edges))
    assert list(found.edges) == sorted(set(found.edges))
    assert found.exact or len(found.before) <= BINS_MAX + 1
    assert found.edges[0] <= min(values)
    assert found.edges[-1] >= max(values)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_spread_is_finite_and_its_mean_within_the_values(values: list[float]):
    found = spread_of(floats(*values), len(values))
    assert found.mean is not None
    assert found.std is not None
    assert math.isfinite(found.std)
    assert min(values) <= found.mean <= max(values)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(1.0, 0.25, -0.75), (None, 1.0, None), (1.0, None, None), (-GREATEST, GREATEST, GREATEST)],
)
def test_difference_is_none_of_none_and_never_infinite(before, after, expected):
    assert difference(before, after) == expected
