"""Read batches ahead of the trainer, bounded in count and bytes.

One task reads all partitions and joins batches; it rests while enough is ready. Whoever waits takes batches out as they
come, so that a step larger than the bound still forms. After the log was unavailable reading goes on from what was
taken whole.

Bound    reading rests with `batches_max` batches or `bytes_max` bytes ready, and goes on when one is taken; one fetch
         of the log's may be above it, and what is joined of batches in parts. The first batch is read whatever its size
Ended    a partition in which no batch came after a RunEnded. Whoever acknowledged up to there begins with it ended:
         the RunEnded itself is not read again. The run has ended when all have, and every partition was read to its
         end. An output ends when its replay is complete instead, whatever run ended in it
Refused  records that are no batch, and batches that lack a part: logged, counted, passed over. What a newer version
         wrote ends reading with UnknownSchema instead
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping

from rolloutlog.consumers.published import Joiner, Published
from rolloutlog.consumers.recovery import HistoryLost
from rolloutlog.consumers.stream.acked import Reached
from rolloutlog.eventstore.errors import InvalidEvent, LogUnavailable, OffsetOutOfRange, StoreError, UnknownSchema
from rolloutlog.eventstore.log import BATCHES, Log, Reader, Record

FETCH_WAIT_S = 0.5
RETRY_S = (0.2, 5.0)  # first and longest pause after the log was unavailable
FETCH_RECORDS_MAX = 2_000
DECODE_S = 0.002  # of decoding at a stretch

logger = logging.getLogger("rolloutlog.trainer")


class Prefetch:
    """Runs in one event loop. `unavailable`: why the log cannot be read now; None while it can."""

    def __init__(
        self,
        log: Log,
        offsets: Mapping[int, int],
        ended: Collection[int] = (),
        *,
        batches_max: int,
        bytes_max: int,
        skip_lost: bool,
        topic: str = BATCHES,
        is_whole: Callable[[Collection[int]], Awaitable[bool]] | None = None,
    ) -> None:
        """Begin at `offsets`, one entry a partition.

        ended      partitions in which the run had ended before that
        skip_lost  go on without what retention removed
        is_whole   of an output: whether nothing will come any more after what stands in these partitions
        """
        self.unavailable: LogUnavailable | None = None
        self.counts: Counter[str] = Counter()
        self._log = log
        self._batches_max = batches_max
        self._bytes_max = bytes_max
        self._skip_lost = skip_lost
        self._topic = topic
        self._is_whole = is_whole
        self._news = asyncio.Event()
        self._reset(offsets, ended)
        self._reading = asyncio.create_task(self._read())

    async def take(self) -> Published | None:
        """The next batch; waits for it. None when run or output has ended. Raises HistoryLost and what ends reading."""
        while (published := self.take_ready()) is None:
            self._news.clear()  # first: what comes while the end is looked at must not be slept through
            if self._failed is not None:
                raise self._failed
            if await self._is_over() and await self._is_at_end():
                return None
            await self._news.wait()
        return published  # nothing gave way since it was taken, so that a cancelled caller loses no batch

    def take_ready(self) -> Published | None:
        """The next batch; None when none is ready."""
        if not self._ready:
            return None
        published = self._ready.popleft()
        self._ready_bytes -= published.size_bytes
        self._room.set()
        return published

    def reached(self) -> dict[int, Reached]:
        """Offsets below which every batch was taken, of the partitions of which none is ready.

        They move past records without a batch and transaction markers: once retention removed those, they would seem
        to be lost batches.
        """
        ready = {each.partition for each in self._ready}
        return {p: Reached(offset, p in self._ended) for p, offset in self._offsets.items() if p not in ready}

    async def restart(self, offsets: Mapping[int, int], ended: Collection[int] = ()) -> None:
        """Drop what is ready and read from `offsets`."""
        await self._stop()
        self._reset(offsets, ended)
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        await self._stop()

    @property
    def ended_partitions(self) -> frozenset[int]:
        """Those in which no batch came after a RunEnded."""
        return frozenset(self._ended)

    def _reset(self, offsets: Mapping[int, int], ended: Collection[int]) -> None:
        self._offsets = dict(offsets)
        self._ready: deque[Published] = deque()
        self._ready_bytes = 0
        self._ended = set(ended)
        self._failed: StoreError | None = None
        self._room = asyncio.Event()

    async def _stop(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        pause_s = RETRY_S[0]
        while True:
            reader = None
            try:
                reader = await self._log.reader(self._topic, await self._readable())
                await self._read_on(reader)
            except OffsetOutOfRange as error:
                logger.warning("%s", error)  # `_readable` says what is lost, and the settings what to do
            except LogUnavailable as error:
                if self.unavailable is None:
                    pause_s = RETRY_S[0]
                self.unavailable = error
                logger.warning("%s; reading again in %.1f s", error, pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])
            except StoreError as error:
                self._fail(error)
                return
            except Exception as error:
                logger.critical("reading of %s stopped", self._topic, exc_info=error)
                self._fail(StoreError(f"log {self._log.url}: reading of {self._topic} stopped: {error!r}"))
                return
            finally:
                if reader is not None:
                    await reader.close()
            await asyncio.sleep(pause_s)

    async def _read_on(self, reader: Reader) -> None:
        joiners = {partition: Joiner(self._refused) for partition in self._offsets}
        loop = asyncio.get_running_loop()
        give_way_at = loop.time() + DECODE_S
        while True:
            while self._is_full():
                self._room.clear()
                await self._room.wait()
            room = max(1, self._batches_max - len(self._ready))
            records = await reader.fetch(wait_s=FETCH_WAIT_S, records_max=min(room, FETCH_RECORDS_MAX))
            self.unavailable = None
            for record in records:
                published = joiners[record.partition].add(record)
                if published is not None:
                    self._add(published)
                    self._news.set()
                if loop.time() >= give_way_at:  # what the log sends, and acknowledgements, go on
                    await asyncio.sleep(0)
                    give_way_at = loop.time() + DECODE_S
            for partition, joiner in joiners.items():
                if not joiner.waits:
                    self._offsets[partition] = max(self._offsets[partition], reader.position(partition))
            self._news.set()

    def _add(self, published: Published) -> None:
        partition = published.partition
        self._offsets[partition] = published.end
        if published.batch is None:
            self._ended.add(partition)
            return
        self._ended.discard(partition)
        self._ready.append(published)
        self._ready_bytes += published.size_bytes

    def _is_full(self) -> bool:
        return bool(self._ready) and (len(self._ready) >= self._batches_max or self._ready_bytes >= self._bytes_max)

    async def _is_over(self) -> bool:
        """Whether whoever writes says that nothing comes any more. Asked before the end is looked at: what it wrote
        until then is below that."""
        if self._is_whole is None:
            return self._ended == self._offsets.keys()
        try:
            return await self._is_whole(self._offsets.keys())
        except LogUnavailable:
            return False

    async def _is_at_end(self) -> bool:
        """Whether there is nothing after what was read, an open transaction included."""
        try:
            ranges = await self._log.ranges(self._topic, list(self._offsets))
        except LogUnavailable:
            return False
        return not self._ready and all(self._offsets[p] >= span.written for p, span in ranges.items())

    async def _readable(self) -> dict[int, int]:
        """Where to read from. Raises HistoryLost naming what is gone, LogUnavailable while the log ends before that."""
        readable = await readable_offsets(self._log, self._topic, self._offsets, skip_lost=self._skip_lost)
        for partition, offset in readable.items():
            if lost := offset - self._offsets[partition]:
                self.counts["offsets_lost"] += lost
                self._ended.discard(partition)  # something came after
        self._offsets = readable
        return dict(readable)

    def _refused(self, record: Record, error: InvalidEvent) -> None:
        if isinstance(error, UnknownSchema):
            # Not passed over: the position would move past a batch that an upgraded trainer can train.
            raise UnknownSchema(
                f"{self._topic} {record.partition}:{record.offset}: {error}, and open the stream again: reading goes "
                "on there"
            ) from error
        self.counts["refused"] += 1
        logger.warning(
            "%s %d:%d: passed over, with the batch it may be a part of: %s",
            self._topic, record.partition, record.offset, error,
        )  # fmt: skip

    def _fail(self, error: StoreError) -> None:
        self._failed = error
        self._news.set()


async def readable_offsets(log: Log, topic: str, offsets: Mapping[int, int], *, skip_lost: bool) -> dict[int, int]:
    """These offsets of a topic of batches, or the first readable ones with `skip_lost`.

    Raises  HistoryLost naming the gap; LogUnavailable where the log ends before an offset: a broker that comes back may
            not know its end yet
    """
    ranges = await log.ranges(topic, list(offsets))
    above = [f"partition {p}: {offsets[p]} > {ranges[p].written}" for p in offsets if offsets[p] > ranges[p].written]
    if above:
        raise LogUnavailable(
            f"log {log.url}: expected {topic} up to where they were read, got an end before that ({'; '.join(above)}): "
            "it is not back yet, or the topic was made anew or lost its end"
        )
    readable = {partition: max(offset, ranges[partition].first) for partition, offset in offsets.items()}
    lost = [
        f"partition {p}: offsets {offsets[p]}-{readable[p] - 1}" for p in sorted(offsets) if readable[p] > offsets[p]
    ]
    if not lost:
        return readable
    what = f"log {log.url}: {topic} that were not acknowledged are gone, by retention: {'; '.join(lost)}"
    if not skip_lost:
        raise HistoryLost(f'{what}. Open the stream with on_history_lost="skip" to go on without them')
    logger.warning("%s; going on without them", what)
    return readable
