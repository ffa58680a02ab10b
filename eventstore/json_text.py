"""JSON bytes of what a host attaches to events: attributes, metadata, messages.

numpy scalars and arrays are written as numbers and lists. What JSON does not have, NaN and infinities among it, is
refused by field.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rolloutlog.eventstore.checks import refused


def json_bytes(value: Any, field: str) -> bytes:
    """`value` as compact JSON in UTF-8. Raises InvalidEvent naming `field`."""
    try:
        text = _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise refused(
            "a value that JSON can hold", f"{type(value).__name__} ({error})", field, "not_json", quote=False
        ) from error
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a surrogate pair: JSON can escape it, UTF-8 cannot hold it
        return json.dumps(json.loads(text), separators=(",", ":")).encode()


def json_object(fields: Mapping[str, Any] | None, field: str) -> bytes:
    """A mapping of texts as JSON; none or an empty one is empty bytes. Raises InvalidEvent naming the key."""
    if not fields:
        return b""
    if not isinstance(fields, Mapping):
        raise refused("a mapping", fields, field)
    parts = []
    for key, value in fields.items():
        if not isinstance(key, str):
            raise refused("keys of text", key, field)
        parts.append(json_bytes(key, field) + b":" + json_bytes(value, f"{field}.{key}"))
    return b"{" + b",".join(parts) + b"}"


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
