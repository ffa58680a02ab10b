"""Where reading begins and ends: told by the origins of batches, and by the assembler's status."""

from typing import Any

import pytest
from support.batches import batch, records_of
from support.memory_log import MemoryLog

from rolloutlog.consumers.archiving.log import Lost
from rolloutlog.consumers.origin import HEADER, Origin
from rolloutlog.consumers.recovery import HistoryLost
from rolloutlog.consumers.replaying.bounds import MARGIN_NS, find_bounds
from rolloutlog.consumers.replaying.selection import Selection
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.status import Status, status_record
from rolloutlog.eventstore.log import BATCHES, EVENTS, META, REWARDS, NewRecord, Range
from rolloutlog.eventstore.partitioner import partition_of

HOUR_NS = MARGIN_NS


class World:
    """A log of one partition with an event an hour, at offset n in hour n."""

    def __init__(self, events: int) -> None:
        self.hour = 0
        self.log = MemoryLog(partitions=1, log_time_ns=lambda: self.hour * HOUR_NS)
        self.events = events

    async def fill(self, *batches: tuple[int, int, str]) -> None:
        """Events, and batches as (first event, trigger, group), each published when it closed."""
        for hour in range(self.events):
            self.hour = hour
            await self.log.append([NewRecord(EVENTS, 0, b"g", b"")])
            for first, trigger, group_id in batches:
                if trigger == hour:
                    await self.publish(first, trigger, group_id)

    async def publish(self, first: int, trigger: int, group_id: str, value: bytes = b"") -> None:
        origin = Origin(0, trigger, first, "h").text()
        await self.log.append([NewRecord(BATCHES, 0, group_id.encode(), value, ((HEADER, origin),))])

    async def tell(self, *, position: int, watermark: int) -> None:
        status = Status("assembler", 0, "h", 1, 0, position, watermark, position, 0, 0, None, {}, ())
        await self.log.append([status_record(status)])

    async def bounds(self, **selection: Any) -> tuple[int, int]:
        found = await find_bounds(self.log, self.log, Selection(**selection), FoldSettings())
        return found.first[0], found.ends[0]

    def lose(self, first: int, end: int, *, topic: str = EVENTS) -> None:
        """As an archive whose log had been cut before it was archived."""
        self.log.lost = [Lost(topic, 0, first, end, "cut")]  # type: ignore[attr-defined]

    def cut(self, topic: str, first: int) -> None:
        """As if retention had removed what is below."""
        ranges = self.log.ranges

        async def cut_ranges(asked: str, partitions: Any) -> Any:
            found = dict(await ranges(asked, partitions))
            return {p: Range(first, each.end, each.written) if asked == topic else each for p, each in found.items()}

        self.log.ranges = cut_ranges  # type: ignore[method-assign]


@pytest.mark.parametrize(("told", "group_id", "unfound"), [(True, "x", True), (False, "x", False), (True, "a", False)])
async def test_bounds_of_ids_say_that_no_batch_tells_of_any_where_an_assembler_has_said_how_far_it_is(
    told: bool, group_id: str, unfound: bool
):
    world = World(10)
    await world.fill((0, 3, "a"))
    if told:
        await world.tell(position=8, watermark=8)
    found = await find_bounds(world.log, world.log, Selection(groups=(group_id,)), FoldSettings())
    assert found.unfound is unfound


async def test_bounds_of_all_history_are_those_of_the_events():
    world = World(10)
    await world.fill((0, 3, "a"))
    assert await world.bounds() == (0, 10)


async def test_bounds_of_a_range_begin_with_the_first_event_of_its_groups_and_of_those_closed_an_hour_before():
    world = World(40)
    await world.fill((0, 3, "a"), (8, 19, "b"), (12, 21, "c"), (14, 30, "d"))
    await world.tell(position=40, watermark=40)
    assert await world.bounds(from_ns=20 * HOUR_NS, to_ns=25 * HOUR_NS) == (8, 25)
    assert await world.bounds(from_ns=21 * HOUR_NS, to_ns=25 * HOUR_NS) == (12, 25)


async def test_bounds_of_a_range_with_groups_that_are_not_published_begin_at_the_watermark():
    world = World(40)
    await world.fill((0, 3, "a"), (30, 36, "b"))
    await world.tell(position=38, watermark=25)
    assert await world.bounds(from_ns=35 * HOUR_NS) == (25, 40)


async def test_bounds_of_a_range_reach_back_to_a_group_that_is_still_open():
    """A start in the range would open that group again, where it was one too many."""
    world = World(40)
    await world.fill((20, 26, "a"))
    await world.tell(position=40, watermark=5)
    assert await world.bounds(from_ns=25 * HOUR_NS, to_ns=30 * HOUR_NS) == (5, 30)


async def test_bounds_of_a_range_reach_back_to_groups_that_closed_long_before_and_were_published_within_it():
    """Until then starts with their ids were refused."""
    world = World(40)
    await world.fill()
    for first, trigger, group_id in ((2, 4, "a"), (28, 30, "b")):
        await world.publish(first, trigger, group_id)
    await world.tell(position=40, watermark=40)
    assert await world.bounds(from_ns=29 * HOUR_NS, to_ns=35 * HOUR_NS) == (2, 35)


async def test_bounds_of_a_range_when_the_clock_was_set_back_begin_with_the_first_batch_triggered_in_it():
    """Batches are stored by another partition's clock than events: it may tell an earlier time."""
    world = World(40)
    await world.fill((0, 3, "a"))
    world.hour = 10
    for first, trigger, group_id in ((1, 12, "b"), (15, 30, "c"), (16, 31, "d"), (17, 32, "e"), (38, 39, "f")):
        await world.publish(first, trigger, group_id)
    await world.tell(position=40, watermark=40)
    assert await world.bounds(from_ns=30 * HOUR_NS) == (15, 40)


async def test_bounds_of_a_range_of_a_log_that_was_never_assembled_begin_with_the_log():
    world = World(40)
    await world.fill()
    assert await world.bounds(from_ns=35 * HOUR_NS) == (0, 40)


async def test_bounds_of_a_range_whose_batches_are_cut_begin_with_the_log():
    world = World(40)
    await world.fill((0, 3, "a"), (30, 36, "b"))
    await world.tell(position=40, watermark=40)
    world.cut(BATCHES, 1)
    assert await world.bounds(from_ns=20 * HOUR_NS) == (0, 40)


async def test_bounds_of_a_range_whose_first_events_are_gone_are_refused_or_cut():
    world = World(40)
    await world.fill((8, 21, "a"))
    await world.tell(position=40, watermark=40)
    world.cut(EVENTS, 10)
    selection = Selection(from_ns=20 * HOUR_NS)
    with pytest.raises(HistoryLost, match=r"events 8-9 are gone, where wanted groups begin.*--archive"):
        await find_bounds(world.log, world.log, selection, FoldSettings())
    found = await find_bounds(world.log, world.log, selection, FoldSettings(), skip_lost=True)
    assert (found.first, found.ends) == ((10,), (40,))


async def test_bounds_of_a_range_whose_events_are_gone_to_the_last_are_refused():
    """That a group closed within the range is told by its batch alone."""
    world = World(40)
    await world.fill()
    (record,) = records_of(batch("a", [], closed_ns=21 * HOUR_NS))
    await world.publish(8, 21, "a", record.value or b"")
    await world.tell(position=40, watermark=40)
    world.cut(EVENTS, 30)
    with pytest.raises(HistoryLost, match=r"events 8-29 are gone, where wanted groups begin"):
        await world.bounds(from_ns=20 * HOUR_NS)
    assert await world.bounds(from_ns=22 * HOUR_NS) == (30, 40)


async def test_bounds_of_all_history_with_events_lost_between_others_are_refused_or_told(caplog):
    world = World(40)
    await world.fill((8, 21, "a"))
    world.lose(30, 33)
    with pytest.raises(HistoryLost, match=r"partition 0 of events: events 30-32 were lost .*on-history-lost skip"):
        await world.bounds()
    found = await find_bounds(world.log, world.log, Selection(), FoldSettings(), skip_lost=True)
    assert (found.first, found.ends) == ((0,), (40,))
    assert caplog.text.count("events 30-32 were lost before they were archived; going on without them") == 1
    assert await world.bounds(to_ns=30 * HOUR_NS) == (0, 30)


async def test_bounds_with_rewards_lost_are_those_of_the_events():
    world = World(40)
    await world.fill()
    world.lose(30, 33, topic=REWARDS)
    assert await world.bounds() == (0, 40)


@pytest.mark.parametrize(("first", "end", "refused"), [(4, 8, False), (7, 9, True), (21, 22, True), (22, 40, False)])
async def test_bounds_of_published_groups_are_refused_when_events_among_theirs_are_lost(first, end, refused):
    world = World(40)
    await world.fill((2, 3, "a"), (8, 21, "b"), (25, 30, "c"))
    await world.tell(position=40, watermark=40)
    world.lose(first, end)
    for selection in ({"groups": ("b",)}, {"from_ns": 20 * HOUR_NS, "to_ns": 24 * HOUR_NS}):
        if refused:
            with pytest.raises(HistoryLost, match="wanted groups had events there"):
                await world.bounds(**selection)
        else:
            assert (await world.bounds(**selection))[0] == 8


async def test_bounds_of_groups_of_which_nothing_is_known_are_refused_when_events_are_lost_where_they_may_be():
    world = World(40)
    await world.fill((8, 21, "b"))
    await world.tell(position=35, watermark=25)
    world.lose(10, 12)
    assert await world.bounds(groups=("open",)) == (25, 40)
    assert await world.bounds(from_ns=30 * HOUR_NS) == (25, 40)
    world.lose(28, 29)
    for selection in ({"groups": ("open",)}, {"from_ns": 30 * HOUR_NS}):
        with pytest.raises(HistoryLost, match="events 28-28 were lost"):
            await world.bounds(**selection)


async def test_bounds_of_published_groups_reach_from_their_first_event_to_the_last_closing():
    world = World(40)
    await world.fill((2, 9, "a"), (5, 20, "b"), (6, 30, "c"))
    await world.tell(position=40, watermark=40)
    assert await world.bounds(groups=("a", "b")) == (2, 21)


async def test_bounds_of_a_group_that_is_not_published_reach_to_the_end():
    world = World(40)
    await world.fill((2, 9, "a"))
    assert await world.bounds(groups=("a", "open")) == (0, 40)
    await world.tell(position=35, watermark=30)
    assert await world.bounds(groups=("open",)) == (30, 40)


async def test_bounds_of_a_group_that_is_open_beside_one_that_is_published_reach_back_to_its_first_event():
    """From its middle, it could seem to close."""
    world = World(40)
    await world.fill((20, 29, "a"))
    await world.tell(position=40, watermark=5)
    assert await world.bounds(groups=("a", "open")) == (5, 30)
    assert await world.bounds(groups=("a",)) == (20, 30)


async def test_bounds_of_groups_read_nothing_of_partitions_in_which_they_cannot_be():
    log = MemoryLog(partitions=4)
    await log.append([NewRecord(EVENTS, partition, b"g", b"") for partition in range(4)])
    found = await find_bounds(log, log, Selection(groups=("g",)), FoldSettings())
    read = [p for p in range(4) if found.first[p] < found.ends[p]]
    assert read == [partition_of(b"g", 4)]


async def test_bounds_with_records_of_others_among_the_batches_pass_them_over():
    world = World(10)
    await world.fill((1, 5, "a"))
    await world.log.append([NewRecord(BATCHES, 0, b"a", b"junk"), NewRecord(META, 0, b"status/assembler/0", b"junk")])
    assert await world.bounds(groups=("a",)) == (1, 6)
