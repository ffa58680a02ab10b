"""Batches as they come: what stands there first, then what is published, until told to stop, or nothing more comes: the
run has ended, or the output is complete.

A log that does not answer is waited for. Reading goes on behind the last record that was taken, so nothing is shown
twice or left out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.published import Joiner, Refused
from rolloutlog.eventstore.errors import LogUnavailable, OffsetOutOfRange
from rolloutlog.eventstore.log import BATCHES, Log, Record
from rolloutlog.eventstore.log.reading import read_range

FETCH_WAIT_S = 1.0
RETRY_S = (0.5, 30.0)  # first and longest wait after the log was unavailable


class Follower:
    """Follows some partitions of the batches, or of an output.

    topic           where they are
    is_whole        of an output: whether nothing will come any more after what stands in these partitions. None = live
                    batches, which end with the run
    on_refused      told of records that are no batch
    on_unavailable  told of the error, and how many seconds pass until the log is asked again
    """

    def __init__(
        self,
        log: Log,
        partitions: Sequence[int],
        *,
        topic: str = BATCHES,
        is_whole: Callable[[Collection[int]], Awaitable[bool]] | None = None,
        on_refused: Refused,
        on_unavailable: Callable[[LogUnavailable, float], None],
        retry_s: tuple[float, float] = RETRY_S,
    ) -> None:
        self._log, self._topic, self._on_unavailable, self._retry_s = log, topic, on_unavailable, retry_s
        self._is_whole = is_whole
        self._joiners = {partition: Joiner(on_refused) for partition in partitions}
        self._next: dict[int, int] = {}  # where reading goes on; empty until the log has said where it begins
        self._stored: list[int] | None = None  # partitions whose stored records are not all read yet
        self._ended: set[int] = set()

    async def run(self, take: Callable[[Batch], None], stop: asyncio.Event) -> None:
        """Hand every batch to `take`: stored ones by partition, then each as it comes."""
        stopping = asyncio.create_task(stop.wait())
        following = asyncio.create_task(self._follow(take))
        try:
            await asyncio.wait({stopping, following}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            for task in (stopping, following):
                task.cancel()
            await asyncio.gather(stopping, following, return_exceptions=True)

    async def _is_over(self) -> bool:
        """Whether all was taken, and nothing more comes. A RunEnded ends no output: history may go on after it."""
        if self._is_whole is None:
            return len(self._ended) == len(self._joiners)
        # Asked before the end is looked at: what was written until then is below that.
        if not await self._is_whole(self._joiners.keys()):
            return False
        spans = await self._log.ranges(self._topic, list(self._joiners))
        return all(self._next[partition] >= span.written for partition, span in spans.items())

    async def _follow(self, take: Callable[[Batch], None]) -> None:
        wait_s = self._retry_s[0]
        while True:
            before = dict(self._next)
            try:
                await self._read_stored(take)
                await self._read_new(take)
                return
            except OffsetOutOfRange:
                # Retention went faster than we did: what is there now is shown.
                spans = await self._log.ranges(self._topic, list(self._joiners))
                self._next = {each: max(at, spans[each].first) for each, at in self._next.items()}
            except LogUnavailable as error:
                if self._next != before:
                    wait_s = self._retry_s[0]
                self._on_unavailable(error, wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, self._retry_s[1])

    async def _read_stored(self, take: Callable[[Batch], None]) -> None:
        if self._stored == []:
            return
        spans = await self._log.ranges(self._topic, list(self._joiners))
        if self._stored is None:
            self._stored = list(self._joiners)
            self._next = {partition: span.first for partition, span in spans.items()}
        while self._stored:
            partition = self._stored[0]
            end = spans[partition].end
            async with aclosing(read_range(self._log, self._topic, partition, self._next[partition], end)) as records:
                async for record in records:
                    self._take(record, take)
            self._next[partition] = max(end, self._next[partition])
            del self._stored[0]

    async def _read_new(self, take: Callable[[Batch], None]) -> None:
        if await self._is_over():
            return
        reader = await self._log.reader(self._topic, self._next)
        try:
            while not await self._is_over():
                for record in await reader.fetch(wait_s=FETCH_WAIT_S):
                    self._take(record, take)
                for partition, offset in self._next.items():
                    self._next[partition] = max(offset, reader.position(partition))  # past markers of transactions
        finally:
            await reader.close()

    def _take(self, record: Record, take: Callable[[Batch], None]) -> None:
        published = self._joiners[record.partition].add(record)
        self._next[record.partition] = record.offset + 1
        if published is None:
            return
        if published.batch is None:
            self._ended.add(record.partition)
        else:
            take(published.batch)
