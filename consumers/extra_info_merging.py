"""Reward extra info of one sample: the mappings of the rewards that count for it, joined into one.

Order     rewards in log order, keys in first-seen order; both decide the order of columns later
Refused   a reward's extra info may be refused for itself: value and sample stay, and the keys are named
Not here  how it is written: eventstore.extra_info; which rewards count: consumers.attribution; columns over many rows:
          consumers.extra_info
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutlog.eventstore.extra_info import (
    KEYS_MAX,
    SIZE_BYTES_MAX,
    InvalidExtraInfo,
    encode_extra_info,
    reserved_collisions,
)

Part = tuple[str, Mapping[str, Any]]  # reward name, extra info


def merge_extra_info(parts: Sequence[Part]) -> tuple[dict[str, Any], list[str]]:
    """Join the extra info of the rewards that count for one sample.

    parts    (reward name, mapping) in log order. A key from two rewards of one name: the later value counts. From
             rewards of different names: both stay, as `name/key`
    Returns  the mapping, within the limits of eventstore.extra_info, and the keys refused, each once. A mapping with a
             reserved key is refused whole and named by its reserved keys; one that would take the row over a limit is
             refused whole and named by all its keys
    """
    row = _Row()
    refused: list[str] = []
    for name, mapping in parts:
        refused += reserved_collisions(mapping) or row.add(name, mapping)
    merged, taken = row.merged()
    return merged, list(dict.fromkeys([*refused, *taken]))


class _Row:
    """What is joined so far, with its size, so that a mapping is weighed once and not the row with each mapping."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], Any] = {}  # (reward name, key) → value
        self._sizes: dict[tuple[str, str], int] = {}
        self._names: dict[str, list[str]] = {}  # key → names of the rewards that have it
        self._size_bytes = 1  # the braces, less one comma too many

    def add(self, name: str, mapping: Mapping[str, Any]) -> list[str]:
        """Take a mapping in, or none of it: then its keys are returned."""
        try:
            sizes = {(name, key): _size(key, value) for key, value in mapping.items()}
        except InvalidExtraInfo:
            return list(mapping)
        grown = self._size_bytes + sum(self._growth(name, key, size) for (_, key), size in sizes.items())
        if grown > SIZE_BYTES_MAX or len(self._sizes.keys() | sizes.keys()) > KEYS_MAX:
            return list(mapping)
        self._size_bytes = grown
        for key, value in mapping.items():
            if (name, key) not in self._values:
                self._names.setdefault(key, []).append(name)
            self._values[name, key] = value
        self._sizes.update(sizes)
        return []

    def merged(self) -> tuple[dict[str, Any], list[str]]:
        """The joined mapping, and the keys for which no name was free."""
        merged: dict[str, Any] = {}
        taken: list[str] = []
        for (name, key), value in self._values.items():
            full = key if len(self._names[key]) == 1 else f"{name}/{key}"
            # a scorer may itself return a key `name/key`; two things under one key would be neither
            if full in merged:
                taken.append(full)
            else:
                merged[full] = value
        return merged, taken

    def _growth(self, name: str, key: str, size: int) -> int:
        if (name, key) in self._sizes:
            return size - self._sizes[name, key]
        others = self._names.get(key, [])
        qualified = [*others, name] if len(others) == 1 else [name] if others else []
        return size + sum(_size(each, None) - _size("", None) + len("/") for each in qualified)


def _size(key: str, value: Any) -> int:
    """Bytes that a key and its value add to a row, with a comma."""
    if value is None:
        return len(json.dumps(key, ensure_ascii=False).encode()) + len(":null,")
    return len(encode_extra_info({key: value})) - len("{}") + len(",")
