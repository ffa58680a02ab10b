"""What is not as an archiver leaves it: gaps between entries, leftovers, and what others keep in the folder."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from support.archive import archive, archived, records_of
from unit.consumers.archiving.conftest import fill, plain

from rolloutlog.consumers.archiving import ArchiveDamaged, open_archive
from rolloutlog.consumers.archiving.archiver import ORPHAN_S, remove_orphans
from rolloutlog.consumers.archiving.entries import seal, unseal
from rolloutlog.consumers.archiving.storage import open_storage
from rolloutlog.consumers.archiving.verifying import verify
from rolloutlog.eventstore.log import EVENTS

OLD_S = ORPHAN_S + 5


def entry(folder: Path, first: int) -> Path:
    return folder / f"manifest/events/0/{first:020d}.json"


def ranges(folder: Path) -> list[tuple[int, int]]:
    entries = [json.loads(file.read_bytes()) for file in sorted((folder / "manifest/events/0").iterdir())]
    return [(each["first"], each["end"]) for each in entries]


def grow_old(folder: Path) -> None:
    before = time.time() - OLD_S
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (before, before))


def offsets_of(records) -> list[int]:
    return [record.offset for record in records]


@pytest.fixture
async def folder(log, tmp_path) -> Path:
    """An archive of offsets 0 to 11 of partition 0: chunks of three records."""
    await log.append([plain(0, b"%04d" % offset) for offset in range(12)])
    await archive(log, tmp_path / "a", chunk_bytes=12)
    assert ranges(tmp_path / "a") == [(0, 3), (3, 6), (6, 9), (9, 12)]
    return tmp_path / "a"


async def test_archive_with_an_entry_missing_in_between_is_not_read_as_if_it_ended_there(folder):
    entry(folder, 3).unlink()
    with pytest.raises(ArchiveDamaged, match="events/0: expected a manifest entry from offset 3 on, got none before"):
        await open_archive(folder)


async def test_archiver_fills_a_gap_and_no_more(log, folder):
    entry(folder, 3).unlink()
    done = await archive(log, folder)
    assert (done.records, ranges(folder)) == (3, [(0, 3), (3, 6), (6, 9), (9, 12)])
    assert await archived(folder) == await records_of(log)
    report = verify(open_storage(folder))
    assert (report.faults, len(report.unnamed)) == ([], 2)


async def test_archiver_fills_several_gaps_and_goes_on_at_the_end(log, folder):
    entry(folder, 0).unlink()
    entry(folder, 6).unlink()
    await log.append([plain(0, b"more")])
    done = await archive(log, folder)
    assert (done.records, ranges(folder)) == (7, [(0, 3), (3, 6), (6, 9), (9, 12), (12, 13)])
    assert await archived(folder) == await records_of(log)


async def test_gap_that_the_log_has_lost_hides_none_of_what_follows_it(log, folder):
    entry(folder, 3).unlink()
    await log.append([plain(0, b"more")])
    await log.trim(EVENTS, 0, 12)
    done = await archive(log, folder, on_history_lost="skip")
    assert [(each.first, each.end) for each in done.lost] == [(3, 6)]
    assert offsets_of(await archived(folder)) == [0, 1, 2, 6, 7, 8, 9, 10, 11, 12]


async def test_offsets_in_two_entries_are_told(log, folder):
    """Their rows would count twice for those who read Parquet."""
    kept = entry(folder, 3).read_bytes()
    for first in (0, 3, 6, 9):
        entry(folder, first).unlink()
    await archive(log, folder)
    entry(folder, 3).write_bytes(kept)
    (fault,) = verify(open_storage(folder)).faults
    assert fault.startswith("manifest/events/0/00000000000000000003.json: expected an entry from offset 12 on")
    assert fault.endswith("offsets 3 to 5 stand in two Parquet files")
    assert await archived(folder) == await records_of(log)


@pytest.mark.parametrize("made", [Path.mkdir, lambda path: path.symlink_to("nowhere")], ids=["folder", "dead link"])
async def test_entry_that_is_neither_there_nor_missing_is_named(log, folder, made):
    """It keeps its name from being given, and cannot be read."""
    entry(folder, 9).unlink()
    made(entry(folder, 9))
    with pytest.raises(ArchiveDamaged, match=r"00000000000000000009\.json: expected a manifest entry"):
        await archive(log, folder)


async def test_partition_behind_a_link_is_read(log, folder, tmp_path):
    """Somebody moved it to another disk."""
    shutil.move(folder / "manifest/events/0", tmp_path / "elsewhere")
    (folder / "manifest/events/0").symlink_to(tmp_path / "elsewhere")
    assert len(await archived(folder)) == 12
    assert verify(open_storage(folder)).unnamed == []


async def test_entry_of_a_partition_that_the_run_has_not_is_named(log, folder):
    shutil.copytree(folder / "manifest/events/0", folder / "manifest/events/4")
    data = entry(folder, 0).read_bytes()
    values = unseal(data, "")
    (folder / "manifest/events/4").joinpath(entry(folder, 0).name).write_bytes(seal({**values, "partition": 4}))
    for first in (3, 6, 9):
        (folder / f"manifest/events/4/{first:020d}.json").unlink()
    with pytest.raises(ArchiveDamaged, match=r"expected a partition from 0 to 3, as manifest/run\.json says, got 4"):
        await open_archive(folder)
    assert "got 4" in verify(open_storage(folder)).faults[0]


async def test_leftovers_of_killed_archivers_are_removed_when_they_are_old(log, folder):
    (folder / "events/day=2026-03-01/0-5-9-aaaaaaaa.avro").write_bytes(b"half")
    (folder / "tmp/0123456789abcdef.part").write_bytes(b"half")
    storage = open_storage(folder)
    assert remove_orphans(storage, "run") == 0
    grow_old(folder)
    assert remove_orphans(storage, "run") == 2
    assert list((folder / "tmp").iterdir()) == []
    assert await archived(folder) == await records_of(log)


async def test_files_of_a_lost_manifest_are_left(log, folder):
    """Nothing else may hold their records: the log may have lost them, or a copy comes back entry by entry."""
    files = sorted(folder.glob("events/*/*"))
    shutil.rmtree(folder / "manifest/events")
    grow_old(folder)
    assert remove_orphans(open_storage(folder), "run") == 0
    await log.append([plain(0, b"more")])
    await log.trim(EVENTS, 0, 12)
    await archive(log, folder, on_history_lost="skip")
    grow_old(folder)
    assert remove_orphans(open_storage(folder), "run") == 0
    assert all(file.exists() for file in files)


async def test_files_that_are_not_an_archivers_are_left(log, folder):
    """The folder may be one that somebody works in: names such as tmp and events are common."""
    others = [
        "tmp/notes.txt", "tmp/a.part", "tmp/deep/0123456789abcdef.part", "events/README.md", "events/2024/summer.avro",
        "events/day=2026-03-01/0-0-3-copy.avro", "events/day=2026-03-01/0-0-3-aaaaaaaa.avro.bak",
    ]  # fmt: skip
    for name in others:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"kept")
    grow_old(folder)
    await archive(log, folder)
    assert [name for name in others if not (folder / name).exists()] == []


async def test_leftovers_are_known_by_what_a_killed_archiver_leaves(log, clock, tmp_path):
    """Its names, which the pattern of what is removed has to fit."""
    await fill(log, clock, groups=4)
    await archive(log, tmp_path / "a", chunk_bytes=3_000)
    names = [path.relative_to(tmp_path / "a").as_posix() for path in (tmp_path / "a").glob("events/*/*")]
    for path in (tmp_path / "a").glob("manifest/events/*/*"):
        path.unlink()
    await archive(log, tmp_path / "a", chunk_bytes=10**9)
    grow_old(tmp_path / "a")
    assert remove_orphans(open_storage(tmp_path / "a"), "run") == len(names) > 10
    part = open_storage(tmp_path / "a").part()
    part.write_bytes(b"")
    grow_old(tmp_path / "a")
    assert remove_orphans(open_storage(tmp_path / "a"), "run") == 1
