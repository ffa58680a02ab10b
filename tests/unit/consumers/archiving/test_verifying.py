"""Verifying: each fault is told by name; what is whole has none."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.archive import archive
from unit.consumers.archiving.conftest import fill

from rolloutlog.consumers.archiving.entries import decode_entry, digest, encode_entry
from rolloutlog.consumers.archiving.storage import open_storage
from rolloutlog.consumers.archiving.verifying import verify
from rolloutlog.eventstore.errors import LogMissing

ENTRY = "manifest/events/1/00000000000000000000.json"


@pytest.fixture
async def folder(log, clock, tmp_path) -> Path:
    await fill(log, clock, groups=6)
    await archive(log, tmp_path / "a", chunk_bytes=1_500)
    return tmp_path / "a"


def faults(folder: Path) -> list[str]:
    return verify(open_storage(folder)).faults


def file_of(folder: Path, kind: str) -> Path:
    return folder / json.loads((folder / ENTRY).read_text(encoding="utf-8"))[kind]["name"]


def change_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def change_entry(folder: Path, change: Callable[..., object]) -> None:
    """Write an entry anew, as whole as the archiver writes it."""
    from dataclasses import replace

    entry = decode_entry((folder / ENTRY).read_bytes(), ENTRY)
    (folder / ENTRY).write_bytes(encode_entry(replace(entry, **change(entry))))


def test_whole_archive_has_no_faults_and_tells_its_ranges(folder):
    told: list[tuple[int, int]] = []
    report = verify(open_storage(folder), on_progress=lambda done, total: told.append((done, total)))
    assert (report.faults, report.unnamed, report.run.run_id) == ([], [], "run")
    assert [(span.topic, span.partition) for span in report.spans] == [("events", p) for p in range(4)]
    assert all(span.end >= span.count > 0 and span.chunks >= 1 for span in report.spans)
    assert told[-1][0] == told[-1][1] == len(list(folder.rglob("manifest/events/*/*.json")))


@pytest.mark.parametrize("kind", ["avro", "parquet"])
def test_changed_byte_of_a_file_is_told(folder, kind):
    change_byte(file_of(folder, kind))
    (fault,) = faults(folder)
    assert fault.startswith(f"{file_of(folder, kind).relative_to(folder)}: expected BLAKE2b-256 ")


@pytest.mark.parametrize("kind", ["avro", "parquet"])
def test_missing_and_cut_files_are_told(folder, kind):
    file = file_of(folder, kind)
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    assert faults(folder) == [f"{file.relative_to(folder)}: expected {len(data)} bytes, got {len(data) - 1}"]
    file.unlink()
    assert faults(folder) == [f"{file.relative_to(folder)}: expected this file, got none"]


def test_missing_entry_is_told_as_a_gap_and_its_files_as_unnamed(folder):
    first = decode_entry((folder / ENTRY).read_bytes(), ENTRY)
    entries = sorted((folder / "manifest/events/1").iterdir())
    assert len(entries) > 1, "the workload fills more than a chunk"
    entries[0].unlink()
    report = verify(open_storage(folder))
    assert report.faults == [
        "events/1: expected a manifest entry from offset 0 on, got none before offset "
        f"{first.end}: records from 0 to {first.end - 1} are missing"
    ]
    assert set(report.unnamed) == {first.avro.name, first.parquet.name}


def test_changed_entry_is_told(folder):
    (folder / ENTRY).write_bytes((folder / ENTRY).read_bytes().replace(b'"run"', b'"ran"', 1))
    assert any(ENTRY in fault and "checksum does not fit" in fault for fault in faults(folder))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda entry: {"count": entry.count + 1}, "expected offsets for its"),
        (lambda entry: {"value_bytes": entry.value_bytes + 1}, "expected bytes of values"),
        (lambda entry: {"last_log_time_ns": 5}, "expected first and last log time"),
        (lambda entry: {"kinds": {"Span": 1}}, "counts other kinds of records"),
        (lambda entry: {"avro": None, "parquet": None, "parts": ()}, "expected files for its"),
    ],
)
def test_entry_that_does_not_fit_its_records_is_told(folder, change, text):
    change_entry(folder, change)
    assert text in " ".join(faults(folder))


def test_parquet_that_differs_from_avro_is_told_with_offset_and_column(folder):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    file = file_of(folder, "parquet")
    table = pq.ParquetFile(file).read()
    column = table.schema.get_field_index("rollout_id")
    wrong = pc.if_else(pc.equal(table["log_offset"], 2), pa.scalar("r-other"), table["rollout_id"])
    pq.write_table(table.set_column(column, table.schema.field(column), wrong), file)
    data = file.read_bytes()

    def change(entry):
        from dataclasses import replace

        return {"parquet": replace(entry.parquet, size_bytes=len(data), blake2b=digest(data))}

    change_entry(folder, change)
    (fault,) = faults(folder)
    assert fault.endswith("Avro and Parquet differ at offset 2 in column rollout_id")


def test_place_that_is_no_archive_is_missing(tmp_path):
    with pytest.raises(LogMissing):
        verify(open_storage(tmp_path))
