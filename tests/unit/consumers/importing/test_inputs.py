"""Files to import: lines of bounded size, plain or gzip; where an export begins and ends."""

import errno
import gzip
import sys
from pathlib import Path
from typing import Any

import pytest

from rolloutlog.consumers.cli.export import parse_bound
from rolloutlog.consumers.importing import inputs
from rolloutlog.consumers.importing.inputs import Input, joined_digest, naming, open_input
from rolloutlog.eventstore.errors import InvalidEvent, InvalidSettings, StoreError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


def lines(path: Path) -> list[tuple[int, bytes]]:
    return [(line.number, line.text) for line in Input(path).lines() if line.fault is None]


def faults(path: Path) -> list[tuple[str, str]]:
    return [(line.place, str(line.fault)) for line in Input(path).lines() if line.fault is not None]


def test_lines_are_numbered_from_1_and_blank_ones_passed_over(file: Path):
    file.write_bytes(b"a\n\n  \r\nb\r\nc")
    assert lines(file) == [(1, b"a\n"), (4, b"b\r\n"), (5, b"c")]


def test_line_above_the_limit_is_refused_and_the_next_one_read(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inputs, "LINE_BYTES_MAX", 8)
    file.write_bytes(b"a\n" + b"x" * 100 + b"\n" + b"b\n" + b"1234567\n" + b"123456789")
    assert lines(file) == [(1, b"a\n"), (3, b"b\n"), (4, b"1234567\n")]
    assert faults(file) == [
        ("line 2", "expected lines of at most 8 bytes, got a longer one"),
        ("line 5", "expected lines of at most 8 bytes, got a longer one"),
    ]


def test_document_above_the_limit_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inputs, "DOCUMENT_BYTES_MAX", 8)
    file.write_bytes(b"x" * 9)
    with pytest.raises(InvalidEvent, match="expected a document of at most 8 bytes"):
        Input(file).read()


def test_compressed_file_is_read_whatever_it_is_called(file: Path):
    file.write_bytes(gzip.compress(b"a\nb\n"))
    assert lines(file) == [(1, b"a\n"), (2, b"b\n")]
    assert Input(file).read() == b"a\nb\n"


def test_compressed_file_that_was_cut_off_gives_what_is_whole_and_says_so(file: Path):
    whole = gzip.compress(b"".join(b"%d,%d\n" % (n, n * 7919 % 10007) for n in range(20_000)))
    file.write_bytes(whole[: len(whole) // 2])
    found = lines(file)
    assert len(found) > 5_000
    assert found[-1][1].endswith(b"\n")
    assert [text[:42] for _, text in faults(file)] == ["expected gzip data to its end, got damaged"]
    with pytest.raises(InvalidEvent, match="expected gzip data to its end"):
        Input(file).read()


def test_empty_file_has_no_lines(file: Path):
    file.write_bytes(b"")
    assert (lines(file), faults(file), Input(file).read()) == ([], [], b"")


def test_digest_is_that_of_the_bytes_and_tells_joined_parts_apart(file: Path, tmp_path: Path):
    file.write_bytes(b"a")
    (tmp_path / "other").write_bytes(b"a")
    assert Input(file).digest() == Input(tmp_path / "other").digest()
    assert joined_digest(["ab", "c"]) != joined_digest(["a", "bc"])


def test_name_that_is_no_utf8_has_a_digest():
    assert joined_digest(["x\udcff"]) != joined_digest(["x"])


@pytest.mark.parametrize("pack", [bytes, lambda text: gzip.compress(text, mtime=0)], ids=["plain", "gzip"])
@pytest.mark.parametrize("changed", [b"a\nb\nnew\n", b"a\nB\n", b"a\n", b""])
def test_file_that_is_not_as_its_digest_was_made_of_is_refused_before_its_lines_are_read(
    file: Path, pack: Any, changed: bytes
):
    file.write_bytes(pack(b"a\nb\n"))
    opened = Input(file)
    opened.digest()
    assert len(list(opened.lines())) == 2
    file.write_bytes(pack(changed))
    with pytest.raises(StoreError, match="file changed while it was imported"):
        next(opened.lines())
    with pytest.raises(StoreError, match="file changed while it was imported"):
        opened.read()


def test_file_that_grows_while_it_is_read_gives_none_of_what_is_new(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inputs, "_BLOCK_BYTES", 10_000)
    file.write_bytes(b"".join(b"%d\n" % number for number in range(50_000)))
    opened = Input(file)
    opened.digest()
    read = opened.lines()
    found = [int(next(read).text)]
    with file.open("ab") as end:
        end.write(b"50000\n")
    with pytest.raises(StoreError, match="changed while it was imported"):
        found.extend(int(line.text) for line in read)
    assert 0 < len(found) < 50_000
    assert found == list(range(len(found)))


def test_standard_input_that_is_closed_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InvalidSettings, match="expected standard input, got none"), open_input(Path("-")):
        pass


def test_error_of_an_open_file_names_it():
    with pytest.raises(OSError, match="No space left on device: '/tmp/x'"), naming("/tmp/x"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="gone: 'its own'"), naming("/tmp/x"):
        raise OSError(errno.ENOENT, "gone", "its own")


def test_folder_is_refused(tmp_path: Path):
    with pytest.raises(InvalidSettings, match="expected a file that can be read twice"), open_input(tmp_path):
        pass


@pytest.mark.parametrize(
    ("text", "offset", "time_ns"),
    [
        ("0", 0, None),
        ("88213", 88213, None),
        ("1970-01-02", None, 86_400 * 10**9),
        ("1970-01-01T02:00+01:00", None, 3_600 * 10**9),
        ("1970-01-01T00:00:01.5Z", None, 1_500_000_000),
        ("-2s", None, 8 * 10**9),
        ("-0.5s", None, 9_500_000_000),
    ],
)
def test_bound_of_an_export_is_an_offset_or_a_log_time(text: str, offset: int | None, time_ns: int | None):
    assert parse_bound(text, "--from", now_ns=10 * 10**9) == (offset, time_ns)
