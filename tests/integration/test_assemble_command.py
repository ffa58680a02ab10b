"""`rolloutlog assemble` as a process: what it reads, when it refuses to start, how it stops."""

import sqlite3
import time
import uuid
from zlib import crc32

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from support.building import reward, started
from support.processes import Command, assemble, wait_until
from support.store import Store
from support.workload import (
    assert_same,
    make_workload,
    new_record,
    outputs_expected,
    outputs_of,
    whole_group,
)

from rolloutlog.consumers.position import FORMAT, Progress, from_position, to_position
from rolloutlog.consumers.settings import FOLD_VERSION
from rolloutlog.eventstore import EventPublisher, InvalidSettings
from rolloutlog.eventstore.log import BATCHES, DEAD_LETTERS, EVENTS, NewRecord, Position, Record
from rolloutlog.eventstore.topics import topic_settings

from .conftest import NewUrl

pytestmark = pytest.mark.timeout(120)

EXIT_USAGE, EXIT_LOG, EXIT_STOPPED = 2, 3, 5
LATENCY_S_MAX = 15.0  # a commit is due 0.2 s after a group closes; the rest is for a busy machine
BATCH_BYTES_BIG = 5_000


def _run(store: Store, *arguments: str, code: int = 0, **settings: object) -> Command:
    command = assemble(store.url, *arguments, **settings)
    assert command.finish() == code, f"{command.stdout}\n{command.stderr}"
    return command


def _groups(store: Store) -> list[str]:
    return [batch.group_id for batch in store.batches()]


def _again(records: list[Record]) -> list[NewRecord]:
    return [NewRecord(each.topic, each.partition, each.key, each.value, each.headers) for each in records]


# What is read


def test_assemble_until_end_publishes_whole_groups_and_counts_open_rollouts(store: Store) -> None:
    half = whole_group("half", rollouts=2)[:5]
    store.append([*whole_group("whole", rollouts=2), *half])
    command = _run(store, "--partitions", "all")
    assert command.stdout == (
        "1 batches, 2 samples (0 without reward), 0 dead letters; rollouts: 2 emitted, 1 still open in 1 groups; "
        "rewards: 2 final\n"
    )
    position = store.position(0)
    assert position is not None
    # L: nothing is forgotten yet, the first group's closing is not read back; P: all that was there is read
    assert from_position(position, where="") == Progress(0, 13)


def test_assemble_of_an_empty_log_commits_and_exits_0(store: Store) -> None:
    command = _run(store)
    assert command.stdout == (
        "0 batches, 0 samples (0 without reward), 0 dead letters; rollouts: none closed, 0 still open in 0 groups; "
        "rewards: none\n"
    )
    assert [store.position(partition) is not None for partition in range(store.partitions)] == [True] * 4


def test_assemble_of_some_partitions_leaves_the_others(store: Store) -> None:
    for partition in range(store.partitions):
        store.append(whole_group(f"g{partition}", partition=partition))
    _run(store, "--partitions", "0-1")
    assert _groups(store) == ["g0", "g1"]
    _run(store, "--partitions", "1/2")
    assert _groups(store) == ["g0", "g1", "g3"]


@pytest.mark.parametrize("wrong", ["0-4", "2/2"])
def test_assemble_of_wrong_partitions_exits_2_and_says_what_is_expected(embedded: Store, wrong: str) -> None:
    command = _run(embedded, "--partitions", wrong, code=EXIT_USAGE)
    assert "--partitions: expected all, ranges such as 0-3 within 0-3, or i/n with i below n" in command.stderr
    assert f"got {wrong!r}" in command.stderr


def test_assemble_of_a_missing_log_exits_3_and_says_how_to_make_it(new_url: NewUrl) -> None:
    command = assemble(new_url())
    assert command.finish() == EXIT_LOG
    assert "rolloutlog topics create" in command.stderr


def test_three_assemblers_of_disjoint_partitions_publish_everything_once(store: Store) -> None:
    records = make_workload(5, groups=40).records
    store.append(records)
    commands = [assemble(store.url, "--partitions", f"{share}/3") for share in range(3)]
    assert [command.finish() for command in commands] == [0, 0, 0]
    assert_same(outputs_of(store), outputs_expected(records), "three assemblers")


# Live


def test_live_assembler_publishes_a_new_group_within_seconds(store: Store) -> None:
    command = assemble(store.url, until_end=False)
    for partition in range(store.partitions):
        command.wait_for_steps(partition, "receive")
    store.append(whole_group("new"))
    took_s = wait_until(lambda: _groups(store) == ["new"], "the group published", LATENCY_S_MAX)
    print(f"published and read {took_s:.2f} s after its last event was stored")
    command.terminate()
    assert command.finish() == 0, command.stderr


def test_live_assembler_on_sigterm_commits_what_it_has_read_and_exits_0(store: Store) -> None:
    """The big group is committed for its size; the small one, received with it, waits an hour, or for the stop."""
    store.append([*whole_group("big", tokens=BATCH_BYTES_BIG // 4), *whole_group("small")])
    command = assemble(
        store.url, until_end=False, commit_interval_s=60, position_interval_s=3600, commit_bytes=BATCH_BYTES_BIG
    )
    wait_until(lambda: "big" in _groups(store), "the big group published")
    command.terminate()
    assert command.finish() == 0, command.stderr
    assert _groups(store) == ["big", "small"]
    assert command.stdout.startswith("2 batches, 2 samples")
    _run(store)
    assert _groups(store) == ["big", "small"]


# Positions that it may not continue from


def _metadata(text: str) -> str:
    return f"{text}:{crc32(text.encode()):08x}"


FOREIGN = "someone else's"
EDITED = _metadata(f"{FORMAT}:0:{FOLD_VERSION}:-")[:-1] + "x"
NEWER_FORMAT = _metadata(f"{FORMAT + 1}:0:what:comes:then")
OTHER_FOLD = _metadata(f"{FORMAT}:4:{FOLD_VERSION + 1}:-")


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (FOREIGN, "Reset the group's offsets to publish everything again from there"),
        (EDITED, "Reset the group's offsets to publish everything again from there"),
        (NEWER_FORMAT, f"expected format {FORMAT}, got {FORMAT + 1}"),
    ],
    ids=["foreign", "edited", "newer_format"],
)
def test_assemble_from_a_position_it_can_not_read_refuses_to_start(embedded: Store, metadata: str, said: str) -> None:
    _check_refused(embedded, metadata, said)


def test_assemble_from_a_position_of_another_fold_version_refuses_to_start(store: Store) -> None:
    _check_refused(
        store, OTHER_FOLD, "Let the version that began finish them: run its `rolloutlog assemble --until-set"
    )


def _check_refused(store: Store, metadata: str, said: str) -> None:
    store.append(whole_group("g"))
    store.commit_position(0, Position(0, metadata))
    command = _run(store, code=EXIT_STOPPED)
    assert "position of assembler, partition 0 of events" in command.stderr
    assert said in command.stderr
    assert _groups(store) == []
    assert store.position(0) == Position(0, metadata)


def test_assemble_from_a_position_above_the_end_refuses_to_start(store: Store) -> None:
    """Everything up to it would be taken for published: a topic made anew, or one that lost its end."""
    store.append(whole_group("whole"))
    store.commit_position(0, to_position(Progress(1_000, 1_000)))
    command = _run(store, "--partitions", "0", code=EXIT_STOPPED)
    assert "where the log ends, got 1000: the topic was made anew, or lost its end" in command.stderr
    assert store.batches() == []


@pytest.mark.kafka
def test_assemble_until_end_waits_for_what_stands_behind_an_open_transaction(kafka_bootstrap: str) -> None:
    with Store(f"kafka://{kafka_bootstrap}/test-{uuid.uuid4().hex[:12]}") as store:
        topic = f"{store.url.rpartition('/')[2]}.events"
        producer = store.run(_open_transaction(kafka_bootstrap, topic))
        store.append(whole_group("behind"))
        command = assemble(store.url, "--partitions", "0")
        command.wait_for_steps(0, "receive", count=5)
        assert store.batches() == []
        store.run(_end_transaction(producer))
        assert command.finish() == 0, command.stderr
        assert _groups(store) == ["behind"]


@pytest.mark.kafka
def test_compacted_events_are_refused_before_any_is_recorded(kafka_bootstrap: str) -> None:
    with Store(f"kafka://{kafka_bootstrap}/test-{uuid.uuid4().hex[:12]}") as store:
        topic = f"{store.url.rpartition('/')[2]}.events"
        store.run(_compact(kafka_bootstrap, topic))
        wanted = topic_settings(partitions=store.partitions)
        # A broker answers before it has heard of the change itself.
        wait_until(lambda: "cleanup" in str(store.run(store.log.differences(wanted))), "the topic to be compacted")
        with pytest.raises(InvalidSettings, match=r"expected cleanup\.policy delete, got compact"):
            EventPublisher.open(store.url)
        assert "expected cleanup.policy delete" in _run(store, code=EXIT_USAGE).stderr


async def _open_transaction(bootstrap: str, topic: str) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=uuid.uuid4().hex)
    await producer.start()
    await producer.begin_transaction()
    await (await producer.send(topic, b"foreign", key=b"k", partition=0))
    return producer


async def _end_transaction(producer: AIOKafkaProducer) -> None:
    await producer.commit_transaction()
    await producer.stop()


async def _compact(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        wanted = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}  # all others become defaults
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=wanted)
        await admin.alter_configs([resource])
    finally:
        await admin.close()


def test_assemble_from_a_position_with_emptied_metadata_warns_and_publishes_again(store: Store) -> None:
    store.append([*whole_group("first"), *whole_group("second")])
    _run(store)
    once = store.batches()
    store.commit_position(0, Position(4, ""))
    command = _run(store)
    assert "metadata was emptied; outputs from offset 4 on are published again" in command.stderr
    again = store.batches()[len(once) :]
    assert [batch.batch_id for batch in again] == [batch.batch_id for batch in once if batch.group_id == "second"]


def test_assemble_without_a_position_publishes_nothing_again_that_is_out(store: Store, new_url: NewUrl) -> None:
    """A log whose topics were copied, but not what the assembler committed."""
    workload = make_workload(3, groups=30).records
    store.append(workload)
    _run(store)
    with Store(new_url()) as copy:
        for topic in (EVENTS, BATCHES, DEAD_LETTERS):
            copy.append(_again(store.records(topic)))
        _run(copy)
        assert _again(copy.records(BATCHES)) == _again(store.records(BATCHES))
        assert _again(copy.dead_letters()) == _again(store.dead_letters())
        more = [*whole_group("more-0", partition=0), *whole_group("more-3", partition=3)]
        copy.append(more)
        _run(copy)
        assert sorted(set(_groups(copy)) - set(_groups(store))) == ["more-0", "more-3"]
        assert_same(outputs_of(copy), outputs_expected([*workload, *more]), "a copied log")


# Lost history


@pytest.fixture
def cut_store(store: Store) -> Store:
    """A log whose oldest open group was cut off by retention, after the group behind it was published."""
    half = [new_record(started("half-r0", group_id="half", group_size=1), key="half")]
    store.append([*half, *whole_group("before")])
    _run(store)
    store.append(whole_group("after"))
    store.cut(EVENTS, 0, 1)
    return store


def test_assemble_when_needed_events_are_gone_exits_5_and_says_what_to_do(cut_store: Store) -> None:
    command = _run(cut_store, code=EXIT_STOPPED)
    assert "partition 0 of events: events 0-0 are gone, where the committed position begins" in command.stderr
    assert "--on-history-lost skip" in command.stderr
    assert _groups(cut_store) == ["before"]


def test_assemble_when_needed_events_are_gone_and_skipped_goes_on(cut_store: Store) -> None:
    command = _run(cut_store, "--on-history-lost", "skip")
    assert "events 0-0 are gone" in command.stderr
    assert _groups(cut_store) == ["before", "after"]


# Too much that is bad


def test_assemble_of_too_many_bad_events_in_a_row_exits_5_and_names_a_reason(store: Store) -> None:
    bad = [new_record(reward(sequence, value=float("nan")), key="g") for sequence in range(1, 7)]
    bad = [new_record(started(group_size=1), key="g"), *bad]
    store.append([*whole_group("before"), *bad, *whole_group("after")])
    command = _run(store, code=EXIT_STOPPED, dead_letters_in_row=5)
    assert "5 events in a row" in command.stderr
    assert "expected a finite number or null, got nan at $.value" in command.stderr
    assert "after" not in _groups(store)
    _run(store, dead_letters_in_row=50)
    assert _groups(store) == ["before", "after"]
    assert len(store.dead_letters()) == 6


def test_assemble_stopped_while_the_log_does_not_answer_ends_in_time(embedded: Store) -> None:
    """Another process may hold the file's lock for long: a stop must not wait for it."""
    path = embedded.url.removeprefix("sqlite:///")
    lock = sqlite3.connect(path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    try:
        command = assemble(embedded.url, until_end=False)
        command.wait_for_steps(0, "fence")
        began = time.monotonic()
        command.terminate()
        assert command.finish() == EXIT_LOG, command.stderr
        assert time.monotonic() - began < 20
        assert "gave no answer within 6 s of the stop" in command.stderr
    finally:
        lock.execute("ROLLBACK")
        lock.close()
