"""Reads a topic's partitions from Kafka, committed records only, without a group.

One consumer a reader, assigned by hand. Records are taken partition by partition, so that an error in one loses nothing
of the others, and none starves: each fetch starts at another one, and they share `records_max`.

Position  moves past transaction markers and aborted records, so that it reaches the end that `ranges` tells
Range     offsets given by callers are compared with the log before the first fetch: the driver waits where it should
          say that an offset is out of range
Memory    FETCH_BYTES_MAX for each broker, as stored (compressed), and the records handed out
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CorruptRecordException, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from rolloutlog.eventstore.errors import InvalidSettings, LogUnavailable, OffsetOutOfRange, StoreError
from rolloutlog.eventstore.log.kafka_clients import start, stop
from rolloutlog.eventstore.log.kafka_cluster import OPEN_S, REQUEST_S, Cluster
from rolloutlog.eventstore.log.kafka_records import check_partition
from rolloutlog.eventstore.log.kafka_undecodable import read_undecodable
from rolloutlog.eventstore.log.port import Record

FETCH_BYTES_MAX = 16 * 1024 * 1024
PARTITION_BYTES_MAX = 4 * 1024 * 1024
FETCH_WAIT_MS = 250  # the broker answers at once when there is something; a seek waits for at most this
SILENCE_S = 20.0  # no answer to any fetch for so long, while someone waits
NS_PER_MS = 1_000_000

logger = logging.getLogger(__name__)


class KafkaReader:
    """Made by `open_reader`. Used by one task at a time."""

    def __init__(
        self,
        cluster: Cluster,
        consumer: Any,
        topic: str,
        offsets: Mapping[int, int],
        on_close: Callable[["KafkaReader"], None],
    ) -> None:
        self._cluster = cluster
        self._consumer = consumer
        self._topic = topic
        self._positions = dict(offsets)
        self._unchecked = set(offsets)
        self._where = {p: TopicPartition(cluster.settings.full_name(topic), p) for p in offsets}
        self._order = deque(offsets)
        self._troubled: dict[int, Exception] = {}
        self._on_close = on_close
        self._closed = False
        self._heard: list[int | None] = []
        self._silent_since = self._waited_until = 0.0
        consumer.assign(list(self._where.values()))
        for partition, offset in offsets.items():
            consumer.seek(self._where[partition], offset)

    async def fetch(self, *, wait_s: float, records_max: int = 2_000) -> list[Record]:
        """Return the next committed records; see the port."""
        if self._closed:
            raise StoreError(f"reader of {self._topic}: it is closed")
        if self._unchecked:
            await self._check_range(self._unchecked)
        if self._troubled:
            return await self._read_troubled(records_max)
        # No await from here on gives way once a record was taken, so that a cancelled fetch loses none.
        records = await self._take(records_max)
        if not records and not self._troubled:
            try:
                first = await self._consumer.getmany(timeout_ms=wait_s * 1000, max_records=1)
            except KafkaError as error:
                self._note_trouble(error)
            except UnicodeDecodeError as error:
                self._troubled |= dict.fromkeys(self._order, error)  # which one is found by looking
            else:
                records = [self._record(each) for found in first.values() for each in found]
                if records and len(records) < records_max:
                    records += await self._take(records_max - len(records))
        self._order.rotate(-1)
        for partition, where in self._where.items():
            self._positions[partition] = await self._consumer.position(where)
        if not records and not self._troubled:
            self._check_silence()
        elif not records:
            return await self._read_troubled(records_max)
        else:
            self._silent_since = 0.0
        return records

    def position(self, partition: int) -> int:
        self._check(partition)
        return self._positions[partition]

    async def seek(self, partition: int, offset: int) -> None:
        self._check(partition)
        self._seek(partition, offset)
        self._unchecked.add(partition)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._on_close(self)
            await stop(self._consumer)

    async def _take(self, records_max: int) -> list[Record]:
        """What has arrived; does not give way to other tasks. A partition in trouble is noted."""
        records: list[Record] = []
        waiting = deque(self._order)
        while waiting and len(records) < records_max:
            partition = waiting.popleft()
            share = max(1, (records_max - len(records)) // (len(waiting) + 1))
            try:
                found = await self._consumer.getmany(self._where[partition], timeout_ms=0, max_records=share)
            except (KafkaError, UnicodeDecodeError) as error:
                self._troubled[partition] = error
                continue
            taken = found.get(self._where[partition], ())
            records += [self._record(each) for each in taken]
            if len(taken) == share:
                waiting.append(partition)
        return records

    def _record(self, found: Any) -> Record:
        return Record(
            self._topic,
            found.partition,
            found.offset,
            found.timestamp * NS_PER_MS,
            found.key,
            found.value,
            found.headers,
        )

    def _note_trouble(self, error: KafkaError) -> None:
        """An error that does not say of which partition may be of any."""
        named: list[int] = []
        if isinstance(error, OffsetOutOfRangeError) and error.args and isinstance(error.args[0], dict):
            named = [where.partition for where in error.args[0]]
        elif isinstance(error, NoOffsetForPartitionError) and error.args:
            named = [where.partition for where in error.args if isinstance(where, TopicPartition)]
        self._troubled |= dict.fromkeys(named or self._order, error)

    async def _read_troubled(self, records_max: int) -> list[Record]:
        """Read past a record that the driver can't decode; raise for any other trouble. No partition stays stuck."""
        partition, error = next(iter(self._troubled.items()))
        if isinstance(error, UnicodeDecodeError | CorruptRecordException):
            position = await self._consumer.position(self._where[partition])
            found, after = await read_undecodable(
                self._cluster, self._topic, partition, position, bytes_max=PARTITION_BYTES_MAX, records_max=records_max
            )
            del self._troubled[partition]
            self._seek(partition, after)
            return [self._record(each) for each in found]
        self._troubled.clear()
        if isinstance(error, OffsetOutOfRangeError | NoOffsetForPartitionError):
            await self._check_range(self._positions)  # in range after all when the leader had moved
            for each, offset in self._positions.items():
                self._seek(each, offset)
            return []
        raise self._cluster.error(error, f"reader of {self._topic}", "nothing was lost; read on from its position")

    async def _check_range(self, partitions: "set[int] | Mapping[int, int]") -> None:
        """Raise OffsetOutOfRange for a position outside of the log."""
        ranges = await self._cluster.ranges(self._topic, list(partitions))
        for partition, (first, _, end) in ranges.items():
            offset = self._positions[partition]
            if not first <= offset <= end:
                raise OffsetOutOfRange(
                    f"reader of {self._topic}/{partition}: expected an offset from {first} to {end}, got {offset}: "
                    + ("retention or a trim removed it" if offset < first else "the log has not given it out yet")
                )
        self._unchecked -= set(ranges)

    def _check_silence(self) -> None:
        """Raise LogUnavailable when no fetch was answered for SILENCE_S of waiting."""
        now = asyncio.get_running_loop().time()
        heard = [self._consumer.last_poll_timestamp(where) for where in self._where.values()]
        paused = now - self._waited_until > 2 * SILENCE_S  # nobody asked for a while, or the loop stood still
        if heard != self._heard or paused or not self._silent_since:
            self._heard, self._silent_since = heard, now
        self._waited_until = now
        if now - self._silent_since > SILENCE_S:
            self._silent_since = 0.0
            raise LogUnavailable(
                f"log {self._cluster.settings.url}: reader of {self._topic}: no answer for {SILENCE_S:g} s from "
                f"{', '.join(self._cluster.settings.servers)}; take a new reader from its position"
            )

    def _seek(self, partition: int, offset: int) -> None:
        self._troubled.pop(partition, None)
        self._consumer.seek(self._where[partition], offset)
        self._positions[partition] = offset

    def _check(self, partition: int) -> None:
        if partition not in self._positions:
            raise InvalidSettings(
                f"reader of {self._topic}: expected one of its partitions {sorted(self._positions)}, got {partition}"
            )


async def open_reader(
    cluster: Cluster, topic: str, offsets: Mapping[int, int], on_close: Callable[[KafkaReader], None]
) -> KafkaReader:
    """Raises LogMissing, InvalidSettings for a partition that the topic does not have, LogUnavailable."""
    facts = (await cluster.topics([topic]))[topic]
    for partition in offsets:
        check_partition(facts, partition)
    make: Any = AIOKafkaConsumer  # without types
    consumer = make(
        **cluster.settings.client,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
        fetch_max_wait_ms=FETCH_WAIT_MS,
        fetch_max_bytes=FETCH_BYTES_MAX,
        max_partition_fetch_bytes=PARTITION_BYTES_MAX,
        request_timeout_ms=int(REQUEST_S * 1000),
    )
    try:
        await start(consumer, within_s=OPEN_S)
    except (KafkaError, TimeoutError, OSError) as error:
        raise cluster.error(error, f"reader of {topic}", "try again") from error
    return KafkaReader(cluster, consumer, topic, offsets, on_close)
