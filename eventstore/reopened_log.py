"""The log in a forked process: opened anew, at its first use, since no connection survives a fork."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from rolloutlog.eventstore.connection import Opener, connect
from rolloutlog.eventstore.errors import LogMissing, LogUnavailable
from rolloutlog.eventstore.log import Log
from rolloutlog.eventstore.log.port import Difference, NewRecord, Owner, Range, Reader, Stored, TopicSettings


class ReopenedLog:
    """A log that must hold the run that it held before the fork. For one event loop."""

    def __init__(self, url: str, run_id: str, opener: Opener | None, deadline_s: float) -> None:
        self.url = url
        self._run_id = run_id
        self._opener = opener
        self._deadline_s = deadline_s
        self._opening = asyncio.Lock()
        self._log: Log | None = None

    async def create(self, topics: Iterable[TopicSettings]) -> list[str]:
        return await (await self._opened()).create(topics)

    async def drop(self, topic: str, *, app: str) -> bool:
        return await (await self._opened()).drop(topic, app=app)

    async def differences(self, topics: Iterable[TopicSettings]) -> list[Difference]:
        return await (await self._opened()).differences(topics)

    async def partitions(self, topic: str) -> int:
        return await (await self._opened()).partitions(topic)

    async def append(self, records: Sequence[NewRecord]) -> list[Stored]:
        return await (await self._opened()).append(records)

    async def ranges(self, topic: str, partitions: Iterable[int]) -> Mapping[int, Range]:
        return await (await self._opened()).ranges(topic, partitions)

    async def offsets_at(self, topic: str, partitions: Iterable[int], time_ns: int) -> Mapping[int, int]:
        return await (await self._opened()).offsets_at(topic, partitions, time_ns)

    async def reader(self, topic: str, offsets: Mapping[int, int]) -> Reader:
        return await (await self._opened()).reader(topic, offsets)

    async def own(self, app: str, topic: str, partition: int | None) -> Owner:
        return await (await self._opened()).own(app, topic, partition)

    async def close(self) -> None:
        if self._log is not None:
            await self._log.close()

    async def _opened(self) -> Log:
        async with self._opening:
            if self._log is None:
                self._log = await self._open()
            return self._log

    async def _open(self) -> Log:
        try:
            async with asyncio.timeout(self._deadline_s):
                log, run = await connect(self.url, create=False, partitions=None, opener=self._opener)
        except TimeoutError as error:
            raise LogUnavailable(
                f"log {self.url}: after a fork: expected an answer within {self._deadline_s:g} s, got none",
                maybe_stored=False,
            ) from error
        except LogUnavailable as error:
            error.maybe_stored = False  # it was not asked to store anything
            raise
        if run.run_id != self._run_id:
            await log.close()
            raise LogMissing(f"log {self.url}: expected run {self._run_id}, as before the fork, got run {run.run_id}")
        return log
