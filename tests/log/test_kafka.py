"""What the Kafka log does beyond the port's promises: faults of broker, driver and owners, settings and limits."""

import asyncio
import gc
import logging
import os
import random
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from rolloutlog.deploy.kafka import Broker
from rolloutlog.eventstore.errors import (
    Fenced,
    InvalidSettings,
    LogMissing,
    LogUnavailable,
    OffsetOutOfRange,
    RecordTooLarge,
    StoreError,
)
from rolloutlog.eventstore.log import (
    BATCHES,
    DEAD_LETTERS,
    EVENTS,
    Difference,
    Log,
    NewRecord,
    Position,
    Reader,
    Record,
    TopicSettings,
    kafka_appender,
    kafka_cluster,
    kafka_owner,
    kafka_reader,
    open_log,
)
from rolloutlog.eventstore.log.kafka import KafkaLog
from rolloutlog.eventstore.log.kafka_clients import stop
from rolloutlog.eventstore.log.kafka_owner import KafkaOwner
from rolloutlog.eventstore.log.kafka_records import FRAMING_BYTES
from rolloutlog.eventstore.log.kafka_settings import kafka_settings

kafka = pytest.mark.kafka
pytestmark = pytest.mark.timeout(180)

OpenLog = Callable[..., Awaitable[KafkaLog]]

MIB = 1024 * 1024
TOPICS = [TopicSettings(name, 2, 86_400, 8 * MIB) for name in (EVENTS, BATCHES, DEAD_LETTERS)]
DEADLINE_S = 40.0
WRITER = Path(__file__).with_name("writer.py")


@pytest.fixture
async def open_at() -> AsyncIterator[OpenLog]:
    """Open the Kafka log of a URL; all are closed at the end."""
    opened: list[Log] = []

    async def open_(url: str) -> KafkaLog:
        log = await open_log(url)
        assert isinstance(log, KafkaLog)
        opened.append(log)
        return log

    yield open_
    for log in opened:
        await log.close()


@pytest.fixture
async def log(kafka_bootstrap: str, open_at: OpenLog) -> KafkaLog:
    """A new log with topics events, batches and dead-letters."""
    log = await open_at(f"kafka://{kafka_bootstrap}/test-{uuid.uuid4().hex[:12]}")
    await log.create(TOPICS)
    return log


@pytest.fixture
async def broker(own_broker: Broker) -> Broker:
    """A broker that the test may kill, running."""
    if own_broker.pid is None:
        await asyncio.to_thread(own_broker.restart)
    return own_broker


@pytest.fixture
async def log_at_broker(broker: Broker, open_at: OpenLog) -> KafkaLog:
    log = await open_at(f"kafka://{broker.bootstrap}/test-{uuid.uuid4().hex[:12]}")
    await log.create(TOPICS)
    return log


# owners


@kafka
async def test_commit_parked_while_a_newer_owner_takes_over_stores_nothing(log: KafkaLog, open_at: OpenLog) -> None:
    """All of the older one's records and its position are with the broker; only the last request is missing."""
    older = await log.own("app", EVENTS, 0)
    parked, go_on = park(older)
    commit = asyncio.create_task(older.commit([record(b"older")], {0: Position(7, "older")}))
    await asyncio.wait_for(parked.wait(), DEADLINE_S)
    newer = await (await open_at(log.url)).own("app", EVENTS, 0)
    assert await newer.positions() == {}
    go_on.set()
    with pytest.raises(Fenced, match="owner of events/0 for app: a newer owner took over"):
        await commit
    assert await newer.positions() == {}
    await newer.commit([record(b"newer")], {0: Position(1, "newer")})
    assert values(await read_all(log, BATCHES)) == [b"newer"]


@kafka
async def test_commit_of_nothing_by_a_fenced_owner_is_fenced(log: KafkaLog, open_at: OpenLog) -> None:
    older = await log.own("app", EVENTS, 0)
    await older.commit([], {})
    newer = await (await open_at(log.url)).own("app", EVENTS, 0)
    with pytest.raises(Fenced):
        await older.commit([], {})
    assert await newer.positions() == {}


@kafka
async def test_commit_of_nothing_keeps_the_position(log: KafkaLog) -> None:
    owner = await log.own("app", EVENTS, 0)
    await owner.commit([], {0: Position(5, "kept")})
    await owner.commit([], {})
    await owner.close()
    assert await (await log.own("app", EVENTS, 0)).positions() == {0: Position(5, "kept")}


@kafka
async def test_commit_with_a_record_that_the_broker_refuses_stores_nothing(log: KafkaLog) -> None:
    """The driver's own commit succeeds without that record."""
    owner = await log.own("app", EVENTS, 0)
    await owner.commit([record(b"a")], {0: Position(1, "a")})
    await set_topic(log, BATCHES, "max.message.bytes", "20000")
    big = os.urandom(50_000)
    with pytest.raises(RecordTooLarge, match=r"batches.*max\.message\.bytes was lowered.*nothing of this transaction"):
        await owner.commit([record(b"b"), record(big), record(b"c", 1)], {0: Position(2, "b")})
    with pytest.raises(StoreError, match="take a new owner"):
        await owner.commit([record(b"d")], {0: Position(3, "d")})
    owner = await log.own("app", EVENTS, 0)
    assert await owner.positions() == {0: Position(1, "a")}
    with pytest.raises(RecordTooLarge, match=f"at most {20_000 - FRAMING_BYTES} bytes"):
        await owner.commit([record(big)], {0: Position(2, "b")})
    await owner.commit([record(b"e")], {0: Position(4, "e")})
    assert values(await read_all(log, BATCHES)) == [b"a", b"e"]
    assert values(await read_all(log, BATCHES, 1)) == []


@kafka
async def test_commit_whose_caller_is_cancelled_ends_whole_and_leaves_the_owner_unusable(log: KafkaLog) -> None:
    owner = await log.own("app", EVENTS, 0)
    parked, go_on = park(owner)
    commit = asyncio.create_task(owner.commit([record(b"a"), record(b"b", 1)], {0: Position(1, "a")}))
    await asyncio.wait_for(parked.wait(), DEADLINE_S)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    with pytest.raises(StoreError, match="result of an earlier commit is unknown"):
        await owner.commit([], {0: Position(2, "")})
    go_on.set()
    await owner.close()
    assert await (await log.own("app", EVENTS, 0)).positions() == {0: Position(1, "a")}
    assert values(await read_all(log, BATCHES)) == [b"a"]
    assert values(await read_all(log, BATCHES, 1)) == [b"b"]


@kafka
@pytest.mark.parametrize("error_code", [0, 14, 15, 16, 30])
async def test_position_with_an_answer_that_lacks_it_is_asked_again(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch, error_code: int
) -> None:
    """Brokers put such errors at the group's level, with no partition; read as "none", everything starts at 0."""
    owner = await log.own("app", EVENTS, 0)
    await owner.commit([], {0: Position(15, "kept")})
    newer = await log.own("app", EVENTS, 0)
    asked = fake_offset_fetch(monkeypatch, log, error_code, times=3)
    assert await newer.positions() == {0: Position(15, "kept")}
    assert len(asked) == 4


@kafka
async def test_position_that_cannot_be_read_is_log_unavailable(log: KafkaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = await log.own("app", EVENTS, 0)
    monkeypatch.setattr(
        kafka_cluster.Cluster.ask, "__kwdefaults__", {**kafka_cluster.Cluster.ask.__kwdefaults__, "within_s": 0.5}
    )
    fake_offset_fetch(monkeypatch, log, 14, times=10_000)
    with pytest.raises(LogUnavailable, match=r"position of app in events/0.*GroupLoadInProgress"):
        await owner.positions()


@kafka
async def test_position_metadata_comes_back_to_another_process_in_full(log: KafkaLog) -> None:
    metadata = "1 18446744073709551615 " + "x" * 77
    owner = await log.own("app", EVENTS, 1)
    await owner.commit([], {1: Position(2**40, metadata)})
    code = (
        "import asyncio, sys; from rolloutlog.eventstore.log import *\n"
        "async def main():\n"
        "    log = await open_log(sys.argv[1]); owner = await log.own('app', EVENTS, 1)\n"
        "    print((await owner.positions())[1]); await log.close()\n"
        "asyncio.run(main())"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, log.url, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert output.decode().strip() == repr(Position(2**40, metadata))


@kafka
async def test_owners_of_logs_with_other_prefixes_leave_each_other_alone(log: KafkaLog, open_at: OpenLog) -> None:
    other = await open_at(f"{log.url}-b")
    await other.create(TOPICS)
    owners = [await log.own("app", EVENTS, 0), await other.own("app", EVENTS, 0)]
    for round_ in range(2):
        for number, owner in enumerate(owners):
            await owner.commit([record(b"%d" % number)], {0: Position(round_, str(number))})
    assert [await owner.positions() for owner in owners] == [{0: Position(1, "0")}, {0: Position(1, "1")}]
    assert values(await read_all(log, BATCHES)) == [b"0", b"0"]
    assert values(await read_all(other, BATCHES)) == [b"1", b"1"]


@kafka
async def test_records_of_an_owner_that_died_stay_invisible_and_hold_readers_for_its_timeout_only(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_owner, "TRANSACTION_S", 3.0)
    owner = await log.own("app", EVENTS, 0)
    parked, _ = park(owner)
    commit = asyncio.create_task(owner.commit([record(b"dead")], {0: Position(1, "")}))
    await asyncio.wait_for(parked.wait(), DEADLINE_S)
    start = time.monotonic()
    await stop(owner._producer)  # as death does, this leaves the transaction open
    await log.append([record(b"alive")])
    range_ = (await log.ranges(BATCHES, [0]))[0]
    assert range_.end == 0  # a reader up to the end has nothing to wait for
    reader = await log.reader(BATCHES, {0: 0})
    assert values(await take(reader, 1)) == [b"alive"]
    assert 1.0 < time.monotonic() - start < 3.0 + 5.0
    commit.cancel()


@kafka
async def test_owner_closed_during_a_commit_aborts_it(log: KafkaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = await log.own("app", EVENTS, 0)
    stored, go_on = asyncio.Event(), asyncio.Event()
    store = owner._store

    async def store_and_wait(*arguments: Any) -> Any:
        result = await store(*arguments)
        stored.set()
        await go_on.wait()
        return result

    monkeypatch.setattr(owner, "_store", store_and_wait)
    commit = asyncio.create_task(owner.commit([record(b"a")], {0: Position(1, "")}))
    await asyncio.wait_for(stored.wait(), DEADLINE_S)
    closing = asyncio.create_task(owner.close())
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait_for(closing, DEADLINE_S)
    with pytest.raises(LogUnavailable, match="being closed; nothing of this transaction was stored"):
        await commit
    await log.append([record(b"after")])
    start = time.monotonic()
    assert values(await take(await log.reader(BATCHES, {0: 0}), 1)) == [b"after"]
    assert time.monotonic() - start < kafka_owner.TRANSACTION_S / 2  # no open transaction hides it


# a broker's life


@kafka
async def test_broker_restarted_during_appends_loses_none(broker: Broker, log_at_broker: KafkaLog) -> None:
    log, acknowledged, stopping = log_at_broker, [], asyncio.Event()

    async def append(worker: int) -> None:
        number = 0
        while not stopping.is_set():
            value = b"%d/%d" % (worker, number)
            try:
                await log.append([NewRecord(EVENTS, worker, b"key", value)])
            except LogUnavailable:
                continue
            acknowledged.append(value)
            number += 1

    workers = [asyncio.create_task(append(worker)) for worker in (0, 1)]
    await until(lambda: len(acknowledged) > 20)
    await asyncio.to_thread(broker.restart)
    before = len(acknowledged)
    await until(lambda: len(acknowledged) > before + 20)
    stopping.set()
    await asyncio.gather(*workers)
    for worker in (0, 1):
        found = values(await read_all(log, EVENTS, worker))
        assert list(dict.fromkeys(found)) == [value for value in acknowledged if value.startswith(b"%d/" % worker)]


@kafka
async def test_owner_without_its_broker_is_unavailable_and_a_new_one_goes_on(
    broker: Broker, log_at_broker: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_owner, "STORE_S", 2.0)
    log = log_at_broker
    owner = await log.own("app", EVENTS, 0)
    await owner.commit([record(b"a")], {0: Position(1, "a")})
    await asyncio.to_thread(broker.kill)
    with pytest.raises(LogUnavailable, match="nothing of this transaction was stored; take a new owner") as caught:
        await owner.commit([record(b"b")], {0: Position(2, "b")})
    assert not caught.value.maybe_stored
    with pytest.raises(StoreError, match="an earlier commit failed"):
        await owner.commit([record(b"b")], {0: Position(2, "b")})
    await asyncio.to_thread(broker.restart)
    owner = await log.own("app", EVENTS, 0)
    assert await owner.positions() == {0: Position(1, "a")}
    await owner.commit([record(b"b")], {0: Position(2, "b")})
    assert values(await read_all(log, BATCHES)) == [b"a", b"b"]


@kafka
async def test_broker_killed_during_commits_keeps_records_and_position_together(
    broker: Broker, log_at_broker: KafkaLog
) -> None:
    seed = 7
    print("seed", seed)
    random_ = random.Random(seed)
    log, next_ = log_at_broker, 1
    for round_ in range(3):
        owner = await log.own("app", EVENTS, 0)
        acknowledged = next_ - 1
        killed = asyncio.create_task(kill_and_restart(broker, random_.random() * 0.4))
        try:
            while not killed.done() or acknowledged < next_ + 3:
                number = acknowledged + 1
                await owner.commit([record(b"%d" % number, p) for p in (0, 1)], {0: Position(number, str(number))})
                acknowledged = number
        except LogUnavailable:
            pass
        await killed
        position = (await (await log.own("app", EVENTS, 0)).positions()).get(0)
        assert position is not None or acknowledged == 0
        last = position.offset if position else 0
        assert acknowledged <= last <= acknowledged + 1, f"seed {seed}, round {round_}"
        for partition in (0, 1):
            found = [int(value or b"") for value in values(await read_all(log, BATCHES, partition))]
            assert found == list(range(1, last + 1)), f"seed {seed}, round {round_}"
        next_ = last + 1


@kafka
async def test_append_without_broker_is_unavailable_within_its_deadline(
    broker: Broker, log_at_broker: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's batches would wait for ever."""
    monkeypatch.setattr(kafka_appender, "APPEND_S", 1.0)
    log = log_at_broker
    await log.append([record(b"a")])
    await asyncio.to_thread(broker.kill)
    start = time.monotonic()
    with pytest.raises(
        LogUnavailable, match="append of 1 records to batches: no answer in time; some may be stored"
    ) as sent:
        await log.append([record(b"b")])
    assert time.monotonic() - start < 5.0
    assert sent.value.maybe_stored
    with pytest.raises(LogUnavailable) as not_sent:
        await log.append([record(b"b")])
    assert not not_sent.value.maybe_stored
    await asyncio.to_thread(broker.restart)
    monkeypatch.setattr(kafka_appender, "APPEND_S", DEADLINE_S)
    await log.append([record(b"c")])
    found = values(await read_all(log, BATCHES))
    # What was given up may still be stored, at any place: a resend is told from it by its identity.
    assert found in ([b"a", b"c"], [b"a", b"b", b"c"], [b"a", b"c", b"b"])


@kafka
async def test_reader_without_broker_is_unavailable_and_goes_on_after_its_return(
    broker: Broker, log_at_broker: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reader, "SILENCE_S", 1.0)
    log = log_at_broker
    await log.append([record(b"a")])
    reader = await log.reader(BATCHES, {0: 0})
    await take(reader, 1)
    await asyncio.to_thread(broker.kill)
    with pytest.raises(LogUnavailable, match=f"reader of batches: no answer for 1 s from {broker.bootstrap}"):
        await take(reader, 1)
    await asyncio.to_thread(broker.restart)
    await log.append([record(b"b")])
    monkeypatch.setattr(kafka_reader, "SILENCE_S", DEADLINE_S)
    assert values(await take(reader, 1)) == [b"b"]


@kafka
async def test_log_closes_in_time_without_its_broker_and_leaves_no_task(broker: Broker, open_at: OpenLog) -> None:
    log = await open_at(f"kafka://{broker.bootstrap}/test-{uuid.uuid4().hex[:12]}")
    await log.create(TOPICS)
    others = asyncio.all_tasks()
    owner = await log.own("app", EVENTS, 0)
    await owner.commit([record(b"a")], {0: Position(1, "")})
    await log.append([record(b"b")])
    await take(await log.reader(BATCHES, {0: 0}), 2)
    await asyncio.to_thread(broker.kill)
    commit = asyncio.create_task(owner.commit([record(b"c")], {0: Position(2, "")}))
    append = asyncio.create_task(log.append([record(b"d")]))
    await until(lambda: owner._running is not None and not owner._running.done())
    start = time.monotonic()
    await log.close()
    assert time.monotonic() - start < 20.0
    await asyncio.wait([commit, append])
    assert isinstance(commit.exception(), LogUnavailable)
    assert isinstance(append.exception(), LogUnavailable)
    await until(lambda: not [each for each in asyncio.all_tasks() - others if "aiokafka" in repr(each)])


# readers


@kafka
async def test_reader_whose_opening_is_cancelled_leaves_no_connection(
    log: KafkaLog, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver complains of a connection that it forgot, when that is freed."""
    await log.ranges("events", [0])
    for tenths_ms in range(0, 100, 5):
        opening = asyncio.create_task(log.reader("events", {0: 0}))
        await asyncio.sleep(tenths_ms / 10_000)
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled():
            await opening.result().close()
    gc.collect()
    await asyncio.sleep(0)
    assert "Unclosed" not in caplog.text


async def test_reader_reaches_the_end_behind_aborted_records_and_markers(log: KafkaLog) -> None:
    producer = await start_producer(log, transactional_id=uuid.uuid4().hex)
    await producer.begin_transaction()
    await (await producer.send(full(log, BATCHES), b"aborted", partition=0))
    await producer.abort_transaction()
    await producer.stop()
    await until_async(lambda: end_of(log), lambda end: end == 2)
    assert await read_all(log, BATCHES) == []


@kafka
async def test_ranges_end_below_an_open_transaction(log: KafkaLog) -> None:
    await log.append([record(b"a")])
    producer = await start_producer(log, transactional_id=uuid.uuid4().hex)
    await producer.begin_transaction()
    await (await producer.send(full(log, BATCHES), b"open", partition=0))
    await log.append([record(b"behind")])
    first, end, written = (await log.ranges(BATCHES, [0]))[0]
    assert (first, end) == (0, 1)
    assert written >= 3
    assert values(await read_all(log, BATCHES)) == [b"a"]
    await producer.commit_transaction()
    await producer.stop()
    reader = await log.reader(BATCHES, {0: 0})
    assert values(await take(reader, 3)) == [b"a", b"open", b"behind"]


@kafka
async def test_reader_of_a_header_name_that_is_not_utf8_goes_on(
    log: KafkaLog, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver would raise at that record for ever, and drop the good ones before it."""
    await log.append([record(b"a"), record(b"b")])
    await send_undecodable(log, [b"c", None, b"e"])
    await log.append([record(b"f"), record(b"1", 1)])
    reader = await log.reader(BATCHES, {0: 0, 1: 0})
    with caplog.at_level(logging.WARNING):
        records = await take(reader, 7)
    of_first = [each for each in records if each.partition == 0]
    assert values(of_first) == [b"a", b"b", b"c", b"bad", b"e", b"f"]
    assert [each.offset for each in of_first] == [0, 1, 2, 3, 4, 5]
    assert [each.headers for each in of_first] == [(), (), (("h", b"1"),), (), (("h", b"1"),), ()]
    assert "batches/0: record at offset 3 has a header name that is not UTF-8" in caplog.text


@kafka
async def test_reader_whose_offset_goes_after_it_was_checked_is_out_of_range(log: KafkaLog) -> None:
    """Then the broker says so, and the driver raises at the next fetch."""
    stored = await log.append([record(b"%d" % number) for number in range(10)])
    await delete_records(log, stored[5].offset)
    reader = await log.reader(BATCHES, {0: stored[1].offset})
    reader._unchecked.clear()
    with pytest.raises(OffsetOutOfRange, match="batches/0: expected an offset from 5 to 10, got 1"):
        await reader.fetch(wait_s=DEADLINE_S)
    await reader.seek(0, stored[5].offset)
    assert values(await take(reader, 5)) == [b"5", b"6", b"7", b"8", b"9"]


# topics and limits


@kafka
async def test_records_at_the_limit_are_taken_by_the_broker(log: KafkaLog) -> None:
    """Kafka's limit counts framing, and a batch counts as one: random bytes, which no compression makes smaller."""
    await log.create([TopicSettings("small", 1, None, 10_000)])
    headers = tuple((f"{number:03}", b"v" * 7) for number in range(100))
    exact = NewRecord("small", 0, b"k" * 10, os.urandom(8_990), headers)
    many = [NewRecord("small", 0, b"k", os.urandom(1_000)) for _ in range(100)]
    await log.append([exact, *many, exact])
    owner = await log.own("app", EVENTS, 0)
    await owner.commit([exact, *many, exact], {})
    assert values(await read_all(log, "small")) == values([exact, *many, exact] * 2)


@kafka
async def test_record_with_more_headers_than_framing_allows_is_refused(log: KafkaLog) -> None:
    await log.create([TopicSettings("small", 1, None, 10_000)])
    headers = tuple((str(number % 10), None) for number in range(1_000))
    with pytest.raises(RecordTooLarge, match="by its 1000 headers"):
        await log.append([NewRecord("small", 0, b"k", b"v" * 8_900, headers)])
    assert await read_all(log, "small") == []


@kafka
async def test_topic_without_log_time_is_refused_by_name(log: KafkaLog, open_at: OpenLog) -> None:
    await set_topic(log, BATCHES, "message.timestamp.type", "CreateTime")
    other = await open_at(log.url)
    with pytest.raises(InvalidSettings, match=r"topic batches: expected message\.timestamp\.type LogAppendTime"):
        await other.append([record(b"a")])
    assert await other.differences(TOPICS) == [
        Difference(BATCHES, "message.timestamp.type", "LogAppendTime", "CreateTime")
    ]


@kafka
async def test_metadata_requests_never_create_a_topic(log: KafkaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[MetadataRequest] = []
    send = log._cluster._send

    async def note(request: Any, node: int | None = None) -> Any:
        requests.extend([request] if isinstance(request, MetadataRequest) else [])
        return await send(request, node)

    monkeypatch.setattr(log._cluster, "_send", note)
    with pytest.raises(LogMissing):
        await log.append([NewRecord("nothere", 0, None, b"v")])
    with pytest.raises(LogMissing):
        await log.ranges("nothere", [0])
    assert requests
    assert all(request._allow_auto_topic_creation is False for request in requests)


# settings


async def test_open_without_server_names_it_and_why() -> None:
    start = time.monotonic()
    with pytest.raises(
        LogUnavailable, match=r"none of the servers 127\.0\.0\.1:1, 127\.0\.0\.1:2 answers: .*Connect call failed"
    ):
        await open_log("kafka://127.0.0.1:1,127.0.0.1:2/p")
    assert time.monotonic() - start < 10.0


async def test_open_at_a_server_that_never_answers_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_cluster, "OPEN_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:  # connects, and that is all
        port = server.getsockname()[1]
        with pytest.raises(LogUnavailable, match=f"none of the servers 127.0.0.1:{port} answers: no answer in time"):
            await open_log(f"kafka://127.0.0.1:{port}/p")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("acks=1", "expected options security_protocol, .*; got acks"),
        ("security_protocol=TLS", "security_protocol to be one of PLAINTEXT, .*; got TLS"),
        ("security_protocol=SASL_SSL&sasl_mechanism=OAUTHBEARER", "sasl_mechanism to be one of PLAIN, .*; got OAUTH"),
        ("security_protocol=SASL_SSL", "sasl_plain_username or ROLLOUTLOG_KAFKA_SASL_USERNAME, got neither"),
        ("security_protocol=SASL_SSL&sasl_plain_username=u", "ROLLOUTLOG_KAFKA_SASL_PASSWORD for user u, got none"),
        ("security_protocol=SSL&ssl_cafile=nothere.pem", "readable PEM files, got ssl_cafile=nothere.pem"),
        ("ssl_cafile=ca.pem", "ssl_cafile has no effect with security_protocol=PLAINTEXT"),
        ("sasl_mechanism=PLAIN", "sasl_mechanism has no effect with security_protocol=PLAINTEXT"),
    ],
)
def test_settings_with_an_unusable_option_name_it(options: str, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        kafka_settings(f"kafka://h:9092/p?{options}", {})


def test_settings_with_a_password_in_the_url_refuse_it_without_showing_it() -> None:
    with pytest.raises(InvalidSettings, match="set ROLLOUTLOG_KAFKA_SASL_PASSWORD") as refused:
        kafka_settings("kafka://h:9092/p?security_protocol=SASL_SSL&sasl_plain_password=hunter2", {})
    assert "hunter2" not in str(refused.value)


def test_settings_take_security_from_url_and_environment() -> None:
    url = "kafka://h:9092/p?security_protocol=SASL_SSL&sasl_mechanism=SCRAM-SHA-512&sasl_plain_username=a%26b"
    settings = kafka_settings(url, {"ROLLOUTLOG_KAFKA_SASL_PASSWORD": "hunter2"})
    client = dict(settings.client)
    assert client.pop("ssl_context").check_hostname
    assert client == {
        "bootstrap_servers": ["h:9092"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "a&b",
        "sasl_plain_password": "hunter2",
    }
    assert "hunter2" not in repr(settings)


@kafka
async def test_open_with_a_login_that_the_servers_do_not_know_shows_no_password(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ROLLOUTLOG_KAFKA_SASL_PASSWORD", "hunter2")
    url = f"kafka://{kafka_bootstrap}/p?security_protocol=SASL_PLAINTEXT&sasl_plain_username=u"
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreError) as refused:
        await open_log(url)
    assert "hunter2" not in str(refused.value) + caplog.text


# Helpers


def record(value: bytes | None, partition: int = 0) -> NewRecord:
    return NewRecord(BATCHES, partition, b"key", value)


def values(records: "list[Record] | list[NewRecord]") -> list[bytes | None]:
    return [each.value for each in records]


def full(log: KafkaLog, topic: str) -> str:
    return log._cluster.settings.full_name(topic)


async def take(reader: Reader, count: int) -> list[Record]:
    records: list[Record] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(records) < count:
            records += await reader.fetch(wait_s=0.5, records_max=count - len(records))
    return records


async def read_all(log: Log, topic: str, partition: int = 0) -> list[Record]:
    range_ = (await log.ranges(topic, [partition]))[partition]
    reader = await log.reader(topic, {partition: range_.first})
    records: list[Record] = []
    async with asyncio.timeout(DEADLINE_S):
        while reader.position(partition) < range_.end:
            records += await reader.fetch(wait_s=0.2)
    await reader.close()
    return records


async def end_of(log: Log) -> int:
    return (await log.ranges(BATCHES, [0]))[0].end


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.01)


async def until_async(ask: Callable[[], Awaitable[int]], condition: Callable[[int], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition(await ask()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.01)


def park(owner: KafkaOwner) -> tuple[asyncio.Event, asyncio.Event]:
    """Stop the owner's commit before its last request; returns (it is there, let it go on)."""
    parked, go_on = asyncio.Event(), asyncio.Event()
    commit = owner._producer.commit_transaction

    async def wait_and_commit() -> None:
        parked.set()
        await go_on.wait()
        await commit()

    owner._producer.commit_transaction = wait_and_commit
    return parked, go_on


def fake_offset_fetch(monkeypatch: pytest.MonkeyPatch, log: KafkaLog, error_code: int, *, times: int) -> list[Any]:
    """Answer the first `times` requests for committed offsets without any partition."""
    asked: list[Any] = []
    send = log._cluster._send

    async def answer(request: Any, node: int | None = None) -> Any:
        if isinstance(request, OffsetFetchRequest):
            asked.append(request)
            if len(asked) <= times:
                return SimpleNamespace(topics=[], error_code=error_code)
        return await send(request, node)

    monkeypatch.setattr(log._cluster, "_send", answer)
    return asked


async def kill_and_restart(broker: Broker, after_s: float) -> None:
    await asyncio.sleep(after_s)  # any moment of the commits that run now
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.restart)


async def start_producer(log: KafkaLog, **options: Any) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(**log._cluster.settings.client, acks="all", **options)
    await producer.start()
    return producer


async def with_admin(log: KafkaLog, work: Callable[[AIOKafkaAdminClient], Awaitable[Any]]) -> None:
    admin = AIOKafkaAdminClient(**log._cluster.settings.client)
    await admin.start()
    try:
        await work(admin)
    finally:
        await admin.close()


async def set_topic(log: KafkaLog, topic: str, name: str, value: str) -> None:
    """Change one setting of a topic; this request sets the others back to the broker's."""
    found = (await log._cluster.configs([topic]))[topic]
    kept = {
        key: found[key] for key in ("message.timestamp.type", "retention.ms", "max.message.bytes", "cleanup.policy")
    }
    resource = ConfigResource(ConfigResourceType.TOPIC, full(log, topic), configs={**kept, name: value})
    await with_admin(log, lambda admin: admin.alter_configs([resource]))

    async def setting() -> int:
        return int((await log._cluster.configs([topic]))[topic][name] == value)

    await until_async(setting, bool)


async def delete_records(log: KafkaLog, before_offset: int) -> None:
    from aiokafka.admin import RecordsToDelete

    wanted = {TopicPartition(full(log, BATCHES), 0): RecordsToDelete(before_offset=before_offset)}
    await with_admin(log, lambda admin: admin.delete_records(wanted))


class NotUtf8(str):
    """A header name whose bytes are no UTF-8."""

    def encode(self, *_: Any) -> bytes:
        return b"\xff\xfe"


async def send_undecodable(log: KafkaLog, bodies: list[bytes | None]) -> None:
    """Send one batch, with such a header name in the record of body None."""
    producer = await start_producer(log)
    batch = producer.create_batch()
    batch._builder = _DefaultRecordBatchBuilderPy(2, 0, 0, -1, -1, 0, MIB)
    for body in bodies:
        headers = [("h", b"1")] if body is not None else [(NotUtf8("bad"), b"1")]
        batch.append(timestamp=None, key=b"key", value=body if body is not None else b"bad", headers=headers)
    await (await producer.send_batch(batch, full(log, BATCHES), partition=0))
    await producer.stop()


@kafka
async def test_open_with_a_silent_server_first_reaches_the_others(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that accepts and never answers takes up one request's time, and only when the log is opened."""
    monkeypatch.setattr(kafka_cluster, "REQUEST_S", 1.0)
    monkeypatch.setattr(kafka_cluster, "OPEN_S", 1.0)
    silent = socket.create_server(("127.0.0.1", 0))
    port = silent.getsockname()[1]
    log = await KafkaLog.open(f"kafka://127.0.0.1:{port},{kafka_bootstrap}/silent-{uuid.uuid4().hex[:8]}")
    try:
        start = time.monotonic()
        await log.create([TopicSettings("batches", 1, None, 10_000)])
        await log.append([record(b"a")])
        reader = await log.reader(BATCHES, {0: 0})
        assert values(await take(reader, 1)) == [b"a"]
        assert time.monotonic() - start < 5.0
    finally:
        await log.close()
        silent.close()
