"""What can be told about an embedded log's file: whether it can be written, and how long its disk will do.

Opening has already refused what can't work at all: a network file system, another program's file.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from rolloutlog.eventstore.log.filesystem import mount_of, read_mounts
from rolloutlog.eventstore.log.sqlite_file import Database, file_settings

PACE_AFTER_S = 600.0  # a pace taken from less time says nothing about the next day


@dataclass(frozen=True, slots=True)
class FileHealth:
    """The file and its disk. Sizes in bytes.

    wal_bytes    of the write-ahead file
    disk_free    that this user can still write
    file_system  its kind, such as `ext4`; "" where the system does not tell
    pace         bytes an hour since the oldest record; None for a log too young to tell
    """

    path: str
    file_bytes: int
    wal_bytes: int
    disk_free: int
    file_system: str
    pace: float | None


async def file_health(url: str, *, clock: Callable[[], int] = time.time_ns) -> FileHealth:
    """Raises as SqliteLog.open."""
    settings = file_settings(url)
    database = await Database.open(settings, create=False)
    try:
        used, oldest_ns = await database.run(_used)
    finally:
        await database.close()
    age_s = (clock() - oldest_ns) / 1e9 if oldest_ns is not None else 0.0
    return _health(settings.path, used / age_s * 3600 if age_s >= PACE_AFTER_S else None)


async def try_writing(url: str) -> None:
    """Write something and take it back before it is stored. Raises LogUnavailable when that is not possible."""
    database = await Database.open(file_settings(url), create=False)
    try:
        await database.run(_write_and_take_back)
    finally:
        await database.close()


def _used(connection: sqlite3.Connection) -> tuple[int, int | None]:
    """Bytes that records take, and the log time of the oldest."""
    page_bytes, pages, free = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
    )
    # By each partition's first record: log times never fall within a partition.
    (oldest_ns,) = connection.execute(
        "SELECT min((SELECT r.log_time_ns FROM records r WHERE r.partition_id = p.id ORDER BY r.offset LIMIT 1)) "
        "FROM partitions p"
    ).fetchone()
    return page_bytes * (pages - free), oldest_ns


def _write_and_take_back(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("UPDATE topics SET cleanup = cleanup")
    finally:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _health(path: str, pace: float | None) -> FileHealth:
    real = os.path.realpath(path)  # SQLite follows links before it adds to the name
    mount = mount_of(real, read_mounts())
    return FileHealth(
        path=path,
        file_bytes=_size(real),
        wal_bytes=_size(f"{real}-wal"),
        disk_free=shutil.disk_usage(os.path.dirname(real)).free,
        file_system=mount.kind if mount is not None else "",
        pace=pace,
    )


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
