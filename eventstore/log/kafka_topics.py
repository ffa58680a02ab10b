"""Topics of a Kafka log: made with the settings that carry our guarantees, and compared with what is wanted.

Log time is the broker's (`LogAppendTime`). With three brokers or more a record is on two of them before it is
acknowledged; with one there is one copy.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiokafka import errors as kafka
from aiokafka.errors import for_code
from aiokafka.protocol.admin import CreateTopicsRequest

from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log.kafka_cluster import Cluster
from rolloutlog.eventstore.log.kafka_records import FRAMING_BYTES
from rolloutlog.eventstore.log.port import Difference, TopicSettings

CREATE_S = 30.0  # the brokers' time to make them, and ours to see them
POLL_S = 0.02
COPIES_MAX = 3
SEGMENT_MS = 6 * 3600 * 1000  # of compacted topics: the newest segment is never compacted, and readers scan all of it
SEGMENT_BYTES = 32 * 2**20
NAME_CHARS_MAX = 249  # of a topic, Kafka's


async def create_topics(cluster: Cluster, topics: Iterable[TopicSettings]) -> list[str]:
    """Create those that are missing and return their names, once all have leaders."""
    wanted = _checked(cluster, topics)
    controller, nodes = await cluster.brokers()
    by_full_name = {cluster.settings.full_name(topic.name): topic for topic in wanted}
    existing = await cluster.leaders([topic.name for topic in wanted]) if wanted else {}
    missing = [topic for topic in wanted if topic.name not in existing]
    requests = [_new_topic(cluster.settings.full_name(topic.name), topic, len(nodes)) for topic in missing]

    async def attempt() -> list[str]:
        answer = await cluster.send_to(controller, CreateTopicsRequest(requests, int(CREATE_S * 1000), False))
        made = []
        for name, code, *message in answer.topic_errors:
            error = for_code(code)
            if error is kafka.NoError:
                made.append(by_full_name[name].name)
            elif error is not kafka.TopicAlreadyExistsError:
                raise error(f"{name}: {message[0]}" if message and message[0] else name)
        return made

    made = await cluster.ask(f"creating {', '.join(by_full_name)}", attempt, within_s=CREATE_S) if requests else []
    await _wait_for_leaders(cluster, [topic.name for topic in wanted])
    cluster.forget(made)
    return made


async def find_differences(cluster: Cluster, topics: Iterable[TopicSettings]) -> list[Difference]:
    wanted = list(topics)
    counts = await cluster.partition_counts([topic.name for topic in wanted]) if wanted else {}
    configs = await cluster.configs(list(counts)) if counts else {}
    result = []
    for topic in wanted:
        if topic.name not in counts:
            result.append(Difference(topic.name, "partitions", str(topic.partitions), None))
            continue
        expected = {**_shown(topic), "message.timestamp.type": "LogAppendTime"}
        found = _found(counts[topic.name], configs[topic.name])
        result += [
            Difference(topic.name, name, value, found[name]) for name, value in expected.items() if value != found[name]
        ]
    return result


def _shown(topic: TopicSettings) -> dict[str, str]:
    return {name: str(getattr(topic, name)) for name in ("partitions", "retention_s", "record_bytes_max", "cleanup")}


def _found(partitions: int, configs: Mapping[str, str]) -> dict[str, str]:
    retention_ms = int(configs["retention.ms"])
    return {
        "partitions": str(partitions),
        "retention_s": "None" if retention_ms < 0 else f"{retention_ms / 1000:.15g}",
        "record_bytes_max": str(int(configs["max.message.bytes"]) - FRAMING_BYTES),
        "cleanup": configs["cleanup.policy"],
        "message.timestamp.type": configs["message.timestamp.type"],
    }


def _new_topic(full_name: str, topic: TopicSettings, brokers_count: int) -> Any:
    copies = min(COPIES_MAX, brokers_count)
    configs = {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": topic.cleanup,
        "retention.ms": str(-1 if topic.retention_s is None else topic.retention_s * 1000),
        "max.message.bytes": str(topic.record_bytes_max + FRAMING_BYTES),
        "min.insync.replicas": str(2 if copies == COPIES_MAX else 1),
    }
    if topic.cleanup == "compact":
        configs |= {"segment.ms": str(SEGMENT_MS), "segment.bytes": str(SEGMENT_BYTES)}
    return full_name, topic.partitions, copies, [], list(configs.items())


def _checked(cluster: Cluster, topics: Iterable[TopicSettings]) -> list[TopicSettings]:
    wanted = list(topics)
    for topic in wanted:
        name = cluster.settings.full_name(topic.name)
        if not topic.name or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
            raise InvalidSettings(f"topic {topic.name!r}: expected ASCII letters, digits, . _ - in prefix and name")
        if len(name) > NAME_CHARS_MAX:
            raise InvalidSettings(f"topic {name}: expected at most {NAME_CHARS_MAX} characters with prefix")
        if min(topic.partitions, topic.record_bytes_max, topic.retention_s or 1) < 1:
            raise InvalidSettings(f"topic {topic.name}: expected counts, seconds and bytes from 1, got {topic}")
        if topic.cleanup not in ("delete", "compact"):
            raise InvalidSettings(f"topic {topic.name}: expected cleanup delete or compact, got {topic.cleanup!r}")
    return wanted


async def _wait_for_leaders(cluster: Cluster, names: Sequence[str]) -> None:
    async def attempt() -> None:
        leaders = await cluster.leaders(names)
        missing = [name for name in names if min(leaders.get(name, {}).values(), default=-1) < 0]
        if missing:
            await asyncio.sleep(POLL_S)
            raise kafka.LeaderNotAvailableError(", ".join(missing))

    if names:
        await cluster.ask(f"leaders of {', '.join(names)}", attempt, within_s=CREATE_S)
