"""The owner of a partition or a whole topic on Kafka: one transactional producer, by whose id Kafka fences older ones.

A commit takes these steps, each with a deadline:

  1 begin    no request
  2 store    every batch is sent and every answer awaited, the positions beside them: the driver would commit a
             transaction although records in it failed
  3 commit   from here on the result is unknown until the answer is there
  4 visible  wait until readers see the records, which the brokers arrange only after they have answered

A failure in 2 aborts: nothing is stored. After any failure the producer is thrown away and the owner unusable. A commit
runs in a task of its own, which a cancelled caller leaves running: broken off, it would leave the producer in between.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from rolloutlog.eventstore.errors import Fenced, RecordTooLarge, StoreError
from rolloutlog.eventstore.log.kafka_appender import new_producer
from rolloutlog.eventstore.log.kafka_clients import consume, start, stop
from rolloutlog.eventstore.log.kafka_cluster import COMMITTED, LATEST, Cluster
from rolloutlog.eventstore.log.kafka_errors import describe
from rolloutlog.eventstore.log.kafka_records import Batch, Lanes, TopicFacts, check_records, pack
from rolloutlog.eventstore.log.limits import check_positions, owned_name
from rolloutlog.eventstore.log.port import NewRecord, Position

TRANSACTION_S = 15.0  # a dead owner's open transaction holds readers back for so long, and one second more
OWN_S = 30.0  # until an older owner's transaction has ended
STORE_S = 12.0  # below TRANSACTION_S, so that we abort before the broker does
COMMIT_S = 12.0
ABORT_S = 3.0
LEAVE_S = 3.0  # for a commit that runs while its owner is closed, as long as it can still be aborted
VISIBLE_S = 5.0
OTHERS_S = 0.5  # of VISIBLE_S when another owner's open transaction hides our records
POLL_S = (0.001, 0.02)

Key = tuple[str, str, int | None]  # app, topic, partition

logger = logging.getLogger(__name__)


class KafkaOwner:
    """Made by `take_over`. One commit runs at a time."""

    def __init__(
        self,
        cluster: Cluster,
        producer: Any,
        key: Key,
        owned: Sequence[int],
        on_close: Callable[["KafkaOwner"], None],
    ) -> None:
        self._cluster = cluster
        self._producer = producer
        self._app, self._topic, self._partition = key
        self._owned = owned
        self._name = f"owner of {owned_name(self._topic, self._partition)} for {self._app}"
        self._on_close = on_close
        self._turn = asyncio.Lock()
        self._committed: dict[int, Position] = {}  # by this owner
        self._unusable = ""
        self._leaving = self._ending = False
        self._running: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def positions(self) -> Mapping[int, Position]:
        # What we committed ourselves is known. To ask could bring the one before: brokers answer a commit first and
        # move the offset a moment later. What older owners did is final, since fencing them waited for that moment.
        others = [partition for partition in self._owned if partition not in self._committed]
        found = await self._cluster.committed(self._app, self._topic, others) if others else {}
        return found | self._committed

    async def commit(self, records: Sequence[NewRecord], positions: Mapping[int, Position]) -> None:
        positions = dict(positions)
        check_positions(self._name, positions, self._owned)
        facts = await self._cluster.topics(record.topic for record in records)
        check_records(records, facts)
        async with self._turn:
            if self._unusable:
                raise StoreError(f"{self._name}: {self._unusable}; nothing was stored; take a new owner with `own`")
            self._running = asyncio.create_task(self._commit(records, facts, positions))
            self._running.add_done_callback(consume)
            try:
                await asyncio.shield(self._running)
            except asyncio.CancelledError:
                self._unusable = "the result of an earlier commit is unknown"
                raise

    async def close(self) -> None:
        """Let a commit that runs end, or abort it when it is not that far; then stop the producer."""
        self._leaving = True
        if self._running is not None:
            await asyncio.wait([self._running], timeout=LEAVE_S)
            if not self._ending:
                self._running.cancel()
            await asyncio.wait([self._running], timeout=COMMIT_S)
        self._unusable = self._unusable or "it is closed"
        self._on_close(self)
        self._discard()
        assert self._stopping is not None
        await asyncio.shield(self._stopping)

    async def _commit(
        self, records: Sequence[NewRecord], facts: Mapping[str, TopicFacts], positions: Mapping[int, Position]
    ) -> None:
        producer, loop = self._producer, asyncio.get_running_loop()
        began, self._ending = loop.time(), False
        try:
            lanes = pack(records, facts, producer.create_batch)
            async with asyncio.timeout(STORE_S):
                await producer.begin_transaction()
                spans = await self._store(lanes, positions)
            if self._leaving:
                raise KafkaError("the owner is being closed")
            self._ending = True
            async with asyncio.timeout(COMMIT_S):
                # Without records and positions there is nothing to commit, but it shows whether we are fenced.
                await (producer.commit_transaction() if lanes or positions else producer.abort_transaction())
        except (Exception, asyncio.CancelledError) as error:  # `close` cancels
            self._unusable = "an earlier commit failed"
            if not self._ending:
                await self._abort()
            self._discard()
            raise self._error(error, records, loop.time() - began) from error
        self._committed |= positions
        await self._wait_until_visible(facts, spans)

    async def _store(self, lanes: Lanes, positions: Mapping[int, Position]) -> dict[tuple[str, int], tuple[int, int]]:
        """Send all; returns each partition's first and last offset once all are there."""
        if not lanes:
            await self._send_positions(positions)
            return {}
        sends: list[Any] = [self._send_lane(*key, lane) for key, lane in lanes.items()]
        if positions:
            sends.append(self._send_positions(positions))
        # All of them, also after one failed: what is left alone would be logged as an error that nobody took.
        results: list[Any] = await asyncio.gather(*sends, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise next((error for error in errors if isinstance(error, ProducerFenced)), errors[0])
        return dict(zip(lanes, results, strict=False))

    async def _send_lane(self, topic: str, partition: int, lane: Sequence[Batch]) -> tuple[int, int]:
        futures = []
        for batch in lane:
            future = await self._producer.send_batch(batch.builder, topic, partition=partition)
            future.add_done_callback(consume)
            futures.append(future)
        offsets = [(await future).offset for future in futures]
        return offsets[0], offsets[-1] + len(lane[-1].indexes) - 1

    async def _send_positions(self, positions: Mapping[int, Position]) -> None:
        """Without any a placeholder is sent, for a transaction that is aborted."""
        full_name = self._cluster.settings.full_name(self._topic)
        offsets = {
            TopicPartition(full_name, partition): OffsetAndMetadata(*position)
            for partition, position in (positions or {self._owned[0]: Position(0, "")}).items()
        }
        await self._producer.send_offsets_to_transaction(offsets, self._cluster.settings.group(self._app))

    async def _abort(self) -> None:
        with suppress(Exception):  # the state may allow no abort any more; the broker does it after TRANSACTION_S
            async with asyncio.timeout(ABORT_S):
                await self._producer.abort_transaction()

    def _discard(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.create_task(stop(self._producer))

    def _error(self, error: BaseException, records: Sequence[NewRecord], took_s: float) -> StoreError:
        if isinstance(error, asyncio.CancelledError):
            error = KafkaError("the owner is being closed")
        # A transaction that outlives its timeout is fenced by the broker without any newer owner.
        if isinstance(error, ProducerFenced) and took_s < TRANSACTION_S:
            return Fenced(
                f"{self._name}: a newer owner took over (transactional id "
                f"{self._cluster.settings.transactional_id(self._app, self._topic, self._partition)}); nothing of this "
                "transaction was stored; stop this process"
            )
        topics = sorted({record.topic for record in records})
        what = f"{self._name}: commit of {len(records)} records to {', '.join(topics) or 'no topic'}"
        if isinstance(error, MessageSizeTooLargeError):
            self._cluster.forget(topics)
            return RecordTooLarge(
                f"{what}: a topic's max.message.bytes was lowered meanwhile: {describe(error)}; nothing of this "
                "transaction was stored; take a new owner with `own`"
            )
        outcome = "the result is unknown" if self._ending else "nothing of this transaction was stored"
        return self._cluster.error(
            error, what, f"{outcome}; take a new owner with `own`, whose positions tell", maybe_stored=self._ending
        )

    async def _wait_until_visible(
        self, facts: Mapping[str, TopicFacts], spans: Mapping[tuple[str, int], tuple[int, int]]
    ) -> None:
        """Return once a committed reader can read all that was committed, or it is another owner who prevents it."""
        loop = asyncio.get_running_loop()
        began, pause_s = loop.time(), POLL_S[0]
        waiting = {topic.name: {p: span for (name, p), span in spans.items() if name == topic.full_name}
                   for topic in facts.values()}  # fmt: skip
        with suppress(TimeoutError, StoreError):  # it is committed in any case
            async with asyncio.timeout(VISIBLE_S):
                while waiting := {topic: left for topic, left in waiting.items() if left}:
                    hidden_by_others = True
                    for topic, left in waiting.items():
                        ends = await self._cluster.offsets(topic, list(left), LATEST, COMMITTED)
                        waiting[topic] = {p: span for p, span in left.items() if ends[p] <= span[1]}
                        hidden_by_others &= all(ends[p] < span[0] for p, span in waiting[topic].items())
                    if hidden_by_others and loop.time() - began > OTHERS_S:
                        return
                    if any(waiting.values()):
                        await asyncio.sleep(pause_s)
                        pause_s = min(2 * pause_s, POLL_S[1])


async def take_over(
    cluster: Cluster, key: Key, owned: Sequence[int], on_close: Callable[[KafkaOwner], None]
) -> KafkaOwner:
    """Fence older owners: when this returns, none of their transactions is open or can be committed."""
    app, topic, partition = key
    producer = new_producer(
        cluster,
        transactional_id=cluster.settings.transactional_id(app, topic, partition),
        transaction_timeout_ms=int(TRANSACTION_S * 1000),
    )
    try:
        await start(producer, within_s=OWN_S)
    except (KafkaError, TimeoutError, OSError) as error:
        raise cluster.error(
            error,
            f"becoming the owner of {owned_name(topic, partition)} for {app}",
            "older owners may be fenced; try again",
        ) from error
    return KafkaOwner(cluster, producer, key, owned, on_close)
