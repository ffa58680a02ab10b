"""The committed position's metadata."""

import pytest

from rolloutlog.consumers import position
from rolloutlog.consumers.position import PositionRefused, Progress, from_position, to_position
from rolloutlog.eventstore.log import Position


def refusal(metadata: str) -> str:
    with pytest.raises(PositionRefused) as caught:
        from_position(Position(5, metadata), where="assembler, partition 3 of events")
    return str(caught.value)


# Metadata as every version of rolloutlog has committed it, and what it says. Entries are added, never changed.
GOLDEN = {
    "1:12:1:-:eed85c16": Progress(5, 12, fold_version=1),
    "1:9223372036854775807:1:-:50041855": Progress(5, 2**63 - 1, fold_version=1),
    "1:12:1:s:620b20e5": Progress(5, 12, settled=True, fold_version=1),
    "1:12:1:x9:bef1a399": Progress(5, 12, crossing=9, fold_version=1),
    "1:12:1:sx9:e15d2c63": Progress(5, 12, settled=True, crossing=9, fold_version=1),
}


@pytest.mark.parametrize("metadata", GOLDEN)
def test_position_committed_by_any_version_is_read(metadata: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(position, "FOLD_VERSION", GOLDEN[metadata].fold_version)
    assert from_position(Position(5, metadata), where="here") == GOLDEN[metadata]


@pytest.mark.parametrize("metadata", GOLDEN)
def test_position_is_committed_as_its_format_says(metadata: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(position, "FOLD_VERSION", GOLDEN[metadata].fold_version)
    assert to_position(GOLDEN[metadata]) == Position(5, metadata)


def test_golden_positions_have_one_of_this_fold_version():
    assert position.FOLD_VERSION in {each.fold_version for each in GOLDEN.values()}, "add what it commits now"


@pytest.mark.parametrize("flags", ["z", "q7sx9", "sx9z", "s?!", "x"])
def test_position_with_flags_of_a_newer_version_is_read_without_them(flags: str):
    read = from_position(with_crc(f"1:12:1:{flags}"), where="here")
    assert (read.watermark, read.position) == (5, 12)
    assert read.settled == ("s" in flags)
    assert read.crossing == (9 if "x9" in flags else None)


def with_crc(text: str) -> Position:
    return Position(5, f"{text}:{position._crc(text)}")


def test_position_written_and_read_is_the_same():
    assert from_position(to_position(Progress(5, 12)), where="here") == Progress(5, 12)


def test_crossing_below_the_watermark_is_committed_no_more():
    """A restart begins above it: nothing below is folded again."""
    assert to_position(Progress(9, 12, crossing=9)).metadata == "1:12:1:-:eed85c16"


def test_position_metadata_has_format_position_fold_version_flags_and_crc():
    assert to_position(Progress(5, 12)) == Position(5, "1:12:1:-:eed85c16")


@pytest.mark.parametrize("read", [0, 12, 2**63 - 1])
def test_position_metadata_is_at_most_100_ascii_characters(read: int):
    metadata = to_position(Progress(0, read)).metadata
    assert metadata.isascii()
    assert len(metadata) <= 100


def test_position_of_the_highest_offset_is_read_back():
    assert from_position(to_position(Progress(2**63 - 1, 2**63 - 1)), where="here").position == 2**63 - 1


def test_position_whose_crc_disagrees_is_refused():
    assert "expected metadata of rolloutlog, got '1:13:1:-:eed85c16'" in refusal("1:13:1:-:eed85c16")


def test_position_of_a_newer_format_is_refused_as_newer():
    text = refusal("2:12:1:-:eed85c16")
    assert "position of assembler, partition 3 of events: expected format 1, got 2" in text
    assert "newer version of rolloutlog. Run that version" in text


def test_position_of_a_newer_format_with_another_checksum_is_refused_as_newer():
    """How a newer version protects its text is its own affair."""
    assert "newer version" in refusal('17:{"position":12}')


def test_position_of_another_fold_version_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patched:
        patched.setattr(position, "FOLD_VERSION", 9)
        metadata = to_position(Progress(5, 12)).metadata
    text = refusal(metadata)
    assert "expected fold version 1, got 9" in text
    assert "run its `rolloutlog assemble --until-settled`, then start this one; or start a new prefix" in text


@pytest.mark.parametrize(
    ("text", "watermark", "goes_on"),
    [
        ("1:12:9:s", 5, True),
        ("1:12:9:sx3", 5, True),
        ("1:12:9:-", 12, True),  # nothing is held
        ("1:12:9:-", 5, False),
        ("1:12:9:x7", 5, False),
        ("1:12:0:s", 5, True),  # an older one
    ],
)
def test_position_of_another_fold_version_is_gone_on_from_where_no_group_is_open(text, watermark, goes_on):
    committed = with_crc(text)._replace(offset=watermark)
    if goes_on:
        read = from_position(committed, where="here", crossing=True)
        assert (read.watermark, read.position, read.fold_version) == (watermark, 12, int(text.split(":")[2]))
    else:
        with pytest.raises(PositionRefused, match="groups are open that would be folded by other rules"):
            from_position(committed, where="here", crossing=True)
    with pytest.raises(PositionRefused):  # by who knows of no crossing
        from_position(committed, where="here")


@pytest.mark.parametrize(
    "metadata",
    [
        "connect-offset",
        "1:",
        ":",
        "12",
        "1:12:1:-",
        "0:12:1:-:eed85c16",
        "1:12:1:-:eed85c16:",
        "\ud800:1",
        "é",
        "²:1",
        "NONE",
    ],
)
def test_position_of_another_program_is_refused_as_foreign(metadata: str):
    assert "another program commits to this consumer group, or it was edited" in refusal(metadata)


def test_position_with_right_crc_and_missing_parts_is_refused_as_foreign():
    text = "1:12"
    assert "another program commits" in refusal(f"{text}:{position._crc(text)}")


def test_position_whose_metadata_was_emptied_reads_from_the_offset():
    assert from_position(Position(5, ""), where="here") == Progress(5, 5, emptied=True)
