"""What a fold puts out. Each output has a trigger: the offset of the event that caused it."""

from dataclasses import dataclass

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.state import Group, Rollout
from rolloutlog.eventstore.events import RunEnded
from rolloutlog.eventstore.log import Record


@dataclass(frozen=True, slots=True)
class BatchReady:
    """A closed group, to be published."""

    trigger: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that can't be decoded or is refused. `record`: as it came; `field`: where in it."""

    trigger: int
    record: Record
    reason: str
    field: str
    detail: str


@dataclass(frozen=True, slots=True)
class GroupClosing:
    """A `GroupClosed` (reason `complete`) to append to the events partition: the closing is then in the log."""

    trigger: int
    group_id: str


@dataclass(frozen=True, slots=True)
class RunEnding:
    """A `RunEnded` to pass on to the batches: no group that was opened before it is open any more.

    offset  of the event itself; the trigger is the closing of the last such group, or that offset when none was open
    """

    trigger: int
    offset: int
    event: RunEnded


@dataclass(frozen=True, slots=True)
class RolloutLeft:
    """A closed rollout with its events, of a fold that does not settle."""

    trigger: int
    rollout: Rollout


@dataclass(frozen=True, slots=True)
class GroupLeft:
    """A closed group that is still to be settled. `closed_ns`: log time of its closing; `reason`: why it closed."""

    trigger: int
    group: Group
    closed_ns: int
    reason: str


Output = BatchReady | DeadLetter | GroupClosing | RunEnding | RolloutLeft | GroupLeft
