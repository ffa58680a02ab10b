"""Records of the embedded log: written, read and trimmed within a transaction of the caller.

Headers   one blob: for each header two lengths (name: unsigned 16 bit, value: signed 32 bit, -1 = None, big-endian),
          then name (UTF-8) and value
Offsets   given out from `partitions.next_offset` under the write lock: without gaps, and visible in order
Not here  connections and their threads: eventstore.log.sqlite_file
"""

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct

from rolloutlog.eventstore.errors import InvalidSettings, LogMissing, OffsetOutOfRange, RecordTooLarge
from rolloutlog.eventstore.log.limits import record_size
from rolloutlog.eventstore.log.port import Headers, NewRecord, Range, Record, Stored

_LENGTHS = Struct(">Hi")


@dataclass(slots=True)
class StoredPartition:
    """A row of `partitions` with its topic's limit."""

    id: int
    topic: str
    partition: int
    first_offset: int
    next_offset: int
    last_log_time_ns: int
    record_bytes_max: int


def find_partition(connection: sqlite3.Connection, topic: str, partition: int, url: str) -> StoredPartition:
    """Raises LogMissing for an unknown topic, InvalidSettings for a partition it does not have."""
    row = connection.execute(
        "SELECT p.id, p.topic, p.partition, p.first_offset, p.next_offset, p.last_log_time_ns, t.record_bytes_max "
        "FROM partitions p JOIN topics t ON t.name = p.topic WHERE p.topic = ? AND p.partition = ?",
        (topic, partition),
    ).fetchone()
    if row is not None:
        return StoredPartition(*row)
    raise InvalidSettings(
        f"topic {topic}: expected a partition from 0 to {count_partitions(connection, topic, url) - 1}, got {partition}"
    )


def count_partitions(connection: sqlite3.Connection, topic: str, url: str) -> int:
    """Raises LogMissing for an unknown topic."""
    row = connection.execute("SELECT partitions FROM topics WHERE name = ?", (topic,)).fetchone()
    if row is None:
        raise LogMissing(f"log {url}: it has no topic {topic}; make it with `rolloutlog topics create --log {url}`")
    return int(row[0])


def insert(
    connection: sqlite3.Connection, records: Sequence[NewRecord], clock: Callable[[], int], url: str
) -> list[Stored]:
    """Add `records`, in order within each partition; an error (RecordTooLarge, LogMissing) comes before any change."""
    now_ns = clock()
    heads: dict[tuple[str, int], StoredPartition] = {}
    rows, result = [], []
    for record in records:
        topic, partition, key, value, headers = record
        head = heads.get((topic, partition))
        if head is None:
            head = heads[topic, partition] = find_partition(connection, topic, partition, url)
            head.last_log_time_ns = max(head.last_log_time_ns, now_ns)
        size_bytes = record_size(record)
        if size_bytes > head.record_bytes_max:
            raise RecordTooLarge(
                f"record for {topic}/{partition}: expected at most {head.record_bytes_max} bytes with key and headers, "
                f"got {size_bytes}; nothing of this request was stored"
            )
        rows.append((head.id, head.next_offset, head.last_log_time_ns, encode_headers(headers), key, value))
        result.append(Stored(head.next_offset, head.last_log_time_ns))
        head.next_offset += 1
    connection.executemany(
        "INSERT INTO records (partition_id, offset, log_time_ns, headers, key, value) VALUES (?, ?, ?, ?, ?, ?)", rows
    )
    connection.executemany(
        "UPDATE partitions SET next_offset = ?, last_log_time_ns = ? WHERE id = ?",
        [(head.next_offset, head.last_log_time_ns, head.id) for head in heads.values()],
    )
    return result


def read(
    topic: str,
    wanted: Sequence[tuple[int, int]],
    records_max: int,
    bytes_max: int,
    connection: sqlite3.Connection,
) -> list[Record]:
    """Read from each (partition, offset) of `wanted`, in that order, in one snapshot.

    Partitions share the limits evenly; what one does not need goes to the others. The record that passes `bytes_max`
    is the last. Raises OffsetOutOfRange.
    """
    connection.execute("BEGIN DEFERRED")
    try:
        return _read(topic, wanted, records_max, bytes_max, connection)
    finally:
        connection.execute("ROLLBACK")  # nothing was written; unlike COMMIT it can't fail


def offset_at(connection: sqlite3.Connection, head: StoredPartition, time_ns: int) -> int:
    """The lowest offset with a log time of `time_ns` or later, the end when there is none.

    Searched by halves, because log times rise with the offsets and have no index of their own.
    """
    low, high = head.first_offset, head.next_offset
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(
            "SELECT offset, log_time_ns FROM records WHERE partition_id = ? AND offset >= ? ORDER BY offset LIMIT 1",
            (head.id, middle),
        ).fetchone()
        if row is None or row[1] >= time_ns:  # compaction leaves gaps
            high = middle
        else:
            low = row[0] + 1
    return low


def trim(connection: sqlite3.Connection, head: StoredPartition, before_offset: int) -> Range:
    """Delete the records below `before_offset` and return the range that is left."""
    first = min(max(head.first_offset, before_offset), head.next_offset)
    connection.execute("UPDATE partitions SET first_offset = ? WHERE id = ?", (first, head.id))
    connection.execute("DELETE FROM records WHERE partition_id = ? AND offset < ?", (head.id, first))
    return Range(first, head.next_offset, head.next_offset)


def encode_headers(headers: Headers) -> bytes:
    parts = []
    for name, value in headers:
        name_bytes = name.encode()
        parts += [_LENGTHS.pack(len(name_bytes), -1 if value is None else len(value)), name_bytes, value or b""]
    return b"".join(parts)


def decode_headers(data: bytes) -> Headers:
    result: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(data):
        name_length, value_length = _LENGTHS.unpack_from(data, at)
        start = at + _LENGTHS.size + name_length
        name = data[start - name_length : start].decode()
        at = start + max(value_length, 0)
        result.append((name, None if value_length < 0 else data[start:at]))
    return tuple(result)


def _read(
    topic: str, wanted: Sequence[tuple[int, int]], records_max: int, bytes_max: int, connection: sqlite3.Connection
) -> list[Record]:
    heads = connection.execute(
        "SELECT partition, id, first_offset, next_offset FROM partitions WHERE topic = ?", (topic,)
    )
    found = {partition: row for partition, *row in heads}
    if not found:
        raise LogMissing(f"reader of {topic}: the topic is gone: it was dropped")
    waiting: deque[tuple[int, int, int, int]] = deque()
    for partition, offset in wanted:
        partition_id, first, end = found[partition]
        if not first <= offset <= end:
            raise OffsetOutOfRange(
                f"reader of {topic}/{partition}: expected an offset from {first} to {end}, got {offset}: "
                + ("retention or a trim removed it" if offset < first else "the log has not given it out yet")
            )
        if offset < end:
            waiting.append((partition, partition_id, offset, end))
    result: list[Record] = []
    while waiting and len(result) < records_max and bytes_max > 0:
        partition, partition_id, offset, end = waiting.popleft()
        sharers = len(waiting) + 1
        taken, size_bytes = _take(
            connection,
            (topic, partition),
            (partition_id, offset, max(1, (records_max - len(result)) // sharers)),
            bytes_max // sharers,
        )
        result += taken
        bytes_max -= size_bytes
        if taken and taken[-1].offset + 1 < end:
            waiting.append((partition, partition_id, taken[-1].offset + 1, end))
    return result


def _take(
    connection: sqlite3.Connection, where: tuple[str, int], query: tuple[int, int, int], bytes_max: int
) -> tuple[list[Record], int]:
    topic, partition = where
    result = []
    size_bytes = 0
    rows = connection.execute(
        "SELECT offset, log_time_ns, headers, key, value FROM records "
        "WHERE partition_id = ? AND offset >= ? ORDER BY offset LIMIT ?",
        query,
    )
    for offset, log_time_ns, headers, key, value in rows:
        result.append(
            Record(topic, partition, offset, log_time_ns, key, value, decode_headers(headers) if headers else ())
        )
        size_bytes += len(headers) + len(key or b"") + len(value or b"")
        if size_bytes >= bytes_max:
            break
    return result, size_bytes
