"""Requests to a Kafka cluster beside producing and consuming: topics, offsets, committed positions.

One client serves all of them. Each request is tried again until its deadline, unless its error is final. The requests
are the protocol's own, because the driver's admin client creates topics that it is asked about, and reads a group-level
error in the answer to "which offset is committed?" as "none".

Not here  topics made and compared: eventstore.log.kafka_topics; records: the Kafka log's other modules
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from aiokafka import errors as kafka
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from rolloutlog.eventstore.errors import InvalidSettings, LogMissing, LogUnavailable, StoreError
from rolloutlog.eventstore.log.kafka_clients import stop
from rolloutlog.eventstore.log.kafka_errors import FINAL, NOT_ALLOWED, describe, our_error
from rolloutlog.eventstore.log.kafka_records import TopicFacts
from rolloutlog.eventstore.log.kafka_settings import KafkaSettings
from rolloutlog.eventstore.log.port import META, NONE_OFFSET, Position, Range

OPEN_S = 10.0  # until servers that do not answer are given up
ASK_S = 20.0  # a broker that restarts, or a leader that moves, is back by then
REQUEST_S = 10.0  # one request on one connection; below every deadline, so that a second one is tried
RETRY_S = (0.02, 0.5)  # first and longest pause before a request is sent again

EARLIEST, LATEST = -2, -1  # the times that stand for a partition's ends
ANY, COMMITTED = 0, 1  # isolation levels: up to the last record, or up to the first open transaction
NS_PER_MS = 1_000_000
TOPIC_RESOURCE = 2
GROUP_COORDINATOR = 0

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Cluster:
    """A connected cluster, as one log sees it. `facts` are kept: the partition count of a topic never changes."""

    def __init__(self, settings: KafkaSettings, client: Any) -> None:
        self.settings = settings
        self._client = client
        self._facts: dict[str, TopicFacts] = {}
        self._leaders: dict[str, dict[int, int]] = {}

    @classmethod
    async def connect(cls, settings: KafkaSettings) -> "Cluster":
        """Raises LogUnavailable naming the servers when none answers, InvalidSettings when they refuse the login."""
        new_client: Any = AIOKafkaClient  # without types
        client = new_client(**settings.client, client_id="rolloutlog", request_timeout_ms=int(REQUEST_S * 1000))
        try:
            # One after the other: a server that accepts and never answers takes a whole request's time.
            async with asyncio.timeout(OPEN_S + REQUEST_S * (len(settings.servers) - 1)):
                await client.bootstrap()
        except (KafkaError, TimeoutError, OSError) as error:
            await stop(client)
            raise await _why_not_open(settings, error) from error
        except BaseException:
            await stop(client)
            raise
        if len(settings.servers) > 1:
            # Later clients of this log begin with the cluster's own brokers: the driver tries a list in random order,
            # and one of it may be silent.
            known = [f"{broker.host}:{broker.port}" for broker in client.cluster.brokers()]
            settings = replace(settings, client={**settings.client, "bootstrap_servers": known})
        return cls(settings, client)

    async def close(self) -> None:
        await stop(self._client)

    async def topics(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Facts of topics, by our names. Raises LogMissing for one that does not exist."""
        names = list(dict.fromkeys(names))
        if missing := [name for name in names if name not in self._facts]:
            counts = await self.partition_counts(missing)
            for name in missing:
                if name not in counts:
                    raise self._missing(name)
            for name, configs in (await self.configs(missing)).items():
                self._facts[name] = self._checked_facts(name, counts[name], configs)
        return {name: self._facts[name] for name in names}

    def forget(self, names: Iterable[str]) -> None:
        """Ask again about these topics: the limit that is known of one was wrong."""
        for name in names:
            self._facts.pop(name, None)
            self._leaders.pop(self.settings.full_name(name), None)

    async def partitions(self, topic: str) -> int:
        """Partition count, asked anew. Raises LogMissing."""
        counts = await self.partition_counts([topic])
        if topic not in counts:
            raise self._missing(topic)
        return counts[topic]

    async def partition_counts(self, names: Sequence[str]) -> dict[str, int]:
        """Partition counts of those topics that exist, by our names."""
        leaders = await self.leaders(names)
        return {name: len(found) for name, found in leaders.items()}

    async def leaders(self, names: Sequence[str]) -> dict[str, dict[int, int]]:
        """Leader node by partition, -1 for none, of those topics that exist, by our names."""

        async def ask() -> dict[str, dict[int, int]]:
            full = {self.settings.full_name(name): name for name in names}
            answer = await self._send(MetadataRequest(list(full), allow_auto_topic_creation=False))
            found: dict[str, dict[int, int]] = {}
            for code, topic, _, partitions in answer.topics:
                error = for_code(code)
                if error is kafka.UnknownTopicOrPartitionError:
                    continue
                if error not in (kafka.NoError, kafka.LeaderNotAvailableError):
                    raise error(topic)
                found[full[topic]] = {partition: leader for _, partition, leader, *_ in partitions}
            self._leaders |= {self.settings.full_name(name): leaders for name, leaders in found.items()}
            return found

        return await self.ask(f"metadata of {', '.join(names)}", ask)

    async def brokers(self) -> tuple[int, list[int]]:
        """The controller's node and all nodes that serve."""

        async def ask() -> tuple[int, list[int]]:
            answer = await self._send(MetadataRequest([], allow_auto_topic_creation=False))
            nodes = [broker[0] for broker in answer.brokers]
            return (answer.controller_id if answer.controller_id in nodes else nodes[0]), nodes

        return await self.ask("the list of brokers", ask)

    async def configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Settings of topics that exist, by our names."""

        async def ask() -> dict[str, dict[str, str]]:
            full = {self.settings.full_name(name): name for name in names}
            resources = [(TOPIC_RESOURCE, topic, None) for topic in full]
            answer = await self._send(DescribeConfigsRequest(resources, False))
            found = {}
            for code, message, _, topic, entries in answer.resources:
                if code:
                    raise for_code(code)(message or topic)
                found[full[topic]] = {name: value for name, value, *_ in entries}
            return found

        return await self.ask(f"settings of {', '.join(names)}", ask)

    async def ranges(self, topic: str, partitions: Sequence[int]) -> dict[int, Range]:
        """First offset, the end that a reader can reach (where the first open transaction starts), and the last end."""
        first, end, written = await asyncio.gather(
            self.offsets(topic, partitions, EARLIEST, COMMITTED),
            self.offsets(topic, partitions, LATEST, COMMITTED),
            self.offsets(topic, partitions, LATEST, ANY),
        )
        ends = {p: max(first[p], end[p]) for p in partitions}
        return {p: Range(first[p], ends[p], max(ends[p], written[p])) for p in partitions}

    async def offsets(self, topic: str, partitions: Sequence[int], time: int, isolation: int) -> dict[int, int]:
        full_name = self.settings.full_name(topic)

        async def ask() -> dict[int, int]:
            by_node: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for partition in partitions:
                by_node[await self._leader(topic, partition)].append((partition, time))
            requests = [
                self._send(OffsetRequest(-1, isolation, [(full_name, wanted)]), node)
                for node, wanted in by_node.items()
            ]
            found = {}
            for answer in await asyncio.gather(*requests):
                for _, results in answer.topics:
                    for partition, code, _, offset in results:
                        if code:
                            raise for_code(code)(f"{topic}/{partition}")
                        found[partition] = offset
            return found

        return await self.ask(f"offsets of {topic}", ask, topic=topic)

    async def offsets_at(self, topic: str, partitions: Sequence[int], time_ns: int) -> dict[int, int]:
        """Of each partition the first offset with a log time of `time_ns` or later that a reader can reach, if any."""
        time_ms = max(0, -(-time_ns // NS_PER_MS))  # log times are whole milliseconds; below 0 stands for the ends
        found = await self.offsets(topic, partitions, time_ms, COMMITTED)
        return {p: offset for p, offset in found.items() if offset != NONE_OFFSET}

    async def committed(self, app: str, topic: str, partitions: Sequence[int]) -> dict[int, Position]:
        """The positions in the app's group. One without an entry only when the coordinator says that there is none.

        Source  research/streaming-peers.md §0, 6: an answer without the partition is an error; offset -1 is "none"
        """
        group, full_name = self.settings.group(app), self.settings.full_name(topic)

        async def ask() -> dict[int, Position]:
            found = await self._send(FindCoordinatorRequest(group, GROUP_COORDINATOR))
            if found.error_code:
                raise for_code(found.error_code)(group)
            answer = await self._send(OffsetFetchRequest(group, [(full_name, list(partitions))]), found.coordinator_id)
            if getattr(answer, "error_code", 0):
                raise for_code(answer.error_code)(group)
            positions = {}
            for name, results in answer.topics:
                for number, offset, metadata, code in results:
                    if code:
                        raise for_code(code)(f"{name}/{number}")
                    if name == full_name:
                        positions[number] = Position(offset, metadata or "")
            if not positions.keys() >= set(partitions):
                raise KafkaError("the answer lacks a partition")
            return {p: positions[p] for p in partitions if positions[p].offset != NONE_OFFSET}

        which = f"{topic}/{partitions[0]}" if len(partitions) == 1 else f"{len(partitions)} partitions of {topic}"
        return await self.ask(f"position of {app} in {which}", ask, final=())

    async def fetch(self, topic: str, partition: int, offset: int, *, bytes_max: int) -> tuple[Any, bytes]:
        """Committed batches from `offset` on as stored bytes, and the aborted transactions among them."""
        wanted = [(self.settings.full_name(topic), [(partition, offset, bytes_max)])]

        async def ask() -> tuple[Any, bytes]:
            request = FetchRequest(1_000, 1, bytes_max, COMMITTED, wanted)
            answer = await self._send(request, await self._leader(topic, partition))
            ((_, ((_, code, _, *rest),)),) = answer.topics
            if code:
                raise for_code(code)(f"{topic}/{partition}")
            return rest[2 if answer.API_VERSION >= 11 else -2], rest[-1]

        return await self.ask(f"records of {topic}/{partition} at {offset}", ask, topic=topic)

    async def ask(
        self,
        what: str,
        attempt: Callable[[], Awaitable[T]],
        *,
        topic: str | None = None,
        final: tuple[type[Exception], ...] = FINAL,
        within_s: float = ASK_S,
    ) -> T:
        """Repeat `attempt` until it succeeds, its error is final, or the time is over: LogUnavailable."""
        pause_s, last = RETRY_S[0], None
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        return await attempt()
                    except final as error:
                        raise self.error(error, what, "nothing was changed") from error
                    except (KafkaError, OSError) as error:
                        last = error
                        logger.debug("%s: %s; again in %g s", what, describe(error), pause_s)
                    if topic is not None:
                        self._leaders.pop(self.settings.full_name(topic), None)
                    self._client.force_metadata_update().add_done_callback(_ignore)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, RETRY_S[1])
        except TimeoutError as error:
            raise self.error(last or error, what, f"no other answer within {within_s:g} s; try again") from (
                last or error
            )

    def error(self, error: BaseException, what: str, outcome: str, *, maybe_stored: bool = False) -> StoreError:
        """An error of ours that names this log. Requests of this module store no records."""
        return our_error(error, f"log {self.settings.url}: {what}", outcome, maybe_stored=maybe_stored)

    async def send_to(self, node: int | None, request: Any) -> Any:
        """One request to one node, None = any, not repeated. For `attempt`s of others."""
        return await self._send(request, node)

    async def _send(self, request: Any, node: int | None = None) -> Any:
        node = self._client.get_random_node() if node is None else node
        if node is None:
            raise kafka.NodeNotReadyError("no broker is known")
        return await self._client.send(node, request)

    async def _leader(self, topic: str, partition: int) -> int:
        full_name = self.settings.full_name(topic)
        if full_name not in self._leaders and topic not in await self.leaders([topic]):
            raise self._missing(topic)
        leaders = self._leaders[full_name]
        if partition not in leaders:
            raise InvalidSettings(f"topic {topic}: expected a partition from 0 to {len(leaders) - 1}, got {partition}")
        if leaders[partition] < 0:
            raise kafka.LeaderNotAvailableError(f"{topic}/{partition}")
        return leaders[partition]

    def _missing(self, topic: str) -> LogMissing:
        url = self.settings.url
        return LogMissing(f"log {url}: it has no topic {topic}; make it with `rolloutlog topics create --log {url}`")

    def _checked_facts(self, name: str, partitions: int, configs: Mapping[str, str]) -> TopicFacts:
        full_name = self.settings.full_name(name)
        if configs["message.timestamp.type"] != "LogAppendTime":
            raise InvalidSettings(
                f"log {self.settings.url}, topic {name}: expected message.timestamp.type LogAppendTime, got "
                f"{configs['message.timestamp.type']}; set it on {full_name}: hosts' clocks must not decide the order"
            )
        if name != META and "compact" in configs["cleanup.policy"]:
            raise InvalidSettings(
                f"log {self.settings.url}, topic {name}: expected cleanup.policy delete, got "
                f"{configs['cleanup.policy']}; set it on {full_name}: compaction would keep one record of each group"
            )
        return TopicFacts(name, full_name, partitions, int(configs["max.message.bytes"]))


async def _why_not_open(settings: KafkaSettings, error: BaseException) -> StoreError:
    """Ask the first server once more: bootstrap only says that it failed, not why."""
    cause = error
    options = {name: value for name, value in settings.client.items() if name != "bootstrap_servers"}
    host, _, port = settings.servers[0].rpartition(":")
    if not isinstance(error, TimeoutError):
        try:
            async with asyncio.timeout(OPEN_S / 2):
                connect: Any = create_conn  # without types
                connection = await connect(host, int(port), **options)
                connection.close()
        except (KafkaError, TimeoutError, OSError) as found:
            cause = found
        except Exception as found:  # the driver's checks of its arguments are of any kind
            return InvalidSettings(f"log {settings.url}: {describe(found)}")
    servers = ", ".join(settings.servers)
    if isinstance(cause, NOT_ALLOWED):
        return InvalidSettings(
            f"log {settings.url}: the servers {servers} refused the login by {options.get('sasl_mechanism')}: "
            f"{describe(cause)}; check user, password and mechanism"
        )
    return LogUnavailable(
        f"log {settings.url}: none of the servers {servers} answers: {describe(cause)}; check that Kafka runs there "
        "and that security_protocol fits"
    )


def _ignore(future: "asyncio.Future[Any]") -> None:
    with suppress(asyncio.CancelledError, Exception):
        future.result()
