"""Store records outside of transactions, over one idempotent producer for the whole log.

The producer is replaced once its state is in doubt: after a refused batch its sequence numbers no longer fit the
broker's, and batches without an answer wait in it for ever. Requests that still run on it have their own deadlines.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from rolloutlog.eventstore.errors import LogUnavailable, StoreError
from rolloutlog.eventstore.log.kafka_clients import consume, start, stop
from rolloutlog.eventstore.log.kafka_cluster import REQUEST_S, Cluster
from rolloutlog.eventstore.log.kafka_errors import describe
from rolloutlog.eventstore.log.kafka_records import BATCH_BYTES_MAX, Batch, TopicFacts, pack
from rolloutlog.eventstore.log.port import NewRecord, Stored

APPEND_S = 20.0
LEAVE_S = 3.0
LINGER_MS = 10  # for batches that are not full; ours are closed and leave at once
RETRY_MS = 50

logger = logging.getLogger(__name__)


def new_producer(cluster: Cluster, **options: Any) -> Any:
    """A producer as all of ours are: acknowledged by all in-sync replicas, idempotent, zstd."""
    make: Any = AIOKafkaProducer  # without types
    return make(
        **cluster.settings.client,
        acks="all",
        enable_idempotence=True,
        compression_type="zstd",
        max_batch_size=BATCH_BYTES_MAX,
        request_timeout_ms=int(REQUEST_S * 1000),
        retry_backoff_ms=RETRY_MS,
        **options,
    )


@dataclass
class _Shared:
    """A producer and how many requests run on it."""

    producer: Any
    users: int = 0
    in_doubt: bool = False


class Appender:
    """Appends for one log. Requests may run at once; each keeps its own order within a partition."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._shared: _Shared | None = None
        self._starting = asyncio.Lock()
        self._sends: set[asyncio.Task[None]] = set()
        self._stops: set[asyncio.Task[None]] = set()

    async def append(self, records: Sequence[NewRecord], facts: Mapping[str, TopicFacts]) -> list[Stored]:
        """Store checked records. Raises LogUnavailable when some may be stored and some not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + APPEND_S
        shared = await self._get()
        shared.users += 1
        places: list[Stored] = [Stored(-1, -1)] * len(records)
        lanes = pack(records, facts, shared.producer.create_batch)
        tasks = [
            asyncio.create_task(_send(shared.producer, topic, partition, lane, places))
            for (topic, partition), lane in lanes.items()
        ]
        self._sends.update(tasks)
        try:
            done, late = await asyncio.wait(tasks, timeout=deadline - loop.time())
            errors = [error for task in done if (error := _error_of(task)) is not None]
            if late or errors:
                self._doubt(shared)
                raise self._error(errors[0] if errors else TimeoutError(), records)
            return places
        finally:
            self._sends.difference_update(tasks)
            for task in tasks:
                task.add_done_callback(consume)
                task.cancel()
            shared.users -= 1
            if shared.in_doubt and not shared.users:
                self._discard(shared)

    async def close(self) -> None:
        """Give running requests a moment; then they end as unavailable."""
        if self._sends:
            _, late = await asyncio.wait(self._sends, timeout=LEAVE_S)
            for task in late:
                task.cancel()
        if self._shared is not None:
            self._discard(self._shared)
            self._shared = None
        if self._stops:
            await asyncio.wait(self._stops)

    async def _get(self) -> _Shared:
        async with self._starting:
            if self._shared is None:
                producer = new_producer(self._cluster, linger_ms=LINGER_MS)
                try:
                    await start(producer, within_s=APPEND_S)
                except (KafkaError, TimeoutError, OSError) as error:
                    raise self._cluster.error(error, "append", "nothing was stored; try again") from error
                self._shared = _Shared(producer)
            return self._shared

    def _doubt(self, shared: _Shared) -> None:
        shared.in_doubt = True
        if self._shared is shared:
            self._shared = None

    def _discard(self, shared: _Shared) -> None:
        task = asyncio.create_task(stop(shared.producer))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    def _error(self, error: BaseException, records: Sequence[NewRecord]) -> StoreError:
        topics = sorted({record.topic for record in records})
        what = f"append of {len(records)} records to {', '.join(topics)}"
        logger.warning("log %s: %s: %s; the producer is replaced", self._cluster.settings.url, what, describe(error))
        if isinstance(error, MessageSizeTooLargeError):
            self._cluster.forget(topics)  # the limit was lowered: the next try sees it
        found = f"log {self._cluster.settings.url}: {what}: {describe(error)}; some may be stored; append them again"
        result = LogUnavailable(found)  # also where a permission is missing: it may be granted, events must not be lost
        result.__cause__ = error
        return result


def _error_of(task: "asyncio.Task[None]") -> BaseException | None:
    return KafkaError("the log is being closed") if task.cancelled() else task.exception()


async def _send(producer: Any, topic: str, partition: int, lane: Sequence[Batch], places: list[Stored]) -> None:
    """Send one partition's batches in order and note where each record is now."""
    futures = []
    for batch in lane:
        future = await producer.send_batch(batch.builder, topic, partition=partition)
        future.add_done_callback(consume)
        futures.append(future)
    for batch, future in zip(lane, futures, strict=True):
        stored = await future
        if stored.offset < 0:
            raise KafkaError("stored before, at an offset that the broker no longer tells")
        for number, index in enumerate(batch.indexes):
            places[index] = Stored(stored.offset + number, stored.timestamp * 1_000_000)
