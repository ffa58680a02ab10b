"""An output's topic leaves a Kafka cluster, and so does the group in which its app's positions are kept.

Rights    Delete on the topic and on the group
Not here  which topics may go: eventstore.log.limits
"""

import asyncio

from aiokafka import errors as kafka
from aiokafka.errors import for_code
from aiokafka.protocol.admin import DeleteGroupsRequest, DeleteTopicsRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest

from rolloutlog.eventstore.log.kafka_cluster import GROUP_COORDINATOR, Cluster

DROP_S = 30.0  # the brokers' time to remove it, and ours to see that it is gone
POLL_S = 0.05


async def drop_topic(cluster: Cluster, topic: str, app: str) -> bool:
    """Remove a topic, and the positions of `app`. Returns whether the topic was there."""
    await _forget_positions(cluster, app)
    controller, _ = await cluster.brokers()
    full_name = cluster.settings.full_name(topic)

    async def attempt() -> bool:
        answer = await cluster.send_to(controller, DeleteTopicsRequest([full_name], int(DROP_S * 1000)))
        ((_, code),) = answer.topic_error_codes
        error = for_code(code)
        if error is kafka.UnknownTopicOrPartitionError:
            return False
        if error is not kafka.NoError:
            raise error(full_name)
        return True

    async def gone() -> None:
        if topic in await cluster.leaders([topic]):
            await asyncio.sleep(POLL_S)
            raise kafka.KafkaError(f"{full_name} is still there")

    there = await cluster.ask(f"deleting {full_name}", attempt, within_s=DROP_S)
    await cluster.ask(f"deleting {full_name}", gone, within_s=DROP_S)
    cluster.forget([topic])
    return there


async def _forget_positions(cluster: Cluster, app: str) -> None:
    group = cluster.settings.group(app)

    async def attempt() -> None:
        found = await cluster.send_to(None, FindCoordinatorRequest(group, GROUP_COORDINATOR))
        if found.error_code:
            raise for_code(found.error_code)(group)
        answer = await cluster.send_to(found.coordinator_id, DeleteGroupsRequest([group]))
        ((_, code),) = answer.results
        if for_code(code) not in (kafka.NoError, kafka.GroupIdNotFound):
            raise for_code(code)(group)

    await cluster.ask(f"deleting group {group}", attempt, within_s=DROP_S)
