"""deploy/kafka/acls.sh on a broker that asks for a login: each role can do its work, and not another's."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.protocol.admin import CreateAclsRequest
from support.processes import Command

from rolloutlog.consumers.trainer import BatchStream
from rolloutlog.deploy.kafka import Broker
from rolloutlog.deploy.kafka.broker import HOST, free_port
from rolloutlog.eventstore import EventPublisher
from rolloutlog.eventstore.errors import StoreError
from rolloutlog.eventstore.log import NewRecord, open_log
from rolloutlog.eventstore.log.kafka_cluster import Cluster
from rolloutlog.eventstore.log.kafka_health import rights
from rolloutlog.eventstore.log.kafka_settings import kafka_settings

pytestmark = pytest.mark.kafka

SCRIPT = Path(__file__).resolve().parents[2] / "deploy/kafka/acls.sh"
PREFIX = "run1"
ROLES = ("host", "assembler", "trainer", "replay", "archive", "operator")
PASSWORD = "secret"

# Kafka's numbers of what the tool takes by name.
RESOURCES = {"--topic": 2, "--group": 3, "--transactional-id": 5}
PATTERNS = {"literal": 3, "prefixed": 4}
OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8, "DescribeConfigs": 10}
ALLOW = 3


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, int]]:
    """A broker that allows nothing but what a rule allows, and the port on which it asks for a login."""
    port = free_port()
    users = " ".join(f'user_{role}="{PASSWORD}"' for role in ROLES)
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    properties = {
        # The broker itself and its administrator come in by the port without a login.
        "listeners": f"BROKER://{{broker}},USERS://{HOST}:{port},CONTROLLER://{{controller}}",
        "advertised.listeners": f"BROKER://{{broker}},USERS://{HOST}:{port}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,USERS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.users.plain.sasl.jaas.config": f"{login} required {users};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with Broker.start(tmp_path_factory.mktemp("strict"), properties=properties) as started:
        yield started, port


@pytest.fixture(scope="module")
def urls(broker: tuple[Broker, int]) -> dict[str, str]:
    """A URL for each role, once the script's rules hold. Passwords come from the environment."""
    started, port = broker
    rules = [rule for role in ROLES for rule in script(role)]
    assert len(rules) > 30
    asyncio.run(grant(f"kafka://{started.bootstrap}/{PREFIX}", rules))
    login = "security_protocol=SASL_PLAINTEXT&sasl_mechanism=PLAIN&sasl_plain_username"
    return {role: f"kafka://{HOST}:{port}/{PREFIX}?{login}={role}" for role in ROLES}


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUTLOG_KAFKA_SASL_PASSWORD", PASSWORD)


def script(role: str) -> list[tuple[int, str, int, str, str, int, int]]:
    """What the script would have the tool do, as the protocol says it."""
    done = subprocess.run(
        [SCRIPT, PREFIX, role, f"User:{role}"], env={"KAFKA_ACLS": "echo"}, capture_output=True, text=True, check=True
    )
    rules = []
    for line in done.stdout.splitlines():
        words = line.split()
        given = dict(zip(words[1::2], words[2::2], strict=True))  # after --add
        ((kind, name),) = ((RESOURCES[word], given[word]) for word in RESOURCES if word in given)
        operations = [words[at + 1] for at, word in enumerate(words) if word == "--operation"]
        rules += [
            (kind, name, PATTERNS[given["--resource-pattern-type"]], f"User:{role}", "*", OPERATIONS[each], ALLOW)
            for each in operations
        ]
    return rules


async def grant(url: str, rules: list[tuple[int, str, int, str, str, int, int]]) -> None:
    cluster = await Cluster.connect(kafka_settings(url))
    node, _ = await cluster.brokers()
    for rule in rules:
        answer = await cluster.send_to(node, CreateAclsRequest(*rule))
        assert not answer.creation_responses[0][0], rule
    await cluster.close()


def command(*arguments: str, path: Path | None = None) -> Command:
    started = Command(*arguments, path=path, kafka_sasl_password=PASSWORD)
    assert started.finish() == 0, started.stderr + started.stdout
    return started


def test_rights_of_each_role_are_enough_for_its_work(urls: dict[str, str], tmp_path: Path):
    command("topics", "create", "--partitions", "1", "--log", urls["operator"])
    doctor = command("doctor", "--log", urls["operator"])
    assert "ok       rights     describe, read and write on all topics, groups and transactional ids" in doctor.stdout

    with EventPublisher.open(urls["host"]) as events:
        with events.rollout(group=events.group(task_id="t", size=1), policy_version=0) as rollout:
            with rollout.call(model="policy") as call:
                call.record(prompt_ids=[1], response_ids=[2], logprobs=[-0.5])
            rollout.finish(reward=1.0)
        events.flush()
        assemble = command("assemble", "--until-end", "--log", urls["assembler"])
        assert assemble.stdout.startswith("1 batches, 1 samples ")

        with BatchStream.open(
            urls["trainer"], groups_per_step=1, max_staleness=None, missing_reward="exclude", wait_s=30.0
        ) as stream:
            stream.set_policy_version(0)
            step = stream.next_step()
            stream.ack(step, policy_version=1)
        assert events.policy_version() == 1
    command("status", "--ledger", "--log", urls["operator"])

    (tmp_path / "judges.py").write_text(
        "from rolloutlog.consumers.scoring import Reward\n\ndef judge(rollout):\n    return Reward(0.5, name='judge')\n"
    )
    scored = ("--scorer", "judges:judge", "--record")
    replay = command("replay", "--log", urls["replay"], "--output", "judged", *scored, path=tmp_path)
    assert replay.stdout.startswith("judged: 1 groups, ")
    assert command("outputs", "--log", urls["replay"]).printed[1].split()[:3] == ["judged", "complete", "1"]
    with BatchStream.open(
        urls["trainer"], output="judged", groups_per_step=1, max_staleness=None, missing_reward="exclude", wait_s=30.0
    ) as stream:
        stream.ack(stream.next_step(), policy_version=1)
        assert stream.next_step() is None
    archive = command("archive", "--log", urls["archive"], "--to", str(tmp_path / "archive"), "--until-end")
    assert archive.finish() == 0


@pytest.mark.parametrize(
    ("role", "topic"),
    [
        ("host", "batches"),
        ("host", "meta"),
        ("trainer", "events"),
        ("assembler", "acks"),
        ("replay", "events"),
        ("replay", "batches"),
        ("archive", "meta"),
    ],
)
async def test_rights_of_a_role_do_not_reach_to_anothers_topics(urls: dict[str, str], role: str, topic: str):
    command("topics", "create", "--log", urls["operator"])
    found = await rights(urls[role], [topic], [])
    assert "Write" in found.missing[f"topic {PREFIX}.{topic}"]
    assert not found.may_create


async def test_rights_of_a_host_do_not_let_it_fence_an_assembler(urls: dict[str, str]):
    command("topics", "create", "--log", urls["operator"])
    log = await open_log(urls["host"])
    with pytest.raises(StoreError, match="the cluster does not allow this user to do it"):
        await log.own("assembler", "events", 0)
    with pytest.raises(StoreError):
        await log.append([NewRecord("batches", 0, b"", b"")])
    await log.close()


def test_acls_script_with_an_unknown_role_says_what_it_takes():
    done = subprocess.run([SCRIPT, "p", "nobody", "User:x"], capture_output=True, text=True, check=False)
    assert (done.returncode, "host|assembler|trainer|replay|archive|operator" in done.stderr) == (2, True)
