"""Values of an event as JSON, so that the same bytes come back.

Token ids    a list of integers
Log-probs    a list of numbers: every float32 is a JSON number that gives it back
JSON bytes   the JSON itself where it is an object or a list that is written with these very bytes; else the text as
             {"$text": "..."}; else, or where it is no UTF-8, {"$base64": "..."}. Empty bytes are null, or where null
             means none, {"$text": ""}
Arrays       {"name", "dtype", "shape", "data": base64}
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np

from rolloutlog.eventstore.checks import refused
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import MissingEvents, PolicyVersionRun, Target, TokenArray
from rolloutlog.eventstore.json_text import json_bytes
from rolloutlog.eventstore.tokens import pack_logprobs, pack_token_ids

TEXT, BASE64 = "$text", "$base64"
DEPTH_MAX = 100  # levels of JSON that are written as JSON: any reader's stack holds them, wherever it is called


def of_ids(packed: bytes | None) -> list[int] | None:
    return None if packed is None else np.frombuffer(packed, "<i4").tolist()


def to_ids(value: Any, field: str) -> bytes | None:
    return None if value is None else pack_token_ids(without_bools(_list(value, field), field), field)


def of_logprobs(packed: bytes | None) -> list[float] | None:
    return None if packed is None else np.frombuffer(packed, "<f4").tolist()


def to_logprobs(value: Any, field: str) -> bytes | None:
    return None if value is None else pack_logprobs(without_bools(_list(value, field), field), field)


def without_bools(numbers: list[Any], field: str) -> list[Any]:
    """The same list. Where numbers are packed, true counts as 1."""
    if bool in set(map(type, numbers)):
        index = next(index for index, number in enumerate(numbers) if isinstance(number, bool))
        raise refused("numbers", numbers[index], f"{field}[{index}]")
    return numbers


def of_json(packed: bytes) -> Any:
    """JSON bytes of a field that is never null."""
    return of_bytes(packed) if packed else None


def to_json(value: Any, field: str) -> bytes:
    return b"" if value is None else to_bytes(value, field)


def of_optional_json(packed: bytes | None) -> Any:
    return None if packed is None else of_bytes(packed)


def to_optional_json(value: Any, field: str) -> bytes | None:
    return None if value is None else to_bytes(value, field)


def of_bytes(packed: bytes) -> Any:
    """Any bytes, as JSON where they are JSON."""
    if packed[:1] in (b"{", b"["):
        try:
            value = json.loads(packed, parse_constant=_refuse_constant)
            if _is_shallow(packed, value) and not _is_marked(value) and json_bytes(value, "$") == packed:
                return value
        except (ValueError, RecursionError, InvalidEvent):
            pass
    return of_text(packed)


def to_bytes(value: Any, field: str) -> bytes:
    """What `of_bytes` was given; of an object or list, its compact JSON."""
    if _is_marked(value):
        return to_text(value, field)
    if not isinstance(value, dict | list):
        raise refused(f'a JSON object or list, {{"{TEXT}": ...}} or {{"{BASE64}": ...}}', value, field)
    return json_bytes(value, field)


def of_text(packed: bytes) -> dict[str, str]:
    try:
        return {TEXT: packed.decode()}
    except UnicodeDecodeError:
        return {BASE64: b64encode(packed).decode()}


def to_text(value: Any, field: str) -> bytes:
    """Bytes of a marked text; a plain one is taken as such."""
    if isinstance(value, str):
        value = {TEXT: value}
    if not _is_marked(value):
        raise refused(f'text, {{"{TEXT}": ...}} or {{"{BASE64}": ...}}', value, field)
    ((mark, text),) = value.items()
    if mark == BASE64:
        return to_base64(text, f"{field}.{BASE64}")
    try:
        return _text(text, f"{field}.{TEXT}").encode()
    except UnicodeEncodeError:
        raise refused("text that UTF-8 can hold", ascii(text), f"{field}.{TEXT}") from None


def of_key(key: bytes) -> Any:
    """A key or a header's value: as text where it is UTF-8."""
    marked = of_text(key)
    return marked.get(TEXT, marked)


def to_base64(value: Any, field: str) -> bytes:
    try:
        return b64decode(_text(value, field), validate=True)
    except ValueError:
        raise refused("base64", value, field) from None


def of_runs(runs: tuple[PolicyVersionRun, ...]) -> list[dict[str, Any]]:
    return [{"policy_version": run.policy_version, "tokens": run.tokens} for run in runs]


def to_runs(value: Any, field: str) -> tuple[PolicyVersionRun, ...]:
    parts = _parts(value, field, {"policy_version": None, "tokens": _REQUIRED})
    return tuple(PolicyVersionRun(**part) for part in parts)


def of_arrays(arrays: tuple[TokenArray, ...]) -> list[dict[str, Any]]:
    return [
        {"name": each.name, "dtype": each.dtype, "shape": list(each.shape), "data": b64encode(each.data).decode()}
        for each in arrays
    ]


def to_arrays(value: Any, field: str) -> tuple[TokenArray, ...]:
    made = []
    parts = _parts(value, field, dict.fromkeys(("name", "dtype", "shape", "data"), _REQUIRED))
    for index, part in enumerate(parts):
        shape = _list(part["shape"], f"{field}[{index}].shape")
        for size in shape:
            if type(size) is not int:
                raise refused("integers", size, f"{field}[{index}].shape")
        name, dtype = (_text(part[each], f"{field}[{index}].{each}") for each in ("name", "dtype"))
        data = to_base64(part["data"], f"{field}[{index}].data")
        made.append(TokenArray(name, dtype, tuple(shape), data))
    return tuple(made)


def of_target(target: Target | None) -> dict[str, str] | None:
    return None if target is None else {"key": target.key, "value": target.value}


def to_target(value: Any, field: str) -> Target | None:
    if value is None:
        return None
    (part,) = _parts([value], field, {"key": _REQUIRED, "value": _REQUIRED}, numbered=False)
    return Target(*(_text(part[each], f"{field}.{each}") for each in ("key", "value")))


def of_gaps(gaps: tuple[MissingEvents, ...]) -> list[dict[str, Any]]:
    return [{"source": gap.source, "first": gap.first, "last": gap.last} for gap in gaps]


def to_gaps(value: Any, field: str) -> tuple[MissingEvents, ...]:
    return tuple(
        MissingEvents(**part) for part in _parts(value, field, dict.fromkeys(("source", "first", "last"), _REQUIRED))
    )


def to_texts(value: Any, field: str) -> tuple[Any, ...]:
    return tuple(_list(value, field))


def to_float(value: Any, field: str) -> Any:
    """A number without fraction is a float all the same; what is none is refused later, by name."""
    try:
        return float(value) if type(value) is int else value
    except OverflowError:
        return value


_REQUIRED = object()


def _parts(value: Any, field: str, names: Mapping[str, Any], *, numbered: bool = True) -> list[dict[str, Any]]:
    """Objects that have these members and no others."""
    parts = []
    for index, given in enumerate(_list(value, field)):
        place = f"{field}[{index}]" if numbered else field
        if not isinstance(given, dict):
            raise refused(f"an object of {', '.join(names)}", given, place)
        if unknown := [name for name in given if name not in names]:
            raise refused(f"only {', '.join(names)}", unknown[0], place)
        part = {name: given.get(name, default) for name, default in names.items()}
        if lacking := [name for name, found in part.items() if found is _REQUIRED]:
            raise refused("a value", "none", f"{place}.{lacking[0]}", quote=False)
        parts.append(part)
    return parts


def _list(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise refused("a list", value, field)
    return value


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise refused("text", value, field)
    return value


def _is_marked(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)) in (TEXT, BASE64)


def _is_shallow(packed: bytes, value: Any) -> bool:
    if packed.count(b"{") + packed.count(b"[") <= DEPTH_MAX:  # of most texts, so that their members are not looked at
        return True
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [
            member
            for each in level
            for member in (each.values() if isinstance(each, dict) else each)
            if isinstance(member, dict | list)
        ]
        if not level:
            return True
    return False


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
