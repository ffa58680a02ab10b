"""The doctor on Apache Kafka: fresh, working, unreachable, and without rights."""

import asyncio
import uuid
from collections.abc import Iterator

import pytest
from aiokafka.protocol.admin import CreateAclsRequest
from support.processes import Command
from support.store import Store

from rolloutlog.consumers import doctor
from rolloutlog.consumers.doctor import FAILED, OK, SKIPPED, WARNING, Finding, examine
from rolloutlog.deploy.kafka import Broker, kafka_version
from rolloutlog.eventstore.log.kafka_cluster import Cluster
from rolloutlog.eventstore.log.kafka_health import LOSE_TRANSACTIONS, releases
from rolloutlog.eventstore.log.kafka_settings import kafka_settings

TOPIC, GROUP, TRANSACTIONAL_ID = 2, 3, 5  # Kafka's ResourceType
READ, WRITE = 3, 4  # AclOperation
LITERAL, DENY = 3, 2


@pytest.fixture
def url(kafka_bootstrap: str) -> str:
    return f"kafka://{kafka_bootstrap}/test-{uuid.uuid4().hex[:12]}"


async def findings(url: str) -> dict[str, Finding]:
    return {finding.name: finding async for finding in examine(url)}


@pytest.mark.kafka
async def test_doctor_of_a_prefix_without_topics_says_how_to_create_them(url: str):
    found = await findings(url)
    assert {name: each.outcome for name, each in found.items()} == {"reach": OK, "topics": FAILED, "others": SKIPPED}
    assert found["topics"].fix == f"rolloutlog topics create --log {url}"


@pytest.mark.kafka
def test_doctor_of_a_kafka_log_that_works_finds_nothing_wrong_and_moves_only_the_end_of_events(url: str):
    """Hosts measure lag by the end of batches: the doctor must not move it."""
    with Store(url, partitions=1) as store:
        found = store.run(findings(url))
        ends = {
            topic: store.run(store.log.ranges(topic, [0]))[0].written
            for topic in ("events", "batches", "dead-letters", "acks", "rewards")
        }
    assert {name: each.outcome for name, each in found.items()} == {
        "reach": OK,
        "topics": OK,
        "retention": OK,
        "run": OK,
        "rights": OK,
        "broker": OK,
        "disk": SKIPPED,
        "event": OK,
        "clock": OK,
        "assembler": WARNING,
        "trainer": WARNING,
    }
    assert ends == {"events": 1, "batches": 0, "dead-letters": 0, "acks": 0, "rewards": 0}


def test_doctor_of_servers_that_refuse_says_how_to_start_one():
    command = Command("doctor", "--log", "kafka://127.0.0.1:1/run")
    assert command.finish() == 3
    assert "none of the servers 127.0.0.1:1 answers: ConnectionRefusedError" in command.stdout
    assert "→ a broker for development: rolloutlog dev-broker --port 1 --prefix run\n" in command.stdout


@pytest.mark.kafka
async def test_releases_of_the_tests_broker_are_its_version(own_broker: Broker):
    assert await releases(f"kafka://{own_broker.bootstrap}/x") == {1: kafka_version().rpartition(".")[0]}


@pytest.mark.kafka
async def test_doctor_with_a_release_that_loses_transactions_warns(url: str, monkeypatch: pytest.MonkeyPatch):
    async def found(url: str) -> dict[int, str]:
        return {1: LOSE_TRANSACTIONS[0]}

    monkeypatch.setattr("rolloutlog.eventstore.log.kafka_health.releases", found)
    (finding,) = await doctor._broker(doctor._Case(None, url, int, (), 1))
    assert (finding.outcome, "broker 1: 4.3" in finding.text, "KAFKA-20734" in finding.fix) == (WARNING, True, True)


@pytest.fixture(scope="module")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Allows everyone everything that no rule speaks of."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with Broker.start(tmp_path_factory.mktemp("strict"), properties=properties) as broker:
        yield broker


async def deny(url: str, kind: int, name: str, operation: int) -> None:
    """A resource that a rule speaks of is closed to all it does not name."""
    cluster = await Cluster.connect(kafka_settings(url))
    node, _ = await cluster.brokers()
    await cluster.send_to(node, CreateAclsRequest(kind, name, LITERAL, "User:ANONYMOUS", "*", operation, DENY))
    await cluster.close()


async def rights_finding(url: str, *lacking: str) -> Finding:
    """The finding once the broker has taken the rules in."""
    async with asyncio.timeout(20):
        while True:
            found = (await findings(url))["rights"]
            if all(text in found.text for text in lacking):
                return found


@pytest.mark.kafka
def test_doctor_without_rights_names_each_resource_and_right(strict_broker: Broker):
    url = f"kafka://{strict_broker.bootstrap}/strict"
    with Store(url, partitions=1) as store:
        assert store.run(findings(url))["rights"].outcome == OK
        for rule in (
            (TOPIC, "strict.batches", WRITE),
            (GROUP, "strict.assembler", READ),
            (TRANSACTIONAL_ID, "strict.doctor", WRITE),
        ):
            store.run(deny(url, *rule))
        found = store.run(
            rights_finding(
                url,
                "Write, Describe, DescribeConfigs on topic strict.batches",
                "Read, Describe on group strict.assembler",
                "Write on transactional id strict.*",
            )
        )
    assert (found.outcome, found.fix.startswith("grant them: docs/deploy.md")) == (FAILED, True)
