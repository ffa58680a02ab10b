"""Retention of the embedded log, which no server carries out: what may go, and its removal.

A record may go when it is older (by log time) than its topic keeps records, and no owner needs it:

events   those at or above the assembler's committed offset L stay: open groups began there. Without L all stay. Where
         replays stand holds nothing: one that goes on says by name what it lacks
batches  those at or above the position of any reader stay; a reader that never committed one, and `trainer` while no
         reader is known, hold all
acks     the newest acknowledgement of each reader of the live batches stays, however old: hosts read policy version
         and lag from it
others   a topic's owners hold it like batches; without owners age alone decides
meta     compacted: of records with the same key all but the newest go, once they are older than COMPACT_AFTER_S

What is held is looked up again in each transaction that removes, so that an owner who comes meanwhile is seen. Removed
pages are used again by new records; only `shrink` makes the file smaller.

Not here  Kafka, whose brokers do all this by themselves
"""

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

from rolloutlog.eventstore.codec import FRAME_BYTES, MARKER
from rolloutlog.eventstore.log.port import ACKS, BATCHES, EVENTS
from rolloutlog.eventstore.log.sqlite_file import Database, file_settings, transaction
from rolloutlog.eventstore.log.sqlite_records import find_partition, trim
from rolloutlog.schemas import versions

ASSEMBLER, TRAINER = "assembler", "trainer"  # owners that are expected, also before they have come
REPLAYS = "replay."  # how their apps begin
WHOLE_TOPIC_ID = 0  # of an owner's row in `owners`, when it owns a topic as a whole
COMPACT_AFTER_S = 3600  # whoever follows a compacted topic sees each record in between for so long
RECORDS_A_TRANSACTION = 1_000  # other writers wait no longer than one such removal takes

_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Cut:
    """What of a partition may go.

    before   offset below which records go; None for a compacted topic, where superseded ones go
    records  how many, of `size_bytes` in all (key, value and headers)
    kept     why older records stay, "" when none do
    """

    topic: str
    partition: int
    before: int | None
    records: int
    size_bytes: int
    kept: str


@dataclass(frozen=True, slots=True)
class Space:
    """Size of the file without its write-ahead file, and how much of it is free for new records, in bytes."""

    file_bytes: int
    free_bytes: int


class Retention:
    """An embedded log, opened to remove what it need not keep. Opens no log that is not there."""

    def __init__(self, database: Database, clock: Callable[[], int], without: frozenset[str]) -> None:
        self._database = database
        self._clock = clock
        self._without = without

    @classmethod
    async def open(
        cls, url: str, *, without: Collection[str] = (), clock: Callable[[], int] = time.time_ns
    ) -> "Retention":
        """Raises as SqliteLog.open. `without`: owners that hold nothing, because they will not come back."""
        return cls(await Database.open(file_settings(url), create=False), clock, frozenset(without))

    async def plan(self) -> list[Cut]:
        """What may go, for every partition that has records."""
        return await self._database.run(partial(_plan, self._clock(), self._without))

    async def remove(self, cut: Cut) -> int:
        """Remove some of what may go of this partition; returns how many records, 0 when all of it is gone."""
        return await self._database.run(partial(_remove, self._clock(), self._without, cut))

    async def space(self) -> Space:
        return await self._database.run(_space)

    async def shrink(self) -> None:
        """Give free space back to the file system. Rewrites the whole file, while other writers wait."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

        await self._database.run(work)

    async def close(self) -> None:
        await self._database.close()


@dataclass(frozen=True, slots=True)
class _Partition:
    id: int
    topic: str
    partition: int
    first: int
    next: int
    retention_s: int | None
    compacted: int  # 0 or 1


def _plan(now_ns: int, without: frozenset[str], connection: sqlite3.Connection) -> list[Cut]:
    with transaction(connection, "DEFERRED"):
        return [_cut(connection, each, now_ns, without) for each in _partitions(connection) if each.first < each.next]


def _remove(now_ns: int, without: frozenset[str], cut: Cut, connection: sqlite3.Connection) -> int:
    with transaction(connection, "IMMEDIATE"):
        (found,) = (p for p in _partitions(connection) if (p.topic, p.partition) == (cut.topic, cut.partition))
        if found.compacted:
            ids = [each[0] for each in _superseded(connection, found, now_ns)][:RECORDS_A_TRANSACTION]
            connection.executemany("DELETE FROM records WHERE id = ?", [(each,) for each in ids])
            return len(ids)
        wanted, _ = _before(connection, found, now_ns, without)
        before = _share(connection, found, min(wanted, cut.before or 0))
        if before <= found.first:
            return 0
        trim(connection, find_partition(connection, found.topic, found.partition, ""), before)
        return before - found.first


def _share(connection: sqlite3.Connection, found: _Partition, wanted: int) -> int:
    """Where one transaction's removal ends on the way to `wanted`: not within records that were stored together."""
    before = found.first + RECORDS_A_TRANSACTION
    if before >= wanted:
        return wanted
    (at_ns,) = connection.execute(
        "SELECT log_time_ns FROM records WHERE partition_id = ? AND offset = ?", (found.id, before)
    ).fetchone()
    since = _first_since(connection, found, at_ns)
    return since if since > found.first else min(wanted, _first_since(connection, found, at_ns + 1))


def _cut(connection: sqlite3.Connection, found: _Partition, now_ns: int, without: frozenset[str]) -> Cut:
    if found.compacted:
        gone = list(_superseded(connection, found, now_ns))
        return Cut(found.topic, found.partition, None, len(gone), sum(size for _, size in gone), "")
    before, kept = _before(connection, found, now_ns, without)
    count, size_bytes = connection.execute(
        "SELECT count(*), coalesce(sum(coalesce(length(key), 0) + coalesce(length(value), 0) + length(headers)), 0) "
        "FROM records WHERE partition_id = ? AND offset < ?",
        (found.id, before),
    ).fetchone()
    return Cut(found.topic, found.partition, before, count, size_bytes, kept)


def _before(connection: sqlite3.Connection, found: _Partition, now_ns: int, without: frozenset[str]) -> tuple[int, str]:
    """The offset below which records may go, and why older ones stay."""
    if found.retention_s is None:
        return found.first, ""
    since_ns = now_ns - found.retention_s * _S
    aged = _first_since(connection, found, since_ns)
    before, kept = aged, ""
    for app, position in _holders(connection, found, without):
        held = found.first if position is None else position
        if held < before:
            what = "has committed no position" if position is None else f"is at offset {position}"
            before, kept = held, f"{app} {what}"
    if found.topic == ACKS:
        waiting = _frames("StepAwaited")  # newer, and says neither version nor offsets
        rows = connection.execute(
            "SELECT max(log_time_ns), key FROM records WHERE partition_id = ? "
            f"AND coalesce(substr(value, 1, {FRAME_BYTES}), x'') NOT IN ({', '.join('?' * len(waiting))}) "
            "AND coalesce(instr(key, x'2e'), 0) = 0 "  # with a dot: of a reader of an output, which no host follows
            "GROUP BY key ORDER BY 1 LIMIT 1",
            (found.id, *waiting),
        )
        for newest_ns, key in rows:
            newest = _first_since(connection, found, newest_ns)
            if newest < before:
                before, kept = newest, f"the newest of reader {(key or b'').decode('utf-8', 'replace')} stays"
    return max(before, found.first), kept


def _frames(record: str) -> list[bytes]:
    """How the values of a record begin, in all versions of it."""
    return [MARKER + schema.fingerprint for schema in versions() if schema.name == record]


def _holders(
    connection: sqlite3.Connection, found: _Partition, without: frozenset[str]
) -> Iterator[tuple[str, int | None]]:
    """Owners that read this partition, with their position; None = they have none and need all of it."""
    here = dict(
        connection.execute("SELECT app, position_offset FROM owners WHERE partition_id = ?", (found.id,)).fetchall()
    )
    for (app,) in connection.execute("SELECT app FROM owners WHERE partition_id = ?", (WHOLE_TOPIC_ID,)).fetchall():
        rows = connection.execute(
            "SELECT DISTINCT p.topic FROM owners o JOIN partitions p ON p.id = o.partition_id WHERE o.app = ?", (app,)
        )
        # Which topic an owner reads is known by its positions; before the first one it is a new reader of batches.
        # Names with a dot are of others, who read none: readers of outputs, whoever imports or creates an output.
        if found.topic in ({topic for (topic,) in rows} or ({BATCHES} if "." not in app else set())):
            here.setdefault(app, None)
    if found.topic == EVENTS:
        here = {app: position for app, position in here.items() if not app.startswith(REPLAYS)}
        here.setdefault(ASSEMBLER, None)
    if found.topic == BATCHES and not here:
        here[TRAINER] = None
    yield from sorted((app, position) for app, position in here.items() if app not in without)


def _first_since(connection: sqlite3.Connection, found: _Partition, since_ns: int) -> int:
    """The first offset whose log time is `since_ns` or later; log times never fall within a partition."""
    low, high = found.first, found.next
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(
            "SELECT log_time_ns FROM records WHERE partition_id = ? AND offset >= ? ORDER BY offset LIMIT 1",
            (found.id, middle),
        ).fetchone()
        if row is None or row[0] >= since_ns:
            high = middle
        else:
            low = middle + 1
    return low


def _superseded(connection: sqlite3.Connection, found: _Partition, now_ns: int) -> Iterator[tuple[int, int]]:
    """Ids and sizes of records, in their order, that a newer one of the same key stands above."""
    newest = dict(
        connection.execute(
            "SELECT key, max(offset) FROM records WHERE partition_id = ? AND key IS NOT NULL GROUP BY key", (found.id,)
        ).fetchall()
    )
    rows = connection.execute(
        "SELECT id, offset, key, length(key) + coalesce(length(value), 0) + length(headers) FROM records "
        "WHERE partition_id = ? AND log_time_ns < ? AND key IS NOT NULL ORDER BY offset",
        (found.id, now_ns - COMPACT_AFTER_S * _S),
    )
    return ((number, size) for number, offset, key, size in rows.fetchall() if offset < newest[key])


def _partitions(connection: sqlite3.Connection) -> list[_Partition]:
    rows = connection.execute(
        "SELECT p.id, p.topic, p.partition, p.first_offset, p.next_offset, t.retention_s, t.cleanup = 'compact' "
        "FROM partitions p JOIN topics t ON t.name = p.topic ORDER BY p.topic, p.partition"
    )
    return [_Partition(*row) for row in rows.fetchall()]


def _space(connection: sqlite3.Connection) -> Space:
    page_bytes, pages, free = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
    )
    return Space(page_bytes * pages, page_bytes * free)
