"""Avro files of an archive: lossless, checked block by block, readable by others."""

import io
from dataclasses import replace
from pathlib import Path

import fastavro
import pytest

from rolloutlog.consumers.archiving import avro_file
from rolloutlog.consumers.archiving.avro_file import AvroWriter, places, read_block
from rolloutlog.consumers.archiving.entries import PART_DIGEST_BYTES, digest
from rolloutlog.consumers.archiving.errors import ArchiveDamaged
from rolloutlog.eventstore.log import Record

RECORDS = [
    Record("events", 2, 5, 10**18, b"g", b"\xc3\x01 value", (("e", b"x"), ("none", None), ("", b""))),
    Record("events", 2, 7, 10**18 + 1, None, None, ()),
    Record("events", 2, 2**62, 2**62, b"", b"", (("e", b"1"), ("e", b"2"))),
]


def write(path: Path, records: list[Record]) -> AvroWriter:
    writer = AvroWriter(path, {"rolloutlog.topic": "events"})
    writer.add(records)
    writer.file.close()
    return writer


def blocks(path: Path, writer: AvroWriter) -> list[tuple[bytes, avro_file.Part]]:
    data = path.read_bytes()
    return [(data[place : place + part.size_bytes], part) for place, part in places(writer.parts) if part.count]


def test_records_come_back_byte_for_byte(tmp_path: Path):
    writer = write(tmp_path / "a.avro", RECORDS)
    found = [
        record for data, part in blocks(tmp_path / "a.avro", writer) for record in read_block(data, part, "events", 2)
    ]
    assert found == RECORDS


def test_blocks_end_when_their_records_are_large(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(avro_file, "BLOCK_BYTES", 2 * avro_file.held_bytes(RECORDS[0]))
    writer = write(tmp_path / "a.avro", [RECORDS[0]._replace(offset=offset) for offset in range(5)])
    assert [(part.first, part.count) for part in writer.parts] == [(0, 0), (0, 2), (2, 2), (4, 1)]
    assert sum(part.size_bytes for part in writer.parts) == (tmp_path / "a.avro").stat().st_size


def test_record_counts_with_key_and_headers_where_its_value_is_small():
    """Records without a value would otherwise gather in memory without an end."""
    assert avro_file.held_bytes(RECORDS[1]) == 200
    assert avro_file.held_bytes(RECORDS[1]._replace(key=b"abc", headers=(("name", b"x" * 90), ("n", None)))) == 298


def test_block_that_was_written_wrong_is_refused_whatever_its_checksum(tmp_path: Path):
    writer = write(tmp_path / "a.avro", RECORDS)
    ((data, part),) = blocks(tmp_path / "a.avro", writer)
    for wrong in (b"", b"\x00", b"\x06\x08none", b"\xff" * 30, data[:1] + b"\x08none"):
        sealed = replace(part, size_bytes=len(wrong), blake2b=digest(wrong, PART_DIGEST_BYTES))
        with pytest.raises(ArchiveDamaged, match="expected a block of records"):
            read_block(wrong, sealed, "events", 2)
    for changes in ({"count": 2}, {"first": 4}):
        with pytest.raises(ArchiveDamaged, match="records from offset"):
            read_block(data, replace(part, **changes), "events", 2)


def test_block_with_any_changed_byte_is_refused(tmp_path: Path):
    writer = write(tmp_path / "a.avro", RECORDS)
    ((data, part),) = blocks(tmp_path / "a.avro", writer)
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(ArchiveDamaged, match="for offsets from 5 on"):
            read_block(changed, part, "events", 2)
    with pytest.raises(ArchiveDamaged, match=f"got {len(data) - 1} bytes"):
        read_block(data[:-1], part, "events", 2)


def test_file_is_what_other_avro_readers_take(tmp_path: Path, monkeypatch):
    """fastavro's own reader, with the zstandard that is at hand; by itself it takes the package backports.zstd."""
    from cramjam import zstd
    from fastavro import _read

    def decompress(decoder):
        size_bytes = shift = 0
        while True:
            (byte,) = decoder.read(1)
            size_bytes |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        return io.BytesIO(bytes(zstd.decompress(decoder.read(size_bytes >> 1))))

    monkeypatch.setitem(_read.BLOCK_READERS, "zstandard", decompress)
    write(tmp_path / "a.avro", RECORDS)
    with (tmp_path / "a.avro").open("rb") as file:
        reader = fastavro.reader(file)
        found = list(reader)
    assert reader.metadata["rolloutlog.topic"] == "events"
    assert [(row["offset"], row["key"], row["value"]) for row in found] == [
        (5, b"g", b"\xc3\x01 value"), (7, None, None), (2**62, b"", b""),
    ]  # fmt: skip
    assert found[0]["headers"][1] == {"name": "none", "value": None}
