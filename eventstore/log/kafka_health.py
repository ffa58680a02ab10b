"""What can be told about a Kafka cluster without leaving a trace in it: its brokers' versions, and this user's rights.

Versions  a broker names none; but the highest `metadata.version` that it supports rises with each release
Rights    the cluster itself says which operations it allows on each topic and group. Nothing is written: even an
          aborted transaction would move the end of `batches`, by which hosts measure how far trainers lag
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from aiokafka.errors import for_code
from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.types import (
    Array,
    Boolean,
    Bytes,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    String,
    TaggedFields,
)

from rolloutlog.eventstore.errors import StoreError
from rolloutlog.eventstore.log.kafka_appender import new_producer
from rolloutlog.eventstore.log.kafka_clients import stop
from rolloutlog.eventstore.log.kafka_cluster import GROUP_COORDINATOR, Cluster
from rolloutlog.eventstore.log.kafka_errors import NOT_ALLOWED
from rolloutlog.eventstore.log.kafka_settings import kafka_settings

DOCTOR = "doctor"  # the app whose transactional id is tried; it owns nothing

# The highest metadata.version that brokers of a release support, measured with each of them.
RELEASES: Mapping[int, str] = {25: "4.0", 27: "4.1", 29: "4.2", 30: "4.3", 31: "4.4", 32: "4.4", 33: "4.4"}
LOSE_TRANSACTIONS = ("4.3", "4.4")  # docs/decisions/0002
LEVEL = "metadata.version"
SUPPORTED_TAG = 0  # of the answer to ApiVersions: supported features
NO_FEATURES = b"\1"  # a compact array that is empty

# Numbers of Kafka's AclOperation: bits in the sets of allowed operations.
READ, WRITE, CREATE, DESCRIBE, DESCRIBE_CONFIGS = 3, 4, 5, 8, 10
NAMES: Mapping[int, str] = {
    READ: "Read",
    WRITE: "Write",
    CREATE: "Create",
    DESCRIBE: "Describe",
    DESCRIBE_CONFIGS: "DescribeConfigs",
}
TOPIC_RIGHTS = (READ, WRITE, DESCRIBE, DESCRIBE_CONFIGS)
GROUP_RIGHTS = (READ, DESCRIBE)


@dataclass(frozen=True, slots=True)
class Rights:
    """What this user may not do. `missing`: a resource in Kafka's words, such as `topic p.events` → rights it lacks."""

    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    may_create: bool = True


async def releases(url: str) -> dict[int, str]:
    """Node → release such as `4.2`; `?` for one that we don't know. Raises StoreError."""
    cluster = await Cluster.connect(kafka_settings(url))
    try:
        _, nodes = await cluster.brokers()
        levels = {node: await _level(cluster, node) for node in nodes}
    finally:
        await cluster.close()
    return {node: RELEASES.get(level, "?") for node, level in levels.items()}


async def rights(url: str, topics: Sequence[str], apps: Sequence[str]) -> Rights:
    """What this user lacks on the topics that exist, on the groups of `apps`, and on transactional ids. StoreError."""
    cluster = await Cluster.connect(kafka_settings(url))
    try:
        missing, may_create = await _topic_rights(cluster, topics)
        for app in apps:
            if lacking := await _group_rights(cluster, cluster.settings.group(app)):
                missing[f"group {cluster.settings.group(app)}"] = lacking
        if not await _may_own(cluster):
            missing[f"transactional id {cluster.settings.prefix}.*"] = (NAMES[WRITE],)
    finally:
        await cluster.close()
    return Rights(missing, may_create)


async def _level(cluster: Cluster, node: int) -> int:
    async def ask() -> int:
        answer = await cluster.send_to(node, _Versions())
        features = _FEATURES.decode(BytesIO(answer.tags.get(SUPPORTED_TAG, NO_FEATURES)))
        return max((newest for name, _, newest, _ in features if name == LEVEL), default=-1)

    return await cluster.ask(f"version of broker {node}", ask)


async def _topic_rights(cluster: Cluster, topics: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], bool]:
    names = [cluster.settings.full_name(topic) for topic in topics]
    node, _ = await cluster.brokers()

    async def ask() -> Any:
        return await cluster.send_to(node, _Allowed(names))

    answer = await cluster.ask("allowed operations", ask)
    missing = {}
    for code, name, _, _, allowed in answer.topics:
        if code and for_code(code) not in NOT_ALLOWED:
            continue  # it does not exist: another finding
        if lacking := _lacking(0 if code else allowed, TOPIC_RIGHTS):
            missing[f"topic {name}"] = lacking
    return missing, not _lacking(answer.allowed, (CREATE,))


async def _group_rights(cluster: Cluster, group: str) -> tuple[str, ...]:
    async def ask() -> tuple[str, ...]:
        node, _ = await cluster.brokers()
        found = await cluster.send_to(node, FindCoordinatorRequest(group, GROUP_COORDINATOR))
        if found.error_code:
            raise for_code(found.error_code)(group)
        answer = await cluster.send_to(found.coordinator_id, _Groups([group]))
        ((code, *_, allowed),) = answer.groups
        # A group in which nothing was committed yet is one that we can't be told about: its right is seen later.
        return () if code else _lacking(allowed, GROUP_RIGHTS)

    try:
        return await cluster.ask(f"group {group}", ask)
    except StoreError as error:
        if isinstance(error.__cause__, NOT_ALLOWED):
            return tuple(NAMES[right] for right in GROUP_RIGHTS)
        raise


async def _may_own(cluster: Cluster) -> bool:
    """Take a transactional id that no one else has, which stores nothing, and leave it."""
    producer = new_producer(cluster, transactional_id=cluster.settings.group(DOCTOR))

    async def ask() -> None:
        await producer.start()

    try:
        await cluster.ask("a transactional id", ask)
        return True
    except StoreError as error:
        if isinstance(error.__cause__, NOT_ALLOWED):
            return False
        raise
    finally:
        await stop(producer)


def _lacking(allowed: int, wanted: Sequence[int]) -> tuple[str, ...]:
    return tuple(NAMES[right] for right in wanted if not allowed >> right & 1)


# Requests in versions that the driver lacks. Source: the Kafka protocol guide.

_FEATURES: Any = CompactArray(
    ("name", CompactString("utf-8")), ("lowest", Int16), ("highest", Int16), ("tags", TaggedFields)
)


class _VersionsResponse(Response):
    API_KEY = 18
    API_VERSION = 3
    SCHEMA = Schema(
        ("error_code", Int16),
        ("keys", CompactArray(("key", Int16), ("lowest", Int16), ("highest", Int16), ("tags", TaggedFields))),
        ("throttle_ms", Int32),
        ("tags", TaggedFields),
    )


class _VersionsRequest(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 18
    API_VERSION = 3
    RESPONSE_TYPE = _VersionsResponse
    SCHEMA = Schema(("name", CompactString("utf-8")), ("version", CompactString("utf-8")), ("tags", TaggedFields))

    def parse_response_header(self, read_buffer: Any) -> ResponseHeader_v0:
        return ResponseHeader_v0.decode(read_buffer)  # of this request alone the answer's header has no tags


class _Versions(Request[_VersionsRequest]):
    API_KEY = 18

    def build(self, request_struct_class: type[_VersionsRequest]) -> _VersionsRequest:
        return request_struct_class("rolloutlog", "1", {})


class _AllowedResponse(Response):
    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_ms", Int32),
        ("brokers", Array(("node", Int32), ("host", String("utf-8")), ("port", Int32), ("rack", String("utf-8")))),
        ("cluster", String("utf-8")),
        ("controller", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("name", String("utf-8")),
                ("internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("epoch", Int32),
                        ("copies", Array(Int32)),
                        ("in_sync", Array(Int32)),
                        ("offline", Array(Int32)),
                    ),
                ),
                ("allowed", Int32),
            ),
        ),
        ("allowed", Int32),
    )


class _AllowedRequest(RequestStruct):
    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _AllowedResponse
    SCHEMA = Schema(
        ("topics", Array(String("utf-8"))), ("create", Boolean), ("of_cluster", Boolean), ("of_topics", Boolean)
    )


class _Allowed(Request[_AllowedRequest]):
    API_KEY = 3

    def __init__(self, topics: list[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[_AllowedRequest]) -> _AllowedRequest:
        return request_struct_class(self._topics, False, True, True)


class _GroupsResponse(Response):
    API_KEY = 15
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_ms", Int32),
        (
            "groups",
            Array(
                ("error_code", Int16),
                ("group", String("utf-8")),
                ("state", String("utf-8")),
                ("type", String("utf-8")),
                ("protocol", String("utf-8")),
                (
                    "members",
                    Array(
                        ("member", String("utf-8")),
                        ("client", String("utf-8")),
                        ("host", String("utf-8")),
                        ("metadata", Bytes),
                        ("assignment", Bytes),
                    ),
                ),
                ("allowed", Int32),
            ),
        ),
    )


class _GroupsRequest(RequestStruct):
    API_KEY = 15
    API_VERSION = 3
    RESPONSE_TYPE = _GroupsResponse
    SCHEMA = Schema(("groups", Array(String("utf-8"))), ("allowed", Boolean))


class _Groups(Request[_GroupsRequest]):
    API_KEY = 15

    def __init__(self, groups: list[str]) -> None:
        self._groups = groups

    def build(self, request_struct_class: type[_GroupsRequest]) -> _GroupsRequest:
        return request_struct_class(self._groups, True)
