"""The committed position of a partition: offset L and metadata P.

L   where a restart begins to read: the lowest event that its state still needs
P   position read: every output triggered below it is out

Both are committed in the transaction that holds the outputs. Metadata is text of at most 100 ASCII characters:
`format:P:fold version:flags:crc`, crc = CRC-32 of what stands before it.
"""

from dataclasses import dataclass
from re import compile as regex
from zlib import crc32

from rolloutlog.consumers.settings import FOLD_VERSION
from rolloutlog.eventstore.errors import StoreError
from rolloutlog.eventstore.log import Position

FORMAT = 1
NO_FLAGS = "-"

_FORMAT = regex(r"([0-9]{1,9}):")
_READ = regex(r"([0-9]{1,9}):([0-9]{1,19}):([0-9]{1,9}):([!-9;-~]*):([0-9a-f]{8})")


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
    return Position(progress.watermark, f"{text}:{_crc(text)}")


def from_position(position: Position, *, where: str) -> Progress:
    """Read a committed position. `where` names it in errors.

    Raises  PositionRefused: a newer format, another fold version, or text that is not ours
    """
    if position.metadata == "":
        return Progress(position.offset, position.offset, emptied=True)
    began = _FORMAT.match(position.metadata)
    # Before anything else is read: what follows the number is the newer version's own affair.
    if began is not None and int(began[1]) > FORMAT:
        raise PositionRefused(
            f"position of {where}: expected format {FORMAT}, got {began[1]}: it was committed by a newer version of "
            "rolloutlog. Run that version"
        )
    read = _READ.fullmatch(position.metadata)
    if read is None or int(read[1]) != FORMAT or read[5] != _crc(position.metadata.rpartition(":")[0]):
        raise PositionRefused(
            f"position of {where}: expected metadata of rolloutlog, got {position.metadata!r}: another program commits "
            "to this consumer group, or it was edited. Reset the group's offsets to publish everything again from there"
        )
    fold_version = int(read[3])
    if fold_version != FOLD_VERSION:
        raise PositionRefused(
            f"position of {where}: expected fold version {FOLD_VERSION}, got {fold_version}: open groups would be "
            "folded by other rules than they began with. Finish them with the version that began, or start a new prefix"
        )
    return Progress(position.offset, int(read[2]))


def _crc(text: str) -> str:
    return f"{crc32(text.encode()):08x}"
