"""How values are spread on two sides: count, mean, standard deviation, and one histogram for both. Pure.

Sums are of scaled values, so that none of finite values leaves what a float holds: nothing here is ever NaN or
infinite.
"""

import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS_MAX = 10
DISTINCT_MAX = 8  # so few different values have a bar each
EDGE_DIGITS = 12  # so that 3 x 0.1 is the edge 0.3

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    """Of `count` values out of `whole`, which others lack. `std`: over count, not count - 1; None of none."""

    whole: int
    count: int
    mean: float | None = None
    std: float | None = None
    least: float | None = None
    greatest: float | None = None

    @property
    def without(self) -> int:
        return self.whole - self.count

    @property
    def share_without(self) -> float:
        return self.without / self.whole if self.whole else 0.0


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of two sides over the same bins.

    edges  of exact bins the values themselves, one a bin; else where bins begin, and where the last one ends, included
    """

    exact: bool
    edges: tuple[float, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    def counts(self, values: Floats) -> tuple[int, ...]:
        return _counts(values, self.edges, self.exact)


def floats(values: "array[float]") -> Floats:
    """The values as numbers of numpy, without a copy."""
    return np.frombuffer(values, np.float64) if values else np.zeros(0, np.float64)


def spread_of(values: Floats, whole: int) -> Spread:
    """Of the values, out of `whole` that might have one."""
    if not len(values):
        return Spread(whole, 0)
    least, greatest = float(values.min()), float(values.max())
    # A power of two: nothing is rounded, but for numbers next to the smallest there are.
    exponent = math.frexp(max(abs(least), abs(greatest)))[1]
    scaled = np.ldexp(values, -exponent)
    mean = min(max(_scaled_back(float(scaled.mean()), exponent), least), greatest)
    return Spread(whole, len(values), mean, _scaled_back(float(scaled.std()), exponent), least, greatest)


def histogram(before: Floats, after: Floats) -> Histogram | None:
    """One for both sides; None when neither has a value."""
    distinct = np.unique(np.concatenate([np.unique(before), np.unique(after)]))
    if not len(distinct):
        return None
    exact = len(distinct) <= DISTINCT_MAX
    edges = tuple(distinct.tolist()) if exact else _edges(float(distinct[0]), float(distinct[-1]))
    return Histogram(exact, edges, _counts(before, edges, exact), _counts(after, edges, exact))


def difference(before: float | None, after: float | None) -> float | None:
    """How much more it is after; None when it is not known of both. Never infinite."""
    if before is None or after is None:
        return None
    return min(max(after - before, -sys.float_info.max), sys.float_info.max)


def joined(values: Iterable["array[float]"]) -> Floats:
    parts = [floats(each) for each in values]
    return np.concatenate(parts) if parts else np.zeros(0, np.float64)


def _scaled_back(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(sys.float_info.max, value)


def _counts(values: Floats, edges: Sequence[float], exact: bool) -> tuple[int, ...]:
    if exact:
        found, counts = np.unique(values, return_counts=True)
        by_value: dict[Any, int] = dict(zip(found.tolist(), counts.tolist(), strict=True))
        return tuple(by_value.get(edge, 0) for edge in edges)
    # The bin whose left edge is the last at or below the value; the greatest value belongs to the last bin.
    bins = np.searchsorted(np.array(edges), values, "right") - 1
    return tuple(np.bincount(np.minimum(bins, len(edges) - 2), minlength=len(edges) - 1).tolist())


def _edges(low: float, high: float) -> tuple[float, ...]:
    """Edges of at most BINS_MAX bins from low to high, at round numbers where there are such."""
    half = high / 2 - low / 2
    exponent = math.floor(math.log10(half / BINS_MAX * 2)) if half / BINS_MAX > 0 else -324
    for digits in (1.0, 2.0, 2.5, 5.0, 10.0):
        step = digits * 10.0**exponent
        if not 0 < step < math.inf or max(abs(low), abs(high)) / step > 10**EDGE_DIGITS:
            break
        first, last = math.floor(low / step), math.ceil(high / step)
        if last - first <= BINS_MAX:
            edges = [float(f"{at * step:.{EDGE_DIGITS}g}") for at in range(first, last + 1)]
            if edges[0] <= low and high <= edges[-1] < math.inf and -math.inf < edges[0]:
                return tuple(edges)
            break
    share = np.linspace(0.0, 1.0, BINS_MAX + 1)
    between = np.unique(low * (1 - share) + high * share)
    between[0], between[-1] = low, high
    return tuple(np.unique(between).tolist())
