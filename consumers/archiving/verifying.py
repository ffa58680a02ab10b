"""Is an archive what was written? Every entry, every file, every record.

Entries  each is what was written, of this run; a partition's follow one another from offset 0 on without a gap
Files    each is there, with the size and checksum of its entry
Records  offsets rise within the chunk; count, times and bytes are the entry's; Avro and Parquet agree row by row

What retention had removed before it was archived is told, and is no fault: the archive holds all that there was. Files
that no entry names are told too.

Needs    the extra `archive`
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any

from rolloutlog import __version__
from rolloutlog.consumers.archiving.avro_file import places, read_block
from rolloutlog.consumers.archiving.columns import SCHEMA, VERSION, Seen, pq, table_of
from rolloutlog.consumers.archiving.entries import DIGEST_BYTES, Entry, File
from rolloutlog.consumers.archiving.errors import ArchiveDamaged, ArchiveUnavailable
from rolloutlog.consumers.archiving.manifest import (
    TOPICS,
    check_partition,
    missing_text,
    names_of,
    read_entries,
    require_run,
)
from rolloutlog.consumers.archiving.storage import Storage
from rolloutlog.eventstore.errors import InvalidSettings, StoreError
from rolloutlog.eventstore.log import Record
from rolloutlog.eventstore.meta import Run

READ_BYTES = 2**20

# Of rows that another release wrote: what no later rule about events changes.
_LASTING = ("partition", "log_offset", "log_time", "value_bytes")


@dataclass(slots=True)
class Span:
    """What an archive holds of one partition. `lost`: (first, last offset) of what was removed before."""

    topic: str
    partition: int
    end: int = 0
    count: int = 0
    chunks: int = 0
    refused: int = 0
    size_bytes: int = 0
    first_log_time_ns: int | None = None
    last_log_time_ns: int | None = None
    lost: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """faults: texts, each naming its file. unnamed: files that no entry names."""

    run: Run
    spans: list[Span] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)


def verify(storage: Storage, *, on_progress: Callable[[int, int], None] = lambda done, total: None) -> Report:
    """Check a whole archive.

    on_progress  told of entries checked and how many there are
    Raises       LogMissing where there is no archive; ArchiveUnavailable when the place does not answer
    """
    report = Report(require_run(storage))
    files: set[str] = set()
    found: dict[str, list[Entry]] = {}
    for topic in TOPICS:
        files.update(each.name for each in storage.find(topic))
        found[topic] = _entries(storage, topic, report)
    total = sum(map(len, found.values()))
    done = 0
    for topic, entries in found.items():
        for partition in sorted({entry.partition for entry in entries}):
            own = [entry for entry in entries if entry.partition == partition]
            report.spans.append(_span(topic, partition, own, report))
            for entry in own:
                files -= {file.name for file in (entry.avro, entry.parquet) if file is not None}
                report.faults += _faults(storage, entry)
                done += 1
                on_progress(done, total)
    report.unnamed = sorted(files)
    return report


def _entries(storage: Storage, topic: str, report: Report) -> list[Entry]:
    found = []
    for name in names_of(storage, topic):
        try:
            (entry,) = read_entries(storage, [name], report.run.run_id)
            check_partition(storage.url, report.run, entry)
            found.append(entry)
        except (ArchiveDamaged, InvalidSettings) as error:
            report.faults.append(str(error))
    return sorted(found, key=lambda each: (each.partition, each.first))


def _span(topic: str, partition: int, entries: Sequence[Entry], report: Report) -> Span:
    """What the entries of one partition hold; gaps between them are faults."""
    span = Span(topic, partition)
    for entry in entries:
        if entry.first > span.end:
            report.faults.append(missing_text(topic, partition, span.end, entry.first))
        if entry.first < span.end:
            report.faults.append(
                f"{entry.name}: expected an entry from offset {span.end} on, where the one before it ends: offsets "
                f"{entry.first} to {min(entry.end, span.end) - 1} stand in two Parquet files"
            )
        span.end = max(span.end, entry.end)
        span.count += entry.count
        span.refused += sum(entry.refused.values())
        span.chunks += entry.avro is not None
        span.size_bytes += sum(file.size_bytes for file in (entry.avro, entry.parquet) if file is not None)
        if entry.first_log_time_ns is not None and span.first_log_time_ns is None:
            span.first_log_time_ns = entry.first_log_time_ns
        span.last_log_time_ns = entry.last_log_time_ns or span.last_log_time_ns
        if entry.lost is not None:
            span.lost.append((entry.first, entry.end - 1))
    return span


def _faults(storage: Storage, entry: Entry) -> list[str]:
    """What is wrong with the files of one entry."""
    if entry.avro is None or entry.parquet is None:
        return []
    damaged = []
    for file in (entry.avro, entry.parquet):
        try:
            _check_file(storage, file)
        except (ArchiveDamaged, ArchiveUnavailable) as error:
            damaged.append(f"{file.name}: {error}")
    if damaged:
        return damaged
    try:
        _check_records(storage, entry, entry.avro, entry.parquet)
    except (ArchiveDamaged, ArchiveUnavailable) as error:
        return [f"{entry.avro.name.removesuffix('.avro')}: {error}"]
    return []


def _check_file(storage: Storage, file: File) -> None:
    opened = storage.open(file.name)
    if opened is None:
        raise ArchiveDamaged("expected this file, got none")
    found, size_bytes = blake2b(digest_size=DIGEST_BYTES), 0
    with opened:
        while data := opened.read(READ_BYTES):
            found.update(data)
            size_bytes += len(data)
    if size_bytes != file.size_bytes:
        raise ArchiveDamaged(f"expected {file.size_bytes} bytes, got {size_bytes}")
    if found.hexdigest() != file.blake2b:
        raise ArchiveDamaged(f"expected BLAKE2b-256 {file.blake2b}, got {found.hexdigest()}: it was changed")


def _check_records(storage: Storage, entry: Entry, avro: File, parquet: File) -> None:
    """Raises ArchiveDamaged where the records are not what the entry says, or the two files differ."""
    seen = Seen()
    records = _checked(entry, _read(storage, entry, avro))
    # its checksum fits: what the libraries do not take was written so
    with _taken_by("Parquet"):
        _compare(storage, entry, parquet, records, seen)


def _compare(storage: Storage, entry: Entry, parquet: File, records: Iterator[Record], seen: Seen) -> None:
    alike = parquet.columns == VERSION and entry.rolloutlog == __version__
    names = SCHEMA.names if alike else list(_LASTING)
    with storage.open(parquet.name) as opened:
        file = pq.ParquetFile(opened)
        for index in range(file.num_row_groups):
            rows: Any = file.read_row_group(index, columns=names)
            chunk = list(islice(records, rows.num_rows))
            made = table_of(chunk, seen).select(names)
            if not made.equals(rows):
                raise ArchiveDamaged(f"Avro and Parquet differ {_difference(made, rows, chunk)}")
    if (rest := sum(1 for _ in records)) != 0:
        raise ArchiveDamaged(f"Avro holds {rest} records more than Parquet")
    if alike and (seen.kinds, seen.refused, seen.schemas) != (entry.kinds, entry.refused, entry.schemas):
        raise ArchiveDamaged("the manifest entry counts other kinds of records than there are")


def _checked(entry: Entry, records: Iterator[Record]) -> Iterator[Record]:
    """The records, counted and compared with their entry."""
    count = value_bytes = 0
    offset, times = entry.first - 1, (entry.first_log_time_ns, entry.last_log_time_ns)
    first = last = None
    for record in records:
        if not offset < record.offset < entry.end:
            raise ArchiveDamaged(f"expected an offset from {offset + 1} to {entry.end - 1}, got {record.offset}")
        offset, last = record.offset, record.log_time_ns
        first = record.log_time_ns if first is None else first
        count, value_bytes = count + 1, value_bytes + len(record.value or b"")
        yield record
    for what, expected, got in (
        ("records", entry.count, count),
        ("bytes of values", entry.value_bytes, value_bytes),
        ("first and last log time", times, (first, last)),
    ):
        if expected != got:
            raise ArchiveDamaged(f"expected {what} {expected}, got {got}")


def _read(storage: Storage, entry: Entry, avro: File) -> Iterator[Record]:
    for place, part in places(entry.parts):
        if part.count:
            yield from read_block(
                storage.read_part(avro.name, place, part.size_bytes), part, entry.topic, entry.partition
            )


@contextmanager
def _taken_by(reader: str) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        raise ArchiveDamaged(f"expected what {reader} can be read from, got other bytes: {error}") from error


def _difference(made: Any, rows: Any, records: Sequence[Record]) -> str:
    if made.num_rows != rows.num_rows:
        return f"from offset {records[0].offset if records else '?'} on: {made.num_rows} rows, not {rows.num_rows}"
    for name in made.column_names:
        if not made.column(name).equals(rows.column(name)):
            ours, theirs = made.column(name), rows.column(name)
            where = next(row for row in range(len(ours)) if not ours.slice(row, 1).equals(theirs.slice(row, 1)))
            return f"at offset {records[where].offset} in column {name}"
    return "in their columns"
