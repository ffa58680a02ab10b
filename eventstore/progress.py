"""How far trainers are behind, as rollout hosts see it, and waiting for them. In the loop of the publisher's client.

Lag       published minus acknowledged, in offsets of the batches topic: exact on an embedded log. On Kafka markers and
          aborted records of transactions count too; so that nobody waits for those for ever, the records are counted
          when nothing has moved for STILL_S
Waiting   a trainer that waits for groups says so every few seconds. Nobody holds for it then, whatever its lag: it
          counts groups that no step takes, such as stale ones, and a limit may be below what a step takes
Not here  the methods that hosts call: eventstore.following; where a trainer is: eventstore.ack_follower
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from rolloutlog.eventstore.ack_follower import AckFollower
from rolloutlog.eventstore.errors import LogUnavailable, OffsetOutOfRange, StillBehind
from rolloutlog.eventstore.log.port import BATCHES, Log, Range
from rolloutlog.eventstore.log.reading import read_range
from rolloutlog.eventstore.scope import NotOpen

ANSWER_S = 10.0  # for the ends of the batches partitions
POLL_S = 0.2  # between two looks at the lag; threads that wait at once share them
STILL_S = 60.0
WARN_S = 60.0
AWAITED_S = 20.0  # a trainer that waits says so every 5 s
SECOND_NS = 10**9

T = TypeVar("T")

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Unread:
    """What a reader has not acknowledged.

    spans    (partition, first, end) of each partition with any, offsets
    since    when it was first seen so, loop time
    counted  a count of its records, and what they were counted up to; None = not counted
    """

    spans: tuple[tuple[int, int, int], ...]
    since: float
    counted: tuple[int, int] | None = None

    @property
    def lag(self) -> int:
        return sum(end - first for _, first, end in self.spans)


class TrainerProgress:
    """Answers for all readers of one log.

    partitions  of the batches topic
    now_ns      time as the log tells it, UTC nanoseconds
    """

    def __init__(self, log: Log, partitions: int, now_ns: Callable[[], int]) -> None:
        self._log = log
        self._partitions = partitions
        self._now_ns = now_ns
        self._acks = AckFollower(log, now_ns)
        self._asking = asyncio.Lock()
        self._ranges: tuple[float, Mapping[int, Range]] | None = None  # of the batches, and when they were asked for
        self._counting = asyncio.Lock()
        self._unread: dict[str, Unread] = {}
        self._calls: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def caught_up(self) -> bool:
        """Whether the acknowledgements were once read to their end: from then on `version` can be asked."""
        return self._acks.caught_up

    def version(self, reader: str) -> int | None:
        """The reader's policy version as far as known, None before any acknowledgement. Any thread may ask."""
        reading = self._acks.reading(reader)
        return None if reading is None else reading.policy_version

    async def policy_version(self, reader: str) -> int | None:
        """As `version`, once the acknowledgements were read to their end. Raises LogUnavailable, NotOpen."""
        await self._call(self._acks.catch_up())
        return self.version(reader)

    async def lag(self, reader: str) -> int:
        """Offsets of the batches topic that the reader has not acknowledged. Raises LogUnavailable, NotOpen."""
        return (await self._call(self._look(reader))).lag

    async def hold(self, reader: str, lag_max: int, timeout_s: float | None) -> int:
        """Wait while the lag is above `lag_max` and the trainer does not wait itself; returns the lag it ended with.

        Raises  StillBehind after `timeout_s`; LogUnavailable when the lag cannot be told even once. A log that stops
                answering later is waited for, at most ANSWER_S beyond `timeout_s`
        """
        return await self._call(self._hold(reader, lag_max, timeout_s))

    async def close(self) -> None:
        """Stop following; calls that wait end with NotOpen."""
        self._closed = True
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._acks.close()

    async def _call(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        self._calls.add(task)
        try:
            if self._closed:
                task.cancel()
            return await task
        except asyncio.CancelledError:
            if self._closed:
                raise NotOpen(f"log {self._log.url}: the publisher was closed while a trainer was waited for") from None
            raise
        finally:
            self._calls.discard(task)

    async def _hold(self, reader: str, lag_max: int, timeout_s: float | None) -> int:
        loop = asyncio.get_running_loop()
        began, lag, told = loop.time(), await self._lag(reader, lag_max), False
        warn_at = began + WARN_S
        while lag > lag_max and not self._awaits(reader):
            waited_s = loop.time() - began
            if timeout_s is not None and waited_s >= timeout_s:
                raise StillBehind(
                    f"trainer {reader} is still behind after {waited_s:.1f} s: expected a lag of at most {lag_max}, "
                    f"got {lag}; {self._last_ack(reader)}. Hold again to wait on"
                )
            if loop.time() >= warn_at:
                warn_at += WARN_S
                _logger.warning(
                    "this host has waited %.0f s for trainer %s: its lag is %d, above %d; %s",
                    waited_s, reader, lag, lag_max, self._last_ack(reader),
                )  # fmt: skip
            await asyncio.sleep(POLL_S if timeout_s is None else min(POLL_S, timeout_s - waited_s))
            try:
                lag, told = await self._lag(reader, lag_max), False
            except LogUnavailable as error:
                if not told:
                    _logger.warning("this host still waits for trainer %s: %s", reader, error)
                told = True
        return lag

    def _awaits(self, reader: str) -> bool:
        """Whether the trainer waits for groups, as far as known."""
        since = self._acks.awaiting_since(reader)
        return since is not None and asyncio.get_running_loop().time() - since < AWAITED_S

    def _last_ack(self, reader: str) -> str:
        reading = self._acks.reading(reader)
        if reading is None:
            return "it has acknowledged nothing yet"
        seconds = max(0, self._now_ns() - reading.log_time_ns) / SECOND_NS
        return f"it last acknowledged {seconds:.1f} s ago, before step {reading.step}"

    async def _lag(self, reader: str, lag_max: int) -> int:
        """The lag, in records where it is above `lag_max` only in offsets and nothing moves."""
        unread = await self._look(reader)
        if unread.lag > lag_max and asyncio.get_running_loop().time() - unread.since >= STILL_S:
            with suppress(OffsetOutOfRange):  # retention moved on: they are looked at anew
                count = await self._count(unread, lag_max + 1)
                return count if count <= lag_max else unread.lag
        return unread.lag

    async def _look(self, reader: str) -> Unread:
        await self._acks.catch_up()
        ranges = await self._batches()
        reading = self._acks.reading(reader)
        acknowledged = {} if reading is None else reading.offsets
        begins = {partition: max(span.first, acknowledged.get(partition, 0)) for partition, span in ranges.items()}
        spans = tuple((p, first, ranges[p].end) for p, first in begins.items() if first < ranges[p].end)
        unread = self._unread.get(reader)
        if unread is None or unread.spans != spans:
            unread = self._unread[reader] = Unread(spans, asyncio.get_running_loop().time())
        return unread

    async def _batches(self) -> Mapping[int, Range]:
        """What stands in the batches topic, as of at most POLL_S ago."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_S), self._asking:
                if self._ranges is None or loop.time() - self._ranges[0] >= POLL_S:
                    self._ranges = loop.time(), await self._log.ranges(BATCHES, range(self._partitions))
                return self._ranges[1]
        except TimeoutError as error:
            raise LogUnavailable(
                f"log {self._log.url}: expected the ends of its batches within {ANSWER_S:g} s, got none; try again",
                maybe_stored=False,
            ) from error

    async def _count(self, unread: Unread, records_max: int) -> int:
        """How many records are unread, counted up to `records_max`; once for all who wait."""
        async with self._counting:
            if unread.counted is None or unread.counted[0] >= unread.counted[1] < records_max:
                unread.counted = await self._count_anew(unread, records_max), records_max
            return unread.counted[0]

    async def _count_anew(self, unread: Unread, records_max: int) -> int:
        count = 0
        for partition, first, end in unread.spans:
            async with aclosing(read_range(self._log, BATCHES, partition, first, end)) as records:
                async for _ in records:
                    count += 1
                    if count >= records_max:
                        return count
        return count
