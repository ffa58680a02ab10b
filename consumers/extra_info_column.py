"""One column of extra info: which dtype holds its values without loss.

Dense columns of scalars keep the dtype that numpy infers: numbers and truth values, or text of at most TEXT_MAX
characters. All else is a column of objects with one element a row, so that no list becomes a second dimension, no
number text, and no large integer a rounded float.

Not here  which columns there are: consumers.extra_info
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

TEXT_MAX = 256  # characters: numpy's text is as wide in every row as the widest

ABSENT: Any = object()  # of a row that lacks the key, which is another thing than None

_NUMBERS = frozenset({bool, int, float})
_NUMPY_KINDS = "biufc"


def column_of(values: Sequence[Any], *, dense: bool) -> NDArray[Any]:
    """One element a row, absent ones None. `dense`: no row lacks the key."""
    if dense and values:
        types = set(map(type, values))
        if types <= _NUMBERS:
            return _numbers(values, types)
        if types <= {str, np.str_}:
            return _text(values)
        if all(kind in _NUMBERS or _is_numpy_number(kind) for kind in types):
            return _numbers(values, types)
    return objects(None if value is ABSENT else value for value in values)


def objects(values: Any) -> NDArray[Any]:
    """A column of objects, 1-D whatever its elements are."""
    values = list(values)
    column = np.empty(len(values), object)
    for index, value in enumerate(values):  # one at a time: lists of one length would be spread over a second axis
        column[index] = value
    return column


def numbers_in(column: NDArray[Any], present: NDArray[np.bool_]) -> NDArray[np.float64] | None:
    """The finite numbers among the values that are present; None when a value is neither a number nor None."""
    if column.ndim != 1 or column.dtype.kind not in "biufO":
        return None
    if column.dtype.kind != "O":
        found = column[present].astype(np.float64)
        return found[np.isfinite(found)]
    values = [value for value in column[present] if value is not None]
    if not all(type(value) in _NUMBERS or isinstance(value, np.bool_ | np.integer | np.floating) for value in values):
        return None
    found = np.fromiter(map(_as_float, values), np.float64, len(values))
    return found[np.isfinite(found)]


def mean_of(numbers: NDArray[np.float64]) -> float:
    with np.errstate(over="ignore"):
        mean = float(numbers.mean())
    return mean if np.isfinite(mean) else float((numbers / len(numbers)).sum())  # the sum alone is above any float


def _numbers(values: Sequence[Any], types: set[type]) -> NDArray[Any]:
    column = np.array(values)
    if len(types) == 1 and (types != {int} or column.dtype.kind in "iu"):
        return column
    if column.ndim == 1 and column.dtype.kind in _NUMPY_KINDS and all(map(_same, values, column.tolist())):
        return column
    return objects(values)


def _text(values: Sequence[str]) -> NDArray[Any]:
    # numpy drops NUL at the end of text
    if max(map(len, values)) > TEXT_MAX or any(value.endswith("\0") for value in values):
        return objects(values)
    return np.array(values)


def _is_numpy_number(kind: type) -> bool:
    return issubclass(kind, np.bool_ | np.number)


def _same(value: Any, stored: Any) -> bool:
    """Python compares integers and floats exactly; numpy would round the integer first."""
    plain = value.item() if isinstance(value, np.generic) else value
    return bool(plain == stored or plain != plain)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer above what a float holds
        return float("inf")
