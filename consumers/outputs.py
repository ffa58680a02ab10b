"""What a fold puts out. Each output has a trigger: the offset of the event that caused it."""

from dataclasses import dataclass

from rolloutlog.consumers.batches import Batch
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


Output = BatchReady | DeadLetter | GroupClosing | RunEnding
