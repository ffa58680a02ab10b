"""Archives for tests: written by the archiver itself, read as a log, on storage that fails where a test wants it to."""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rolloutlog.consumers.archiving.archiver import Archiver
from rolloutlog.consumers.archiving.lanes import Archived, ArchiverSettings
from rolloutlog.consumers.archiving.log import open_archive
from rolloutlog.consumers.archiving.storage import Storage, open_storage
from rolloutlog.eventstore.codec import encode_record
from rolloutlog.eventstore.log import EVENTS, META, Log, NewRecord, Record
from rolloutlog.eventstore.log.reading import read_all

RUN = {"run_id": "run", "partitions": 4, "created_ns": 5}


def run_record(**fields: Any) -> NewRecord:
    """The record that says which run a log is of."""
    return NewRecord(META, 0, b"run/run", encode_record("RunCreated", {**RUN, **fields}))


async def archive(
    log: Log, to: str | Path | Storage, partitions: Sequence[int] = (0, 1, 2, 3), **settings: Any
) -> Archived:
    """Archive all that the log holds now."""
    storage = open_storage(to) if isinstance(to, str | Path) else to
    try:
        return await Archiver(log, storage, ArchiverSettings(**settings)).run(partitions, until_end=True)
    finally:
        storage.close()


async def records_of(log: Log, topic: str = EVENTS) -> list[Record]:
    """All records of a topic, by partition and offset; headers as tuples, as every log may give them."""
    found = []
    for partition in range(await log.partitions(topic)):
        found += [record async for record in read_all(log, topic, partition)]
    return [record._replace(headers=tuple(map(tuple, record.headers))) for record in found]  # type: ignore[misc]


async def archived(url: str | Path, topic: str = EVENTS) -> list[Record]:
    """All records of a topic as an archive gives them."""
    log = await open_archive(url)
    try:
        return await records_of(log, topic)
    finally:
        await log.close()


class Killed(BaseException):
    """Ends an archiver where it stands, as SIGKILL would: nothing of it runs on but what frees memory."""


class FaultyStorage:
    """A storage whose changes fail as told.

    before   called with the number of each change, from 0, its name and what it is about, before it is made
    """

    def __init__(self, storage: Storage, before: Callable[[int, str, str], None]) -> None:
        self._storage = storage
        self._before = before
        self.changes = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._storage, name)
        if name not in ("put", "create", "remove", "part"):
            return found

        def call(*arguments: Any) -> Any:
            self.changes += 1
            self._before(self.changes - 1, name, str(arguments[-1]) if arguments else "")
            return found(*arguments)

        return call


def disk_full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")
