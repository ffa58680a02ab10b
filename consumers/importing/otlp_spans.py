"""Spans of OTLP JSON: `resourceSpans`, `scopeSpans`, `spans`, one request a line or one document.

Ids are hex, or base64 where an exporter wrote protobuf's own JSON; times are nanoseconds as text or numbers; attributes
are lists of key and value, here mappings. Pure.
"""

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from re import compile as regex
from typing import Any, NamedTuple

from rolloutlog.consumers.importing.chat import parse_object
from rolloutlog.consumers.importing.inputs import Input
from rolloutlog.eventstore.checks import INT64_MAX, refused
from rolloutlog.eventstore.errors import InvalidEvent

TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8
NO_SPAN = "0" * 2 * SPAN_ID_BYTES  # how some exporters write that there is no parent
VALUE_DEPTH_MAX = 50

_HEX = regex(r"[0-9a-fA-F]+")
_ERROR = (2, "STATUS_CODE_ERROR")


class SpanEvent(NamedTuple):
    """An event within a span."""

    name: str
    time_ns: int
    attributes: Mapping[str, Any]


class OtlpSpan(NamedTuple):
    """One span. `place`: in the file; `error`: None = it ended without one; `links`: ids of spans of any trace."""

    place: str
    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    start_ns: int
    end_ns: int
    error: str | None
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    events: tuple[SpanEvent, ...]
    links: tuple[str, ...]


def read_spans(file: Input) -> Iterator[tuple[str, OtlpSpan | InvalidEvent, str | None]]:
    """Place, span or why it is refused, and its trace where that is known, in the order of the file."""
    for place, request in _requests(file):
        if isinstance(request, InvalidEvent):
            yield place, request, None
            continue
        try:
            groups = _list(request, "resourceSpans", "")
            if "resourceSpans" not in request:
                raise refused("traces, which are resourceSpans", ", ".join(request) or "nothing", "resourceSpans")
        except InvalidEvent as error:
            yield place, error, None
            continue
        yield from _of_resources(groups, place)


def _requests(file: Input) -> Iterator[tuple[str, dict[str, Any] | InvalidEvent]]:
    """A document that is written over many lines begins with a line that is no JSON by itself."""
    for index, line in enumerate(file.lines()):
        try:
            if line.fault is not None:
                raise line.fault
            yield line.place, parse_object(line.text, "an OTLP request, which is a JSON object")
        except InvalidEvent as error:
            if index == 0 and line.fault is None and line.text.lstrip(b"\xef\xbb\xbf \t")[:1] in (b"{", b"["):
                yield from _document(file, error)
                return
            yield line.place, error


def _document(file: Input, otherwise: InvalidEvent) -> Iterator[tuple[str, dict[str, Any] | InvalidEvent]]:
    try:
        given = json.loads(file.read())
    except (ValueError, RecursionError, InvalidEvent):
        # None either: lines, of which the first is bad.
        for index, line in enumerate(file.lines()):
            if index == 0:
                yield line.place, otherwise
                continue
            try:
                if line.fault is not None:
                    raise line.fault
                yield line.place, parse_object(line.text, "an OTLP request, which is a JSON object")
            except InvalidEvent as error:
                yield line.place, error
        return
    for index, request in enumerate(given if isinstance(given, list) else [given]):
        place = f"request {index + 1}"
        if isinstance(request, dict):
            yield place, request
        else:
            yield place, refused("an OTLP request, which is a JSON object", request, "")


def _of_resources(groups: list[Any], place: str) -> Iterator[tuple[str, OtlpSpan | InvalidEvent, str | None]]:
    for at, group in enumerate(groups):
        path = f"resourceSpans[{at}]"
        try:
            _object(group, path)
            resource = _object(group.get("resource", {}), f"{path}.resource")
            attributes = _attributes(resource.get("attributes"), f"{path}.resource.attributes")
            scopes = _list(group, "scopeSpans", path)
        except InvalidEvent as error:
            yield place, error, None
            continue
        for number, scope in enumerate(scopes):
            inner = f"{path}.scopeSpans[{number}]"
            try:
                spans = _list(_object(scope, inner), "spans", inner)
            except InvalidEvent as error:
                yield place, error, None
                continue
            for index, span in enumerate(spans):
                try:
                    found = _span(span, f"{inner}.spans[{index}]", place, attributes)
                    yield place, found, found.trace_id
                except InvalidEvent as error:
                    yield place, error, _trace_of(span)


def _span(given: Any, path: str, place: str, resource: Mapping[str, Any]) -> OtlpSpan:
    _object(given, path)
    status = _object(given.get("status") or {}, f"{path}.status")
    error = None
    if status.get("code") in _ERROR:
        error = str(status.get("message") or "error")
    start_ns = _time(given.get("startTimeUnixNano"), f"{path}.startTimeUnixNano")
    end_ns = _time(given.get("endTimeUnixNano"), f"{path}.endTimeUnixNano")
    name = given.get("name", "")
    if not isinstance(name, str):
        raise refused("text", name, f"{path}.name")
    parent = given.get("parentSpanId")
    parent_id = None if not parent else _id(parent, SPAN_ID_BYTES, f"{path}.parentSpanId")
    return OtlpSpan(
        place,
        _id(given.get("traceId"), TRACE_ID_BYTES, f"{path}.traceId"),
        _id(given.get("spanId"), SPAN_ID_BYTES, f"{path}.spanId"),
        None if parent_id == NO_SPAN else parent_id,
        name,
        start_ns,
        max(start_ns, end_ns),  # one that did not end has no time there
        error,
        _attributes(given.get("attributes"), f"{path}.attributes"),
        resource,
        tuple(
            SpanEvent(
                str(_object(event, f"{path}.events[{index}]").get("name", "")),
                _time(event.get("timeUnixNano"), f"{path}.events[{index}].timeUnixNano"),
                _attributes(event.get("attributes"), f"{path}.events[{index}].attributes"),
            )
            for index, event in enumerate(_list(given, "events", path))
        ),
        tuple(
            _id(_object(link, f"{path}.links[{index}]").get("spanId"), SPAN_ID_BYTES, f"{path}.links[{index}].spanId")
            for index, link in enumerate(_list(given, "links", path))
        ),
    )


def _trace_of(given: Any) -> str | None:
    try:
        return _id(given.get("traceId"), TRACE_ID_BYTES, "") if isinstance(given, dict) else None
    except InvalidEvent:
        return None


def _attributes(given: Any, path: str) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, list):
        raise refused("a list of attributes", given, path)
    found = {}
    for index, pair in enumerate(given):
        if not isinstance(pair, dict) or not isinstance(pair.get("key"), str):
            raise refused("an attribute with a key", pair, f"{path}[{index}]")
        found[pair["key"]] = _value(pair.get("value"), f"{path}[{index}].value", VALUE_DEPTH_MAX)
    return found


def _value(given: Any, path: str, depth: int) -> Any:
    """An `AnyValue` as plain JSON; none is null."""
    if given is None or given == {}:
        return None
    if not isinstance(given, dict) or len(given) != 1 or not depth:
        raise refused("a value such as {'stringValue': ...}", given, path)
    ((kind, value),) = given.items()
    if kind in ("stringValue", "boolValue", "bytesValue"):
        if not isinstance(value, bool if kind == "boolValue" else str):
            raise refused("true or false" if kind == "boolValue" else "text", value, f"{path}.{kind}")
        return value
    if kind == "intValue":
        try:
            if isinstance(value, str) or type(value) is int:
                return int(value)
        except ValueError:
            pass
        raise refused("an integer, as text or number", value, f"{path}.{kind}")
    if kind == "doubleValue":
        try:
            return float(value)  # "NaN" and "Infinity" are texts
        except (TypeError, ValueError, OverflowError):
            raise refused("a number", value, f"{path}.{kind}") from None
    if kind == "arrayValue":
        values = _list(_object(value, path), "values", f"{path}.{kind}")
        return [_value(each, f"{path}.{kind}.values[{n}]", depth - 1) for n, each in enumerate(values)]
    if kind == "kvlistValue":
        pairs = _list(_object(value, path), "values", f"{path}.{kind}")
        return {
            str(_object(pair, path).get("key")): _value(pair.get("value"), f"{path}.{kind}.values[{n}]", depth - 1)
            for n, pair in enumerate(pairs)
        }
    raise refused("a value such as {'stringValue': ...}", kind, path)


def _id(given: Any, size_bytes: int, path: str) -> str:
    if isinstance(given, str):
        if len(given) == 2 * size_bytes and _HEX.fullmatch(given):
            return given.lower()
        try:
            if len(raw := b64decode(given, validate=True)) == size_bytes:
                return raw.hex()
        except ValueError:
            pass
    raise refused(f"{2 * size_bytes} hex digits", given, path)


def _time(given: Any, path: str) -> int:
    if given is None or given == "":
        return 0
    try:
        found = int(given) if isinstance(given, str) or type(given) is int else -1
    except ValueError:
        found = -1
    if not 0 <= found <= INT64_MAX:
        raise refused("nanoseconds since 1970", given, path)
    return found


def _object(given: Any, path: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise refused("an object", given, path)
    return given


def _list(given: Mapping[str, Any], name: str, path: str) -> list[Any]:
    found = given.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise refused("a list", found, f"{path}.{name}" if path else name)
    return found
