"""The committed position's metadata."""

import pytest

from rolloutlog.consumers import position
from rolloutlog.consumers.position import PositionRefused, Progress, from_position, to_position
from rolloutlog.eventstore.log import Position


def refusal(metadata: str) -> str:
    with pytest.raises(PositionRefused) as caught:
        from_position(Position(5, metadata), where="assembler, partition 3 of events")
    return str(caught.value)


def test_position_written_and_read_is_the_same():
    assert from_position(to_position(Progress(5, 12)), where="here") == Progress(5, 12)


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
    assert "Finish them with the version that began, or start a new prefix" in text


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
