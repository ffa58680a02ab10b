"""JSON bytes of what a host attaches to events: attributes, metadata, messages.

numpy scalars and arrays are written as numbers and lists. What JSON does not have, NaN and infinities among it, is
refused by field.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rolloutlog.eventstore.checks import refused

_PATH_LEVELS_MAX = 16  # of a fault's path: more names nothing that a reader needs, and a value may contain itself
_KEY_CHARACTERS_MAX = 60


def json_bytes(value: Any, field: str) -> bytes:
    """`value` as compact JSON in UTF-8. Raises InvalidEvent naming `field`, down to the member that is at fault."""
    try:
        text = _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        path, bad, fault = _find_fault(value, field, error)
        raise refused(
            "a value that JSON can hold", f"{type(bad).__name__} ({fault})", path, "not_json", quote=False
        ) from error
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a surrogate pair: JSON can escape it, UTF-8 cannot hold it
        return json.dumps(json.loads(text), separators=(",", ":")).encode()


def json_object(fields: Mapping[str, Any] | None, field: str) -> bytes:
    """A mapping of texts as JSON; none or an empty one is empty bytes. Raises InvalidEvent naming the key."""
    if fields is None:
        return b""
    if not isinstance(fields, Mapping):
        raise refused("a mapping", fields, field)
    if not fields:
        return b""
    parts = []
    for key, value in fields.items():
        if not isinstance(key, str):
            raise refused("keys of text", key, field)
        parts.append(json_bytes(key, field) + b":" + json_bytes(value, f"{field}.{key}"))
    return b"{" + b",".join(parts) + b"}"


def _find_fault(value: Any, path: str, fault: Exception) -> tuple[str, Any, Exception]:
    """Path, value and fault of the deepest member of `value`, itself at fault, that cannot be encoded."""
    for _ in range(_PATH_LEVELS_MAX):
        for step, member in _members(value):
            try:
                _ENCODER.encode(member)
            except (TypeError, ValueError, RecursionError) as error:
                path, value, fault = path + step, member, error
                break
        else:
            break
    return path, value, fault


def _members(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f".{str(key)[:_KEY_CHARACTERS_MAX]}", member) for key, member in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{index}]", member) for index, member in enumerate(value)]
    return []


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError("not JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
