"""Bytes of events and of every other record in the log.

Value     Avro single-object encoding: `C3 01`, the schema's fingerprint (8 bytes), the body. Readers choose by the
          first byte, so another framing can join later.
Header    one header `e` = `kind/flags/attempt/sequence/source/rollout_id`, text, split at the first five `/`: enough
          to route and to tell duplicates without decoding. Flags are letters or `-`; `r` = resend: may already be
          stored.
Key       the group's id, so that a group's rollouts share a partition.

Decoding bytes of an unknown sender raises InvalidEvent and nothing else, whatever the bytes.

Not here  schemas and fingerprints: schemas; which values are allowed: eventstore.checks
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from io import BytesIO
from re import compile as regex
from typing import Any, NamedTuple

from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import (
    KINDS,
    WITHOUT_ROLLOUT,
    Event,
    MissingEvents,
    PolicyVersionRun,
    Target,
    TokenArray,
)
from rolloutlog.schemas import by_fingerprint, newest

MARKER = b"\xc3\x01"
FRAME_BYTES = 10
HEADER = "e"
RESEND = "r"

_SOURCE = regex(r"[A-Za-z0-9_.-]{1,64}\.[0-9a-f]{16}")
_FLAGS = regex(r"-|[a-z]+")


class Header(NamedTuple):
    """The parsed header `e`."""

    kind: str
    flags: str
    attempt: int
    sequence: int
    source: str
    rollout_id: str

    @property
    def resend(self) -> bool:
        return RESEND in self.flags

    def text(self) -> bytes:
        """The header's value in the log."""
        return f"{self.kind}/{self.flags}/{self.attempt}/{self.sequence}/{self.source}/{self.rollout_id}".encode()


def header_of(event: Event, *, resend: bool = False) -> Header:
    return Header(
        event.record, RESEND if resend else "-", event.attempt, event.sequence, event.source, event.rollout_id
    )


def parse_header(value: bytes | None) -> Header:
    """Read header `e`. Raises InvalidEvent naming the part that is wrong."""
    if value is None:
        raise _bad_header("a header `e`", "none")
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise _bad_header("UTF-8 text", repr(value[:40])) from error
    parts = text.split("/", 5)
    if len(parts) != 6:
        raise _bad_header("kind/flags/attempt/sequence/source/rollout_id", repr(text[:80]))
    kind, flags, attempt, sequence, source, rollout_id = parts
    if kind not in KINDS:
        raise _bad_header(f"a kind among {', '.join(KINDS)}", repr(kind))
    if flags != "-" and not _FLAGS.fullmatch(flags):
        raise _bad_header("flags of letters, or -", repr(flags))
    if not is_source(source):
        raise _bad_header("a source `name.16 hex digits`", repr(source))
    if (kind in WITHOUT_ROLLOUT) == bool(rollout_id):
        raise _bad_header(f"{'no' if rollout_id else 'a'} rollout id for {kind}", repr(rollout_id))
    return Header(kind, flags, _count(attempt, "attempt", 31), _count(sequence, "sequence", 63), source, rollout_id)


@lru_cache(maxsize=16_384)
def is_source(source: str) -> bool:
    """Whether this is `{name}.{16 hex digits}`: what a source may be called."""
    return _SOURCE.fullmatch(source) is not None


def encode_record(name: str, fields: Mapping[str, Any]) -> bytes:
    """Frame one record of schema `name` in its newest version. Values are trusted: check events first."""
    schema = newest(name)
    out = BytesIO()
    out.write(MARKER)
    out.write(schema.fingerprint)
    _fastavro().schemaless_writer(out, schema.parsed, fields)
    return out.getvalue()


def decode_record(value: bytes | None, *, expected: str | None = None) -> tuple[str, dict[str, Any]]:
    """Read a framed record of any released version, as its newest version. Returns name and fields.

    expected  name the record must have
    Raises    InvalidEvent: no frame, unknown fingerprint, another record, truncated, trailing bytes
    """
    if value is None or len(value) < FRAME_BYTES or value[:2] != MARKER:
        got = "no value" if value is None else f"{len(value)} bytes beginning {value[:FRAME_BYTES].hex()!r}"
        raise InvalidEvent(f"expected Avro single-object bytes (C3 01 ...), got {got}", reason="not_framed")
    schema = by_fingerprint(value[2:FRAME_BYTES])
    if schema is None:
        raise InvalidEvent(
            f"expected a known schema, got fingerprint {value[2:FRAME_BYTES].hex()}: written by a newer version?",
            reason="unknown_fingerprint",
        )
    if expected is not None and schema.name != expected:
        raise InvalidEvent(f"expected a {expected}, got a {schema.name}", reason="header_disagrees")
    body = BytesIO(value)
    body.seek(FRAME_BYTES)
    current = newest(schema.name)
    try:
        if schema is current:
            fields = _fastavro().schemaless_reader(body, schema.parsed, None)
        else:
            fields = _fastavro().schemaless_reader(body, schema.parsed, current.parsed)
    except Exception as error:  # fastavro raises EOFError, IndexError, UnicodeDecodeError and more on bad bytes
        raise InvalidEvent(
            f"expected a whole {schema.name}, got {len(value)} bytes that do not decode ({type(error).__name__})",
            reason="undecodable",
        ) from error
    if body.tell() != len(value):
        raise InvalidEvent(
            f"expected {body.tell()} bytes of {schema.name}, got {len(value)}: trailing bytes", reason="trailing_bytes"
        )
    return schema.name, fields


def encode_event(event: Event) -> bytes:
    """The value of an event. The caller has checked it (`eventstore.checks.check_event`)."""
    fields = event.__dict__
    for name in _NESTED.get(event.record, ()):
        nested = fields[name]
        if nested:
            plain = [_plain(item) for item in nested] if isinstance(nested, tuple) else _plain(nested)
            fields = {**fields, name: plain}
    return encode_record(event.record, fields)


def decode_event(kind: str, value: bytes | None) -> Event:
    """Read an event's value; its envelope and ranges are still to be checked (`eventstore.checks`)."""
    name, fields = decode_record(value, expected=kind)
    for field, make in _NESTED.get(name, {}).items():
        nested = fields[field]
        if isinstance(nested, list):
            fields[field] = tuple(make(**item) for item in nested)
        elif nested is not None:
            fields[field] = make(**nested)
    for field in _TUPLES.get(name, ()):
        fields[field] = tuple(fields[field])
    event = object.__new__(KINDS[name])
    # Past the frozen __init__: the schema guarantees names and types, and this is the hot path of every consumer.
    object.__setattr__(event, "__dict__", fields)
    return event


@cache
def _fastavro() -> Any:
    """Loaded with the first record, not with the package: trainers and hosts wait for every import."""
    import fastavro

    return fastavro


def _token_array(name: str, dtype: str, shape: list[int], data: bytes) -> TokenArray:
    return TokenArray(name, dtype, tuple(shape), data)


_NESTED: dict[str, dict[str, Any]] = {
    "Span": {"policy_version_runs": PolicyVersionRun, "arrays": _token_array},
    "RewardRecorded": {"target": Target},
    "RolloutExpired": {"missing_events": MissingEvents},
}
_TUPLES = {
    "Span": ("links",),
    "RolloutCompleted": ("awaited_names", "awaited_rewards"),
    "RolloutExpired": ("missing_names", "missing_rewards"),
}


def _plain(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__slots__}


def _count(text: str, name: str, bits: int) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20 and (number := int(text)) < 1 << bits:
        return number
    raise _bad_header(f"{name} from 0 below 2**{bits}", repr(text[:40]))


def _bad_header(expected: str, got: str) -> InvalidEvent:
    return InvalidEvent(f"event refused: expected {expected}, got {got} in header e", reason="bad_header", field="e")
