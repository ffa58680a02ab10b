"""Where trainers on live batches are, read from the acks topic: first to its end as of then, after that as it grows.

One task follows it, in one event loop; what is known may be read from any thread.

Order     acknowledgements by offset; the newest of a reader counts, and a Rewound sets its reader back
Trouble   a log that stops answering is logged once; what is known stays, until it answers again
Not here  an acknowledgement's bytes: eventstore.acks; how far a trainer lags: eventstore.progress
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

from rolloutlog.eventstore.acks import PARTITION, Ack, Rewound, Said, StepAwaited, read_said
from rolloutlog.eventstore.errors import InvalidEvent, LogUnavailable, OffsetOutOfRange, UnknownSchema
from rolloutlog.eventstore.log.port import ACKS, BATCHES, Log, Record
from rolloutlog.eventstore.log.reading import read_range

CATCH_UP_S = 30.0  # to read the topic to its end; a call after one that took longer goes on where it stopped
FETCH_WAIT_S = 0.5
RETRY_S = 1.0
SECOND_NS = 10**9
DECODED_AT_ONCE = 64  # acks of large steps take long to decode, and the loop also sends events

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """Where one reader is.

    step            the next one
    policy_version  after the last acknowledged step, or as it was loaded since; None = unknown
    offsets         batches partition → where reading goes on; none = never acknowledged
    log_time_ns     of the newest acknowledgement, UTC nanoseconds
    """

    step: int
    policy_version: int | None
    offsets: Mapping[int, int]
    log_time_ns: int


def after(reading: Reading | None, ack: Ack, log_time_ns: int) -> Reading:
    """Where a reader is after an acknowledgement. A partition that a Rewound does not name is unread again."""
    if isinstance(ack, Rewound):
        return Reading(ack.step, ack.policy_version, ack.offsets, log_time_ns)
    before = {} if reading is None else reading.offsets
    return Reading(ack.step + 1, ack.policy_version, {**before, **ack.offsets}, log_time_ns)


class AckFollower:
    """Follows all readers of one log. `caught_up`: whether the topic was once read to its end."""

    def __init__(self, log: Log, now_ns: Callable[[], int]) -> None:
        """`now_ns`: time as the log tells it, UTC nanoseconds; only for what was said before the topic was followed."""
        self.caught_up = False
        self._log = log
        self._now_ns = now_ns
        self._readings: dict[str, Reading] = {}
        self._awaiting: dict[str, float] = {}  # reader → loop time at which it last said that it waits
        self._next: int | None = None  # offset; None = the first one
        self._turn = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._in_trouble = False
        self._met_newer = False

    def reading(self, reader: str) -> Reading | None:
        """Where the reader is, as far as known; None before any acknowledgement."""
        return self._readings.get(reader)

    def awaiting_since(self, reader: str) -> float | None:
        """Loop time at which the reader last said that it waits; None when it never did, or acknowledged since."""
        return self._awaiting.get(reader)

    async def catch_up(self) -> None:
        """Read to the end as of now and begin to follow, unless that was done. Raises LogUnavailable and others."""
        try:
            async with asyncio.timeout(CATCH_UP_S), self._turn:
                while not self.caught_up:
                    with suppress(OffsetOutOfRange):  # retention cut them off meanwhile, or the log was made anew
                        await self._read_to_end()
                        self._following = asyncio.create_task(self._follow())
                        self.caught_up = True
                        return
                    self._next = None
        except TimeoutError as error:
            raise LogUnavailable(
                f"log {self._log.url}: expected to read its acknowledgements to their end within {CATCH_UP_S:g} s, got "
                f"as far as offset {self._next or 0}; the next call goes on there",
                maybe_stored=False,
            ) from error

    async def close(self) -> None:
        """Stop following."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _read_to_end(self) -> None:
        span = (await self._log.ranges(ACKS, [PARTITION]))[PARTITION]
        if self._next is None:
            self._next = span.first
        async with aclosing(read_range(self._log, ACKS, PARTITION, self._next, span.end)) as records:
            async for record in records:
                await self._take([record])
                self._next = record.offset + 1
        self._next = max(self._next, span.end)

    async def _follow(self) -> None:
        while True:
            try:
                await self._read_on()
            except OffsetOutOfRange:
                self._next = None
            except Exception as error:
                self._note_trouble(error)
            await asyncio.sleep(RETRY_S)

    async def _read_on(self) -> None:
        if self._next is None:
            self._next = (await self._log.ranges(ACKS, [PARTITION]))[PARTITION].first
        reader = await self._log.reader(ACKS, {PARTITION: self._next})
        try:
            while True:
                records = await reader.fetch(wait_s=FETCH_WAIT_S)
                if self._in_trouble:
                    self._in_trouble = False
                    _logger.info("log %s: acknowledgements are read again", self._log.url)
                await self._take(records)
                self._next = reader.position(PARTITION)
        finally:
            await reader.close()

    async def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                said = read_said(record)
            except UnknownSchema as error:
                self._note_newer(record, error)
            except InvalidEvent:
                pass  # of another program: as if it were not there
            else:
                self._take_said(said, record)
            if record.offset % DECODED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _take_said(self, said: Said, record: Record) -> None:
        if said.topic != BATCHES:
            return  # it trains on an output: what hosts make has no part in it
        if isinstance(said, StepAwaited):
            self._awaiting[said.reader] = asyncio.get_running_loop().time() - self._age_s(record)
        else:
            self._awaiting.pop(said.reader, None)
            self._readings[said.reader] = after(self._readings.get(said.reader), said, record.log_time_ns)

    def _note_newer(self, record: Record, error: UnknownSchema) -> None:
        """Said once: lag and policy version stand still from there on, and hosts would hold for ever unseen."""
        if not self._met_newer:
            _logger.warning(
                "log %s: acks %d:%d is passed over, lag and policy version may stand still: %s",
                self._log.url, record.partition, record.offset, error,
            )  # fmt: skip
        self._met_newer = True

    def _age_s(self, record: Record) -> float:
        """Seconds since it was stored. What comes while the topic is followed is new, whatever the host's clock says:
        a clock that jumped must not make a trainer that waits seem to have waited long ago."""
        return 0.0 if self.caught_up else max(0, self._now_ns() - record.log_time_ns) / SECOND_NS

    def _note_trouble(self, error: Exception) -> None:
        if not self._in_trouble:
            _logger.warning(
                "log %s: acknowledgements can't be read, what is known stays until they can: %s: %s",
                self._log.url, type(error).__name__, error,
            )  # fmt: skip
        self._in_trouble = True
