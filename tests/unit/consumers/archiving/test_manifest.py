"""The manifest: what counts is what an unbroken chain of whole entries says."""

from pathlib import Path

import pytest

from rolloutlog.consumers.archiving.entries import Entry, File, Part, decode_entry, encode_entry, seal, unseal
from rolloutlog.consumers.archiving.errors import ArchiveDamaged
from rolloutlog.consumers.archiving.folder import FolderStorage
from rolloutlog.consumers.archiving.manifest import chain, names_of, read_archived_run, read_entries
from rolloutlog.eventstore.errors import InvalidSettings


def entry(first: int, end: int, **fields) -> Entry:
    return Entry(**{"run_id": "run", "topic": "events", "partition": 3, "first": first, "end": end, **fields})


WHOLE = entry(
    7, 12, count=2, value_bytes=90, day="2026-03-01", first_log_time_ns=1, last_log_time_ns=9, kinds={"Span": 2},
    refused={"undecodable": 1}, schemas={"Span.v1": 2}, avro=File("events/a.avro", 10, "00"),
    parquet=File("events/a.parquet", 11, "01", 1), parts=(Part(4, 0, 0, 0, "02"), Part(6, 2, 7, 1, "03")),
    rolloutlog="0.1.0", written_ns=3,
)  # fmt: skip


def test_entry_comes_back_as_it_was_written():
    assert decode_entry(encode_entry(WHOLE), WHOLE.name) == WHOLE
    assert WHOLE.name == "manifest/events/3/00000000000000000007.json"


def test_entry_with_any_changed_byte_is_refused_by_name():
    data = encode_entry(WHOLE)
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises((ArchiveDamaged, InvalidSettings), match=r"00000000000000000007\.json"):
            decode_entry(changed, WHOLE.name)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b'{"blake2b":1,"format":1}', b"\xff"])
def test_entry_that_is_none_is_refused(data):
    with pytest.raises(ArchiveDamaged, match="expected"):
        decode_entry(data, WHOLE.name)


@pytest.mark.parametrize("checksum", [r"\ud800", "x", '\\"'])
def test_entry_with_a_checksum_that_is_none_is_refused(checksum):
    with pytest.raises(ArchiveDamaged, match="expected"):
        decode_entry(b'{"format":1,"blake2b":"%s"}\n' % checksum.encode(), WHOLE.name)


LIES = [
    ({"first": "7"}, "first: expected an integer"),
    ({"first": 7.0}, "first: expected an integer"),
    ({"end": None}, "end: expected an integer"),
    ({"end": 2**63}, "end: expected an integer"),
    ({"end": 7}, "expected offsets for its 2 records, got 7 up to below 7"),
    ({"end": 8}, "expected offsets for its 2 records"),
    ({"end": 3}, "expected offsets"),
    ({"partition": True}, "partition: expected an integer"),
    ({"count": 1}, "expected records 1 in its blocks, got 2"),
    ({"count": "2"}, "count: expected an integer"),
    ({"count": 0, "parts": []}, "expected files for its 0 records, got some"),
    ({"value_bytes": -1}, "value_bytes: expected"),
    ({"first_log_time_ns": "x"}, "first_log_time_ns: expected"),
    ({"last_log_time_ns": None}, "expected the first and last log time"),
    ({"last_log_time_ns": 10**40}, "last_log_time_ns: expected"),
    ({"kinds": [1]}, "kinds: expected an object of counts"),
    ({"refused": {"a": "b"}}, r"refused\.a: expected an integer"),
    ({"avro": None}, "expected files for its 2 records"),
    ({"parquet": None}, "expected files for its 2 records"),
    ({"avro": None, "parquet": None, "parts": []}, "expected files for its 2 records, got none"),
    ({"avro": "x"}, "avro: expected an object"),
    ({"avro": {"name": "events/a.avro", "size_bytes": 10, "blake2b": "00"}}, r"expected the field avro\.columns"),
    ({"avro": {"name": "events/a", "size_bytes": "x", "blake2b": "00", "columns": None}}, "avro.size_bytes: expected"),
    ({"parts": 5}, "parts: expected a list"),
    ({"parts": ["abcde"]}, r"parts\[0\]: expected a list of 5"),
    ({"parts": [[1]]}, r"parts\[0\]: expected a list of 5"),
    ({"parts": [[10, 2, 2**62, 1, "03"]]}, "expected blocks with offsets that rise from 7 to 11, got 46"),
    ({"parts": [[5, 1, 9, 1, "03"], [5, 1, 9, 1, "03"]]}, "expected blocks with offsets that rise"),
    ({"parts": [[-4, 0, 0, 0, "02"], [14, 2, 7, 1, "03"]]}, r"parts\[0\]: expected an integer"),
    ({"parts": [[9, 2, 7, 1, "03"]]}, "expected blocks of all bytes of its Avro file, got 9 bytes"),
    ({"parts": [[10, 2, 7, "x", "03"]]}, r"parts\[0\]: expected an integer"),
    ({"parts": [[10, 2, 7, 1, None]]}, r"parts\[0\]: expected a text"),
    ({"lost": "gone"}, "expected no records of what is lost, got 2"),
    ({"run_id": 5}, "run_id: expected a text, got 5"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "text"), LIES)
def test_entry_that_cannot_be_right_is_refused_by_the_name_of_its_field(changes, text):
    """Its checksum fits: it was edited and sealed again, or written so."""
    data = seal({**unseal(encode_entry(WHOLE), WHOLE.name), **changes})
    with pytest.raises(ArchiveDamaged, match=rf"^{WHOLE.name}: {text}"):
        decode_entry(data, WHOLE.name)


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/etc/passwd", "events/../../x", "events//x", "events/./x", "events", "events/", "tmp/x", 5,
     "", "rewards/x", "events/a\0b", "events\\..\\x", "events/a\nb"],
)  # fmt: skip
def test_entry_names_files_of_its_topics_folder_alone(name):
    values = unseal(encode_entry(WHOLE), WHOLE.name)
    for kind in ("avro", "parquet"):
        with pytest.raises(ArchiveDamaged, match=rf"{kind}\.name: expected "):
            decode_entry(seal({**values, kind: {**values[kind], "name": name}}), WHOLE.name)


@pytest.mark.parametrize("changes", [{"newer": 1}, {"avro": {"name": "events/a.avro", "newer": 1}}])
def test_entry_with_fields_of_a_newer_version_is_not_called_damaged(changes):
    """Who takes it for damage removes it."""
    data = seal({**unseal(encode_entry(WHOLE), WHOLE.name), **changes})
    with pytest.raises(InvalidSettings, match=r"got also .*'newer'.*: use the newer version that wrote it"):
        decode_entry(data, WHOLE.name)


@pytest.mark.parametrize(
    "changes", [{"partitions": "4"}, {"partitions": 0}, {"partitions": 10**12}, {"run_id": 7}, {"created_ns": None}]
)
def test_run_that_cannot_be_right_is_refused_by_the_name_of_its_field(tmp_path: Path, changes):
    values = {"run_id": "run", "partitions": 4, "created_ns": 5, "rolloutlog": "0.1.0"}
    (tmp_path / "manifest").mkdir()
    (tmp_path / "manifest/run.json").write_bytes(seal({**values, **changes}))
    with pytest.raises(ArchiveDamaged, match=rf"manifest/run\.json: {next(iter(changes))}: expected"):
        read_archived_run(FolderStorage(tmp_path))


def test_entry_under_another_name_is_refused():
    with pytest.raises(ArchiveDamaged, match="was it copied"):
        decode_entry(encode_entry(WHOLE), "manifest/events/3/00000000000000000008.json")


def test_chain_goes_from_offset_0_to_the_first_gap():
    entries = [entry(0, 5), entry(5, 9), entry(10, 12)]
    assert [(each.first, each.end) for each in chain(reversed(entries))] == [(0, 5), (5, 9)]
    assert chain([entry(5, 9)]) == []
    assert chain([]) == []


def test_chain_of_overlapping_entries_reaches_as_far_as_any():
    entries = [entry(0, 5), entry(0, 7), entry(5, 30), entry(7, 9), entry(6, 8), entry(30, 31)]
    assert [(each.first, each.end) for each in chain(entries)] == [(0, 7), (5, 30), (30, 31)]


def test_entry_of_another_run_is_refused_by_both_names(tmp_path: Path):
    storage = FolderStorage(tmp_path)
    other = entry(0, 5, run_id="other")
    storage.create(other.name, encode_entry(other))
    with pytest.raises(InvalidSettings, match="expected run run, got run other"):
        read_entries(storage, names_of(storage, "events"), "run")
