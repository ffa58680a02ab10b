"""Reading a partition up to its end, on every log."""

from contextlib import aclosing

import pytest

from rolloutlog.eventstore.errors import LogUnavailable, OffsetOutOfRange
from rolloutlog.eventstore.log import EVENTS, Log, NewRecord, Position, Range
from rolloutlog.eventstore.log.reading import read_all, read_range
from rolloutlog.eventstore.topics import create_topics


async def filled(log: Log, count: int) -> list[int]:
    """A log with `count` records in partition 1 and one in partition 0; returns the former's offsets."""
    await create_topics(log, partitions=2)
    await log.append([NewRecord(EVENTS, 0, b"k", b"other")])
    stored = await log.append([NewRecord(EVENTS, 1, b"k", b"%d" % index) for index in range(count)])
    return [each.offset for each in stored]


async def test_read_all_gives_every_record_of_the_partition_in_order(log: Log):
    offsets = await filled(log, 50)
    assert [record.offset async for record in read_all(log, EVENTS, 1)] == offsets


async def test_read_all_of_an_empty_partition_gives_nothing(log: Log):
    await filled(log, 0)
    assert [record async for record in read_all(log, EVENTS, 1)] == []


async def test_read_all_stops_at_the_end_as_it_was(log: Log):
    offsets = await filled(log, 3)
    found = []
    async for record in read_all(log, EVENTS, 1):
        if not found:
            await log.append([NewRecord(EVENTS, 1, b"k", b"later")] * 5)
        found.append(record.offset)
    assert found == offsets


async def test_read_range_gives_the_records_within(log: Log):
    offsets = await filled(log, 10)
    found = [record.offset async for record in read_range(log, EVENTS, 1, offsets[3], offsets[7])]
    assert found == offsets[3:7]


async def test_read_range_that_is_empty_opens_no_reader(log: Log):
    await filled(log, 1)
    assert [record async for record in read_range(log, EVENTS, 1, 7, 7)] == []


async def test_read_all_with_transactions_passes_over_their_markers(log: Log):
    await filled(log, 2)
    owner = await log.own("assembler", EVENTS, 1)
    for value in (b"a", b"b"):
        await owner.commit([NewRecord(EVENTS, 1, b"k", value)], {1: Position(0, "")})
    await owner.close()
    assert [record.value async for record in read_all(log, EVENTS, 1)] == [b"0", b"1", b"a", b"b"]


async def test_read_range_left_early_and_closed_can_be_read_again(log: Log):
    offsets = await filled(log, 5)
    for _ in range(2):
        async with aclosing(read_all(log, EVENTS, 1)) as records:
            async for record in records:
                assert record.offset == offsets[0]
                break


async def test_read_range_below_the_first_record_says_what_is_gone(log: Log, cut_head):
    offsets = await filled(log, 5)
    await cut_head(EVENTS, 1, offsets[2])
    with pytest.raises(OffsetOutOfRange):
        _ = [record async for record in read_range(log, EVENTS, 1, offsets[0], offsets[4] + 1)]


async def test_read_range_of_a_log_that_goes_silent_is_an_error_not_an_end(log: Log, monkeypatch):
    """As behind the open transaction of another program."""
    offsets = await filled(log, 2)

    async def beyond(topic, partitions):
        return {1: Range(0, offsets[-1] + 1, offsets[-1] + 1)}

    class Silent:
        def position(self, partition: int) -> int:
            return 0

        async def fetch(self, *, wait_s: float, records_max: int = 2_000) -> list[object]:
            return []

        async def close(self) -> None: ...

    async def silent(topic, offsets):
        return Silent()

    monkeypatch.setattr(log, "ranges", beyond)
    monkeypatch.setattr(log, "reader", silent)
    with pytest.raises(LogUnavailable, match=r"expected records of events, partition 1, up to offset .* got none"):
        _ = [record async for record in read_all(log, EVENTS, 1, silent_s=2.0)]
