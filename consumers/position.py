"""The committed position of a partition: offset L and metadata P.

L   where a restart begins to read: the lowest event that its state still needs
P   position read: every output triggered below it is out

Both are committed in the transaction that holds the outputs. Metadata is text of at most 100 ASCII characters:
`format:P:fold version:flags:crc`, crc = CRC-32 of what stands before it. Flags are `-`, or letters, each with a number
or without: `s` = settled, no group is open at P; `x12` = at offset 12, above L, this fold version took over from
another. Others are of newer versions, and passed over.
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
_FLAG = regex(r"([a-z])([0-9]{0,19})")
SETTLED, CROSSING = "s", "x"


class PositionRefused(StoreError):
    """The committed position is not one this version may continue from; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`watermark` is L, `position` P.

    emptied       the metadata was missing, so that P was set to L
    settled       no group was open at P: what is remembered below it is closed groups
    crossing      offset at which another fold version took over (consumers.crossing); None = none above L
    fold_version  that committed it; committing is always done by this one
    """

    watermark: int
    position: int
    emptied: bool = False
    settled: bool = False
    crossing: int | None = None
    fold_version: int = FOLD_VERSION


def to_position(progress: Progress) -> Position:
    """What is committed."""
    flags = SETTLED if progress.settled else ""
    if progress.crossing is not None and progress.crossing > progress.watermark:
        flags += f"{CROSSING}{progress.crossing}"
    text = f"{FORMAT}:{progress.position}:{FOLD_VERSION}:{flags or NO_FLAGS}"
    return Position(progress.watermark, f"{text}:{_crc(text)}")


def from_position(position: Position, *, where: str, crossing: bool = False) -> Progress:
    """Read a committed position. `where` names it in errors.

    crossing  the reader can go on from a settled position of another fold version (`Progress.fold_version` says)
    Raises    PositionRefused: a newer format, another fold version, or text that is not ours
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
    flags = dict(_FLAG.findall(read[4]))
    crossed = int(flags[CROSSING]) if flags.get(CROSSING) else None
    found = Progress(
        position.offset, int(read[2]), settled=SETTLED in flags, crossing=crossed, fold_version=int(read[3])
    )
    # With L = P nothing at all is held: versions before the flag said so in this way alone.
    if found.fold_version != FOLD_VERSION and not (crossing and (found.settled or found.watermark == found.position)):
        raise PositionRefused(
            f"position of {where}: expected fold version {FOLD_VERSION}, got {found.fold_version}: groups are open "
            "that would be folded by other rules than they began with. Let the version that began finish them: run its "
            "`rolloutlog assemble --until-settled`, then start this one; or start a new prefix"
        )
    return found


def _crc(text: str) -> str:
    return f"{crc32(text.encode()):08x}"
