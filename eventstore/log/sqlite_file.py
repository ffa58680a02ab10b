"""The embedded log's file: found, recognised, created, and used by one thread a connection.

A file is ours by `application_id`; `user_version` is its format. Creating is safe in several processes at once: the
tables and both numbers appear in one transaction, and whoever comes second finds them. A file that has neither tables
nor numbers is one whose creation broke off, and is created again.

Locked   work that meets another process's lock is done again from its beginning, up to `busy_timeout_s` or the close
Removed  SQLite goes on with files that were removed or replaced, and what it writes is lost; so they are looked at
         after each piece of work, whose success then says that they were there
Errors   every driver error becomes one of ours here

Not here  what the tables hold: eventstore.log.sqlite; the thread: eventstore.log.sqlite_thread
"""

import asyncio
import ctypes
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar

from rolloutlog.eventstore.errors import InvalidSettings, LogMissing, LogUnavailable, StoreError
from rolloutlog.eventstore.forks import new_gate
from rolloutlog.eventstore.log.filesystem import read_mounts, refuse_network_file_system
from rolloutlog.eventstore.log.port import parse_url
from rolloutlog.eventstore.log.sqlite_thread import WorkThread

APPLICATION_ID = 0x726F6C6C  # "roll"
FORMAT = 1

PAGE_BYTES = 16_384  # records of 1 to 16 kB then take one or two pages
BUSY_TIMEOUT_S = 30.0  # longer than any transaction of ours; beyond it a process hangs while holding the lock
TRY_S = 0.2  # of it SQLite waits so long at once; it then begins again with short pauses, which favours who waits long
RETRY_S = 0.01  # pause between tries, for locks that SQLite does not wait for
PATH_BYTES_MAX = 504  # SQLite's 512 with `-journal`
WAL_KEPT_BYTES = 64 * 1024 * 1024  # a burst may grow the write-ahead file; after a checkpoint it shrinks to this

BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

# Next to the file: the write-ahead file with the newest transactions, and its index. All processes must share them.
SUFFIXES = ("", "-wal", "-shm")

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

Files = dict[str, tuple[int, int] | None]  # suffix → device and inode, None where there is none


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
        self._closing = Event()
        self._thread = WorkThread("rolloutlog-sqlite", self._closed)
        self._gate = new_gate()  # SQLite has locks for the whole process, which must not be held when it forks
        self._connection: sqlite3.Connection
        self._paths: dict[str, str]
        self._files: Files

    @classmethod
    async def open(cls, settings: FileSettings, *, create: bool) -> "Database":
        """Open the file; with `create`, make it where it is missing. Raises as the module says, leaving no thread."""
        database = cls(settings)
        try:
            await asyncio.wrap_future(database._thread.submit(partial(database._connect, create)))
        except BaseException:
            await database.close()
            raise
        return database

    async def open_again(self) -> "Database":
        """Another connection to the same files."""
        # Were they replaced, SQLite would read the new ones by the index of the old ones, which this process shares.
        await self.run(lambda connection: None)
        return await Database.open(self.settings, create=False)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` in this connection's thread.

        A cancelled caller does not stop work that has begun, but it no longer waits for another process's lock.
        """
        if os.getpid() != self._pid:  # the thread did not come along, and SQLite forbids sharing a connection
            raise StoreError(
                f"log file {self.settings.path}: opened by pid {self._pid} before a fork; open it again here"
            )
        given_up = Event()
        try:
            return await asyncio.wrap_future(self._thread.submit(partial(self._call, work, given_up)))
        except asyncio.CancelledError:
            given_up.set()
            raise

    def hurry(self) -> None:
        """No longer wait for another process's lock: it will be closed soon."""
        self._closing.set()

    async def close(self) -> None:
        """Wait for work that has begun, refuse what has not, then close. Safe to call twice."""
        if os.getpid() != self._pid:
            return
        self.hurry()
        if (ended := self._thread.end(self._disconnect)) is not None:
            await asyncio.wrap_future(ended)

    def _connect(self, create: bool) -> None:
        _check_path(self.settings, create)
        real = os.path.realpath(self.settings.path)  # SQLite follows links before it adds to the name
        self._paths = {suffix: real + suffix if suffix else self.settings.path for suffix in SUFFIXES}
        try:
            self._connection = self._patiently(partial(_open, self.settings, create), self._closing)
        except sqlite3.Error as error:
            raise self._our_error(error) from error
        self._files = self._look()

    def _call(self, work: Callable[[sqlite3.Connection], T], given_up: Event) -> T:
        try:
            result = self._patiently(partial(work, self._connection), given_up)
        except sqlite3.Error as error:
            self._check_still_there()  # when it is gone, that is the better explanation
            raise self._our_error(error) from error
        self._check_still_there()  # afterwards, so that a success says that the file was there to the end
        return result

    def _patiently(self, work: Callable[[], T], given_up: Event) -> T:
        """Try again while another process holds a lock. Our work is one transaction, so nothing was done until then."""
        deadline = time.monotonic() + self.settings.busy_timeout_s
        while True:
            try:
                with self._gate:
                    return work()
            except sqlite3.OperationalError as error:
                late = given_up.is_set() or time.monotonic() >= deadline
                if late or _code(error) not in BUSY or self._closing.wait(RETRY_S):
                    raise

    def _check_still_there(self) -> None:
        found = self._look()
        if found == self._files:
            return
        for suffix, before in self._files.items():
            if before is not None and found[suffix] != before:
                what = "another file was put in its place" if found[suffix] else "it was removed"
                raise LogMissing(
                    f"log file {self._paths[suffix]}: {what} while it was open; what was written since is lost; "
                    f"stop all processes that use it and start them again"
                )

    def _look(self) -> Files:
        found: Files = dict.fromkeys(SUFFIXES)
        for suffix, path in self._paths.items():
            with suppress(OSError):
                file = os.stat(path)
                found[suffix] = file.st_dev, file.st_ino
        return found

    def _disconnect(self) -> None:
        if not hasattr(self, "_connection"):
            return
        found = self._look() if hasattr(self, "_files") else {}
        if any(found[suffix] not in (None, self._files[suffix]) for suffix in found):
            # Closing would write our transactions over those in the files that others use now, and remove them.
            _abandon(self._connection)
            return
        with suppress(sqlite3.Error), self._gate:
            self._connection.close()

    def _closed(self) -> StoreError:
        return StoreError(f"log file {self.settings.path}: this log or reader is closed")

    def _our_error(self, error: sqlite3.Error) -> StoreError:
        if _code(error) in BUSY and self._closing.is_set():
            return LogUnavailable(
                f"log file {self.settings.path}: locked by another process, and closed meanwhile; nothing of this "
                f"request was stored",
                maybe_stored=False,
            )
        return _our_error(error, self.settings)


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
    try:
        if "\0" in settings.path:
            raise ValueError("embedded null byte")  # as some versions of Python say by themselves
        size_bytes = len(os.fsencode(path))
        if size_bytes > PATH_BYTES_MAX:
            raise InvalidSettings(
                f"log file {path}: expected a path of at most {PATH_BYTES_MAX} bytes, got {size_bytes}"
            )
        if not path.parent.is_dir():
            raise InvalidSettings(
                f"log file {path}: expected an existing directory, {path.parent} is none; make it first"
            )
        if path.is_dir():
            raise InvalidSettings(f"log file {path}: expected a file, got a directory")
        refuse_network_file_system(settings.path, read_mounts())
        if not create and not path.exists():
            raise _missing(settings, "there is no such file")
    except (OSError, ValueError) as error:  # such as a long name, a directory that may not be entered, a NUL
        raise InvalidSettings(f"log file {settings.path!r}: expected a path that can be used, got: {error}") from error


def _missing(settings: FileSettings, found: str) -> LogMissing:
    return LogMissing(
        f"log file {settings.path}: {found}; check the path, or make a new log with "
        f"`rolloutlog topics create --log {settings.url}`"
    )


def _abandon(connection: sqlite3.Connection) -> None:
    """Never close it, not even when the process ends: one reference more than there are."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _open(settings: FileSettings, create: bool) -> sqlite3.Connection:
    uri = f"{Path(settings.path).as_uri()}?mode={'rwc' if create else 'rw'}"
    timeout_s = min(TRY_S, settings.busy_timeout_s)
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=timeout_s)
    try:
        connection.execute(f"PRAGMA synchronous={settings.synchronous}")
        connection.execute(f"PRAGMA journal_size_limit={WAL_KEPT_BYTES}")
        _recognise(connection, settings, create)
    except BaseException:
        connection.close()
        raise
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
    (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise InvalidSettings(f"log file {settings.path}: expected a file system with WAL, got mode {mode}")
    with transaction(connection, "IMMEDIATE"):
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
            return  # another process was first
        for statement in TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={FORMAT}")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the kind, the rest its detail


def _our_error(error: sqlite3.Error, settings: FileSettings) -> StoreError:
    code, where = _code(error), f"log file {settings.path}"
    detail = f"{error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})"
    if code in BUSY:
        return LogUnavailable(
            f"{where}: locked by another process for more than {settings.busy_timeout_s:g} s; nothing of this request "
            f"was stored; find the process that holds it (`fuser {settings.path}`) and try again",
            maybe_stored=False,
        )
    if code == sqlite3.SQLITE_FULL:
        return LogUnavailable(
            f"{where}: disk full; nothing of this request was stored; free space and try again", maybe_stored=False
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return LogUnavailable(
            f"{where}: not writable; expected a file and a directory this user can write, got {detail}; "
            f"nothing of this request was stored",
            maybe_stored=False,
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
