"""Where a fold version takes over from another: groups of before open nothing, and are published by nobody."""

import pytest
from support.building import call, completed, group_closed, reward, run_ended, started
from unit.consumers.folding import Partition

from rolloutlog.consumers import fold as fold_module
from rolloutlog.consumers.crossing import cross

WINDOW_S = 600  # the default


@pytest.fixture
def never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """New rules: rollouts do not close by themselves."""
    monkeypatch.setattr(fold_module, "_close_when_whole", lambda *given: None)


def test_crossing_of_closed_groups_changes_nothing():
    partition = Partition(emit_from=2)
    partition.add(started(), completed(1))
    before = (partition.state.watermark(), dict(partition.state.closed))
    assert cross(partition.state) == 0
    assert (partition.state.watermark(), dict(partition.state.closed)) == before


def test_group_open_by_new_rules_alone_is_closed_without_output(never_whole):
    partition = Partition(emit_from=2)
    partition.add(started(), completed(1))
    assert partition.state.open_rollouts == 1
    assert cross(partition.state) == 1
    assert (partition.state.groups, partition.state.open_rollouts, partition.outputs) == ({}, 0, [])
    partition.add(reward(2, scope="rollout"), group_closed())
    assert partition.batches == []


def test_start_of_a_group_of_before_is_refused_after_the_crossing(never_whole):
    partition = Partition(emit_from=2)
    partition.add(started(), completed(1))
    cross(partition.state)
    partition.add(started(), resend=True)
    assert partition.counts["group_reused"] == 1
    assert partition.state.groups == {}


def test_group_of_before_is_forgotten_after_the_window(never_whole):
    partition = Partition(emit_from=2)
    partition.add(started(), completed(1))
    cross(partition.state)
    partition.at_s = WINDOW_S
    partition.add(call("c", 1, "unknown"))
    assert partition.state.watermark() == 3


def test_end_of_the_run_of_before_is_not_passed_on_again(never_whole):
    partition = Partition(emit_from=3)
    partition.add(started(), completed(1), run_ended())
    cross(partition.state)
    partition.add(call("c", 1, "unknown"))
    assert partition.run_endings == []


def test_group_that_begins_after_the_crossing_is_published():
    partition = Partition(emit_from=2)
    partition.add(started(), completed(1))
    cross(partition.state)
    partition.add(started("x", group_id="h"), completed(1, "x"), key="h")
    assert [each.group_id for each in partition.batches] == ["h"]
