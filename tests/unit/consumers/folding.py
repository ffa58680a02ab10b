"""A partition that is fed with events, one offset after the other, for tests of the fold."""

from typing import Any

from support.building import SECOND_NS, record

from rolloutlog.consumers.batches import Batch, RolloutResult
from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.outputs import BatchReady, DeadLetter, GroupClosing, Output, RunEnding
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.eventstore.events import Event
from rolloutlog.eventstore.log import Record


class Partition:
    """Folds what it is given. `outputs`: all so far, in order; `at_s`: log time of the next record."""

    def __init__(self, *, emit_from: int = 0, position: int = 0, **settings: Any) -> None:
        self.state = PartitionState(0, FoldSettings(**settings), position=position, emit_from=emit_from)
        self.outputs: list[Output] = []
        self.at_s = 0.0
        self.next = position

    def add(self, *events: Event | Record, key: str = "g", resend: bool = False) -> list[Output]:
        """Fold events at the next offsets. Returns what they caused."""
        caused: list[Output] = []
        for event in events:
            entry = event if isinstance(event, Record) else record(event, 0, key=key, resend=resend)
            caused += fold(self.state, entry._replace(offset=self.next, log_time_ns=int(self.at_s * SECOND_NS)))
            self.next += 1
        self.outputs += caused
        return caused

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.state.counts)

    @property
    def batches(self) -> list[Batch]:
        return [each.batch for each in self.outputs if isinstance(each, BatchReady)]

    @property
    def batch(self) -> Batch:
        """The only batch."""
        (batch,) = self.batches
        return batch

    @property
    def letters(self) -> list[DeadLetter]:
        return [each for each in self.outputs if isinstance(each, DeadLetter)]

    @property
    def closings(self) -> list[int]:
        """Triggers of the closings that are to be appended."""
        return [each.trigger for each in self.outputs if isinstance(each, GroupClosing)]

    @property
    def run_endings(self) -> list[tuple[int, int]]:
        """Triggers and offsets of the ends of the run that are passed on."""
        return [(each.trigger, each.offset) for each in self.outputs if isinstance(each, RunEnding)]

    def result(self, rollout_id: str = "r") -> RolloutResult:
        """What became of a rollout in the only batch."""
        (found,) = [each for each in self.batch.rollouts if each.rollout_id == rollout_id]
        return found

    @property
    def statuses(self) -> dict[str, str]:
        return {each.rollout_id: each.status for each in self.batch.rollouts}
