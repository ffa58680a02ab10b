"""The promises of the log port, one test each, for every log."""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from rolloutlog.eventstore.errors import (
    Fenced,
    InvalidSettings,
    LogMissing,
    LogUnavailable,
    OffsetOutOfRange,
    RecordTooLarge,
)
from rolloutlog.eventstore.log import (
    ACKS,
    BATCHES,
    DEAD_LETTERS,
    EVENTS,
    META,
    REWARDS,
    Difference,
    Log,
    NewRecord,
    Position,
    Reader,
    Record,
    Stored,
    TopicSettings,
)

MakeLog = Callable[[], Awaitable[Log]]
CutHead = Callable[[str, int, int], Awaitable[None]]

MIB = 1024 * 1024
TOPICS = [
    TopicSettings(EVENTS, 2, 86_400, 8 * MIB),
    TopicSettings(BATCHES, 2, 86_400, 8 * MIB),
    TopicSettings(DEAD_LETTERS, 2, 86_400, 8 * MIB),
]
OUTPUTS = [TopicSettings(name, 2, None, 8 * MIB) for name in ("output.a", "output.b")]
DEADLINE_S = 30.0
WAKE_S_MAX = 1.0
WRITER = Path(__file__).with_name("writer.py")


@pytest.fixture
async def filled(log: Log) -> Log:
    """A log with the topics events, batches and dead-letters of two partitions each."""
    await log.create(TOPICS)
    return log


def event(value: bytes | None, partition: int = 0, topic: str = EVENTS) -> NewRecord:
    return NewRecord(topic, partition, b"key", value)


async def take(reader: Reader, count: int) -> list[Record]:
    """The next `count` records; fails when they do not come in time."""
    records: list[Record] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"expected {count} records, got {len(records)}"
        records += await reader.fetch(wait_s=1.0, records_max=count - len(records))
    return records


async def read_all(log: Log, topic: str = EVENTS, partition: int = 0) -> list[Record]:
    """Every committed record of one partition: read from the first offset until the reader stands at the end."""
    (range_,) = (await log.ranges(topic, [partition])).values()
    reader = await log.reader(topic, {partition: range_.first})
    records: list[Record] = []
    deadline = time.monotonic() + DEADLINE_S
    while reader.position(partition) < range_.end:
        assert time.monotonic() < deadline, f"expected to reach {range_}, got to {reader.position(partition)}"
        records += await reader.fetch(wait_s=1.0)
    await reader.close()
    return records


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


# topics


async def test_create_returns_only_the_names_it_made(log: Log) -> None:
    await log.create(TOPICS[:1])
    assert await log.create(TOPICS) == [BATCHES, DEAD_LETTERS]


async def test_create_again_changes_nothing(filled: Log) -> None:
    await filled.append([event(b"kept")])
    assert await filled.create([TopicSettings(EVENTS, 7, None, 1000)]) == []
    assert await filled.partitions(EVENTS) == 2
    assert values(await read_all(filled)) == [b"kept"]


async def test_create_by_several_at_once_makes_each_topic_once(make_log: MakeLog) -> None:
    logs = await asyncio.gather(*(make_log() for _ in range(4)))
    made = await asyncio.gather(*(log.create(TOPICS) for log in logs))
    assert sorted(name for names in made for name in names) == sorted(topic.name for topic in TOPICS)
    assert [await log.partitions(BATCHES) for log in logs] == [2, 2, 2, 2]


async def test_dropped_topic_is_gone_and_the_others_stay(filled: Log, make_log: MakeLog) -> None:
    await filled.create(OUTPUTS)
    await filled.append([event(b"kept"), event(b"gone", topic="output.a"), event(b"too", 1, "output.b")])
    assert await filled.drop("output.a", app="replay.a") is True
    for log in (filled, await make_log()):
        with pytest.raises(LogMissing, match=r"no topic output\.a"):
            await log.partitions("output.a")
        assert values(await read_all(log)) == [b"kept"]
        assert values(await read_all(log, "output.b", 1)) == [b"too"]
    assert await filled.drop("output.a", app="replay.a") is False


async def test_dropped_topic_that_is_made_again_is_empty(filled: Log) -> None:
    await filled.create(OUTPUTS)
    await filled.append([event(b"%d" % number, topic="output.a") for number in range(1_200)])
    await filled.drop("output.a", app="replay.a")
    assert await filled.create(OUTPUTS) == ["output.a"]
    assert [stored.offset for stored in await filled.append([event(b"new", topic="output.a")])] == [0]
    assert values(await read_all(filled, "output.a")) == [b"new"]


async def test_drop_forgets_the_positions_of_its_app_alone(filled: Log) -> None:
    await filled.create(OUTPUTS)
    for app in ("replay.a", "replay.b"):
        owner = await filled.own(app, EVENTS, 0)
        await owner.commit([], {0: Position(7, "p")})
        await owner.close()
    await filled.drop("output.a", app="replay.a")
    assert await (await filled.own("replay.a", EVENTS, 0)).positions() == {}
    assert await (await filled.own("replay.b", EVENTS, 0)).positions() == {0: Position(7, "p")}


async def test_drop_of_a_topic_that_is_missing_forgets_positions_all_the_same(filled: Log) -> None:
    """A drop that was broken off is carried on by the next one."""
    await (await filled.own("replay.a", EVENTS, 0)).commit([], {0: Position(7, "p")})
    assert await filled.drop("output.a", app="replay.a") is False
    assert await (await filled.own("replay.a", EVENTS, 0)).positions() == {}


@pytest.mark.parametrize("topic", [EVENTS, BATCHES, DEAD_LETTERS, META, ACKS, REWARDS, "output.", "other"])
async def test_drop_of_what_is_no_output_is_refused(filled: Log, topic: str) -> None:
    await filled.append([event(b"kept")])
    owner = await filled.own("assembler", EVENTS, 0)
    await owner.commit([], {0: Position(7, "p")})
    with pytest.raises(InvalidSettings, match=r"expected one of an output.*nothing was changed"):
        await filled.drop(topic, app="assembler")
    assert values(await read_all(filled)) == [b"kept"]
    assert await owner.positions() == {0: Position(7, "p")}


@pytest.mark.slow_on_kafka
async def test_commit_into_a_dropped_topic_by_an_owner_that_was_fenced_stores_nothing(
    filled: Log, make_log: MakeLog
) -> None:
    await filled.create(OUTPUTS)
    owner = await filled.own("replay.a", EVENTS, 0)
    await owner.commit([event(b"before", topic="output.a")], {})
    other = await make_log()
    await (await other.own("replay.a", EVENTS, 0)).close()
    await other.drop("output.a", app="replay.a")
    with pytest.raises((Fenced, LogUnavailable)):  # a broker may not get to say who fenced it: there is no topic
        await owner.commit([event(b"after", topic="output.a")], {})
    with pytest.raises(LogMissing):
        await other.partitions("output.a")
    await other.create(OUTPUTS)
    assert await read_all(other, "output.a") == []


async def test_owner_that_comes_after_a_drop_gets_an_error_and_never_the_topic_again(
    filled: Log, make_log: MakeLog
) -> None:
    await filled.create(OUTPUTS)
    other = await make_log()
    await other.drop("output.a", app="replay.a")
    owner = await filled.own("replay.a", EVENTS, 0)
    with pytest.raises(LogMissing):
        await owner.commit([event(b"after", topic="output.a")], {0: Position(1, "")})
    assert await owner.positions() == {}
    with pytest.raises(LogMissing):
        await other.partitions("output.a")


async def test_differences_when_all_is_as_wanted_are_none(filled: Log) -> None:
    assert await filled.differences(TOPICS) == []


async def test_differences_name_a_missing_topic(filled: Log) -> None:
    assert await filled.differences([*TOPICS, TopicSettings(META, 1, None, MIB, "compact")]) == [
        Difference(META, "partitions", "1", None)
    ]


@pytest.mark.parametrize(
    ("wanted", "difference"),
    [
        (TopicSettings(EVENTS, 4, 86_400, 8 * MIB), Difference(EVENTS, "partitions", "4", "2")),
        (TopicSettings(EVENTS, 2, 3_600, 8 * MIB), Difference(EVENTS, "retention_s", "3600", "86400")),
        (TopicSettings(EVENTS, 2, None, 8 * MIB), Difference(EVENTS, "retention_s", "None", "86400")),
        (TopicSettings(EVENTS, 2, 86_400, MIB), Difference(EVENTS, "record_bytes_max", "1048576", "8388608")),
        (TopicSettings(EVENTS, 2, 86_400, 8 * MIB, "compact"), Difference(EVENTS, "cleanup", "compact", "delete")),
    ],
)
async def test_differences_name_what_differs(filled: Log, wanted: TopicSettings, difference: Difference) -> None:
    assert await filled.differences([wanted]) == [difference]


async def test_partitions_of_missing_topic_is_log_missing(filled: Log) -> None:
    with pytest.raises(LogMissing, match=r"nothere.*rolloutlog topics create"):
        await filled.partitions("nothere")


async def test_append_to_missing_topic_stores_nothing(filled: Log) -> None:
    with pytest.raises(LogMissing, match="nothere"):
        await filled.append([event(b"a"), event(b"b", topic="nothere")])
    assert await read_all(filled) == []


async def test_reader_of_missing_topic_is_log_missing(filled: Log) -> None:
    with pytest.raises(LogMissing, match="nothere"):
        await filled.reader("nothere", {0: 0})


async def test_own_of_missing_topic_is_log_missing(filled: Log) -> None:
    with pytest.raises(LogMissing, match="nothere"):
        await filled.own("app", "nothere", 0)


async def test_append_to_a_partition_beyond_the_count_names_the_count(filled: Log) -> None:
    with pytest.raises(InvalidSettings, match="events: expected a partition from 0 to 1, got 2"):
        await filled.append([event(b"a", partition=2)])


# append


async def test_append_keeps_order_with_rising_offsets(filled: Log) -> None:
    stored = await filled.append([event(b"%d" % i) for i in range(100)])
    stored += await filled.append([event(b"%d" % i) for i in range(100, 200)])
    offsets = [place.offset for place in stored]
    assert offsets == sorted(set(offsets))
    records = await read_all(filled)
    assert values(records) == [b"%d" % i for i in range(200)]
    assert [record.offset for record in records] == offsets


async def test_append_sets_log_times_that_never_fall(filled: Log) -> None:
    before_ns = time.time_ns() - 1_000_000  # a broker counts milliseconds
    stored = [await filled.append([event(b"a")]) for _ in range(20)]
    times = [place.log_time_ns for (place,) in stored]
    assert times == sorted(times)
    assert before_ns <= times[0] <= times[-1] <= time.time_ns()
    assert [record.log_time_ns for record in await read_all(filled)] == times


async def test_append_to_several_topics_and_partitions_returns_places_in_the_order_given(filled: Log) -> None:
    await filled.append([event(b"first")])
    stored = await filled.append([event(b"a", 1), event(b"b", 0), event(b"c", 1), event(b"d", 0, BATCHES)])
    (b,) = (record for record in await read_all(filled, EVENTS, 0) if record.value == b"b")
    a, c = await read_all(filled, EVENTS, 1)
    (d,) = await read_all(filled, BATCHES, 0)
    assert [record.offset for record in (a, b, c, d)] == [place.offset for place in stored]
    assert values([a, c, d]) == [b"a", b"c", b"d"]


async def test_append_of_nothing_returns_nothing(filled: Log) -> None:
    assert await filled.append([]) == []


async def test_append_of_record_above_limit_stores_nothing(log: Log) -> None:
    await log.create([TopicSettings(EVENTS, 2, None, 10_000)])
    records = [event(b"small", 1), event(b"small"), event(b"x" * 9_998), event(b"small")]
    with pytest.raises(RecordTooLarge, match=r"events.*10000 bytes.*got 10001"):
        await log.append(records)
    assert await read_all(log) == []
    assert await read_all(log, EVENTS, 1) == []


async def test_append_counts_key_and_headers_against_the_limit(log: Log) -> None:
    await log.create([TopicSettings(EVENTS, 1, None, 10_000)])
    record = NewRecord(EVENTS, 0, b"k" * 10, b"v" * 9_980, (("abc", b"d" * 7),))
    await log.append([record])
    with pytest.raises(RecordTooLarge, match="got 10001"):
        await log.append([record._replace(headers=(("abc", b"d" * 8),))])


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"key", b"value", ()),
        (None, b"value", ()),
        (b"", b"", ()),
        (b"key", None, ()),
        (b"\x00\xff", b"\x00\xfe\x00", (("e", b"span/-/0/1/main/r-1"),)),
        (b"key", b"value", (("a", b"\x00\xff\n"), ("b", None), ("c", b""), ("a", b"twice"), ("ü", b"name"))),
    ],
)
async def test_record_comes_back_as_it_was(
    filled: Log, key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...]
) -> None:
    ((offset, log_time_ns),) = await filled.append([NewRecord(EVENTS, 1, key, value, headers)])
    assert await read_all(filled, EVENTS, 1) == [Record(EVENTS, 1, offset, log_time_ns, key, value, headers)]


async def test_record_of_8_mib_comes_back_as_it_was(filled: Log) -> None:
    value = random.Random(7).randbytes(8 * MIB - 3)
    await filled.append([event(value)])
    assert values(await read_all(filled)) == [value]


# ranges


async def test_ranges_of_empty_partition_start_and_end_at_zero(filled: Log) -> None:
    assert await filled.ranges(EVENTS, [0, 1]) == {0: (0, 0, 0), 1: (0, 0, 0)}


async def test_ranges_end_above_the_last_record(filled: Log) -> None:
    *_, last = await filled.append([event(b"a"), event(b"b"), event(b"c")])
    assert await filled.ranges(EVENTS, [0]) == {0: (0, last.offset + 1, last.offset + 1)}


async def test_ranges_after_a_commit_are_reached_by_a_reader(filled: Log) -> None:
    owner = await filled.own("app", EVENTS, 0)
    await owner.commit([event(b"a", 0, BATCHES)], {})
    assert values(await read_all(filled, BATCHES)) == [b"a"]


async def test_ranges_start_at_first_record_left(filled: Log, cut_head: CutHead) -> None:
    stored = await filled.append([event(b"%d" % i) for i in range(10)])
    await cut_head(EVENTS, 0, stored[4].offset)
    assert (await filled.ranges(EVENTS, [0]))[0].first == stored[4].offset
    assert values(await read_all(filled)) == [b"4", b"5", b"6", b"7", b"8", b"9"]


async def later(log: Log, than: Stored) -> Stored:
    """Append one record with a later log time than that of another one."""
    deadline = time.monotonic() + DEADLINE_S
    while (time.time_ns() // 1_000_000) <= than.log_time_ns // 1_000_000:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)
    (stored,) = await log.append([event(b"later")])
    assert stored.log_time_ns > than.log_time_ns
    return stored


async def test_offsets_at_a_log_time_are_those_of_the_first_record_from_then_on(filled: Log) -> None:
    (first,) = await filled.append([event(b"a")])
    second = await later(filled, first)
    third = await later(filled, second)
    assert await filled.offsets_at(EVENTS, [0], 0) == {0: first.offset}
    assert await filled.offsets_at(EVENTS, [0], first.log_time_ns) == {0: first.offset}
    assert await filled.offsets_at(EVENTS, [0], first.log_time_ns + 1) == {0: second.offset}
    assert await filled.offsets_at(EVENTS, [0], third.log_time_ns) == {0: third.offset}


async def test_offsets_at_a_log_time_after_all_records_are_the_end(filled: Log) -> None:
    (stored,) = await filled.append([event(b"a")])
    assert await filled.offsets_at(EVENTS, [0, 1], stored.log_time_ns + 1) == {0: stored.offset + 1, 1: 0}


async def test_offsets_at_a_log_time_before_the_first_record_left_are_that_record(
    filled: Log, cut_head: CutHead
) -> None:
    stored = await filled.append([event(b"%d" % i) for i in range(10)])
    await cut_head(EVENTS, 0, stored[4].offset)
    assert await filled.offsets_at(EVENTS, [0], stored[0].log_time_ns - 1) == {0: stored[4].offset}


async def test_offsets_at_a_log_time_between_commits_let_a_reader_begin_there(filled: Log) -> None:
    owner = await filled.own("app", EVENTS, 0)
    await owner.commit([event(b"a")], {})
    (before,) = await read_all(filled)
    await later(filled, Stored(before.offset, before.log_time_ns))
    await owner.commit([event(b"b")], {})
    offsets = await filled.offsets_at(EVENTS, [0], before.log_time_ns + 1)
    reader = await filled.reader(EVENTS, offsets)
    assert values(await take(reader, 2)) == [b"later", b"b"]
    await reader.close()


async def test_offsets_at_in_a_missing_topic_is_log_missing(filled: Log) -> None:
    with pytest.raises(LogMissing, match="nothere"):
        await filled.offsets_at("nothere", [0], 0)


# readers


async def test_reader_starts_exactly_at_its_offset(filled: Log) -> None:
    stored = await filled.append([event(b"%d" % i) for i in range(10)])
    reader = await filled.reader(EVENTS, {0: stored[6].offset})
    assert values(await take(reader, 4)) == [b"6", b"7", b"8", b"9"]


async def test_reader_position_starts_at_its_offset_and_moves_above_the_last_record(filled: Log) -> None:
    stored = await filled.append([event(b"%d" % i) for i in range(10)])
    reader = await filled.reader(EVENTS, {0: stored[2].offset})
    assert reader.position(0) == stored[2].offset
    *_, last = await take(reader, 3)
    assert reader.position(0) == last.offset + 1


async def test_fetch_without_records_returns_empty_after_its_wait(filled: Log) -> None:
    reader = await filled.reader(EVENTS, {0: 0})
    start = time.monotonic()
    assert await reader.fetch(wait_s=0.3) == []
    assert 0.29 <= time.monotonic() - start < 5.0


async def test_fetch_returns_at_most_records_max(filled: Log) -> None:
    await filled.append([event(b"%d" % i) for i in range(10)])
    reader = await filled.reader(EVENTS, {0: 0})
    seen: list[Record] = []
    while len(seen) < 10:
        records = await reader.fetch(wait_s=DEADLINE_S, records_max=3)
        assert 1 <= len(records) <= 3
        seen += records
    assert values(seen) == [b"%d" % i for i in range(10)]


async def test_fetch_wakes_on_an_append_by_another(filled: Log, make_log: MakeLog) -> None:
    other = await make_log()
    reader = await filled.reader(EVENTS, {0: 0})
    await reader.fetch(wait_s=0.2)  # connections are made
    await other.append([event(b"warm")])
    await take(reader, 1)
    fetch = asyncio.create_task(reader.fetch(wait_s=DEADLINE_S))
    await asyncio.sleep(0)
    await other.append([event(b"news")])
    start = time.monotonic()
    assert values(await fetch) == [b"news"]
    assert time.monotonic() - start < WAKE_S_MAX


async def test_fetch_wakes_on_a_commit_by_another(filled: Log, make_log: MakeLog) -> None:
    owner = await (await make_log()).own("app", EVENTS, 0)
    await owner.commit([event(b"warm", 0, BATCHES)], {})
    reader = await filled.reader(BATCHES, {0: 0})
    await take(reader, 1)
    fetch = asyncio.create_task(reader.fetch(wait_s=DEADLINE_S))
    await asyncio.sleep(0)
    await owner.commit([event(b"news", 0, BATCHES)], {0: Position(1, "")})
    start = time.monotonic()
    assert values(await fetch) == [b"news"]
    assert time.monotonic() - start < WAKE_S_MAX


async def test_fetch_does_not_block_the_loop(filled: Log) -> None:
    reader = await filled.reader(EVENTS, {0: 0})
    fetch = asyncio.create_task(reader.fetch(wait_s=0.5))
    turns = 0
    while not fetch.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns >= 10


async def test_fetch_cancelled_loses_no_record(filled: Log) -> None:
    reader = await filled.reader(EVENTS, {0: 0})
    seen: list[Record] = []
    for i in range(20):
        fetch = asyncio.create_task(reader.fetch(wait_s=DEADLINE_S))
        await asyncio.sleep(0)
        await filled.append([event(b"%d" % i)])
        fetch.cancel()
        try:
            seen += await fetch
        except asyncio.CancelledError:
            continue
    seen += await take(reader, 20 - len(seen)) if len(seen) < 20 else []
    assert values(seen) == [b"%d" % i for i in range(20)]


async def test_reader_of_several_partitions_keeps_order_within_each(filled: Log) -> None:
    await filled.append([event(b"%d" % i, i % 2) for i in range(200)])
    reader = await filled.reader(EVENTS, {0: 0, 1: 0})
    records: list[Record] = []
    while len(records) < 200:
        records += await reader.fetch(wait_s=DEADLINE_S, records_max=30)
    for partition in (0, 1):
        of_partition = [record for record in records if record.partition == partition]
        assert values(of_partition) == [b"%d" % i for i in range(partition, 200, 2)]
    assert {record.topic for record in records} == {EVENTS}


async def test_reader_of_one_partition_sees_nothing_of_the_others(filled: Log) -> None:
    await filled.append([event(b"0", 0), event(b"1", 1)])
    reader = await filled.reader(EVENTS, {1: 0})
    assert values(await take(reader, 1)) == [b"1"]
    assert await reader.fetch(wait_s=0.2) == []


async def test_reader_with_a_full_partition_does_not_starve_the_other(filled: Log) -> None:
    await filled.append([event(b"many") for _ in range(5_000)])
    await filled.append([event(b"few", 1)])
    reader = await filled.reader(EVENTS, {0: 0, 1: 0})
    seen = 0
    while seen < 5_001:
        records = await reader.fetch(wait_s=DEADLINE_S, records_max=500)
        seen += len(records)
        if b"few" in values(records):
            break
    assert seen <= 2_500


async def test_reader_with_seek_reads_from_there(filled: Log) -> None:
    stored = await filled.append([event(b"%d" % i) for i in range(10)])
    reader = await filled.reader(EVENTS, {0: 0})
    await take(reader, 10)
    await reader.seek(0, stored[7].offset)
    assert reader.position(0) == stored[7].offset
    assert values(await take(reader, 3)) == [b"7", b"8", b"9"]


async def test_reader_with_seek_forward_skips(filled: Log) -> None:
    stored = await filled.append([event(b"%d" % i) for i in range(10)])
    reader = await filled.reader(EVENTS, {0: 0})
    await take(reader, 1)
    await reader.seek(0, stored[9].offset)
    assert values(await take(reader, 1)) == [b"9"]


async def test_reader_below_first_offset_is_out_of_range(filled: Log, cut_head: CutHead) -> None:
    stored = await filled.append([event(b"%d" % i) for i in range(10)])
    await cut_head(EVENTS, 0, stored[5].offset)
    reader = await filled.reader(EVENTS, {0: stored[4].offset})
    with pytest.raises(OffsetOutOfRange, match=r"events.*got 4"):
        await reader.fetch(wait_s=DEADLINE_S)


async def test_reader_overtaken_by_a_trim_is_out_of_range(filled: Log, cut_head: CutHead) -> None:
    stored = await filled.append([event(b"%d" % i) for i in range(10)])
    reader = await filled.reader(EVENTS, {0: 0})
    await take(reader, 1)
    await cut_head(EVENTS, 0, stored[5].offset)
    await reader.seek(0, stored[1].offset)
    with pytest.raises(OffsetOutOfRange, match="events"):
        await reader.fetch(wait_s=DEADLINE_S)


async def test_reader_above_the_end_is_out_of_range(filled: Log) -> None:
    """Such an offset belongs to another log: waiting for it would be silence."""
    await filled.append([event(b"a")])
    reader = await filled.reader(EVENTS, {0: 1_000})
    with pytest.raises(OffsetOutOfRange, match=r"events.*got 1000"):
        await reader.fetch(wait_s=DEADLINE_S)


async def test_reader_at_first_offset_after_a_trim_reads(filled: Log, cut_head: CutHead) -> None:
    stored = await filled.append([event(b"%d" % i) for i in range(10)])
    await cut_head(EVENTS, 0, stored[5].offset)
    reader = await filled.reader(EVENTS, {0: stored[5].offset})
    assert values(await take(reader, 5)) == [b"5", b"6", b"7", b"8", b"9"]


# owners


async def test_position_never_committed_is_none(filled: Log) -> None:
    owner = await filled.own("app", EVENTS, 0)
    assert await owner.positions() == {}


@pytest.mark.parametrize("position", [Position(0, ""), Position(88_213, '{"p":5}' + "x" * 93)])
async def test_position_comes_back_as_committed(filled: Log, make_log: MakeLog, position: Position) -> None:
    owner = await filled.own("app", EVENTS, 0)
    await owner.commit([], {0: position})
    assert await owner.positions() == {0: position}
    later = await (await make_log()).own("app", EVENTS, 0)
    assert await later.positions() == {0: position}


async def test_position_belongs_to_app_topic_and_partition(filled: Log) -> None:
    owner = await filled.own("app", EVENTS, 0)
    await owner.commit([], {0: Position(5, "mine")})
    for other in [("app", EVENTS, 1), ("other", EVENTS, 0), ("app", BATCHES, 0)]:
        assert await (await filled.own(*other)).positions() == {}


@pytest.mark.parametrize("metadata", ["x" * 101, "ü"])
async def test_commit_with_unusable_metadata_stores_nothing(filled: Log, metadata: str) -> None:
    owner = await filled.own("app", EVENTS, 0)
    with pytest.raises(InvalidSettings, match="100 ASCII characters"):
        await owner.commit([event(b"a", 0, BATCHES)], {0: Position(1, metadata)})
    assert await owner.positions() == {}
    assert await read_all(filled, BATCHES) == []


async def test_commit_stores_records_and_position_together(filled: Log) -> None:
    owner = await filled.own("app", EVENTS, 0)
    await owner.commit([event(b"a", 0, BATCHES), event(b"b", 0, BATCHES)], {0: Position(2, "p")})
    assert values(await read_all(filled, BATCHES)) == [b"a", b"b"]
    assert await owner.positions() == {0: Position(2, "p")}


async def test_commit_without_position_leaves_the_old_one(filled: Log) -> None:
    owner = await filled.own("app", EVENTS, 0)
    await owner.commit([event(b"a", 0, BATCHES)], {0: Position(2, "p")})
    await owner.commit([event(b"b", 0, BATCHES)], {})
    assert values(await read_all(filled, BATCHES)) == [b"a", b"b"]
    assert await owner.positions() == {0: Position(2, "p")}


async def test_commit_may_move_the_position_back(filled: Log) -> None:
    """A trainer that loads a checkpoint rewinds."""
    owner = await filled.own("app", EVENTS, 0)
    await owner.commit([], {0: Position(9, "later")})
    await owner.commit([], {0: Position(3, "earlier")})
    assert await owner.positions() == {0: Position(3, "earlier")}


async def test_commit_of_nothing_changes_nothing(filled: Log) -> None:
    owner = await filled.own("app", EVENTS, 0)
    await owner.commit([], {})
    assert await owner.positions() == {}


async def test_commit_writes_to_several_topics_and_partitions(filled: Log) -> None:
    owner = await filled.own("app", EVENTS, 0)
    records = [event(b"a", 1, BATCHES), event(b"b", 0, DEAD_LETTERS), event(b"c", 0), event(b"d", 1, BATCHES)]
    await owner.commit(records, {0: Position(1, "")})
    assert values(await read_all(filled, BATCHES, 1)) == [b"a", b"d"]
    assert values(await read_all(filled, DEAD_LETTERS, 0)) == [b"b"]
    assert values(await read_all(filled, EVENTS, 0)) == [b"c"]


async def test_commit_keeps_key_and_headers(filled: Log) -> None:
    owner = await filled.own("app", EVENTS, 0)
    await owner.commit([NewRecord(BATCHES, 0, None, b"v", (("o", b"1/2/3"), ("n", None)))], {})
    (record,) = await read_all(filled, BATCHES)
    assert (record.key, record.value, record.headers) == (None, b"v", (("o", b"1/2/3"), ("n", None)))


async def test_commit_and_append_share_one_order(filled: Log) -> None:
    owner = await filled.own("app", EVENTS, 0)
    await filled.append([event(b"1")])
    await owner.commit([event(b"2")], {})
    await filled.append([event(b"3")])
    records = await read_all(filled)
    assert values(records) == [b"1", b"2", b"3"]
    times = [record.log_time_ns for record in records]
    assert times == sorted(times)


async def test_commit_with_record_above_limit_stores_nothing_and_owner_goes_on(log: Log) -> None:
    await log.create([*TOPICS[:1], TopicSettings(BATCHES, 1, None, 10_000)])
    owner = await log.own("app", EVENTS, 0)
    await owner.commit([event(b"a", 0, BATCHES)], {0: Position(1, "")})
    with pytest.raises(RecordTooLarge, match=r"batches.*10000 bytes.*got 10001"):
        await owner.commit([event(b"b", 0, BATCHES), event(b"x" * 9_998, 0, BATCHES)], {0: Position(2, "")})
    assert await owner.positions() == {0: Position(1, "")}
    await owner.commit([event(b"c", 0, BATCHES)], {0: Position(3, "")})
    assert values(await read_all(log, BATCHES)) == [b"a", b"c"]


async def test_own_fences_the_older_owner(filled: Log, make_log: MakeLog) -> None:
    old = await filled.own("app", EVENTS, 0)
    await old.commit([event(b"old", 0, BATCHES)], {0: Position(1, "old")})
    new = await (await make_log()).own("app", EVENTS, 0)
    with pytest.raises(Fenced, match="events"):
        await old.commit([event(b"zombie", 0, BATCHES)], {0: Position(2, "zombie")})
    assert await new.positions() == {0: Position(1, "old")}
    await new.commit([event(b"new", 0, BATCHES)], {0: Position(2, "new")})
    assert values(await read_all(filled, BATCHES)) == [b"old", b"new"]


async def test_own_fences_an_older_owner_without_records(filled: Log, make_log: MakeLog) -> None:
    old = await filled.own("app", EVENTS, 0)
    new = await (await make_log()).own("app", EVENTS, 0)
    with pytest.raises(Fenced, match="events"):
        await old.commit([], {0: Position(2, "zombie")})
    assert await new.positions() == {}


@pytest.mark.parametrize(("owned", "partition"), [(0, 1), (1, 0), (None, 2), (None, -1)])
async def test_commit_with_position_of_a_partition_not_owned_stores_nothing(
    filled: Log, owned: int | None, partition: int
) -> None:
    owner = await filled.own("app", EVENTS, owned)
    with pytest.raises(
        InvalidSettings, match=rf"events.* for app: expected positions of partition .*one of {partition};"
    ):
        await owner.commit([event(b"a", 0, BATCHES)], {partition: Position(1, "")})
    assert await owner.positions() == {}
    assert await read_all(filled, BATCHES) == []


# owners of a whole topic


async def test_whole_topic_owner_without_positions_has_none(filled: Log) -> None:
    assert await (await filled.own("app", EVENTS, None)).positions() == {}


async def test_whole_topic_owner_commits_positions_of_several_partitions_with_its_records(
    filled: Log, make_log: MakeLog
) -> None:
    owner = await filled.own("app", EVENTS, None)
    await owner.commit([event(b"a", 0, BATCHES)], {0: Position(3, "x"), 1: Position(5, "y")})
    assert await owner.positions() == {0: Position(3, "x"), 1: Position(5, "y")}
    later = await (await make_log()).own("app", EVENTS, None)
    assert await later.positions() == {0: Position(3, "x"), 1: Position(5, "y")}
    assert values(await read_all(filled, BATCHES)) == [b"a"]


async def test_whole_topic_owner_committing_some_positions_leaves_the_others(filled: Log, make_log: MakeLog) -> None:
    owner = await filled.own("app", EVENTS, None)
    await owner.commit([], {1: Position(5, "y")})
    assert await owner.positions() == {1: Position(5, "y")}
    later = await (await make_log()).own("app", EVENTS, None)
    await later.commit([], {0: Position(3, "x")})
    assert await later.positions() == {0: Position(3, "x"), 1: Position(5, "y")}
    await later.commit([event(b"a", 0, BATCHES)], {})
    assert await later.positions() == {0: Position(3, "x"), 1: Position(5, "y")}


async def test_whole_topic_owner_with_one_unusable_position_stores_nothing(filled: Log) -> None:
    owner = await filled.own("app", EVENTS, None)
    await owner.commit([], {0: Position(1, ""), 1: Position(1, "")})
    with pytest.raises(InvalidSettings, match="expected an offset from 0, got -1"):
        await owner.commit([event(b"a", 0, BATCHES)], {0: Position(2, ""), 1: Position(-1, "")})
    with pytest.raises(InvalidSettings, match="100 ASCII characters"):
        await owner.commit([event(b"a", 0, BATCHES)], {0: Position(2, ""), 1: Position(2, "x" * 101)})
    assert await owner.positions() == {0: Position(1, ""), 1: Position(1, "")}
    assert await read_all(filled, BATCHES) == []


async def test_whole_topic_owner_fences_the_older_one(filled: Log, make_log: MakeLog) -> None:
    old = await filled.own("app", EVENTS, None)
    await old.commit([], {0: Position(1, "old"), 1: Position(1, "old")})
    new = await (await make_log()).own("app", EVENTS, None)
    with pytest.raises(Fenced, match="owner of all of events for app"):
        await old.commit([event(b"zombie", 0, BATCHES)], {0: Position(2, "zombie"), 1: Position(2, "zombie")})
    assert await new.positions() == {0: Position(1, "old"), 1: Position(1, "old")}
    await new.commit([event(b"new", 0, BATCHES)], {1: Position(2, "new")})
    assert values(await read_all(filled, BATCHES)) == [b"new"]


async def test_whole_topic_owner_fences_the_one_of_another_topic(filled: Log, make_log: MakeLog) -> None:
    """An app owns one topic as a whole: on Kafka its one transactional id is `{prefix}.{app}`."""
    old = await filled.own("app", EVENTS, None)
    await (await make_log()).own("app", BATCHES, None)
    with pytest.raises(Fenced):
        await old.commit([], {0: Position(1, "")})


async def test_whole_topic_owner_and_owners_of_partitions_and_other_apps_do_not_fence_each_other(
    filled: Log, make_log: MakeLog
) -> None:
    other = await make_log()
    owners = [
        await filled.own("app", EVENTS, 0),
        await other.own("app", EVENTS, None),
        await other.own("app", EVENTS, 1),
        await filled.own("other", EVENTS, None),
    ]
    for _ in range(2):
        for i, owner in enumerate(owners):
            await owner.commit([event(b"%d" % i, 0, DEAD_LETTERS)], {})
    assert values(await read_all(filled, DEAD_LETTERS)) == [b"0", b"1", b"2", b"3"] * 2


async def test_whole_topic_owner_reads_what_owners_of_partitions_committed(filled: Log) -> None:
    for partition in (0, 1):
        await (await filled.own("app", EVENTS, partition)).commit([], {partition: Position(7 + partition, "p")})
    whole = await filled.own("app", EVENTS, None)
    assert await whole.positions() == {0: Position(7, "p"), 1: Position(8, "p")}
    await whole.commit([], {0: Position(9, "w")})
    assert await (await filled.own("app", EVENTS, 0)).positions() == {0: Position(9, "w")}


async def test_whole_topic_owner_of_a_missing_topic_is_log_missing(filled: Log) -> None:
    with pytest.raises(LogMissing, match="nothere"):
        await filled.own("app", "nothere", None)


# owners of partitions at once


async def test_own_during_a_commit_keeps_all_of_it_or_nothing(filled: Log, make_log: MakeLog) -> None:
    other = await make_log()
    expected: list[bytes] = []
    old = await filled.own("app", EVENTS, 0)

    async def take_over(turns: int) -> Mapping[int, Position]:
        nonlocal old
        for _ in range(turns):  # every round a little later
            await asyncio.sleep(0.001)
        old = await other.own("app", EVENTS, 0)
        return await old.positions()

    for n in range(10):
        records = [event((b"%d" % n).ljust(100_000), 0, BATCHES) for _ in range(20)]
        commit = old.commit(records, {0: Position(n, "")})
        outcome, positions = await asyncio.gather(commit, take_over(n), return_exceptions=True)
        committed = positions == {0: Position(n, "")}
        if outcome is None or isinstance(outcome, Fenced):
            assert committed == (outcome is None)
        else:  # a broker that is taken over in the middle can answer with an unknown error: the positions tell
            assert isinstance(outcome, LogUnavailable)
        expected += [b"%d" % n] * 20 * committed
        filled, other = other, filled
    assert [(value or b"").strip() for value in values(await read_all(filled, BATCHES))] == expected


async def test_owners_of_different_partitions_and_apps_do_not_fence_each_other(filled: Log, make_log: MakeLog) -> None:
    other = await make_log()
    owners = [
        await filled.own("app", EVENTS, 0),
        await other.own("app", EVENTS, 1),
        await other.own("other", EVENTS, 0),
        await other.own("app", BATCHES, 0),
    ]
    for round_ in range(2):
        for i, owner in enumerate(owners):
            await owner.commit([event(b"%d" % i, 0, DEAD_LETTERS)], {int(i == 1): Position(round_, str(i))})
    assert [await owner.positions() for owner in owners] == [{int(i == 1): Position(1, str(i))} for i in range(4)]
    assert values(await read_all(filled, DEAD_LETTERS)) == [b"0", b"1", b"2", b"3"] * 2


async def test_owners_of_one_log_commit_at_once(filled: Log) -> None:
    owners = [await filled.own("app", EVENTS, partition) for partition in (0, 1)]
    for n in range(10):
        await asyncio.gather(
            *(
                owner.commit([event(b"%d" % n, partition, BATCHES)], {partition: Position(n, "")})
                for partition, owner in enumerate(owners)
            )
        )
    for partition in (0, 1):
        assert values(await read_all(filled, BATCHES, partition)) == [b"%d" % n for n in range(10)]


async def test_owner_close_twice_is_fine_and_keeps_what_was_committed(filled: Log) -> None:
    owner = await filled.own("app", EVENTS, 0)
    await owner.commit([event(b"a", 0, BATCHES)], {0: Position(1, "")})
    await owner.close()
    await owner.close()
    later = await filled.own("app", EVENTS, 0)
    assert await later.positions() == {0: Position(1, "")}
    assert values(await read_all(filled, BATCHES)) == [b"a"]


async def test_reader_sees_commits_whole(filled: Log, make_log: MakeLog) -> None:
    """When one record of a commit is visible, the others are, without another word from the writer."""
    owner = await (await make_log()).own("app", EVENTS, 0)
    reader = await filled.reader(BATCHES, {0: 0, 1: 0})
    for n in range(20):
        commit = asyncio.create_task(
            owner.commit([event(b"%d" % n, i % 2, BATCHES) for i in range(50)], {0: Position(n, "")})
        )
        records = await take(reader, 50)
        await commit
        assert values(records) == [b"%d" % n] * 50
        assert await owner.positions() == {0: Position(n, "")}


async def test_log_close_twice_is_fine(make_log: MakeLog) -> None:
    log = await make_log()
    await log.create(TOPICS)
    await log.close()
    await log.close()


# processes


async def start_writer(*arguments: str) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(WRITER), *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)
    assert line == b"ready\n"
    return process, process.stdout


async def test_appends_by_several_processes_keep_each_order_and_lose_nothing(filled: Log) -> None:
    names = ["a", "b", "c", "d"]
    started = await asyncio.gather(*(start_writer("append", filled.url, name, "200") for name in names))
    for process, _ in started:
        assert await asyncio.wait_for(process.wait(), 2 * DEADLINE_S) == 0
    for partition in (0, 1):
        records = await read_all(filled, EVENTS, partition)
        assert len(records) == 400
        times = [record.log_time_ns for record in records]
        assert times == sorted(times)
        for name in names:
            own = [record for record in records if record.key == name.encode()]
            assert values(own) == [b"%d" % i for i in range(partition, 200, 2)]


async def test_commits_broken_off_by_sigkill_are_whole_or_absent(filled: Log, make_log: MakeLog) -> None:
    seed = 7
    rounds = 10 if filled.url.startswith("sqlite") else 3
    print("seed", seed)
    random_ = random.Random(seed)
    next_ = 1
    for round_ in range(rounds):
        process, lines = await start_writer("commit", filled.url, str(next_), "40", "50000")
        acknowledged = next_ - 1
        for _ in range(random_.randint(1, 6)):
            acknowledged = int(await asyncio.wait_for(lines.readline(), DEADLINE_S))
        await asyncio.sleep(random_.random() * 0.03)  # any moment of the commit that runs now
        process.kill()
        rest = await asyncio.wait_for(lines.read(), DEADLINE_S)
        await process.wait()
        acknowledged = max([acknowledged, *map(int, rest.split())])
        position = (await (await filled.own("app", EVENTS, 0)).positions())[0]
        assert acknowledged <= position.offset <= acknowledged + 1, f"seed {seed}, round {round_}"
        for topic in (BATCHES, DEAD_LETTERS):
            found = [int(value or b"") for value in values(await read_all(filled, topic))]
            assert found == [n for n in range(1, position.offset + 1) for _ in range(20)], f"seed {seed}"
        next_ = position.offset + 1


async def test_own_by_another_process_fences_this_one(filled: Log) -> None:
    owner = await filled.own("app", EVENTS, 0)
    await owner.commit([], {0: Position(1, "")})
    process, lines = await start_writer("commit", filled.url, "2", "2", "10")
    try:
        assert await asyncio.wait_for(lines.readline(), DEADLINE_S) == b"2\n"
        with pytest.raises(Fenced, match="events"):
            await owner.commit([event(b"zombie", 0, BATCHES)], {0: Position(0, "")})
    finally:
        process.kill()
        await process.wait()
    assert b"zombie" not in values(await read_all(filled, BATCHES))
