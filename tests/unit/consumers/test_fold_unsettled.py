"""A fold that does not settle: closed rollouts and groups leave with their events, and come to the same batches."""

from support.building import SECOND_NS, call, completed, group_closed, record, reward, run_ended, started

from rolloutlog.consumers.closing import settle_group
from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.outputs import BatchReady, GroupClosing, GroupLeft, Output, RolloutLeft, RunEnding
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.eventstore.events import Event

EVENTS = (
    started("a", group_size=2), call("c", 1, "a"), started("b", group_size=2), reward(2, "a", scope="rollout"),
    completed(3, "a"), run_ended(), call("d", 1, "b"), completed(2, "b"),
)  # fmt: skip


def folded(*events: Event, settles: bool) -> list[Output]:
    state = PartitionState(0, FoldSettings(), settles=settles)
    return [
        output
        for offset, event in enumerate(events)
        for output in fold(state, record(event, offset, log_time_ns=offset * SECOND_NS))
    ]


def test_unsettled_fold_puts_out_rollouts_and_their_group_with_their_events():
    left, *others = [each for each in folded(*EVENTS, settles=False) if isinstance(each, GroupLeft)]
    assert not others
    assert (left.trigger, left.closed_ns, left.reason) == (7, 7 * SECOND_NS, "complete")
    assert {name: len(each.attempt.records) for name, each in left.group.rollouts.items()} == {"a": 3, "b": 2}
    rollouts = [each for each in folded(*EVENTS, settles=False) if isinstance(each, RolloutLeft)]
    assert [(each.trigger, each.rollout.rollout_id) for each in rollouts] == [(4, "a"), (7, "b")]


def test_unsettled_fold_puts_out_everything_else_as_a_settling_one_does():
    plain = [each for each in folded(*EVENTS, settles=True) if isinstance(each, GroupClosing | RunEnding)]
    assert plain == [each for each in folded(*EVENTS, settles=False) if isinstance(each, GroupClosing | RunEnding)]
    assert len(plain) == 2


def test_group_that_left_is_settled_into_the_batch_of_a_settling_fold():
    (live,) = [each for each in folded(*EVENTS, settles=True) if isinstance(each, BatchReady)]
    (left,) = [each for each in folded(*EVENTS, settles=False) if isinstance(each, GroupLeft)]
    assert settle_group(left, FoldSettings(), 0) == (live, [])


def test_unsettled_fold_puts_out_rollouts_that_their_group_closes():
    events = (started("a", group_size=None), call("c", 1, "a"), group_closed())
    rollout, group = [each for each in folded(*events, settles=False) if isinstance(each, RolloutLeft | GroupLeft)]
    assert isinstance(rollout, RolloutLeft)
    assert isinstance(group, GroupLeft)
    assert (rollout.trigger, group.trigger, group.reason) == (2, 2, "requested")
