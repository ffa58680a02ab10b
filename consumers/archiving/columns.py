"""Events as columns, for Parquet: one row a record, typed, with everything that its event says.

A field that several kinds of event have is one column. Token ids and log-probs are lists, made from their packed bytes
without a Python list of tokens; texts of JSON are text, as recorded; prompts are as recorded too: what follows those of
`prompt_base`. A record that is no event keeps its bytes, with the reason why it is refused.

Needs     the extra `archive`
Not here  the lossless form: consumers.archiving.avro_file; what each column means: docs/archive.md
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from rolloutlog.consumers.adapters import missing
from rolloutlog.eventstore.checks import check_agreement, check_event
from rolloutlog.eventstore.codec import FRAME_BYTES, HEADER, MARKER, Header, decode_event, parse_header
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import Event, RewardRecorded
from rolloutlog.eventstore.log import Record
from rolloutlog.schemas import by_fingerprint

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    raise missing(__name__, "archive", error) from error

__all__ = ["SCHEMA", "VERSION", "Seen", "pq", "schema_name", "table_of"]  # pq: loaded here, with the extra's name

VERSION = 1  # raised when the same record gives another row

_TIME = pa.timestamp("ns", tz="UTC")
_IDS = pa.list_(pa.field("element", pa.int32(), nullable=False))
_FLOATS = pa.list_(pa.field("element", pa.float32(), nullable=False))
_TEXTS = pa.list_(pa.string())
_RUNS = pa.list_(pa.struct([("policy_version", pa.int64()), ("tokens", pa.int64())]))
_GAPS = pa.list_(pa.struct([("source", pa.string()), ("first", pa.int64()), ("last", pa.int64())]))
_ARRAYS = pa.list_(
    pa.struct([("name", pa.string()), ("dtype", pa.string()), ("shape", pa.list_(pa.int64())), ("data", pa.binary())])
)

# Of the record, whatever its value.
RECORD_COLUMNS = {
    "partition": pa.int32(),
    "log_offset": pa.int64(),
    "log_time": _TIME,
    "key": pa.string(),
    "kind": pa.string(),
    "flags": pa.string(),
    "schema": pa.string(),
    "value_bytes": pa.int64(),
    "refused": pa.string(),
    "refused_why": pa.string(),
    "refused_key": pa.binary(),
    "refused_value": pa.binary(),
    "refused_header": pa.binary(),
}
# Of the event, by the field it comes from. `kind` and times are named otherwise than their fields: see COLUMN_OF.
EVENT_COLUMNS = {
    "rollout_id": pa.string(),
    "attempt": pa.int32(),
    "source": pa.string(),
    "sequence": pa.int64(),
    "time": _TIME,
    "run_id": pa.string(),
    "task_id": pa.string(),
    "group_id": pa.string(),
    "group_size": pa.int32(),
    "split": pa.string(),
    "attempts_max": pa.int32(),
    "policy_version": pa.int64(),
    "metadata": pa.string(),
    "span_id": pa.string(),
    "parent_id": pa.string(),
    "name": pa.string(),
    "span_kind": pa.string(),
    "start_time": _TIME,
    "end_time": _TIME,
    "status": pa.string(),
    "attributes": pa.string(),
    "links": _TEXTS,
    "model": pa.string(),
    "response_id": pa.string(),
    "choice_index": pa.int32(),
    "prompt_base": pa.string(),
    "prompt_base_tokens": pa.int32(),
    "prompt_ids": _IDS,
    "response_ids": _IDS,
    "logprobs": _FLOATS,
    "policy_version_runs": _RUNS,
    "finish_reason": pa.string(),
    "messages": pa.string(),
    "arrays": _ARRAYS,
    "trainable": pa.bool_(),
    "reward_id": pa.string(),
    "value": pa.float64(),
    "scope": pa.string(),
    "target_key": pa.string(),
    "target_value": pa.string(),
    "after_call": pa.string(),
    "supersedes": pa.string(),
    "scorer": pa.string(),
    "scorer_version": pa.string(),
    "extra_info": pa.string(),
    "error": pa.string(),
    "awaited_names": _TEXTS,
    "awaited_rewards": _TEXTS,
    "reason": pa.string(),
    "as_of": pa.int64(),
    "missing_events": _GAPS,
    "missing_names": _TEXTS,
    "missing_rewards": _TEXTS,
}
SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=name not in ("partition", "log_offset", "log_time", "value_bytes"))
        for name, kind in {**RECORD_COLUMNS, **EVENT_COLUMNS}.items()
    ]
)

COLUMN_OF = {"kind": "span_kind", "time_ns": "time", "start_ns": "start_time", "end_ns": "end_time"}  # field → column
_PACKED = {"prompt_ids": _IDS, "response_ids": _IDS, "logprobs": _FLOATS}
_STRUCTS = ("policy_version_runs", "arrays", "missing_events")
_JSON = ("metadata", "attributes", "messages", "extra_info")
_ITEM_BYTES = 4


@dataclass(slots=True)
class Seen:
    """What kinds of records there were: counts by name."""

    kinds: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    schemas: Counter[str] = field(default_factory=Counter)


def table_of(records: Sequence[Record], seen: Seen) -> Any:
    """A pyarrow table of SCHEMA, one row a record, and counted in `seen`."""
    columns: dict[str, list[Any]] = {name: [None] * len(records) for name in SCHEMA.names}
    for row, record in enumerate(records):
        _put_record(columns, row, record, seen)
    return pa.Table.from_arrays(
        [
            _packed(_PACKED[each.name], columns[each.name])
            if each.name in _PACKED
            else pa.array(columns[each.name], each.type)
            for each in SCHEMA
        ],
        schema=SCHEMA,
    )


def schema_name(value: bytes | None) -> str | None:
    """`Name.vN` of a framed value, the fingerprint in hex where this version does not know it; None without a frame."""
    if value is None or len(value) < FRAME_BYTES or value[:2] != MARKER:
        return None
    schema = by_fingerprint(value[2:FRAME_BYTES])
    return value[2:FRAME_BYTES].hex() if schema is None else f"{schema.name}.v{schema.version}"


def _put_record(columns: dict[str, list[Any]], row: int, record: Record, seen: Seen) -> None:
    columns["partition"][row] = record.partition
    columns["log_offset"][row] = record.offset
    columns["log_time"][row] = record.log_time_ns
    columns["value_bytes"][row] = len(record.value or b"")
    columns["key"][row] = _text(record.key)
    if (name := schema_name(record.value)) is not None:
        columns["schema"][row] = name
        seen.schemas[name] += 1
    found = [value for key, value in record.headers if key == HEADER]
    header = None
    try:
        # As the fold refuses, in its order: consumers.fold.
        if len(found) > 1:
            raise InvalidEvent(f"event refused: expected one header e, got {len(found)}", reason="bad_header")
        header = parse_header(found[0] if found else None)
        if not record.key:
            raise InvalidEvent("event refused: expected the group's id, got an empty key", reason="key")
        event = decode_event(header.kind, record.value)
        check_event(event)
        check_agreement(header, event, record.key)
    except InvalidEvent as error:
        seen.refused[error.reason] += 1
        columns["refused"][row] = error.reason
        columns["refused_why"][row] = str(error)
        columns["refused_key"][row] = record.key
        columns["refused_value"][row] = record.value
        columns["refused_header"][row] = found[0] if found else None
        if header is not None:
            _put_header(columns, row, header)
        return
    seen.kinds[header.kind] += 1
    _put_header(columns, row, header)
    _put_event(columns, row, event)


def _put_header(columns: dict[str, list[Any]], row: int, header: Header) -> None:
    columns["kind"][row] = header.kind
    columns["flags"][row] = header.flags
    columns["rollout_id"][row] = header.rollout_id
    columns["attempt"][row] = header.attempt
    columns["source"][row] = header.source
    columns["sequence"][row] = header.sequence


def _put_event(columns: dict[str, list[Any]], row: int, event: Event) -> None:
    for name, value in event.__dict__.items():
        if name == "target":
            if value is not None:
                columns["target_key"][row], columns["target_value"][row] = value.key, value.value
        elif value is not None:
            made = _MADE.get(name)
            columns[COLUMN_OF.get(name, name)][row] = value if made is None else made(value)
    if isinstance(event, RewardRecorded):
        columns["reward_id"][row] = event.id  # the default, too: what `supersedes` names


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _json(value: bytes) -> str | None:
    return value.decode(errors="replace") or None


def _plain(values: Sequence[Any]) -> list[dict[str, Any]]:
    return [{name: getattr(each, name) for name in each.__slots__} for each in values]


_MADE: dict[str, Callable[[Any], Any]] = {**dict.fromkeys(_JSON, _json), **dict.fromkeys(_STRUCTS, _plain)}


def _packed(kind: Any, parts: Sequence[bytes | None]) -> Any:
    """A column of lists from packed little-endian bytes."""
    ends = [0, *accumulate(len(part or b"") // _ITEM_BYTES for part in parts)]
    values = pa.Array.from_buffers(
        kind.value_type, ends[-1], [None, pa.py_buffer(b"".join(part or b"" for part in parts))]
    )
    mask = pa.array([part is None for part in parts], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=kind, mask=mask)
