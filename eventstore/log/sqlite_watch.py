"""Wait for new records, for all readers of one log object at once.

While anyone waits, one connection looks whether the file changed, which costs no query. Only when it did are the ends
of all partitions read, and those readers woken that have something to read. Nothing is looked at while nobody waits.

Not here  reading: eventstore.log.sqlite; other processes: the file itself tells of their records
"""

import asyncio
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from rolloutlog.eventstore.log.sqlite_file import Database

POLL_S_MIN = 0.005  # after a look that woke someone; doubles up to
POLL_S_MAX = 0.05  # which bounds the delay of a new record

Ends = Mapping[tuple[str, int], tuple[int, int]]  # topic and partition → first offset, end


@dataclass(slots=True)
class _Waiting:
    topic: str
    offsets: Mapping[int, int]
    woken: "asyncio.Future[None]"

    def is_behind(self, ends: Ends) -> bool:
        """Whether a partition has records from its offset on, or lost those that it begins with."""
        for partition, offset in self.offsets.items():
            first, end = ends.get((self.topic, partition), (offset, offset))
            if not first <= offset or offset < end:
                return True
        return False


class Watch:
    """Belongs to one log object, and is used in one event loop at a time."""

    def __init__(self, log_database: Database) -> None:
        self._log_database = log_database
        self._database: Database | None = None
        self._waiting: dict[object, _Waiting] = {}
        self._task: asyncio.Task[None] | None = None
        self._version: int | None = None
        self._ends: Ends = {}
        self._begun = self._done = 0  # looks, by number

    async def wait(self, reader: object, topic: str, offsets: Mapping[int, int], wait_s: float) -> bool:
        """False when a look that began after the call found nothing from `offsets` on, within `wait_s`; True when there
        is something, or when there was no time to look. Raises what the look raised."""
        begun = self._begun
        waiting = _Waiting(topic, offsets, asyncio.get_running_loop().create_future())
        if waiting.is_behind(self._ends):
            return True
        self._waiting[reader] = waiting
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(wait_s):
                await waiting.woken
        except TimeoutError:
            return self._done <= begun or not waiting.woken.cancelled()
        finally:
            self._waiting.pop(reader, None)
        return True

    def wake(self, reader: object) -> None:
        """Let this reader look for itself, such as to learn that it is closed."""
        if (waiting := self._waiting.get(reader)) is not None and not waiting.woken.done():
            waiting.woken.set_result(None)

    async def close(self) -> None:
        """Safe to call twice."""
        for reader in list(self._waiting):
            self.wake(reader)
        if self._task is not None:
            self._task.cancel()
        if self._database is not None:
            await self._database.close()

    async def _run(self) -> None:
        pause_s = POLL_S_MIN
        try:
            while self._waiting:
                pause_s = POLL_S_MIN if await self._look() else min(2 * pause_s, POLL_S_MAX)
                await asyncio.sleep(pause_s)
        except Exception as error:
            for waiting in self._waiting.values():
                if not waiting.woken.done():
                    waiting.woken.set_exception(error)
        finally:
            self._task = None

    async def _look(self) -> bool:
        """Wake who has something to read; returns whether there was anyone."""
        self._begun += 1
        number = self._begun
        if self._database is None:
            self._database = await self._log_database.open_again()
        version, ends = await self._database.run(self._find)
        self._done = number
        if ends is None:
            return False
        self._version, self._ends = version, ends
        behind = [reader for reader, waiting in self._waiting.items() if waiting.is_behind(ends)]
        for reader in behind:
            self.wake(reader)
        return bool(behind)

    def _find(self, connection: sqlite3.Connection) -> tuple[int, Ends | None]:
        """The file's version, which every other connection's transaction moves, and the ends when it moved."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()  # first: what is missed then moves it again
        if version == self._version:
            return version, None
        rows = connection.execute("SELECT topic, partition, first_offset, next_offset FROM partitions")
        return version, {(topic, partition): (first, end) for topic, partition, first, end in rows}
