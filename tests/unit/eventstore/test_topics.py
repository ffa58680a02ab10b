"""Topic defaults, and the run that counts."""

import asyncio

import pytest
from support.memory_log import MemoryLog

from rolloutlog.eventstore.errors import InvalidSettings, PartitionCountChanged, UnknownSchema
from rolloutlog.eventstore.log import NewRecord, TopicSettings
from rolloutlog.eventstore.meta import Run, create_run, read_run
from rolloutlog.eventstore.settings import PublisherSettings
from rolloutlog.eventstore.topics import create_topics, partitions_default, topic_settings

DAY_S = 86_400
RECORD_BYTES = 8 * 1024 * 1024 + 64 * 1024


def test_topic_settings_are_the_documented_defaults():
    assert topic_settings(partitions=32) == [
        TopicSettings("events", 32, 7 * DAY_S, RECORD_BYTES),
        TopicSettings("batches", 32, 3 * DAY_S, RECORD_BYTES),
        TopicSettings("dead-letters", 32, 7 * DAY_S, RECORD_BYTES + 64 * 1024),
        TopicSettings("rewards", 32, 30 * DAY_S, RECORD_BYTES),
        TopicSettings("acks", 1, 30 * DAY_S, RECORD_BYTES),
        TopicSettings("meta", 1, None, RECORD_BYTES, "compact"),
    ]


def test_topic_settings_take_other_retention_and_limit():
    events, *_ = topic_settings(partitions=4, event_bytes_max=100, retention_s={"events": 5})
    assert events == TopicSettings("events", 4, 5, 100 + 64 * 1024)


@pytest.mark.parametrize(("url", "partitions"), [("sqlite:///a.db", 4), ("kafka://h:9092/p", 32)])
def test_partitions_default_by_log(url, partitions):
    assert partitions_default(url) == partitions


def test_create_topics_writes_the_run_once():
    log = MemoryLog(partitions=4)
    first = asyncio.run(create_topics(log, clock=lambda: 7))
    assert asyncio.run(create_topics(log)) == first == Run(first.run_id, 4, 7)
    assert len(first.run_id) == 32
    assert len(log.records["meta", 0]) == 1
    assert log.records["meta", 0][0].key == f"run/{first.run_id}".encode()


def test_run_of_two_creators_at_once_is_the_first_for_both():
    log = MemoryLog()

    async def create_both() -> list[Run]:
        return list(await asyncio.gather(create_run(log, Run("a" * 32, 4, 1)), create_run(log, Run("b" * 32, 4, 2))))

    assert asyncio.run(create_both()) == [Run("a" * 32, 4, 1)] * 2


def test_run_is_found_after_other_meta_records():
    log = MemoryLog()

    async def scenario() -> Run | None:
        await log.append([NewRecord("meta", 0, b"x", None), NewRecord("meta", 0, b"y", b"\xc3\x01" + bytes(20))])
        assert await read_run(log) is None
        return await create_run(log, Run("a" * 32, 4, 1))

    assert asyncio.run(scenario()) == Run("a" * 32, 4, 1)


def test_run_that_a_newer_version_created_is_refused_and_no_other_one_written():
    """Two runs in one log would split its users in two."""
    log = MemoryLog()

    async def scenario() -> None:
        await log.append([NewRecord("meta", 0, b"run/" + b"a" * 32, b"\xc3\x01" + bytes(20))])
        with pytest.raises(UnknownSchema, match=r"run of the log \(topic meta, key run/aaa.*Upgrade rolloutlog here"):
            await create_topics(log, partitions=4)

    asyncio.run(scenario())
    assert len(log.records["meta", 0]) == 1


def test_create_topics_with_another_count_than_the_logs_is_refused():
    with pytest.raises(PartitionCountChanged, match="expected 8 partitions of events, got 4"):
        asyncio.run(create_topics(MemoryLog(partitions=4), partitions=8))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"memory_bytes_max": 0}, "memory_bytes_max: expected at least 1, got 0"),
        ({"linger_s": -1}, "linger_s: expected a number from 0 on, got -1"),
        ({"close_deadline_s": float("nan")}, "close_deadline_s: expected a number from 0 on, got nan"),
        ({"append_events_max": 1.5}, "append_events_max: expected an integer from 0 on, got 1.5"),
        ({"open_deadline_s": True}, "open_deadline_s: expected a number from 0 on, got True"),
    ],
)
def test_publisher_settings_out_of_range_are_refused_by_name(settings, text):
    with pytest.raises(InvalidSettings) as caught:
        PublisherSettings(**settings)
    assert text in str(caught.value)


def test_create_topics_of_a_log_that_has_partitions_keeps_their_number():
    """Making one lost topic anew must not give it another count than the others have."""
    log = MemoryLog(partitions=3)

    async def twice() -> tuple[int, int]:
        first = await create_topics(log, partitions=3)
        return first.partitions, (await create_topics(log)).partitions

    assert asyncio.run(twice()) == (3, 3)
