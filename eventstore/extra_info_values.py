"""How a value of extra info is written in JSON, without losing what JSON alone would lose.

    None, bool, int, float, str, list, dict   as JSON has them, mappings in their own order
    {"$nan": true}                            float NaN; {"$inf": 1} and {"$inf": -1} the infinities
    {"$int": "18446744073709551616"}          an integer outside 64 bits (signed)
    {"$np": "float32", "v": 0.5}              numpy scalar of that dtype
    {"$nd": "float32", "v": [[0.5, 1.0]]}     numpy array; with "shape" when it has no elements
    {"$dict": {"$np": 1}}                     a mapping that has a key beginning with `$`

Decoding gives back what was encoded, types and order included; any other mapping comes back as a dict.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rolloutlog.eventstore.extra_info_numpy import array_from, array_parts, scalar_from, scalar_parts

DEPTH_MAX = 32  # levels of lists, mappings or dimensions
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT_DIGITS_MAX = 4000  # Python refuses to read or write much longer ones
INT_BITS_MAX = 13_000  # of an integer with fewer digits than that

NUMBER_TAGS = frozenset({"$nan", "$inf", "$int"})


def encode_value(value: Any, path: str, depth: int = 0) -> Any:
    """A value as what json.dumps writes without loss. Raises ValueError that names path, expected and got."""
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        return _encode_int(value, path)
    if type(value) is float:
        return _encode_float(value)
    if type(value) is str:
        check_text(value, path)
        return value
    if isinstance(value, np.generic | np.ndarray):
        return _encode_numpy(value, path)
    if depth >= DEPTH_MAX:
        raise refused(f"at most {DEPTH_MAX} levels", "more", path)
    if type(value) is list:
        return [encode_value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return _encode_mapping(value, path, depth)
    raise refused("None, bool, int, float, str, list, a mapping, or a numpy scalar or array", brief(value), path)


def decode_value(value: Any, path: str, depth: int = 0) -> Any:
    """The value that a parsed piece of JSON stands for. Raises ValueError that names path, expected and got."""
    if isinstance(value, str):
        check_text(value, path)
    if not isinstance(value, list | dict):
        return value
    if isinstance(value, dict) and any(key.startswith("$") for key in value):
        return _decode_tagged(value, path, depth)
    if depth >= DEPTH_MAX:
        raise refused(f"at most {DEPTH_MAX} levels", "more", path)
    if isinstance(value, list):
        return [decode_value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    return _decode_mapping(value, path, depth)


def check_text(text: str, path: str) -> None:
    """Raises ValueError for text that UTF-8 can't hold: half of a surrogate pair."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise refused("text that UTF-8 can hold", ascii(text[:60]), ascii(path)[1:-1]) from None


def refused(expected: str, got: str, path: str) -> ValueError:
    return ValueError(f"expected {expected}, got {got} at {path[:300]}")


def brief(value: Any) -> str:
    """Type and, for what prints safely, the beginning of the value."""
    if type(value) in (str, float, bool) or (type(value) is int and abs(value) <= INT64_MAX):
        return f"{type(value).__name__} {value[:60] if isinstance(value, str) else value!a}"
    return type(value).__name__


def _encode_int(value: int, path: str) -> Any:
    if INT64_MIN <= value <= INT64_MAX:
        return value
    if value.bit_length() > INT_BITS_MAX:
        raise refused(f"an integer of at most {INT_BITS_MAX} bits", f"{value.bit_length()}", path)
    return {"$int": str(value)}


def _encode_float(value: float) -> Any:
    if value != value:
        return {"$nan": True}
    if value in (float("inf"), float("-inf")):
        return {"$inf": 1 if value > 0 else -1}
    return value


def _encode_mapping(value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
    plain = {}
    for key, item in value.items():
        if type(key) is not str:
            raise refused("keys that are text", brief(key), path)
        check_text(key, path)
        plain[key] = encode_value(item, f"{path}.{key}", depth + 1)
    return {"$dict": plain} if any(key.startswith("$") for key in plain) else plain


def _encode_numpy(value: Any, path: str) -> dict[str, Any]:
    try:
        if isinstance(value, np.generic):
            name, plain = scalar_parts(value)
            return {"$np": name, "v": encode_value(plain, path)}
        name, items, shape = array_parts(value)
    except ValueError as error:
        raise ValueError(f"{error} at {path}") from error
    encoded = {"$nd": name, "v": _each(items, path, encode_value)}
    return encoded if shape is None else {**encoded, "shape": shape}


def _decode_mapping(value: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
    if depth >= DEPTH_MAX:
        raise refused(f"at most {DEPTH_MAX} levels", "more", path)
    for key in value:
        check_text(key, path)
    return {key: decode_value(item, f"{path}.{key}", depth + 1) for key, item in value.items()}


def _decode_tagged(value: dict[str, Any], path: str, depth: int) -> Any:
    tag = next(key for key in value if key.startswith("$"))
    inner, others = value[tag], value.keys() - {tag}
    if tag == "$dict" and not others and type(inner) is dict:
        return _decode_mapping(inner, path, depth)
    if tag in NUMBER_TAGS and not others:
        return _decode_number(tag, inner, path)
    try:
        if tag == "$np" and others == {"v"} and type(inner) is str:
            return scalar_from(inner, _decode_item(value["v"], path))
        if tag == "$nd" and others in ({"v"}, {"v", "shape"}) and type(inner) is str:
            return array_from(inner, _each(value["v"], path, _decode_item), value.get("shape"))
    except ValueError as error:
        text = str(error)
        raise error if path in text else ValueError(f"{text} at {path}") from error
    raise refused("$nan, $inf, $int, $np, $nd or $dict as the codec writes it", ascii(list(value))[:60], path)


def _decode_number(tag: str, inner: Any, path: str) -> Any:
    if tag == "$nan" and inner is True:
        return float("nan")
    if tag == "$inf" and type(inner) is int and inner in (1, -1):
        return inner * float("inf")
    if tag == "$int" and type(inner) is str and len(inner) <= INT_DIGITS_MAX:
        digits = inner.removeprefix("-")
        if digits.isascii() and digits.isdigit():
            return int(inner)
    raise refused("true, 1 or -1, or decimal text", brief(inner), f"{path}.{tag}")


def _decode_item(plain: Any, path: str) -> Any:
    """A number or text in a numpy value: no tag but those of numbers, so that nothing nests."""
    if isinstance(plain, list) or (isinstance(plain, dict) and next(iter(plain), None) not in NUMBER_TAGS):
        raise refused("a number, a truth value or text", brief(plain), path)
    return decode_value(plain, path)


def _each(items: Any, path: str, convert: Any, depth: int = 0) -> Any:
    """Convert the items of nested lists, keeping the nesting."""
    if not isinstance(items, list):
        return convert(items, path)
    if depth >= DEPTH_MAX:
        raise refused(f"at most {DEPTH_MAX} dimensions", "more", path)
    return [_each(item, path, convert, depth + 1) for item in items]
