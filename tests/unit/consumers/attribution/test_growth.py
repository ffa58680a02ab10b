"""Work grows no faster than spans and rewards do. By ratio: absolute times are tests/benchmarks/attribution.py's."""

import random

import pytest
from benchmarks.attribution import CUSTOM, SHAPES, late, microseconds, wide, work_of

SMALL, LARGE = 1_000, 8_000
GROWTH_MAX = 4.0  # what is quadratic takes 8 times as long an entry; what is linear some 1.5 times, for its caches

CASES = [(shape, "enclosing") for shape in SHAPES] + [
    (wide, "nearest"), (wide, "none"), (wide, CUSTOM), (late, "first_occurrence"), (late, "first_sibling"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "policy"), CASES, ids=[f"{shape.__name__}-{policy}" for shape, policy in CASES])
def test_time_of_an_entry_stays_as_a_rollout_grows(shape, policy):
    took = [microseconds(list(shape(size, random.Random(size))), work_of(policy)) for size in (SMALL, LARGE)]
    assert took[1] / took[0] < GROWTH_MAX, took
