"""The archiver: each record once, whatever ends it."""

import asyncio
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from support.archive import FaultyStorage, Killed, archive, archived, disk_full, records_of
from unit.consumers.archiving.conftest import DAY_NS, fill, plain

from rolloutlog.consumers.archiving import ArchiveUnavailable, chunk, lanes, open_archive
from rolloutlog.consumers.archiving import archiver as archiver_module
from rolloutlog.consumers.archiving.archiver import Archiver
from rolloutlog.consumers.archiving.lanes import ArchiverSettings
from rolloutlog.consumers.archiving.storage import doing, open_storage
from rolloutlog.consumers.archiving.verifying import verify
from rolloutlog.eventstore.errors import InvalidSettings, LogUnavailable, OffsetOutOfRange, PartitionCountChanged
from rolloutlog.eventstore.log import EVENTS, REWARDS, NewRecord
from rolloutlog.eventstore.log.sqlite import SqliteLog, SqliteReader
from rolloutlog.eventstore.meta import read_run
from rolloutlog.eventstore.topics import create_topics


def entries(folder: Path, topic: str = EVENTS) -> list[dict]:
    files = sorted((folder / "manifest" / topic).rglob("*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def data_files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.suffix in (".avro", ".parquet")}


async def check(folder: Path, log: SqliteLog) -> None:
    """The archive holds the log's records, each once, and nothing is wrong with it."""
    for topic in (EVENTS, REWARDS):
        assert await archived(folder, topic) == await records_of(log, topic)
    assert verify(open_storage(folder)).faults == []


async def test_archive_holds_every_record_with_offset_log_time_key_value_and_headers(log, clock, tmp_path):
    await fill(log, clock)
    await log.append([NewRecord(REWARDS, 2, b"g", b"a re-score", (("e", b"x"),))])
    done = await archive(log, tmp_path / "a")
    assert done.records == len(await records_of(log)) + 1
    assert done.refused > 5
    await check(tmp_path / "a", log)


async def test_archive_of_an_object_store_holds_the_same(log, clock, tmp_path):
    await fill(log, clock)
    await archive(log, "memory://same/archive", chunk_bytes=5_000)
    assert await archived("memory://same/archive") == await records_of(log)
    assert verify(open_storage("memory://same/archive")).faults == []


async def test_archive_that_is_run_again_adds_what_is_new_alone(log, clock, tmp_path):
    await fill(log, clock, seed=1)
    await archive(log, tmp_path / "a")
    first = entries(tmp_path / "a")
    assert (await archive(log, tmp_path / "a")).records == 0
    await fill(log, clock, seed=2)
    await archive(log, tmp_path / "a")
    assert [each for each in entries(tmp_path / "a") if each in first] == first
    await check(tmp_path / "a", log)


async def test_run_record_is_kept(log, tmp_path):
    await archive(log, tmp_path / "a")
    opened = await open_archive(tmp_path / "a")
    assert await read_run(opened) == await read_run(log)
    assert opened.run_id == "run"


async def test_chunk_ends_when_its_values_are_large(log, tmp_path):
    await log.append([plain(0, b"12345") for _ in range(7)])
    await archive(log, tmp_path / "a", chunk_bytes=10)
    assert [(each["first"], each["end"], each["value_bytes"]) for each in entries(tmp_path / "a")] == [
        (0, 2, 10), (2, 4, 10), (4, 6, 10), (6, 7, 5),
    ]  # fmt: skip


async def test_chunk_ends_with_its_day(log, clock, tmp_path):
    for offset in range(4):
        clock.now_ns += DAY_NS // 2 - 1
        await log.append([plain(0, b"%d" % offset)])
    await archive(log, tmp_path / "a")
    assert [(each["day"], each["first"], each["end"]) for each in entries(tmp_path / "a")] == [
        ("2026-03-01", 0, 2), ("2026-03-02", 2, 4),
    ]  # fmt: skip
    folders = {name.rpartition("-")[0] for name in data_files(tmp_path / "a")}
    assert folders == {"events/day=2026-03-01/0-0-2", "events/day=2026-03-02/0-2-4"}
    await check(tmp_path / "a", log)


async def test_quiet_log_is_archived_when_its_first_record_is_old_enough(log, tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "FETCH_WAIT_S", 0.01)
    now = 1000.0
    archiver = Archiver(log, open_storage(tmp_path / "a"), ArchiverSettings(chunk_s=300), monotonic=lambda: now)
    running = asyncio.create_task(archiver.run([0, 1, 2, 3]))
    await log.append([plain(1, b"quiet")])
    await wait_for(lambda: any(lane.chunk for lane in archiver.lanes))
    await asyncio.sleep(0.05)
    assert entries(tmp_path / "a") == []
    now += 300
    await wait_for(lambda: len(entries(tmp_path / "a")) == 1)
    archiver.stop.set()
    await running
    await check(tmp_path / "a", log)


async def test_stopped_archiver_stores_what_it_has_read(log, tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "FETCH_WAIT_S", 0.01)
    archiver = Archiver(log, open_storage(tmp_path / "a"))
    running = asyncio.create_task(archiver.run([0, 1, 2, 3]))
    await log.append([plain(1, b"quiet")])
    await wait_for(lambda: any(lane.chunk for lane in archiver.lanes))
    archiver.stop.set()
    assert (await running).records == 1
    await check(tmp_path / "a", log)


async def test_archiver_killed_at_any_step_is_gone_on_with_exactly(log, clock, tmp_path):
    """Every change to the archive is once the last one that was made."""
    await fill(log, clock, groups=2)
    expected = await records_of(log)
    step = 0
    while True:
        folder = tmp_path / str(step)
        killed = await killed_at(log, folder, step)
        await archive(log, folder, chunk_bytes=3_000)
        assert await archived(folder) == expected
        if not killed:
            break
        step += 1
    assert step > 15


async def test_archiver_killed_again_and_again_loses_and_doubles_nothing(log, clock, tmp_path):
    await fill(log, clock)
    kills = 0
    while await killed_at(log, tmp_path / "a", 7):
        kills += 1
    assert kills > 3
    await check(tmp_path / "a", log)


async def test_log_that_does_not_answer_keeps_nothing_from_being_stored_when_it_is_old(log, tmp_path, monkeypatch):
    """Also its files are then not taken for those of a killed archiver."""
    monkeypatch.setattr(lanes, "FETCH_WAIT_S", 0.01)
    monkeypatch.setattr(lanes, "RETRY_S", 0.01)
    now = 1000.0
    archiver = Archiver(log, open_storage(tmp_path / "a"), ArchiverSettings(chunk_s=300), monotonic=lambda: now)
    running = asyncio.create_task(archiver.run([0, 1, 2, 3]))
    await log.append([plain(1, b"read")])
    await wait_for(lambda: any(lane.chunk for lane in archiver.lanes))

    async def away(*arguments, **named):
        raise LogUnavailable("no answer")

    monkeypatch.setattr(SqliteReader, "fetch", away)
    now += 300
    await wait_for(lambda: len(entries(tmp_path / "a")) == 1)
    archiver.stop.set()
    assert (await running).records == 1


async def test_log_made_anew_with_another_run_is_refused_when_it_is_read_again(log, tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "RETRY_S", 0.01)
    archiver = Archiver(log, open_storage(tmp_path / "a"))
    reader_of, run = log.reader, await read_run(log)
    broken = False

    async def reader(topic, offsets):
        nonlocal broken
        if topic == EVENTS and not broken:
            broken = True
            monkeypatch.setattr(archiver_module, "read_run", other)
            raise LogUnavailable("its broker is gone")
        return await reader_of(topic, offsets)

    async def other(_log):
        return replace(run, run_id="other")

    monkeypatch.setattr(log, "reader", reader)
    with pytest.raises(InvalidSettings, match="expected run run, got run other"):
        await archiver.run([0, 1, 2, 3], until_end=False)


async def test_log_with_more_partitions_than_its_run_is_refused(log, tmp_path, monkeypatch):
    async def partitions(topic):
        return 5

    monkeypatch.setattr(log, "partitions", partitions)
    with pytest.raises(PartitionCountChanged, match="expected 4 partitions"):
        await archive(log, tmp_path / "a")


async def killed_at(log: SqliteLog, folder: Path, step: int) -> bool:
    """Archive until a change to the archive; returns whether it came so far."""

    def before(number: int, name: str, about: str) -> None:
        if number >= step:
            raise Killed

    try:
        await archive(log, FaultyStorage(open_storage(folder), before), chunk_bytes=3_000)
    except Killed:
        return True
    return False


async def test_two_archivers_at_once_add_each_record_once(log, clock, tmp_path):
    await fill(log, clock)
    await asyncio.gather(*(archive(log, tmp_path / "a", chunk_bytes=size) for size in (2_000, 3_000, 5_000)))
    await check(tmp_path / "a", log)
    named = {each[kind]["name"] for each in entries(tmp_path / "a") for kind in ("avro", "parquet")}
    assert data_files(tmp_path / "a") == named


async def test_archiver_that_finds_its_place_taken_goes_on_after_it(log, clock, tmp_path, caplog):
    """The other one comes between its files and its entry."""
    await log.append([plain(0, b"%d" % offset) for offset in range(10)])
    taken = False

    def before(number: int, name: str, about: str) -> None:
        nonlocal taken
        if name == "create" and not taken and number > 3:
            taken = True
            asyncio.run_coroutine_threadsafe(archive(log, tmp_path / "a", chunk_bytes=4), loop).result(20)

    loop = asyncio.get_running_loop()
    await archive(log, FaultyStorage(open_storage(tmp_path / "a"), before), chunk_bytes=3)
    assert "another archiver has stored what follows offset 0" in caplog.text
    await check(tmp_path / "a", log)
    assert [each["first"] for each in entries(tmp_path / "a")] == [0, 4, 8]


async def test_full_disk_is_named_and_what_was_written_before_counts(log, clock, tmp_path, monkeypatch):
    await fill(log, clock)

    storage = open_storage(tmp_path / "a")
    put = storage.put

    def put_until_full(part: Path, name: str) -> None:
        with doing(storage.url, "written", name):
            if len(data_files(tmp_path / "a")) >= 3:  # between the two files of a chunk
                raise disk_full()
            put(part, name)

    monkeypatch.setattr(storage, "put", put_until_full)
    with pytest.raises(ArchiveUnavailable, match="could not be written: No space left on device; nothing of it counts"):
        await archive(log, storage, chunk_bytes=3_000)
    assert len(entries(tmp_path / "a")) == 1
    assert list((tmp_path / "a" / "tmp").iterdir()) == []
    await archive(log, tmp_path / "a", chunk_bytes=3_000)
    await check(tmp_path / "a", log)


async def test_other_runs_log_is_refused_by_name(log, clock, tmp_path):
    await archive(log, tmp_path / "a")
    other = await SqliteLog.open(f"sqlite:///{tmp_path}/other.db", create=True)
    await create_topics(other, partitions=4, run_id="other")
    with pytest.raises(InvalidSettings, match="expected run run, got run other; one archive holds one run"):
        await archive(other, tmp_path / "a")
    await other.close()


async def test_log_that_ends_before_its_archive_is_refused(log, clock, tmp_path):
    await fill(log, clock, groups=3)
    await archive(log, tmp_path / "a")
    again = await SqliteLog.open(f"sqlite:///{tmp_path}/again.db", create=True)
    await create_topics(again, partitions=4, run_id="run")
    with pytest.raises(InvalidSettings, match="it is not the log that was archived"):
        await archive(again, tmp_path / "a")
    await again.close()


@pytest.mark.parametrize(
    ("value", "key", "later_ns"), [(b"other", b"g", 0), (b"5", b"h", 0), (b"5", b"g", 1), (None, b"g", 0)]
)
async def test_topic_made_anew_under_the_same_run_is_refused_before_anything_is_written(
    log, clock, tmp_path, value, key, later_ns
):
    """As a Kafka topic that was deleted and created again, while meta was kept."""
    await log.append([plain(0, b"%d" % offset) for offset in range(6)])
    await archive(log, tmp_path / "a")
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    again = await SqliteLog.open(f"sqlite:///{tmp_path}/again.db", create=True, clock=clock)
    await create_topics(again, partitions=4, run_id="run")
    await again.append([plain(0, b"%d" % offset) for offset in range(5)])
    clock.now_ns += later_ns
    await again.append([plain(0, value, key), plain(0, b"new"), plain(1, b"new")])
    with pytest.raises(InvalidSettings, match=r"events/0: expected at offset 5 .* under the same run; nothing was"):
        await archive(again, tmp_path / "a")
    assert {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()} == before
    await again.close()


async def test_log_that_has_lost_its_last_archived_record_is_gone_on_with(log, tmp_path):
    await log.append([plain(0, b"%d" % offset) for offset in range(6)])
    await archive(log, tmp_path / "a")
    await log.append([plain(0, b"new")])
    await log.trim(EVENTS, 0, 6)
    assert (await archive(log, tmp_path / "a")).records == 1


async def test_topic_made_anew_while_it_is_archived_is_refused_when_it_is_read_again(log, clock, tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "RETRY_S", 0.01)
    monkeypatch.setattr(lanes, "FETCH_WAIT_S", 0.01)
    archiver = Archiver(log, open_storage(tmp_path / "a"), ArchiverSettings(chunk_bytes=1))
    running = asyncio.create_task(archiver.run([0, 1, 2, 3]))
    await log.append([plain(0, b"old")])
    await wait_for(lambda: len(entries(tmp_path / "a")) == 1)
    with sqlite3.connect(log.url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE records SET value = x'00' WHERE value = CAST('old' AS BLOB)")
    connection.close()
    fetch, broken = SqliteReader.fetch, asyncio.Event()

    async def away(self, **named):
        if self._topic == EVENTS and not broken.is_set():
            broken.set()
            raise LogUnavailable("no answer")
        return await fetch(self, **named)

    monkeypatch.setattr(SqliteReader, "fetch", away)
    with pytest.raises(InvalidSettings, match=r"events/0: expected at offset 0 .* with other bytes"):
        await running


async def test_damaged_last_block_keeps_nothing_from_being_archived(log, tmp_path, caplog):
    await log.append([plain(0, b"1")])
    await archive(log, tmp_path / "a")
    (file,) = (tmp_path / "a").glob("events/*/*.avro")
    file.write_bytes(file.read_bytes()[:-20] + bytes(20))
    await log.append([plain(0, b"2")])
    assert (await archive(log, tmp_path / "a")).records == 1
    assert "It cannot tell whether the log is still the one that was archived" in caplog.text


async def test_history_that_retention_removed_is_refused(log, tmp_path):
    await log.append([plain(0, b"%d" % offset) for offset in range(10)])
    await log.trim(EVENTS, 0, 4)
    with pytest.raises(OffsetOutOfRange, match=r"events/0: offsets 0 to 3 were removed .*--on-history-lost skip"):
        await archive(log, tmp_path / "a")


async def test_history_that_was_lost_is_skipped_and_told(log, tmp_path):
    await log.append([plain(0, b"%d" % offset) for offset in range(10)])
    await archive(log, tmp_path / "a")
    await log.append([plain(0, b"%d" % offset) for offset in range(10, 20)])
    await log.trim(EVENTS, 0, 14)
    done = await archive(log, tmp_path / "a", on_history_lost="skip")
    assert [(each.first, each.end) for each in done.lost] == [(10, 14)]
    report = verify(open_storage(tmp_path / "a"))
    assert (report.faults, report.spans[0].lost, report.spans[0].count) == ([], [(10, 13)], 16)
    opened = await open_archive(tmp_path / "a")
    assert [(each.topic, each.partition, each.first, each.end) for each in opened.lost] == [("events", 0, 10, 14)]
    assert [each.offset for each in await records_of(opened)] == [*range(10), *range(14, 20)]


async def test_history_lost_while_it_runs_is_skipped(log, tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "FETCH_WAIT_S", 0.01)
    archiver = Archiver(log, open_storage(tmp_path / "a"), ArchiverSettings(on_history_lost="skip"))
    fetched = asyncio.Event()
    reader_of = log.reader

    async def reader(topic, offsets):
        found = await reader_of(topic, offsets)
        fetch = found.fetch

        async def cut_before(**arguments):
            if topic == EVENTS and not fetched.is_set():
                fetched.set()
                await log.append([plain(0, b"%d" % offset) for offset in range(10)])
                await log.trim(EVENTS, 0, 6)
            return await fetch(**arguments)

        found.fetch = cut_before
        return found

    log.reader = reader
    running = asyncio.create_task(archiver.run([0, 1, 2, 3]))
    await wait_for(lambda: any(lane.position == 10 for lane in archiver.lanes))
    archiver.stop.set()
    assert [(each.first, each.end) for each in (await running).lost] == [(0, 6)]
    assert [each.offset for each in await archived(tmp_path / "a")] == [6, 7, 8, 9]


async def test_memory_is_bounded_by_writing_what_waits_longest(log, clock, tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "WAITING_BYTES_MAX", 1_000)
    waiting = []
    bound = lanes.TopicArchiver._bound_memory

    def measured(self):
        bound(self)
        waiting.append(sum(lane.chunk.waiting_bytes for lane in self.lanes.values() if lane.chunk))

    monkeypatch.setattr(lanes.TopicArchiver, "_bound_memory", measured)
    await fill(log, clock, groups=4)
    await archive(log, tmp_path / "a")
    assert max(waiting) <= 1_000
    await check(tmp_path / "a", log)


async def test_records_without_values_are_written_as_they_come(log, tmp_path, monkeypatch):
    """Keys, headers and the records themselves take memory, too."""
    monkeypatch.setattr(chunk, "ROW_GROUP_BYTES", 5_000)
    groups = []
    flush = chunk.Chunk.flush

    def counted(self):
        groups.append(len(self._waiting))
        flush(self)

    monkeypatch.setattr(chunk.Chunk, "flush", counted)
    await log.append([plain(0, None) for _ in range(100)])
    await archive(log, tmp_path / "a")
    assert max(groups) < 30
    await check(tmp_path / "a", log)


async def test_partitions_that_are_archived_apart_make_one_archive(log, clock, tmp_path):
    await fill(log, clock, groups=6)
    await archive(log, tmp_path / "a", [0, 2])
    await archive(log, tmp_path / "a", [1, 3])
    await check(tmp_path / "a", log)


@pytest.mark.parametrize("settings", [{"chunk_bytes": 0}, {"chunk_s": 0}, {"chunk_s": 1e6}, {"on_history_lost": "x"}])
def test_setting_out_of_range_is_refused_by_name(settings):
    with pytest.raises(InvalidSettings, match=next(iter(settings))):
        ArchiverSettings(**settings)


async def wait_for(met, timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not met():  # noqa: ASYNC110 what is met is anything
            await asyncio.sleep(0.01)
