"""The embedded log: one SQLite file, many processes on one machine, no server.

It keeps every promise of the port. Order comes from SQLite's single writer: a transaction is buffered and written in
one `BEGIN IMMEDIATE`, in which the owner's epoch is checked, offsets are given out and log times set. Readers take one
snapshot a fetch, each on a connection of its own; one watch waits for all of them. All calls run in threads; the event
loop is never blocked.

own       raises the epoch of (app, topic, partition), for a whole topic of the app; a commit with a lower one is Fenced
log time  max(last of the partition, clock): a clock set back can't make it fall
Not here  opening, creating and checking the file: eventstore.log.sqlite_file; waiting: eventstore.log.sqlite_watch;
          retention and compaction, which are carried out when told to: eventstore.log.sqlite_retention
"""

import asyncio
import os
import socket
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from rolloutlog.eventstore.errors import (
    Fenced,
    InvalidSettings,
    LogUnavailable,
    StoreError,
)
from rolloutlog.eventstore.log.limits import check_droppable, check_positions, owned_name
from rolloutlog.eventstore.log.port import Difference, NewRecord, Position, Range, Record, Stored, TopicSettings
from rolloutlog.eventstore.log.sqlite_drop import drop_topic, size_of
from rolloutlog.eventstore.log.sqlite_file import Database, file_settings, transaction
from rolloutlog.eventstore.log.sqlite_records import count_partitions, find_partition, insert, offset_at, read, trim
from rolloutlog.eventstore.log.sqlite_watch import Watch

WHOLE_TOPIC_ID = 0  # among `partition_id`s, which start at 1: holds the epoch of an app's owner of a whole topic
FETCH_BYTES_MAX = 16 * 1024 * 1024  # with one record more this bounds the memory of a fetch

Clock = Callable[[], int]


class SqliteLog:
    """An embedded log. One connection for all but reading; each reader has its own."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.url = database.settings.url
        self._database = database
        self._clock = clock
        self._watch = Watch(database)
        self._readers: set[SqliteReader] = set()

    @classmethod
    async def open(cls, url: str, *, create: bool, clock: Clock = time.time_ns) -> "SqliteLog":
        """Open the file that `url` names; with `create`, make it where it is missing.

        clock   UTC nanoseconds, the source of log times
        Raises  LogMissing without a file; InvalidSettings for a network file system or a file that is no log;
                StoreError for a newer format; LogUnavailable when the file can't be used now
        """
        return cls(await Database.open(file_settings(url), create=create), clock)

    async def create(self, topics: Iterable[TopicSettings]) -> list[str]:
        return await self._database.run(partial(_create_topics, _checked(topics)))

    async def drop(self, topic: str, *, app: str) -> bool:
        check_droppable(topic)
        return await drop_topic(self._database, self._clock, topic, app)

    async def size_bytes(self, topic: str) -> int:
        """Bytes of the values of a topic's records, 0 for one that is not there. Not part of the port."""
        return await size_of(self._database, topic)

    async def differences(self, topics: Iterable[TopicSettings]) -> list[Difference]:
        return await self._database.run(partial(_differences, list(topics)))

    async def partitions(self, topic: str) -> int:
        return await self._database.run(lambda connection: count_partitions(connection, topic, self.url))

    async def append(self, records: Sequence[NewRecord]) -> list[Stored]:
        if not records:
            return []

        def write(connection: sqlite3.Connection) -> list[Stored]:
            with transaction(connection, "IMMEDIATE"):
                return insert(connection, records, self._clock, self.url)

        return await self._database.run(write)

    async def ranges(self, topic: str, partitions: Iterable[int]) -> Mapping[int, Range]:
        wanted = list(partitions)

        def look(connection: sqlite3.Connection) -> dict[int, Range]:
            with transaction(connection, "DEFERRED"):
                found = {p: find_partition(connection, topic, p, self.url) for p in wanted}
            return {p: Range(head.first_offset, head.next_offset, head.next_offset) for p, head in found.items()}

        return await self._database.run(look)

    async def offsets_at(self, topic: str, partitions: Iterable[int], time_ns: int) -> Mapping[int, int]:
        wanted = list(partitions)

        def look(connection: sqlite3.Connection) -> dict[int, int]:
            with transaction(connection, "DEFERRED"):
                heads = {p: find_partition(connection, topic, p, self.url) for p in wanted}
                return {p: offset_at(connection, head, time_ns) for p, head in heads.items()}

        return await self._database.run(look)

    async def reader(self, topic: str, offsets: Mapping[int, int]) -> "SqliteReader":
        await self.ranges(topic, offsets)  # a missing topic or partition fails here, not at the first fetch
        database = await self._database.open_again()
        reader = SqliteReader(database, self._watch, topic, offsets, self._readers.discard)
        self._readers.add(reader)
        return reader

    async def own(self, app: str, topic: str, partition: int | None) -> "SqliteOwner":
        owned, epoch = await self._database.run(partial(_take_over, app, topic, partition, self._clock, self.url))
        return SqliteOwner(self._database, self._clock, app, topic, partition, owned, epoch)

    async def trim(self, topic: str, partition: int, before_offset: int) -> Range:
        """Remove the partition's records below `before_offset` and return what is left. Not part of the port."""

        def cut(connection: sqlite3.Connection) -> Range:
            with transaction(connection, "IMMEDIATE"):
                return trim(connection, find_partition(connection, topic, partition, self.url), before_offset)

        return await self._database.run(cut)

    async def close(self) -> None:
        """Close this log and the readers made from it. Safe to call twice.

        Work that has begun ends first, but no longer waits for another process's lock; what has not begun is refused.
        """
        self._database.hurry()
        for reader in list(self._readers):
            await reader.close()
        await self._watch.close()
        await self._database.close()


class SqliteReader:
    """Reads some partitions of a topic on a connection of its own. Every fetch starts at another partition."""

    def __init__(
        self,
        database: Database,
        watch: Watch,
        topic: str,
        offsets: Mapping[int, int],
        on_close: Callable[["SqliteReader"], None],
    ) -> None:
        self._database = database
        self._watch = watch
        self._topic = topic
        self._offsets = dict(offsets)
        self._on_close = on_close
        self._order = deque(self._offsets)
        self._drained = False  # the last read found nothing, so the watch can tell when there is something

    async def fetch(self, *, wait_s: float, records_max: int = 2_000) -> list[Record]:
        """Return the next committed records; see the port. At most 16 MiB and one record at once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            left_s = deadline - loop.time()
            if self._drained and left_s > 0 and not await self._watch.wait(self, self._topic, self._offsets, left_s):
                return []
            wanted = [(partition, self._offsets[partition]) for partition in self._order]
            work = partial(read, self._topic, wanted, records_max, FETCH_BYTES_MAX)
            # positions move only here, so that a cancelled fetch loses nothing
            records = await self._database.run(work)
            self._drained = not records
            if records:
                for record in records:
                    self._offsets[record.partition] = record.offset + 1
                self._order.rotate(-1)
                return records
            if loop.time() >= deadline:
                return []

    def position(self, partition: int) -> int:
        self._check(partition)
        return self._offsets[partition]

    async def seek(self, partition: int, offset: int) -> None:
        self._check(partition)
        self._offsets[partition] = offset
        self._drained = False

    async def close(self) -> None:
        self._on_close(self)
        self._watch.wake(self)  # to find the database closing, which happens before its task runs
        await self._database.close()

    def _check(self, partition: int) -> None:
        if partition not in self._offsets:
            raise InvalidSettings(
                f"reader of {self._topic}: expected one of its partitions {sorted(self._offsets)}, got {partition}"
            )


class SqliteOwner:
    """The owner of an input partition or a whole topic, by an epoch that each newer owner raises.

    A whole topic's epoch stands in a row of its own, its positions in the rows of the partitions.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        app: str,
        topic: str,
        partition: int | None,
        owned: Mapping[int, int],
        epoch: int,
    ) -> None:
        self._database = database
        self._clock = clock
        self._name = f"owner of {owned_name(topic, partition)} for {app}"
        self._app = app
        self._owned = owned  # partition → its id
        self._key = (app, WHOLE_TOPIC_ID if partition is None else owned[partition])
        self._epoch = epoch
        self._unusable = ""

    async def positions(self) -> Mapping[int, Position]:
        def look(connection: sqlite3.Connection) -> dict[int, Position]:
            rows = connection.execute(
                "SELECT partition_id, position_offset, position_metadata FROM owners "
                "WHERE app = ? AND position_offset IS NOT NULL",
                (self._app,),
            )
            found = {partition_id: Position(offset, metadata) for partition_id, offset, metadata in rows}
            return {p: found[partition_id] for p, partition_id in self._owned.items() if partition_id in found}

        return await self._database.run(look)

    async def commit(self, records: Sequence[NewRecord], positions: Mapping[int, Position]) -> None:
        check_positions(self._name, positions, self._owned)
        try:
            await self._database.run(partial(self._commit, records, positions))
        except (LogUnavailable, asyncio.CancelledError):
            self._unusable = "the result of an earlier commit is unknown"
            raise

    async def close(self) -> None:
        self._unusable = "it is closed"

    def _commit(
        self, records: Sequence[NewRecord], positions: Mapping[int, Position], connection: sqlite3.Connection
    ) -> None:
        if self._unusable:
            raise StoreError(f"{self._name}: {self._unusable}; nothing was stored; take a new owner with `own`")
        with transaction(connection, "IMMEDIATE"):
            self._check_epoch(connection)
            insert(connection, records, self._clock, self._database.settings.url)
            connection.executemany(
                "INSERT INTO owners VALUES (?, ?, 0, '', 0, 0, ?, ?) ON CONFLICT (app, partition_id) DO UPDATE "
                "SET position_offset = excluded.position_offset, position_metadata = excluded.position_metadata",
                [(self._app, self._owned[p], *position) for p, position in positions.items()],
            )

    def _check_epoch(self, connection: sqlite3.Connection) -> None:
        row = connection.execute(
            "SELECT epoch, host, pid, since_ns FROM owners WHERE app = ? AND partition_id = ?", self._key
        ).fetchone()
        if row is None:
            raise Fenced(
                f"{self._name}: its topic was dropped; nothing of this transaction was stored; stop this process"
            )
        epoch, host, pid, since_ns = row
        if epoch != self._epoch:
            since = datetime.fromtimestamp(since_ns // 1_000_000_000, UTC).isoformat()
            raise Fenced(
                f"{self._name}: expected epoch {self._epoch}, got {epoch}: host {host}, pid {pid} took over at "
                f"{since}; nothing of this transaction was stored; stop this process"
            )


def _checked(topics: Iterable[TopicSettings]) -> list[TopicSettings]:
    wanted = list(topics)
    for topic in wanted:
        if not topic.name or not all(c.isalnum() or c in "._-" for c in topic.name):
            raise InvalidSettings(f"topic {topic.name!r}: expected letters, digits, . _ - in its name")
        if min(topic.partitions, topic.record_bytes_max, topic.retention_s or 1) < 1:
            raise InvalidSettings(f"topic {topic.name}: expected counts, seconds and bytes from 1, got {topic}")
        if topic.cleanup not in ("delete", "compact"):
            raise InvalidSettings(f"topic {topic.name}: expected cleanup delete or compact, got {topic.cleanup!r}")
    return wanted


def _create_topics(topics: list[TopicSettings], connection: sqlite3.Connection) -> list[str]:
    created = []
    with transaction(connection, "IMMEDIATE"):
        for t in topics:
            row = (t.name, t.partitions, t.retention_s, t.record_bytes_max, t.cleanup)
            if not connection.execute("INSERT OR IGNORE INTO topics VALUES (?, ?, ?, ?, ?)", row).rowcount:
                continue
            connection.executemany(
                "INSERT INTO partitions (topic, partition, first_offset, next_offset, last_log_time_ns) "
                "VALUES (?, ?, 0, 0, 0)",
                [(t.name, partition) for partition in range(t.partitions)],
            )
            created.append(t.name)
    return created


def _differences(topics: list[TopicSettings], connection: sqlite3.Connection) -> list[Difference]:
    rows = connection.execute("SELECT name, partitions, retention_s, record_bytes_max, cleanup FROM topics")
    found = {row[0]: TopicSettings(*row) for row in rows}
    result = []
    for wanted in topics:
        stored = found.get(wanted.name)
        if stored is None:
            result.append(Difference(wanted.name, "partitions", str(wanted.partitions), None))
            continue
        for setting in ("partitions", "retention_s", "record_bytes_max", "cleanup"):
            expected, got = getattr(wanted, setting), getattr(stored, setting)
            if expected != got:
                result.append(Difference(wanted.name, setting, str(expected), str(got)))
    return result


def _take_over(
    app: str, topic: str, partition: int | None, clock: Clock, url: str, connection: sqlite3.Connection
) -> tuple[dict[int, int], int]:
    """Returns the id of each partition that is now owned, and the epoch."""
    with transaction(connection, "IMMEDIATE"):
        count = count_partitions(connection, topic, url)
        wanted = range(count) if partition is None else [partition]
        owned = {p: find_partition(connection, topic, p, url).id for p in wanted}
        partition_id = WHOLE_TOPIC_ID if partition is None else owned[partition]
        connection.execute(
            "INSERT INTO owners (app, partition_id, epoch, host, pid, since_ns) VALUES (?, ?, 1, ?, ?, ?) "
            "ON CONFLICT (app, partition_id) DO UPDATE "
            "SET epoch = epoch + 1, host = excluded.host, pid = excluded.pid, since_ns = excluded.since_ns",
            (app, partition_id, socket.gethostname(), os.getpid(), clock()),
        )
        (epoch,) = connection.execute(
            "SELECT epoch FROM owners WHERE app = ? AND partition_id = ?", (app, partition_id)
        ).fetchone()
    return owned, epoch
