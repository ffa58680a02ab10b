"""The log on Apache Kafka: topics `{prefix}.{topic}`, positions in group `{prefix}.{app}`, fencing by transactional id.

It keeps every promise of the port, on aiokafka. Facts about that driver and Kafka on which this rests are shown in
tests/integration/test_broker_gate.py and tests/log/test_kafka.py; each workaround names its fault.

append  one idempotent producer, acknowledged by all in-sync replicas        eventstore.log.kafka_appender
own     one transactional producer an input partition, or a whole topic      eventstore.log.kafka_owner
read    committed records only, by hand-assigned consumers                   eventstore.log.kafka_reader
Rights  a user needs Describe, DescribeConfigs, Read and Write on the topics, Write on the transactional ids and Read on
        the groups `{prefix}.*`, IdempotentWrite; `topics create` needs Create, dropping an output Delete on
        its topic and group
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from rolloutlog.eventstore.errors import StoreError
from rolloutlog.eventstore.log.kafka_appender import Appender
from rolloutlog.eventstore.log.kafka_cluster import Cluster
from rolloutlog.eventstore.log.kafka_drop import drop_topic
from rolloutlog.eventstore.log.kafka_owner import KafkaOwner, take_over
from rolloutlog.eventstore.log.kafka_reader import KafkaReader, open_reader
from rolloutlog.eventstore.log.kafka_records import check_partition, check_records
from rolloutlog.eventstore.log.kafka_settings import kafka_settings
from rolloutlog.eventstore.log.kafka_topics import create_topics, find_differences
from rolloutlog.eventstore.log.limits import check_droppable
from rolloutlog.eventstore.log.port import Difference, NewRecord, Range, Stored, TopicSettings


class KafkaLog:
    """A log on a Kafka cluster. One client for requests, one producer for appends; owners and readers bring theirs."""

    def __init__(self, cluster: Cluster) -> None:
        self.url = cluster.settings.url
        self._cluster = cluster
        self._appender = Appender(cluster)
        self._parts: set[KafkaOwner | KafkaReader] = set()
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> "KafkaLog":
        """Connect to the cluster that `url` names.

        Raises  InvalidSettings for an option that is unknown or unusable, or a refused login; LogUnavailable when no
                server answers
        """
        return cls(await Cluster.connect(kafka_settings(url)))

    async def create(self, topics: Iterable[TopicSettings]) -> list[str]:
        self._check_open()
        return await create_topics(self._cluster, topics)

    async def drop(self, topic: str, *, app: str) -> bool:
        self._check_open()
        check_droppable(topic)
        return await drop_topic(self._cluster, topic, app)

    async def differences(self, topics: Iterable[TopicSettings]) -> list[Difference]:
        self._check_open()
        return await find_differences(self._cluster, topics)

    async def partitions(self, topic: str) -> int:
        self._check_open()
        return await self._cluster.partitions(topic)

    async def append(self, records: Sequence[NewRecord]) -> list[Stored]:
        self._check_open()
        if not records:
            return []
        facts = await self._cluster.topics(record.topic for record in records)
        check_records(records, facts)
        return await self._appender.append(records, facts)

    async def ranges(self, topic: str, partitions: Iterable[int]) -> Mapping[int, Range]:
        self._check_open()
        wanted = list(partitions)
        facts = (await self._cluster.topics([topic]))[topic]
        for partition in wanted:
            check_partition(facts, partition)
        return await self._cluster.ranges(topic, wanted)

    async def offsets_at(self, topic: str, partitions: Iterable[int], time_ns: int) -> Mapping[int, int]:
        wanted = list(partitions)
        ends = await self.ranges(topic, wanted)
        found = await self._cluster.offsets_at(topic, wanted, time_ns)
        return {p: found.get(p, ends[p].end) for p in wanted}

    async def reader(self, topic: str, offsets: Mapping[int, int]) -> KafkaReader:
        self._check_open()
        reader = await open_reader(self._cluster, topic, offsets, self._parts.discard)
        self._parts.add(reader)
        return reader

    async def own(self, app: str, topic: str, partition: int | None) -> KafkaOwner:
        self._check_open()
        facts = (await self._cluster.topics([topic]))[topic]
        if partition is not None:
            check_partition(facts, partition)
        owned = range(facts.partitions) if partition is None else [partition]
        owner = await take_over(self._cluster, (app, topic, partition), owned, self._parts.discard)
        self._parts.add(owner)
        return owner

    async def close(self) -> None:
        """Close this log and the owners and readers made from it, all within a time. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(self._appender.close(), *(part.close() for part in self._parts), return_exceptions=True)
        await self._cluster.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"log {self.url}: it is closed")
