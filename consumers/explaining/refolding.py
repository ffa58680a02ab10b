"""Folds events again, without output: rollouts as they closed, with the events that counted.

`Refold` goes through `consumers.fold`, so that what counts is decided where it was decided before: starts that opened
nothing, superseded attempts, repeated and late events are left out. Spans stay undecoded until `entries_of` is asked.

Memory    that of open rollouts; whoever has looked at a closed one lets go of it
Not here  where rewards go: consumers.attribution
"""

from dataclasses import dataclass

from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.outputs import RolloutLeft
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState, Rollout
from rolloutlog.eventstore.log import Record

FORGET_EVENTS = 10_000  # how often closed groups whose time is over are dropped


@dataclass(frozen=True, slots=True)
class Closed:
    """What one event closed. `group_id`: the group that is closed with it, None when none is."""

    rollouts: tuple[Rollout, ...] = ()
    group_id: str | None = None


NOTHING = Closed()


class Refold:
    """The fold of one events partition, or of any part of it that begins before the starts of its rollouts."""

    def __init__(self, partition: int, settings: FoldSettings) -> None:
        self._state = PartitionState(partition, settings, settles=False)
        self._count = 0

    def add(self, record: Record) -> Closed:
        """Fold an event."""
        group_id = (record.key or b"").decode(errors="replace")
        groups = self._state.groups
        group = groups.get(group_id)
        outputs = fold(self._state, record)
        self._count += 1
        if self._count % FORGET_EVENTS == 0:
            self._state.watermark()
        is_closed = group is not None and groups.get(group_id) is not group
        if not outputs and not is_closed:
            return NOTHING
        rollouts = tuple(each.rollout for each in outputs if isinstance(each, RolloutLeft))
        return Closed(rollouts, group_id) if is_closed else Closed(rollouts) if rollouts else NOTHING

    def find(self, group_id: str, rollout_id: str) -> Rollout | None:
        """A rollout of a group that is open."""
        group = self._state.groups.get(group_id)
        return None if group is None else group.rollouts.get(rollout_id)
