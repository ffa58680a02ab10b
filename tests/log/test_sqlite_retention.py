"""What the embedded log's retention removes, and what it never does."""

from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
import pytest_asyncio

from rolloutlog.eventstore.acks import StepAcknowledged, StepAwaited, ack_records
from rolloutlog.eventstore.errors import LogMissing
from rolloutlog.eventstore.log import (
    ACKS,
    BATCHES,
    DEAD_LETTERS,
    EVENTS,
    META,
    Log,
    NewRecord,
    Position,
    TopicSettings,
    sqlite_retention,
)
from rolloutlog.eventstore.log.reading import read_all
from rolloutlog.eventstore.log.sqlite import SqliteLog
from rolloutlog.eventstore.log.sqlite_retention import Cut, Retention

HOUR_S = 3600
TOPICS = [
    TopicSettings(EVENTS, 2, HOUR_S, 10_000_000),
    TopicSettings(BATCHES, 2, HOUR_S, 10_000_000),
    TopicSettings(DEAD_LETTERS, 2, HOUR_S, 10_000_000),
    TopicSettings(ACKS, 1, HOUR_S, 10_000_000),
    TopicSettings(META, 1, None, 10_000_000, "compact"),
]


class Clock:
    """Moved by hand, in seconds."""

    def __init__(self) -> None:
        self.now_s = 1_000_000

    def __call__(self) -> int:
        return self.now_s * 1_000_000_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/log.db"


@pytest_asyncio.fixture
async def log(url: str, clock: Clock) -> AsyncIterator[SqliteLog]:
    opened = await SqliteLog.open(url, create=True, clock=clock)
    await opened.create(TOPICS)
    yield opened
    await opened.close()


async def fill(log: Log, topic: str, clock: Clock, *, old: int = 3, new: int = 2) -> None:
    """Partition 0: `old` records, two hours later `new` ones."""
    await log.append([NewRecord(topic, 0, b"key", b"old")] * old)
    clock.now_s += 2 * HOUR_S
    await log.append([NewRecord(topic, 0, b"key", b"new")] * new)


async def commit(log: Log, app: str, topic: str, partition: int | None, offset: int | None) -> None:
    owner = await log.own(app, topic, partition)
    if offset is not None:
        await owner.commit([], {0: Position(offset, "")})
    await owner.close()


async def plan(url: str, clock: Clock, topic: str, without: Collection[str] = ()) -> Cut:
    retention = await Retention.open(url, without=without, clock=clock)
    try:
        return next(cut for cut in await retention.plan() if cut.topic == topic)
    finally:
        await retention.close()


async def trim(url: str, clock: Clock) -> None:
    retention = await Retention.open(url, clock=clock)
    try:
        for cut in await retention.plan():
            while await retention.remove(cut):
                pass
    finally:
        await retention.close()


async def offsets(log: Log, topic: str) -> list[int]:
    return [record.offset async for record in read_all(log, topic)]


async def test_retention_of_old_events_below_the_watermark_removes_them(log: SqliteLog, url: str, clock: Clock):
    await fill(log, EVENTS, clock)
    await commit(log, "assembler", EVENTS, 0, 5)
    await trim(url, clock)
    assert await offsets(log, EVENTS) == [3, 4]
    assert (await log.ranges(EVENTS, [0]))[0].first == 3


async def test_retention_of_old_events_from_the_watermark_on_keeps_them(log: SqliteLog, url: str, clock: Clock):
    """Open groups began there: without their starts they would never close."""
    await fill(log, EVENTS, clock)
    await commit(log, "assembler", EVENTS, 0, 1)
    cut = await plan(url, clock, EVENTS)
    assert (cut.before, cut.records, cut.kept) == (1, 1, "assembler is at offset 1")


async def test_retention_of_events_without_an_assembler_keeps_all(log: SqliteLog, url: str, clock: Clock):
    await fill(log, EVENTS, clock)
    cut = await plan(url, clock, EVENTS)
    assert (cut.records, cut.kept) == (0, "assembler has committed no position")


async def test_retention_of_young_events_below_the_watermark_keeps_them(log: SqliteLog, url: str, clock: Clock):
    await fill(log, EVENTS, clock, old=0)
    await commit(log, "assembler", EVENTS, 0, 2)
    assert await plan(url, clock, EVENTS) == Cut(EVENTS, 0, 0, 0, 0, "")


async def test_retention_of_batches_acknowledged_by_one_of_two_readers_keeps_the_others(
    log: SqliteLog, url: str, clock: Clock
):
    await fill(log, BATCHES, clock)
    await commit(log, "trainer", BATCHES, None, 5)
    await commit(log, "evaluation", BATCHES, None, 2)
    cut = await plan(url, clock, BATCHES)
    assert (cut.before, cut.kept) == (2, "evaluation is at offset 2")


async def test_retention_of_batches_with_a_reader_that_acknowledged_none_keeps_all(
    log: SqliteLog, url: str, clock: Clock
):
    await fill(log, BATCHES, clock)
    await commit(log, "trainer", BATCHES, None, 5)
    await commit(log, "evaluation", BATCHES, None, None)
    cut = await plan(url, clock, BATCHES)
    assert (cut.before, cut.kept) == (0, "evaluation has committed no position")


async def test_retention_of_batches_without_any_reader_waits_for_a_trainer(log: SqliteLog, url: str, clock: Clock):
    await fill(log, BATCHES, clock)
    assert (await plan(url, clock, BATCHES)).kept == "trainer has committed no position"


async def test_retention_without_a_reader_that_will_not_come_back_goes_by_age(log: SqliteLog, url: str, clock: Clock):
    await fill(log, BATCHES, clock)
    cut = await plan(url, clock, BATCHES, without=["trainer"])
    assert (cut.before, cut.records, cut.size_bytes, cut.kept) == (3, 3, 18, "")


async def test_retention_of_batches_of_a_partition_no_acknowledgement_named_keeps_them(
    log: SqliteLog, url: str, clock: Clock
):
    await log.append([NewRecord(BATCHES, 1, b"key", b"old")])
    clock.now_s += 2 * HOUR_S
    await commit(log, "trainer", BATCHES, None, 0)
    assert (await plan(url, clock, BATCHES)).kept == "trainer has committed no position"


async def test_retention_of_dead_letters_goes_by_age(log: SqliteLog, url: str, clock: Clock):
    await fill(log, DEAD_LETTERS, clock)
    await trim(url, clock)
    assert await offsets(log, DEAD_LETTERS) == [3, 4]


async def test_retention_of_acknowledgements_keeps_the_newest_of_each_reader(log: SqliteLog, url: str, clock: Clock):
    """Hosts read policy version and lag from it."""
    for reader in (b"a", b"b", b"a"):
        await log.append([NewRecord(ACKS, 0, reader, b"")])
        clock.now_s += 2 * HOUR_S
    cut = await plan(url, clock, ACKS)
    assert (cut.before, cut.kept) == (1, "the newest of reader b stays")


async def test_retention_of_acknowledgements_keeps_what_stands_below_words_of_waiting(
    log: SqliteLog, url: str, clock: Clock
):
    """Without it hosts would go back to the first policy version, since the newest record says no version."""
    said = [
        StepAcknowledged("a", 0, 1, (), (), {0: 1}, 1),
        StepAcknowledged("a", 1, 2, (), (), {0: 2}, 2),
        StepAwaited("a", 2, 4, 3),
        StepAwaited("b", 0, 4, 3),
    ]
    for each in said:
        await log.append(ack_records(each))
        clock.now_s += 2 * HOUR_S
    cut = await plan(url, clock, ACKS)
    assert (cut.before, cut.kept) == (1, "the newest of reader a stays")


async def test_retention_is_not_held_back_by_readers_of_outputs(log: SqliteLog, url: str, clock: Clock):
    """No host follows them, and they read no live batches; nor do those who create an output."""
    await fill(log, BATCHES, clock)
    await commit(log, "trainer", BATCHES, None, 4)
    await log.append(ack_records(StepAcknowledged("trainer", 0, 1, (), (), {0: 1}, 1, "output.judged")))
    clock.now_s += 2 * HOUR_S
    await log.append(ack_records(StepAcknowledged("trainer", 0, 1, (), (), {0: 1}, 1)))
    for app in ("trainer.output.judged", "output.judged"):
        await (await log.own(app, META, None)).close()
    batches, acks = await plan(url, clock, BATCHES), await plan(url, clock, ACKS)
    assert (batches.kept, acks.before, acks.kept) == ("trainer is at offset 4", 1, "")


async def test_retention_of_events_is_not_held_back_by_replays(log: SqliteLog, url: str, clock: Clock):
    """One that goes on says by name what it lacks."""
    await fill(log, EVENTS, clock)
    await commit(log, "assembler", EVENTS, 0, 4)
    await commit(log, "replay.judged", EVENTS, 0, 1)
    await (await log.own("replay.new", EVENTS, 0)).close()
    cut = await plan(url, clock, EVENTS)
    assert (cut.before, cut.kept) == (3, "")


async def test_retention_of_meta_leaves_the_newest_of_each_key(log: SqliteLog, url: str, clock: Clock):
    await log.append([NewRecord(META, 0, key, b"") for key in (b"run/1", b"status/0", b"status/0", b"status/0")])
    clock.now_s += 2 * HOUR_S
    await log.append([NewRecord(META, 0, b"status/1", b"")] * 2)  # too young: whoever follows them may not be there yet
    await trim(url, clock)
    assert await offsets(log, META) == [0, 3, 4, 5]
    assert await plan(url, clock, META) == Cut(META, 0, None, 0, 0, "")


async def test_retention_in_pieces_ends_none_within_records_stored_together(
    log: SqliteLog, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    """Else a batch could be left without its first part."""
    monkeypatch.setattr(sqlite_retention, "RECORDS_A_TRANSACTION", 4)
    for count in (3, 3, 7):
        await log.append([NewRecord(DEAD_LETTERS, 0, b"", b"")] * count)
        clock.now_s += 1
    clock.now_s += 2 * HOUR_S
    retention = await Retention.open(url, clock=clock)
    (cut,) = await retention.plan()
    assert [await retention.remove(cut) for _ in range(4)] == [3, 3, 7, 0]
    await retention.close()


async def test_retention_when_an_owner_rewinds_meanwhile_keeps_what_it_needs_now(
    log: SqliteLog, url: str, clock: Clock
):
    await fill(log, BATCHES, clock)
    await commit(log, "trainer", BATCHES, None, 5)
    retention = await Retention.open(url, clock=clock)
    cut = next(each for each in await retention.plan() if each.topic == BATCHES)
    await commit(log, "trainer", BATCHES, None, 1)
    assert (cut.records, await retention.remove(cut), await retention.remove(cut)) == (3, 1, 0)
    await retention.close()


async def test_shrink_gives_the_space_of_removed_records_back(log: SqliteLog, url: str, clock: Clock):
    await log.append([NewRecord(DEAD_LETTERS, 0, b"", bytes(1_000_000))] * 3)
    clock.now_s += 2 * HOUR_S
    await trim(url, clock)
    retention = await Retention.open(url, clock=clock)
    before = await retention.space()
    await retention.shrink()
    after = await retention.space()
    await retention.close()
    assert (before.free_bytes > 2_900_000, after.free_bytes, after.file_bytes < 500_000) == (True, 0, True)
    assert await log.append([NewRecord(DEAD_LETTERS, 0, b"", b"")])  # goes on with the file as it is now


async def test_retention_of_a_missing_file_makes_none(tmp_path: Path):
    with pytest.raises(LogMissing, match="there is no such file"):
        await Retention.open(f"sqlite:///{tmp_path}/none.db")
