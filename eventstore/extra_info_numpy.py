"""Numpy scalars and arrays of extra info: their dtype by name, their values as plain numbers and text.

Only dtypes of a fixed list are read, never whatever a text makes numpy build: no objects, no records, and no text so
wide that a few bytes would unpack to gigabytes.
"""

import re
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

ARRAY_BYTES_MAX = 1024 * 1024  # unpacked; one wide text among many short ones makes all of them wide
DIMENSION_MAX = 2**31 - 1
DIMENSIONS_MAX = 32  # the fewest that a supported numpy allows

_NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
_DTYPES = {name: np.dtype(name) for name in (*_NUMBERS, *_FLOATS)}
# arrays from files may have the other byte order, which is part of their dtype
_SWAPPED = {dtype.newbyteorder().str: dtype.newbyteorder() for dtype in _DTYPES.values() if dtype.itemsize > 1}
_NAMES = {dtype: name for name, dtype in (*_DTYPES.items(), *_SWAPPED.items())}

_TEXT = "str"  # of a scalar; an array's has a width: <U5
_TEXT_DTYPE = re.compile(r"[<>]U(0|[1-9][0-9]{0,5})")

_EXPECTED = f"a numpy dtype of {', '.join((*_DTYPES, _TEXT))}"


def scalar_parts(scalar: np.generic) -> tuple[str, Any]:
    """Name of its dtype, and the scalar as a Python number, bool or str. Raises ValueError without a place."""
    if type(scalar) is np.str_:
        return _TEXT, str(scalar)
    name = _NAMES.get(scalar.dtype)
    if name is None:
        raise ValueError(f"expected {_EXPECTED}, got {scalar.dtype}")
    return name, scalar.item()


def scalar_from(name: str, plain: Any) -> np.generic:
    """The scalar of a dtype's name and a value. Raises ValueError without a place."""
    if name == _TEXT:
        if type(plain) is not str:
            raise ValueError(f"expected text for dtype {_TEXT}, got {type(plain).__name__}")
        return np.str_(plain)
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise ValueError(f"expected {_EXPECTED}, got {name[:40]!a}")
    _check_item(plain, dtype)
    scalar: np.generic = dtype.type(plain)
    return scalar


def array_parts(array: NDArray[Any]) -> tuple[str, Any, list[int] | None]:
    """Name of its dtype, its values as nested lists, and its shape when those can't tell it. Raises ValueError."""
    if type(array) is not np.ndarray:
        raise ValueError(f"expected a plain numpy array, got {type(array).__name__}")
    name = array.dtype.str if array.dtype.kind == "U" else _NAMES.get(array.dtype)
    if name is None:
        raise ValueError(f"expected {_EXPECTED}, got {array.dtype}")
    _check_shape(array.shape, array.dtype)
    return name, array.tolist(), list(array.shape) if array.size == 0 else None


def array_from(name: str, plain: Any, shape: Any) -> NDArray[Any]:
    """The array of a dtype's name and nested lists of values. Raises ValueError without a place."""
    dtype = _array_dtype(name)
    if shape is None:
        shape = _shape_of(plain)
    elif not isinstance(shape, list) or not all(type(size) is int and 0 <= size <= DIMENSION_MAX for size in shape):
        raise ValueError("expected a shape that is a list of sizes")
    _check_shape(shape, dtype)
    items = _flat(plain, len(shape))
    if prod(shape) != len(items):
        raise ValueError(f"expected {prod(shape)} values for shape {shape}, got {len(items)}")
    for item in items:
        _check_item(item, dtype)
    array = np.empty(len(items), dtype)
    array[:] = items
    return array.reshape(shape)


def _array_dtype(name: str) -> np.dtype[Any]:
    dtype = _DTYPES.get(name, _SWAPPED.get(name))
    if dtype is None and _TEXT_DTYPE.fullmatch(name):
        dtype = np.dtype(name)
    if dtype is None:
        raise ValueError(f"expected {_EXPECTED}, got {name[:40]!a}")
    return dtype


def _check_shape(shape: Any, dtype: np.dtype[Any]) -> None:
    if len(shape) > DIMENSIONS_MAX:
        raise ValueError(f"expected at most {DIMENSIONS_MAX} dimensions, got {len(shape)}")
    # a size of 0 must not hide sizes whose product no array can have
    if prod(size for size in shape if size) * max(dtype.itemsize, 1) > ARRAY_BYTES_MAX:
        raise ValueError(f"expected an array of at most {ARRAY_BYTES_MAX} bytes, got shape {list(shape)} of {dtype}")


def _shape_of(plain: Any) -> list[int]:
    """Shape by the first item at each level; `_flat` refuses lists that are not all alike."""
    shape = []
    while isinstance(plain, list):
        shape.append(len(plain))
        plain = plain[0] if plain else None
    return shape


def _flat(plain: Any, dimensions: int) -> list[Any]:
    """The values of nested lists, all of which must be `dimensions` deep and, per level, equally long."""
    level = [plain]
    for _ in range(dimensions):
        if not level:
            break
        if not all(isinstance(each, list) and len(each) == len(level[0]) for each in level):
            raise ValueError("expected lists of equal length and depth")
        level = [item for each in level for item in each]
    return level


def _check_item(item: Any, dtype: np.dtype[Any]) -> None:
    kind, got = dtype.kind, type(item)
    if kind == "U":
        fits = got is str and len(item) <= dtype.itemsize // 4
    elif kind == "b":
        fits = got is bool
    elif kind in "iu":
        info = np.iinfo(dtype)
        fits = got is int and int(info.min) <= item <= int(info.max)
    else:
        fits = got in (int, float) and _float_fits(item, dtype)
    if not fits:
        raise ValueError(f"expected values that {dtype} holds, got one of type {got.__name__} that it does not hold")


def _float_fits(item: float, dtype: np.dtype[Any]) -> bool:
    """Finite stays finite: a number too large must not turn into infinity."""
    if item != item or item in (float("inf"), float("-inf")):
        return True
    return abs(item) <= float(np.finfo(dtype).max)
