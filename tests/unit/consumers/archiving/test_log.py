"""An archive read as a log, alone and before the log it came from."""

from pathlib import Path

import pytest
from support.archive import archive, archived, records_of
from unit.consumers.archiving.conftest import fill, plain

from rolloutlog.consumers.archiving import ArchiveDamaged, avro_file, open_archive, spliced
from rolloutlog.eventstore.errors import InvalidSettings, LogMissing, OffsetOutOfRange, StoreError
from rolloutlog.eventstore.log import BATCHES, EVENTS, META, REWARDS, Log, NewRecord
from rolloutlog.eventstore.log.reading import read_range
from rolloutlog.eventstore.log.sqlite import SqliteLog
from rolloutlog.eventstore.topics import create_topics


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(avro_file, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(avro_file, "RECORD_BYTES", 0)


async def test_archive_is_a_log_to_those_who_read(log, clock, tmp_path):
    await archive(log, tmp_path / "a")
    opened = await open_archive(str(tmp_path / "a"))
    assert isinstance(opened, Log)
    assert await opened.partitions(EVENTS) == await opened.partitions(REWARDS) == 4
    assert await opened.partitions(META) == 1
    with pytest.raises(LogMissing, match="got batches"):
        await opened.partitions(BATCHES)
    with pytest.raises(InvalidSettings, match="expected a partition from 0 to 3, got 4"):
        await opened.ranges(EVENTS, [4])


async def test_archive_refuses_to_be_written_by_name(log, tmp_path):
    await archive(log, tmp_path / "a")
    opened = await open_archive(tmp_path / "a")
    with pytest.raises(StoreError, match="an archive is only read; it cannot append records"):
        await opened.append([plain(0, b"x")])
    with pytest.raises(StoreError, match="cannot own partitions"):
        await opened.own("app", EVENTS, 0)
    with pytest.raises(StoreError, match="cannot create topics"):
        await opened.create([])


async def test_archive_that_is_not_there_is_missing(tmp_path):
    with pytest.raises(LogMissing, match=r"got no manifest/run\.json"):
        await open_archive(tmp_path / "none")


async def test_reading_from_any_offset_gives_what_the_log_gives(log, clock, tmp_path):
    await fill(log, clock, groups=3)
    await archive(log, tmp_path / "a", chunk_bytes=3_000)
    opened = await open_archive(tmp_path / "a")
    ranges = await log.ranges(EVENTS, range(4))
    assert await opened.ranges(EVENTS, range(4)) == ranges
    for partition, span in ranges.items():
        for first in range(span.first, span.end, 7):
            expected = [each.offset async for each in read_range(log, EVENTS, partition, first, span.end)]
            assert [each.offset async for each in read_range(opened, EVENTS, partition, first, span.end)] == expected


async def test_offsets_at_any_time_are_those_of_the_log(log, clock, tmp_path):
    await fill(log, clock, groups=3)
    await archive(log, tmp_path / "a", chunk_bytes=3_000)
    opened = await open_archive(tmp_path / "a")
    times = [each.log_time_ns for each in await records_of(log)]
    for time_ns in [0, *times[::5], *(each + 1 for each in times[::5]), max(times) + 1, 2**62]:
        assert await opened.offsets_at(EVENTS, range(4), time_ns) == await log.offsets_at(EVENTS, range(4), time_ns)


async def test_reader_seeks_and_tells_its_position(log, tmp_path):
    await log.append([plain(0, b"%d" % offset * 300) for offset in range(20)])
    await archive(log, tmp_path / "a", chunk_bytes=2_000)
    reader = await (await open_archive(tmp_path / "a")).reader(EVENTS, {0: 3, 1: 0})
    assert [each.offset for each in await reader.fetch(wait_s=0, records_max=1)] == [3]
    assert reader.position(0) == 4
    await reader.seek(0, 12)
    assert [each.offset for each in await reader.fetch(wait_s=0, records_max=1)] == [12]
    await reader.seek(0, 20)
    assert await reader.fetch(wait_s=0) == []
    assert (reader.position(0), reader.position(1)) == (20, 0)
    with pytest.raises(InvalidSettings, match="expected one of its partitions"):
        reader.position(2)


@pytest.mark.parametrize("offset", [21, 2**40])
async def test_reader_above_the_end_is_refused(log, tmp_path, offset):
    await log.append([plain(0, b"x") for _ in range(20)])
    await archive(log, tmp_path / "a")
    reader = await (await open_archive(tmp_path / "a")).reader(EVENTS, {0: offset})
    with pytest.raises(OffsetOutOfRange, match=f"from 0 to 20, got {offset}"):
        await reader.fetch(wait_s=0)


async def test_reader_below_what_was_lost_is_refused(log, tmp_path):
    await log.append([plain(0, b"x") for _ in range(20)])
    await log.trim(EVENTS, 0, 5)
    await archive(log, tmp_path / "a", on_history_lost="skip")
    opened = await open_archive(tmp_path / "a")
    assert (await opened.ranges(EVENTS, [0]))[0].first == 5
    reader = await opened.reader(EVENTS, {0: 4})
    with pytest.raises(OffsetOutOfRange, match="from 5 to 20, got 4"):
        await reader.fetch(wait_s=0)


async def test_changed_byte_is_found_when_it_is_read(log, clock, tmp_path):
    await fill(log, clock, groups=3)
    await archive(log, tmp_path / "a")
    (file,) = (tmp_path / "a").glob("events/*/1-*.avro")
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    with pytest.raises(ArchiveDamaged, match=rf"{file.name}: expected the \d+ bytes that were written"):
        await archived(tmp_path / "a")


async def test_changed_manifest_is_found_when_the_archive_is_opened(log, clock, tmp_path):
    await fill(log, clock, groups=3)
    await archive(log, tmp_path / "a")
    file = tmp_path / "a/manifest/events/0/00000000000000000000.json"
    file.write_bytes(file.read_bytes().replace(b'"count":', b'"count":1'))
    with pytest.raises(ArchiveDamaged, match=r"manifest/events/0/00000000000000000000\.json: .* checksum does not fit"):
        await open_archive(tmp_path / "a")


# Before a log


async def test_spliced_reads_the_archive_and_from_its_end_on_the_log(log, clock, tmp_path):
    await fill(log, clock, seed=1, groups=4)
    await log.append([NewRecord(REWARDS, 1, b"g", b"1")])
    await archive(log, tmp_path / "a")
    await fill(log, clock, seed=2, groups=4)
    await log.append([NewRecord(REWARDS, 1, b"g", b"2")])
    everything, rewards = await records_of(log), await records_of(log, REWARDS)
    archive_ends = await (await open_archive(tmp_path / "a")).ranges(EVENTS, range(4))
    for partition, span in archive_ends.items():
        await log.trim(EVENTS, partition, span.end)
    joined = await spliced(await open_archive(tmp_path / "a"), log)
    assert isinstance(joined, Log)
    assert await records_of(joined) == everything
    assert await records_of(joined, REWARDS) == rewards
    times = [each.log_time_ns for each in everything]
    for time_ns in [0, *times[::17], max(times) + 1]:
        expected = {
            p: next((each.offset for each in everything if each.partition == p and each.log_time_ns >= time_ns), None)
            for p in range(4)
        }
        found = await joined.offsets_at(EVENTS, range(4), time_ns)
        ends = await joined.ranges(EVENTS, range(4))
        assert found == {p: ends[p].end if offset is None else offset for p, offset in expected.items()}


async def test_spliced_writes_to_the_log(log, tmp_path):
    await archive(log, tmp_path / "a")
    joined = await spliced(await open_archive(tmp_path / "a"), log)
    await joined.append([plain(0, b"new")])
    owner = await joined.own("replay.x", EVENTS, 0)
    await owner.close()
    assert [each.value for each in await records_of(joined)] == [b"new"]


async def test_spliced_with_a_log_made_anew_reads_the_archive(log, clock, tmp_path):
    await fill(log, clock, groups=4)
    await archive(log, tmp_path / "a")
    new = await SqliteLog.open(f"sqlite:///{tmp_path}/new.db", create=True)
    await create_topics(new, partitions=4, run_id="run")
    joined = await spliced(await open_archive(tmp_path / "a"), new)
    assert await records_of(joined) == await records_of(log)
    reader = await joined.reader(EVENTS, {p: span.end for p, span in (await joined.ranges(EVENTS, range(4))).items()})
    assert await reader.fetch(wait_s=0) == []
    await joined.close()


async def test_spliced_seeks_back_into_the_archive(log, tmp_path):
    await log.append([plain(0, b"%d" % offset) for offset in range(6)])
    await archive(log, tmp_path / "a")
    await log.append([plain(0, b"%d" % offset) for offset in range(6, 9)])
    reader = await (await spliced(await open_archive(tmp_path / "a"), log)).reader(EVENTS, {0: 7})
    assert [each.offset for each in await reader.fetch(wait_s=0)] == [7, 8]
    await reader.seek(0, 4)
    assert [each.offset for each in await reader.fetch(wait_s=0)] == [4, 5]
    assert reader.position(0) == 6
    assert [each.offset for each in await reader.fetch(wait_s=0)] == [6, 7, 8]
    await reader.close()


async def test_spliced_with_another_runs_log_is_refused(log, tmp_path: Path):
    await archive(log, tmp_path / "a")
    other = await SqliteLog.open(f"sqlite:///{tmp_path}/other.db", create=True)
    await create_topics(other, partitions=4, run_id="other")
    with pytest.raises(InvalidSettings, match="expected run run, got run other"):
        await spliced(await open_archive(tmp_path / "a"), other)
    await other.close()


async def test_spliced_with_a_gap_before_the_log_is_refused(log, tmp_path):
    await log.append([plain(0, b"x") for _ in range(6)])
    await archive(log, tmp_path / "a")
    await log.append([plain(0, b"x") for _ in range(6)])
    await log.trim(EVENTS, 0, 9)
    with pytest.raises(OffsetOutOfRange, match=r"events/0: .* ends at offset 6, .* begins at 9"):
        await spliced(await open_archive(tmp_path / "a"), log)


async def test_spliced_with_a_topic_made_anew_is_refused(log, clock, tmp_path):
    """Its run is the archive's, and it is long enough; what stands where the archive ends is not what was archived."""
    await log.append([plain(0, b"%d" % offset) for offset in range(6)])
    await archive(log, tmp_path / "a")
    clock.now_ns += 10**9
    new = await SqliteLog.open(f"sqlite:///{tmp_path}/new.db", create=True, clock=clock)
    await create_topics(new, partitions=4, run_id="run")
    await new.append([plain(0, b"%d" % offset) for offset in range(9)])
    with pytest.raises(InvalidSettings, match=r"events/0: expected at offset 5 the record of .* was made anew"):
        await spliced(await open_archive(tmp_path / "a"), new)
    await new.close()
