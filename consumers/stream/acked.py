"""What a reader of batches has acknowledged: next step, policy version, and where reading goes on in each partition.

It is committed beside the offsets, so that a restart knows the step, and goes into checkpoints as a state. Metadata of
a position is text of at most 100 ASCII characters: `r2:next step:policy version:line:ended:crc`, `-` = unknown, or not
ended; crc = CRC-32 of what stands before it. `r1` had neither line nor end.
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

FORMAT = "r2"  # other than the assembler's numbers: neither is taken for the other
FORMAT_1 = "r1"
ENDED = "ended"
STATE_FORMAT = 2  # 1: without `ended` and `line`
STATE_FORMAT_OUTPUT = 3  # with `output`, which no version before would have looked at
STATE_KEYS = ("format", "reader", "run_id", "step", "policy_version", "offsets")
COUNT_END = 2**63  # steps, versions and offsets are 64-bit integers in the log

_METADATA = regex(r"(r[0-9]{1,9}):([0-9]{1,19}):(-|[0-9]{1,19})(?::(-|[0-9]{1,19}):(-|ended))?:([0-9a-f]{8})")
_LATER = regex(r"r([0-9]{1,9}):")

logger = logging.getLogger("rolloutlog.trainer")


@dataclass(frozen=True, slots=True)
class Acked:
    """All that a reader has acknowledged.

    step            the next one
    policy_version  of the weights after the last one; None = unknown
    offsets         batches partition → where reading goes on
    ended           partitions in which the end of the run was the last that stood below the offset: retention may
                    remove it, and whoever begins there must still know
    line            of steps, as `Rewound` says; 0 = no checkpoint was ever loaded, None = unknown
    """

    step: int
    policy_version: int | None
    offsets: Mapping[int, int]
    ended: frozenset[int] = frozenset()
    line: int | None = 0

    @property
    def reached(self) -> "dict[int, Reached]":
        return {partition: Reached(offset, partition in self.ended) for partition, offset in self.offsets.items()}


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a partition was read. `ended`: no batch came after the end of the run."""

    offset: int
    ended: bool = False


def acked_of(step: int, policy_version: int | None, reached: Mapping[int, Reached], line: int | None) -> Acked:
    """Acknowledged up to there."""
    ended = frozenset(partition for partition, each in reached.items() if each.ended)
    return Acked(step, policy_version, {partition: each.offset for partition, each in reached.items()}, ended, line)


def to_positions(acked: Acked) -> dict[int, Position]:
    """What is committed: the same step, version and line in every partition."""
    version, line = ("-" if each is None else each for each in (acked.policy_version, acked.line))
    text = f"{FORMAT}:{acked.step}:{version}:{line}"
    going_on, ended = _with_crc(f"{text}:-"), _with_crc(f"{text}:{ENDED}")
    return {p: Position(offset, ended if p in acked.ended else going_on) for p, offset in acked.offsets.items()}


def from_positions(positions: Mapping[int, Position], *, where: str) -> Acked:
    """Read committed positions; without any, nothing was acknowledged. `where` names them in errors.

    Readers of fewer partitions leave the others' positions behind: the highest step counts.
    Raises  PositionRefused: a newer format, or text that is not ours
    """
    found, ended = Acked(0, None, {}), set()
    for partition, position in positions.items():
        if position.metadata == "":
            logger.warning(
                "%s, partition %d: metadata was emptied; step and policy version of it are lost", where, partition
            )
            continue
        read, has_ended = _read(position.metadata, f"{where}, partition {partition}")
        found = read if read.step >= found.step else found
        if has_ended:
            ended.add(partition)
    offsets = {partition: position.offset for partition, position in positions.items()}
    return Acked(found.step, found.policy_version, offsets, frozenset(ended), found.line)


def to_state(acked: Acked, *, reader: str, run_id: str, output_id: str | None = None) -> dict[str, Any]:
    """What goes into a checkpoint: plain JSON values.

    output_id  of the output that is read, with when it was made; None = live batches
    """
    return {
        "format": STATE_FORMAT if output_id is None else STATE_FORMAT_OUTPUT,
        "reader": reader,
        "run_id": run_id,
        "step": acked.step,
        "policy_version": acked.policy_version,
        "offsets": {str(partition): offset for partition, offset in sorted(acked.offsets.items())},
        "ended": sorted(acked.ended),
        "line": acked.line,
        **({} if output_id is None else {"output": output_id}),
    }


def from_state(
    state: Any, *, reader: str, run_id: str, partitions: Collection[int], output_id: str | None = None
) -> Acked:
    """Read a checkpoint's state. Raises InvalidSettings naming what is wrong.

    reader, run_id, partitions, output_id  of the stream that loads it; another reader's lines are unknown to it
    """
    if not isinstance(state, Mapping) or any(key not in state for key in STATE_KEYS):
        got = f"keys {sorted(map(str, state))}" if isinstance(state, Mapping) else type(state).__name__
        raise InvalidSettings(
            f"state refused: expected what state_dict() gave, with keys {', '.join(STATE_KEYS)}; got {got}"
        )
    if type(state["format"]) is not int or not 1 <= state["format"] <= STATE_FORMAT_OUTPUT:
        raise InvalidSettings(
            f"state refused: expected a format from 1 to {STATE_FORMAT_OUTPUT}, got {state['format']!r}: another "
            "version of rolloutlog saved it"
        )
    if state["run_id"] != run_id:
        raise InvalidSettings(
            f"state refused: expected run {run_id}, as this log holds, got {state['run_id']!r}: the checkpoint belongs "
            "to another log; nothing was changed"
        )
    saved = state.get("output", "") if state["format"] == STATE_FORMAT_OUTPUT else None
    if saved != output_id:
        here, there = ("live batches" if each is None else f"output {each!r}" for each in (output_id, saved))
        raise InvalidSettings(
            f"state refused: expected one of {here}, which this stream reads, got one of {there}: offsets of one say "
            "nothing of the other, nor does what was made anew under a name; nothing was changed"
        )
    step, version = state["step"], state["policy_version"]
    if not _is_count(step) or not (version is None or _is_count(version)):
        raise InvalidSettings(
            f"state refused: expected integers from 0, of 63 bits at most, got step {step!r}, policy version "
            f"{version!r}"
        )
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
    ended = state.get("ended", [])
    if not isinstance(ended, list | tuple) or not all(type(each) is int and each in offsets for each in ended):
        raise InvalidSettings(
            f"state refused: expected partitions among {sorted(partitions)} as `ended`, got {ended!r}"
        )
    line = state.get("line") if state["reader"] == reader else None
    if not (line is None or _is_count(line)):
        raise InvalidSettings(f"state refused: expected an integer from 0, or None, as `line`, got {line!r}")
    return Acked(step, version, offsets, frozenset(ended), line)


def _read(metadata: str, where: str) -> tuple[Acked, bool]:
    """What it says, without offsets, and whether the run has ended in the partition."""
    later = _LATER.match(metadata)
    # Before anything else is read: what follows is the newer version's own affair.
    if later is not None and int(later[1]) > int(FORMAT[1:]):
        raise PositionRefused(
            f"position of {where}: expected format {FORMAT}, got r{later[1]}: it was committed by a newer version of "
            "rolloutlog. Run that version"
        )
    read = _METADATA.fullmatch(metadata)
    expected = FORMAT if read is not None and read[4] else FORMAT_1
    if read is None or read[1] != expected or metadata != _with_crc(metadata.rpartition(":")[0]):
        raise PositionRefused(
            f"position of {where}: expected metadata of a reader of batches, got {metadata!r}: another program commits "
            "to this consumer group, or it was edited. Open the stream with another reader's name"
        )
    version, line = (None if each in (None, "-") else int(each) for each in (read[3], read[4]))
    return Acked(int(read[2]), version, {}, line=line), read[5] == ENDED


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < COUNT_END


def _with_crc(text: str) -> str:
    return f"{text}:{crc32(text.encode()):08x}"
