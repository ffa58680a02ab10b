"""The embedded log's file: found, recognised, created, and used by one thread a connection.

A file is ours by `application_id`; `user_version` is its format. Creating is safe in several processes at once: the
tables and both numbers appear in one transaction, and whoever comes second finds them. A file that has neither tables
nor numbers is one whose creation broke off, and is created again.

Every driver error becomes one of ours here. Not here: what the tables hold, eventstore.log.sqlite.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rolloutlog.eventstore.errors import InvalidSettings, LogMissing, LogUnavailable, StoreError
from rolloutlog.eventstore.log.filesystem import read_mounts, refuse_network_file_system
from rolloutlog.eventstore.log.port import parse_url

APPLICATION_ID = 0x726F6C6C  # "roll"
FORMAT = 1

PAGE_BYTES = 16_384  # records of 1 to 16 kB then take one or two pages
BUSY_TIMEOUT_S = 30.0  # longer than any transaction of ours; beyond it a process hangs while holding the lock
WAL_KEPT_BYTES = 64 * 1024 * 1024  # a burst may grow the write-ahead file; after a checkpoint it shrinks to this
CREATE_RETRY_S = 0.01

TABLES = (
    """CREATE TABLE topics (
        name TEXT PRIMARY KEY, partitions INTEGER NOT NULL, retention_s INTEGER,
        record_bytes_max INTEGER NOT NULL, cleanup TEXT NOT NULL)""",
    """CREATE TABLE partitions (
        id INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL,
        first_offset INTEGER NOT NULL, next_offset INTEGER NOT NULL, last_log_time_ns INTEGER NOT NULL,
        UNIQUE (topic, partition))""",
    # value last: the other columns are then found without walking the pages of a long value
    """CREATE TABLE records (
        id INTEGER PRIMARY KEY, partition_id INTEGER NOT NULL, offset INTEGER NOT NULL, log_time_ns INTEGER NOT NULL,
        headers BLOB NOT NULL, key BLOB, value BLOB,
        UNIQUE (partition_id, offset))""",
    """CREATE TABLE owners (
        app TEXT NOT NULL, partition_id INTEGER NOT NULL, epoch INTEGER NOT NULL,
        host TEXT NOT NULL, pid INTEGER NOT NULL, since_ns INTEGER NOT NULL,
        position_offset INTEGER, position_metadata TEXT,
        PRIMARY KEY (app, partition_id))""",
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileSettings:
    """A parsed `sqlite://` URL. `?synchronous=normal` trades the last moments before a power cut for speed."""

    url: str
    path: str
    synchronous: str = "FULL"
    busy_timeout_s: float = BUSY_TIMEOUT_S


def file_settings(url: str) -> FileSettings:
    """Parse the URL of an embedded log. Raises InvalidSettings naming what is expected."""
    parsed = parse_url(url)
    if parsed.scheme != "sqlite" or parsed.path == ":memory:":
        raise InvalidSettings(f"log URL {url!r}: expected a file, sqlite:///relative.db or sqlite:////absolute.db")
    synchronous, busy_timeout_s = "FULL", BUSY_TIMEOUT_S
    for name, value in parsed.options.items():
        if name == "synchronous" and value.upper() in ("FULL", "NORMAL"):
            synchronous = value.upper()
        elif name == "busy_timeout_s" and value.replace(".", "", 1).isdigit():
            busy_timeout_s = float(value)
        else:
            raise InvalidSettings(
                f"log URL {url!r}: expected options synchronous=full|normal or busy_timeout_s=SECONDS, "
                f"got {name}={value}"
            )
    return FileSettings(url, os.path.abspath(parsed.path), synchronous, busy_timeout_s)


class Database:
    """One connection to a log's file, and the one thread in which it is used."""

    def __init__(self, settings: FileSettings) -> None:
        self.settings = settings
        self._pid = os.getpid()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rolloutlog-sqlite")
        self._connection: sqlite3.Connection
        self._identity: tuple[int, int]

    @classmethod
    async def open(cls, settings: FileSettings, *, create: bool) -> "Database":
        """Open the file; with `create`, make it where it is missing. Raises as the module says, leaving no thread."""
        database = cls(settings)
        try:
            await asyncio.wrap_future(database._executor.submit(database._connect, create))
        except BaseException:
            await database.close()
            raise
        return database

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` in this connection's thread. A cancelled caller does not stop work that has begun."""
        if os.getpid() != self._pid:  # the thread did not come along, and SQLite forbids sharing a connection
            raise StoreError(
                f"log file {self.settings.path}: opened by pid {self._pid} before a fork; open it again here"
            )
        try:
            future = self._executor.submit(self._call, work)
        except RuntimeError as error:
            raise StoreError(f"log file {self.settings.path}: this log or reader is closed") from error
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Wait for work that has begun, then close. Safe to call twice."""
        if os.getpid() != self._pid:
            return
        with suppress(RuntimeError):  # closed before
            future = self._executor.submit(self._disconnect)
            self._executor.shutdown(wait=False)
            await asyncio.wrap_future(future)

    def _connect(self, create: bool) -> None:
        _check_path(self.settings, create)
        try:
            self._connection = _connect(self.settings, create)
            _recognise(self._connection, self.settings, create)
            self._identity = _identity(self.settings)
        except sqlite3.Error as error:
            raise _our_error(error, self.settings) from error

    def _call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            result = work(self._connection)
        except sqlite3.Error as error:
            self._check_still_there()  # when it is gone, that is the better explanation
            raise _our_error(error, self.settings) from error
        self._check_still_there()  # afterwards, so that a success says that the file was there to the end
        return result

    def _check_still_there(self) -> None:
        if _identity(self.settings) != self._identity:
            raise LogMissing(
                f"log file {self.settings.path}: another file was put in its place while it was open; "
                f"what was written since is lost; stop all processes that use it and start them again"
            )

    def _disconnect(self) -> None:
        if hasattr(self, "_connection"):
            with suppress(sqlite3.Error):
                self._connection.close()


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str) -> Iterator[None]:
    """Run the block in one transaction, IMMEDIATE to write or DEFERRED to read; an error rolls it back."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise


def _check_path(settings: FileSettings, create: bool) -> None:
    path = Path(settings.path)
    if not path.parent.is_dir():
        raise InvalidSettings(f"log file {path}: expected an existing directory, {path.parent} is none; make it first")
    if path.is_dir():
        raise InvalidSettings(f"log file {path}: expected a file, got a directory")
    refuse_network_file_system(settings.path, read_mounts())
    if not create and not path.exists():
        raise _missing(settings, "there is no such file")


def _missing(settings: FileSettings, found: str) -> LogMissing:
    return LogMissing(
        f"log file {settings.path}: {found}; check the path, or make a new log with "
        f"`rolloutlog topics create --log {settings.url}`"
    )


def _identity(settings: FileSettings) -> tuple[int, int]:
    try:
        found = os.stat(settings.path)
    except OSError as error:
        raise LogMissing(
            f"log file {settings.path}: it was removed while it was open ({error.strerror}); what was written since "
            f"is lost; stop all processes that use it and start them again"
        ) from error
    return found.st_dev, found.st_ino


def _connect(settings: FileSettings, create: bool) -> sqlite3.Connection:
    uri = f"{Path(settings.path).as_uri()}?mode={'rwc' if create else 'rw'}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=settings.busy_timeout_s)
    connection.execute(f"PRAGMA synchronous={settings.synchronous}")
    connection.execute(f"PRAGMA journal_size_limit={WAL_KEPT_BYTES}")
    return connection


def _recognise(connection: sqlite3.Connection, settings: FileSettings, create: bool) -> None:
    """Check that the file is a log of ours in a format we know; create it when it is empty and `create` says so."""
    application_id, version, tables = _signature(connection)
    if not application_id and not tables:
        if not create:
            raise _missing(settings, "the file is empty")
        _create(connection, settings)
        application_id, version, tables = _signature(connection)
    if application_id != APPLICATION_ID:
        raise InvalidSettings(
            f"log file {settings.path}: expected a rolloutlog log, got another program's SQLite database "
            f"(application_id {application_id}, {tables} tables); nothing was changed"
        )
    if version != FORMAT:
        raise StoreError(
            f"log file {settings.path}: expected format {FORMAT}, got {version}; a newer rolloutlog wrote it: "
            f"upgrade this one; nothing was changed"
        )


def _signature(connection: sqlite3.Connection) -> tuple[int, int, int]:
    with transaction(connection, "DEFERRED"):  # one snapshot, so that a half-made file can't be seen
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return application_id, version, tables


def _create(connection: sqlite3.Connection, settings: FileSettings) -> None:
    connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
    _switch_to_wal(connection, settings)
    with transaction(connection, "IMMEDIATE"):
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
            return  # another process was first
        for statement in TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={FORMAT}")


def _switch_to_wal(connection: sqlite3.Connection, settings: FileSettings) -> None:
    # SQLite does not wait for its locks here, so two processes that create at once must try again by themselves
    deadline = time.monotonic() + settings.busy_timeout_s
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError as error:
            if _code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or time.monotonic() > deadline:
                raise
            time.sleep(CREATE_RETRY_S)
            continue
        if mode != "wal":
            raise InvalidSettings(f"log file {settings.path}: expected a file system with WAL, got mode {mode}")
        return


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the kind, the rest its detail


def _our_error(error: sqlite3.Error, settings: FileSettings) -> StoreError:
    code, where = _code(error), f"log file {settings.path}"
    detail = f"{error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LogUnavailable(
            f"{where}: locked by another process for more than {settings.busy_timeout_s:g} s; nothing of this request "
            f"was stored; find the process that holds it (`fuser {settings.path}`) and try again"
        )
    if code == sqlite3.SQLITE_FULL:
        return LogUnavailable(f"{where}: disk full; nothing of this request was stored; free space and try again")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return LogUnavailable(
            f"{where}: not writable; expected a file and a directory this user can write, got {detail}; "
            f"nothing of this request was stored"
        )
    if code == sqlite3.SQLITE_IOERR:
        return LogUnavailable(f"{where}: reading or writing failed, it may be stored: {detail}; check the disk")
    if code == sqlite3.SQLITE_NOTADB:
        return InvalidSettings(f"{where}: expected a rolloutlog log, got a file that is no SQLite database")
    if code == sqlite3.SQLITE_CORRUPT:
        return StoreError(
            f"{where}: damaged: {detail}; stop all processes that use it, copy it, and read what is left with "
            f"`sqlite3 FILE .recover`"
        )
    return StoreError(f"{where}: {detail}")
