"""One record of the events topic as one JSON object, and back.

    {"event": kind, "rollout_id": ..., ...every field by its name,
     "log": {"partition", "offset", "time_ns", "key", "flags"}}
    {"raw": {"value": {"$base64": ...}, "reason": ...}, "log": {..., "headers": [[name, value], ...]}}

`log` says where the record stood. `headers` stand there where they are more, or others, than the event's own `e`. A
record that does not decode, or that the checks refuse, is `raw`: its bytes and the reason. An event of an older schema
has the fields of the newest one, and is written as such. Pure.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from rolloutlog.consumers.importing import json_values as values
from rolloutlog.eventstore.checks import check_agreement, check_event, refused
from rolloutlog.eventstore.codec import HEADER, Header, decode_event, header_of, parse_header
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import KINDS, Event, GroupClosed, RolloutStarted
from rolloutlog.eventstore.log import Record
from rolloutlog.eventstore.log.port import Headers

EVENT, LOG, RAW = "event", "log", "raw"
HEADER_NAME_BYTES_MAX = 2**15 - 1  # every log takes as many
LOG_FIELDS = ("partition", "offset", "time_ns", "key", "flags", "headers")

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

_Of = Callable[[Any], Any]
_To = Callable[[Any, str], Any]

# How fields are written that are not JSON by themselves. Every other one is text, an integer, a number, a bool or null.
_OF: dict[str, _Of] = {
    "attributes": values.of_json,
    "metadata": values.of_json,
    "extra_info": values.of_json,
    "messages": values.of_optional_json,
    "prompt_ids": values.of_ids,
    "response_ids": values.of_ids,
    "logprobs": values.of_logprobs,
    "policy_version_runs": values.of_runs,
    "arrays": values.of_arrays,
    "target": values.of_target,
    "missing_events": values.of_gaps,
}
_TO: dict[str, _To] = {
    "attributes": values.to_json,
    "metadata": values.to_json,
    "extra_info": values.to_json,
    "messages": values.to_optional_json,
    "prompt_ids": values.to_ids,
    "response_ids": values.to_ids,
    "logprobs": values.to_logprobs,
    "policy_version_runs": values.to_runs,
    "arrays": values.to_arrays,
    "target": values.to_target,
    "missing_events": values.to_gaps,
    "links": values.to_texts,
    "awaited_names": values.to_texts,
    "awaited_rewards": values.to_texts,
    "missing_names": values.to_texts,
    "missing_rewards": values.to_texts,
    "value": values.to_float,
}
_FIELDS = {kind: tuple(field.name for field in fields(made)) for kind, made in KINDS.items()}
_DEFAULTS = {
    kind: {field.name: field.default for field in fields(made) if field.default is not MISSING}
    for kind, made in KINDS.items()
}


def record_line(record: Record) -> str:
    """One record as a line of JSON, without its end."""
    try:
        header, event = _decode(record)
    except InvalidEvent as error:
        value = None if record.value is None else {values.BASE64: b64encode(record.value).decode()}
        line: dict[str, Any] = {RAW: {"value": value, "reason": str(error)}, LOG: _log_fields(record, None)}
    else:
        line = {EVENT: event.record}
        for name in _FIELDS[event.record]:
            of = _OF.get(name)
            value = getattr(event, name)
            line[name] = value if of is None else of(value)
        line[LOG] = _log_fields(record, header)
    return _ENCODER.encode(line)


def _decode(record: Record) -> tuple[Header, Event]:
    found = [value for name, value in record.headers if name == HEADER]
    if len(found) != 1:
        raise InvalidEvent(f"expected one header e, got {len(found)}")
    header = parse_header(found[0])
    event = decode_event(header.kind, record.value)
    check_event(event)
    check_agreement(header, event, record.key)
    if not record.key:
        raise InvalidEvent("expected the group's id, got an empty key")
    return header, event


def _log_fields(record: Record, header: Header | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "time_ns": record.log_time_ns,
        "key": None if record.key is None else values.of_key(record.key),
    }
    if header is not None:
        found["flags"] = header.flags
    if header is None or record.headers != ((HEADER, header.text()),):
        found["headers"] = [[name, None if text is None else values.of_key(text)] for name, text in record.headers]
    return found


def parse_fields(kind: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an event that a line gives, as the event has them. Raises InvalidEvent naming the field."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise refused(f"one of {', '.join(KINDS)}", kind, EVENT)
    parsed = {}
    for name, value in given.items():
        if name not in _FIELDS[kind]:
            raise refused(f"a field of {kind}: {', '.join(_FIELDS[kind])}", name, name)
        to = _TO.get(name)
        parsed[name] = value if to is None else to(value, name)
    return parsed


def make_event(kind: str, given: Mapping[str, Any]) -> Event:
    """An event of parsed fields, checked. Fields that have a default may be left out."""
    found = {**_DEFAULTS[kind], **given}
    for name in _FIELDS[kind]:
        if name not in found:
            raise refused("a value", "none", name, quote=False)
    event = KINDS[kind](**found)
    check_event(event)
    return event


def parse_key(value: Any) -> bytes | None:
    return None if value is None else values.to_text(value, f"{LOG}.key")


def parse_headers(value: Any) -> Headers:
    field = f"{LOG}.headers"
    if not isinstance(value, list):
        raise refused("a list of headers", value, field)
    made = []
    for index, pair in enumerate(value):
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise refused("a name and a value", pair, f"{field}[{index}]")
        if len(values.to_text(pair[0], f"{field}[{index}]")) > HEADER_NAME_BYTES_MAX:
            raise refused(f"a name of at most {HEADER_NAME_BYTES_MAX} bytes", pair[0], f"{field}[{index}]")
        made.append((pair[0], None if pair[1] is None else values.to_text(pair[1], f"{field}[{index}]")))
    return tuple(made)


def header_for(event: Event, flags: Any) -> Header:
    """The header of an event that was stored with these flags."""
    header = header_of(event)._replace(flags="-" if flags is None else flags)
    if not isinstance(header.flags, str) or not header.flags.isascii():
        raise refused("flags of letters, or -", flags, f"{LOG}.flags")
    try:
        return parse_header(header.text())
    except InvalidEvent as error:
        raise refused("flags of letters, or -", flags, f"{LOG}.flags") from error


def group_key(event: Event) -> bytes | None:
    """The key that an event names itself."""
    return event.group_id.encode() if isinstance(event, RolloutStarted | GroupClosed) else None
