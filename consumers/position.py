"""The committed position of a partition: offset L and metadata P.

L   where a restart begins to read: the lowest event that its state still needs
P   position read: every output triggered below it is out

Both are committed in the transaction that holds the outputs. Metadata is text of at most 100 ASCII characters:
`format:P:fold version:flags:crc`, crc = CRC-32 of what stands before it.
"""

from dataclasses import dataclass
from zlib import crc32

from rolloutlog.consumers.settings import FOLD_VERSION
from rolloutlog.eventstore.errors import StoreError
from rolloutlog.eventstore.log import Position

FORMAT = 1
NO_FLAGS = "-"


class PositionRefused(StoreError):
    """The committed position is not one this version may continue from; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`watermark` is L, `position` P. `emptied`: the metadata was missing, so that P was set to L."""

    watermark: int
    position: int
    emptied: bool = False


def to_position(progress: Progress) -> Position:
    """What is committed."""
    text = f"{FORMAT}:{progress.position}:{FOLD_VERSION}:{NO_FLAGS}"
    return Position(progress.watermark, f"{text}:{crc32(text.encode()):08x}")


def from_position(position: Position, *, where: str) -> Progress:
    """Read a committed position. `where` names it in errors.

    Raises  PositionRefused: a newer format, another fold version, or text that is not ours
    """
    if position.metadata == "":
        return Progress(position.offset, position.offset, emptied=True)
    text, _, crc = position.metadata.rpartition(":")
    parts = text.split(":")
    if crc != f"{crc32(text.encode()):08x}" or not parts[0].isdigit():
        raise PositionRefused(
            f"position of {where}: expected metadata of rolloutlog, got {position.metadata!r}: another program commits "
            "to this consumer group, or it was edited. Reset the group's offsets to publish everything again from there"
        )
    if int(parts[0]) != FORMAT:
        raise PositionRefused(
            f"position of {where}: expected format {FORMAT}, got {parts[0]}: it was committed by a newer rolloutlog. "
            "Run that version"
        )
    _, read, fold_version, _ = parts
    if int(fold_version) != FOLD_VERSION:
        raise PositionRefused(
            f"position of {where}: expected fold version {FOLD_VERSION}, got {fold_version}: open groups would be "
            "folded by other rules than they began with. Finish them with the version that began, or start a new prefix"
        )
    return Progress(position.offset, int(read))
