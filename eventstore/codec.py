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

from rolloutlog.eventstore.avro_reader import Kinds, Reader, compile_reader
from rolloutlog.eventstore.errors import InvalidEvent, UnknownSchema
from rolloutlog.eventstore.events import (
    KINDS,
    WITHOUT_ROLLOUT,
    Event,
    MissingEvents,
    PolicyVersionRun,
    Target,
    TokenArray,
)
from rolloutlog.schemas import Schema, by_fingerprint, newest
from rolloutlog.schemas.upcasters import upcast

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
    """Read a framed record of any released version, as its newest version means it. Returns name and fields.

    expected  name the record must have
    Raises    InvalidEvent: no frame, unknown fingerprint (UnknownSchema), another record, truncated, trailing bytes
    """
    schema = _schema_of(value, expected)
    return schema.name, _plain_reader(schema.name).read(value)


class RecordReader:
    """Reads framed records `name` of any released version, as its newest version means them.

    kinds  records within it to the dataclasses of which objects are made: eventstore.avro_reader, compile_reader
    """

    def __init__(self, name: str, kinds: Kinds | None = None) -> None:
        self._name = name
        self._kinds = kinds
        self._frame = b""  # of the newest version; compiled with the first record, as schemas are loaded
        self._read: Reader

    def read(self, value: bytes | None) -> Any:
        """Raises InvalidEvent as `decode_record` says."""
        if value is None or value[:FRAME_BYTES] != self._frame:
            schema, current = _schema_of(value, self._name), newest(self._name)
            assert value is not None
            if not self._frame:
                self._read = compile_reader(current.parsed, self._kinds)
                self._frame = MARKER + current.fingerprint
            if schema is not current:
                fields = _read_older(value, schema, current)
                if self._kinds is None:
                    return fields
                value = encode_record(self._name, fields)
        try:
            found, end = self._read(value, FRAME_BYTES)
        except Exception as error:  # of many kinds, on bad bytes
            raise _undecodable(value, self._name, error) from error
        if end != len(value):
            raise _trailing(value, self._name, end)
        return found


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
    fields = _event_reader(kind).read(value)
    event = object.__new__(KINDS[kind])
    # Past the frozen __init__: the schema guarantees names and types, and this is the hot path of every consumer.
    object.__setattr__(event, "__dict__", fields)
    return event


@cache
def _fastavro() -> Any:
    """Loaded with the first record, not with the package: trainers and hosts wait for every import."""
    import fastavro

    return fastavro


def _schema_of(value: bytes | None, expected: str | None) -> Schema:
    """The version that the frame names."""
    if value is None or len(value) < FRAME_BYTES or value[:2] != MARKER:
        got = "no value" if value is None else f"{len(value)} bytes beginning {value[:FRAME_BYTES].hex()!r}"
        raise InvalidEvent(f"expected Avro single-object bytes (C3 01 ...), got {got}", reason="not_framed")
    schema = by_fingerprint(value[2:FRAME_BYTES])
    if schema is None:
        raise UnknownSchema(
            f"expected a known schema, got fingerprint {value[2:FRAME_BYTES].hex()}: written by a newer version? "
            "Upgrade rolloutlog here"
        )
    if expected is not None and schema.name != expected:
        raise InvalidEvent(f"expected a {expected}, got a {schema.name}", reason="header_disagrees")
    return schema


def _read_older(value: bytes, schema: Schema, current: Schema) -> dict[str, Any]:
    """Fields of an older version, as the newest one means them."""
    body = BytesIO(value)
    body.seek(FRAME_BYTES)
    try:
        fields: dict[str, Any] = _fastavro().schemaless_reader(body, schema.parsed, current.parsed)
        fields = upcast(schema.name, schema.version, current.version, fields)
    except Exception as error:  # fastavro raises EOFError, IndexError, UnicodeDecodeError and more on bad bytes
        raise _undecodable(value, schema.name, error) from error
    if body.tell() != len(value):
        raise _trailing(value, schema.name, body.tell())
    return fields


def _undecodable(value: bytes, name: str, error: Exception) -> InvalidEvent:
    return InvalidEvent(
        f"expected a whole {name}, got {len(value)} bytes that do not decode ({type(error).__name__})",
        reason="undecodable",
    )


def _trailing(value: bytes, name: str, end: int) -> InvalidEvent:
    return InvalidEvent(f"expected {end} bytes of {name}, got {len(value)}: trailing bytes", reason="trailing_bytes")


@cache
def _plain_reader(name: str) -> RecordReader:
    return RecordReader(name)


@cache
def _event_reader(kind: str) -> RecordReader:
    return RecordReader(kind, {each.__name__: each for each in (PolicyVersionRun, TokenArray, Target, MissingEvents)})


_NESTED: dict[str, tuple[str, ...]] = {
    "Span": ("policy_version_runs", "arrays"),
    "RewardRecorded": ("target",),
    "RolloutExpired": ("missing_events",),
}


def _plain(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__slots__}


def _count(text: str, name: str, bits: int) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20 and (number := int(text)) < 1 << bits:
        return number
    raise _bad_header(f"{name} from 0 below 2**{bits}", repr(text[:40]))


def _bad_header(expected: str, got: str) -> InvalidEvent:
    return InvalidEvent(f"event refused: expected {expected}, got {got} in header e", reason="bad_header", field="e")
