"""Entries of a manifest: what each says, their bytes, and whether they are sound.

An entry is JSON that ends with the checksum of all before it. Its values are checked when it is read, each and against
one another: they become places in files and names of files.

Not here  which entries count: consumers.archiving.manifest
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from dataclasses import fields as fields_of
from hashlib import blake2b
from typing import Any

from rolloutlog.consumers.archiving import fields
from rolloutlog.consumers.archiving.errors import ArchiveDamaged
from rolloutlog.consumers.archiving.fields import LONG_MAX
from rolloutlog.eventstore.errors import InvalidSettings

FORMAT = 1
MANIFEST = "manifest"
DIGEST_BYTES = 32  # `b2sum -l 256` prints the same
PART_DIGEST_BYTES = 16
PARTITIONS_MAX = 2**20  # beyond any topic's

_CHECKSUM = "blake2b"


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive bytes of an Avro file: its head (no records), or one block of records.

    first              offset of its first record; `log_time_ns` of that record
    """

    size_bytes: int
    count: int
    first: int
    log_time_ns: int
    blake2b: str


@dataclass(frozen=True, slots=True)
class File:
    """A file of a chunk. `name` relative to the archive; `columns`: version of a Parquet file's columns."""

    name: str
    size_bytes: int
    blake2b: str
    columns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One chunk of a partition: first <= offset < end.

    count         of records; value_bytes: of their values
    *_log_time_ns of the first and last record, null without any
    kinds         how many of each kind of event; `refused`: how many are none, by reason
    schemas       how many values of each schema: `Name.vN`, or a fingerprint that this version does not know
    lost          why no record of these offsets is here, null when all are
    """

    run_id: str
    topic: str
    partition: int
    first: int
    end: int
    count: int = 0
    value_bytes: int = 0
    day: str | None = None
    first_log_time_ns: int | None = None
    last_log_time_ns: int | None = None
    kinds: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    schemas: Mapping[str, int] = field(default_factory=dict)
    avro: File | None = None
    parquet: File | None = None
    parts: tuple[Part, ...] = ()
    lost: str | None = None
    rolloutlog: str = ""
    written_ns: int = 0

    @property
    def name(self) -> str:
        return entry_name(self.topic, self.partition, self.first)


def entry_name(topic: str, partition: int, first: int) -> str:
    return f"{MANIFEST}/{topic}/{partition}/{first:020d}.json"


def encode_entry(entry: Entry) -> bytes:
    values = asdict(entry)
    # one line of numbers a part: there are many
    values["parts"] = [
        [part.size_bytes, part.count, part.first, part.log_time_ns, part.blake2b] for part in entry.parts
    ]
    return seal(values)


def decode_entry(data: bytes, name: str) -> Entry:
    """Read an entry. Raises ArchiveDamaged naming the file; InvalidSettings for one of a newer format."""
    values = unseal(data, name)
    try:
        _check_fields(values, Entry, name)
        entry = _entry(values, name)
        if entry.name != name:
            raise ArchiveDamaged(f"expected the entry of this name, got {entry.name}: was it copied?")
        _check_entry(entry)
    except ArchiveDamaged as error:
        raise ArchiveDamaged(f"{name}: {error}") from error
    return entry


def digest(data: bytes, size: int = DIGEST_BYTES) -> str:
    return blake2b(data, digest_size=size).hexdigest()


def seal(values: Mapping[str, Any]) -> bytes:
    """JSON with the checksum of all that stands before it."""
    text = json.dumps({"format": FORMAT, **values}, separators=(",", ":"), ensure_ascii=False)
    return f'{text[:-1]},"{_CHECKSUM}":"{digest(text.encode())}"}}\n'.encode()


def unseal(data: bytes, name: str) -> dict[str, Any]:
    """What `seal` was given. Raises ArchiveDamaged naming the file; InvalidSettings for a newer format."""
    try:
        values = json.loads(data)
        found, format_ = values.pop(_CHECKSUM), values.pop("format")
        end = f',"{_CHECKSUM}":"{found}"}}\n'.encode()
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ArchiveDamaged(
            f"{name}: expected JSON as it was written, got {len(data)} bytes of something else"
        ) from error
    if not data.endswith(end) or digest(data[: -len(end)] + b"}") != found:
        raise ArchiveDamaged(f"{name}: expected the bytes that were written, got others: its checksum does not fit")
    if format_ != FORMAT:
        raise InvalidSettings(f"{name}: expected format {FORMAT}, got {format_}: use the newer version that wrote it")
    return dict(values)


def _entry(values: Mapping[str, Any], name: str) -> Entry:
    topic = fields.text(values["topic"], "topic")
    made: dict[str, Any] = {
        "topic": topic,
        "run_id": fields.text(values["run_id"], "run_id"),
        "partition": fields.whole(values["partition"], "partition", high=PARTITIONS_MAX - 1),
        "rolloutlog": fields.text(values["rolloutlog"], "rolloutlog", empty=True),
        "parts": tuple(_part(part, number) for number, part in enumerate(fields.list_of(values["parts"], "parts"))),
    }
    for each in ("first", "end", "count", "value_bytes", "written_ns"):
        made[each] = fields.whole(values[each], each)
    for each in ("kinds", "refused", "schemas"):
        made[each] = fields.counts(values[each], each)
    for each in ("avro", "parquet"):
        made[each] = _file(values[each], each, topic, name)
    for each in ("first_log_time_ns", "last_log_time_ns"):
        made[each] = None if values[each] is None else fields.whole(values[each], each, -LONG_MAX)
    for each in ("day", "lost"):
        made[each] = None if values[each] is None else fields.text(values[each], each)
    return Entry(**made)


def _file(value: Any, field_: str, topic: str, entry: str) -> File | None:
    if value is None:
        return None
    values = fields.object_of(value, field_)
    _check_fields(values, File, entry, f"{field_}.")
    return File(
        fields.name_within(values["name"], f"{field_}.name", topic),
        fields.whole(values["size_bytes"], f"{field_}.size_bytes"),
        fields.text(values["blake2b"], f"{field_}.blake2b"),
        None if values["columns"] is None else fields.whole(values["columns"], f"{field_}.columns"),
    )


def _part(value: Any, number: int) -> Part:
    field_ = f"parts[{number}]"
    size_bytes, count, first, log_time_ns, blake = fields.list_of(value, field_, 5)
    return Part(
        fields.whole(size_bytes, field_, 1),
        fields.whole(count, field_),
        fields.whole(first, field_),
        fields.whole(log_time_ns, field_, -LONG_MAX),
        fields.text(blake, field_),
    )


def _check_fields(values: Mapping[str, Any], kind: type, name: str, prefix: str = "") -> None:
    """Raises InvalidSettings for fields of a newer version, ArchiveDamaged where some are missing."""
    expected = {each.name for each in fields_of(kind)}
    if newer := sorted(set(values) - expected):
        raise InvalidSettings(
            f"{name}: expected the fields of format {FORMAT}, got also {prefix}{', '.join(newer)!a}: use the newer "
            "version that wrote it"
        )
    if missing := sorted(expected - set(values)):
        raise ArchiveDamaged(f"expected the field {prefix}{missing[0]}, got none")


def _check_entry(entry: Entry) -> None:
    """Do its fields fit one another? Raises ArchiveDamaged."""
    if not entry.first < entry.end or entry.count > entry.end - entry.first:
        raise ArchiveDamaged(
            f"expected offsets for its {entry.count} records, got {entry.first} up to below {entry.end}"
        )
    if (entry.avro is None) != (entry.count == 0) or (entry.parquet is None) != (entry.count == 0):
        got = "none" if entry.avro is None and entry.parquet is None else "some"
        raise ArchiveDamaged(f"expected files for its {entry.count} records, got {got}")
    if entry.count and entry.lost is not None:
        raise ArchiveDamaged(f"expected no records of what is lost, got {entry.count}")
    if entry.count and (entry.first_log_time_ns is None or entry.last_log_time_ns is None):
        raise ArchiveDamaged("expected the first and last log time of its records, got none")
    size_bytes, count = sum(part.size_bytes for part in entry.parts), sum(part.count for part in entry.parts)
    if count != entry.count:
        raise ArchiveDamaged(f"expected records {entry.count} in its blocks, got {count}")
    if size_bytes != (entry.avro.size_bytes if entry.avro else 0):
        raise ArchiveDamaged(f"expected blocks of all bytes of its Avro file, got {size_bytes} bytes")
    offset = entry.first
    for part in entry.parts:
        if part.count:
            if not offset <= part.first <= entry.end - part.count:
                raise ArchiveDamaged(
                    f"expected blocks with offsets that rise from {entry.first} to {entry.end - 1}, got {part.first}"
                )
            offset = part.first + part.count
