"""What a reader of batches has acknowledged: next step, policy version, and where reading goes on in each partition.

It is committed beside the offsets, so that a restart knows the step, and goes into checkpoints as a state. Metadata of
a position is text of at most 100 ASCII characters: `format:next step:policy version:crc`, `-` = version unknown,
crc = CRC-32 of what stands before it.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from re import compile as regex
from typing import Any
from zlib import crc32

from rolloutlog.consumers.position import PositionRefused
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import Position

FORMAT = "r1"  # other than the assembler's numbers: neither is taken for the other
STATE_FORMAT = 1
STATE_KEYS = ("format", "reader", "run_id", "step", "policy_version", "offsets")

_METADATA = regex(r"(r[0-9]{1,9}):([0-9]{1,19}):(-|[0-9]{1,19}):([0-9a-f]{8})")
_LATER = regex(r"r([0-9]{1,9}):")

logger = logging.getLogger("rolloutlog.trainer")


@dataclass(frozen=True, slots=True)
class Acked:
    """All that a reader has acknowledged.

    step            the next one
    policy_version  of the weights after the last one; None = unknown
    offsets         batches partition → where reading goes on
    """

    step: int
    policy_version: int | None
    offsets: Mapping[int, int]


def to_positions(acked: Acked) -> dict[int, Position]:
    """What is committed: the same metadata in every partition."""
    version = "-" if acked.policy_version is None else acked.policy_version
    text = f"{FORMAT}:{acked.step}:{version}"
    return {partition: Position(offset, f"{text}:{_crc(text)}") for partition, offset in acked.offsets.items()}


def from_positions(positions: Mapping[int, Position], *, where: str) -> Acked:
    """Read committed positions; without any, nothing was acknowledged. `where` names them in errors.

    Readers of fewer partitions leave the others' positions behind: the highest step counts.
    Raises  PositionRefused: a newer format, or text that is not ours
    """
    step, version = 0, None
    for partition, position in positions.items():
        if position.metadata == "":
            logger.warning(
                "%s, partition %d: metadata was emptied; step and policy version of it are lost", where, partition
            )
            continue
        found = _read(position.metadata, f"{where}, partition {partition}")
        if found[0] >= step:
            step, version = found
    return Acked(step, version, {partition: position.offset for partition, position in positions.items()})


def to_state(acked: Acked, *, reader: str, run_id: str) -> dict[str, Any]:
    """What goes into a checkpoint: plain JSON values."""
    return {
        "format": STATE_FORMAT,
        "reader": reader,
        "run_id": run_id,
        "step": acked.step,
        "policy_version": acked.policy_version,
        "offsets": {str(partition): offset for partition, offset in sorted(acked.offsets.items())},
    }


def from_state(state: Any, *, run_id: str, partitions: Collection[int]) -> Acked:
    """Read a checkpoint's state. Raises InvalidSettings naming what is wrong.

    run_id, partitions  of the stream that loads it
    """
    if not isinstance(state, Mapping) or any(key not in state for key in STATE_KEYS):
        got = f"keys {sorted(map(str, state))}" if isinstance(state, Mapping) else type(state).__name__
        raise InvalidSettings(
            f"state refused: expected what state_dict() gave, with keys {', '.join(STATE_KEYS)}; got {got}"
        )
    if state["format"] != STATE_FORMAT:
        raise InvalidSettings(
            f"state refused: expected format {STATE_FORMAT}, got {state['format']!r}: another version of rolloutlog "
            "saved it"
        )
    if state["run_id"] != run_id:
        raise InvalidSettings(
            f"state refused: expected run {run_id}, as this log holds, got {state['run_id']!r}: the checkpoint belongs "
            "to another log; nothing was changed"
        )
    step, version = state["step"], state["policy_version"]
    if not _is_count(step) or not (version is None or _is_count(version)):
        raise InvalidSettings(f"state refused: expected integers from 0, got step {step!r}, policy version {version!r}")
    try:
        offsets = {int(partition): offset for partition, offset in state["offsets"].items()}
    except (AttributeError, TypeError, ValueError):
        offsets = {}
    if not offsets or not all(_is_count(offset) for offset in offsets.values()):
        raise InvalidSettings(f"state refused: expected offsets by partition, got {state['offsets']!r}")
    if offsets.keys() != set(partitions):
        raise InvalidSettings(
            f"state refused: expected offsets of partitions {sorted(partitions)}, which this stream reads, got "
            f"{sorted(offsets)}; open it with partitions={sorted(offsets)}"
        )
    return Acked(step, version, offsets)


def _read(metadata: str, where: str) -> tuple[int, int | None]:
    later = _LATER.match(metadata)
    # Before anything else is read: what follows is the newer version's own affair.
    if later is not None and int(later[1]) > int(FORMAT[1:]):
        raise PositionRefused(
            f"position of {where}: expected format {FORMAT}, got r{later[1]}: it was committed by a newer version of "
            "rolloutlog. Run that version"
        )
    read = _METADATA.fullmatch(metadata)
    if read is None or read[1] != FORMAT or read[4] != _crc(metadata.rpartition(":")[0]):
        raise PositionRefused(
            f"position of {where}: expected metadata of a reader of batches, got {metadata!r}: another program commits "
            "to this consumer group, or it was edited. Open the stream with another reader's name"
        )
    return int(read[2]), None if read[3] == "-" else int(read[3])


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _crc(text: str) -> str:
    return f"{crc32(text.encode()):08x}"
