"""How rollouts and groups open: RolloutStarted, repeated, resent, beyond the group's size, after its closing."""

from support.building import call, completed, group_closed, record, reward, started
from unit.consumers.folding import Partition

OTHER = "main.00000000000000cc"
JUDGE = "judge.00000000000000bb"
WINDOW_S = 600  # the default


def closed_group() -> Partition:
    """A group of one, closed at offset 1, its GroupClosed not read yet."""
    partition = Partition()
    partition.add(started(), completed(1))
    return partition


def test_fold_of_a_start_opens_a_rollout():
    partition = Partition()
    partition.add(started())
    assert (partition.state.open_rollouts, partition.counts) == (1, {"started": 1})


def test_fold_takes_the_group_size_that_comes_first():
    partition = Partition()
    partition.add(started("a", group_size=1), started("b", group_size=2))
    assert partition.state.groups["g"].size == 1


def test_fold_of_a_start_beyond_the_group_size_opens_nothing():
    partition = Partition()
    partition.add(started("a", group_size=1), started("b", group_size=1))
    assert partition.counts == {"started": 1, "surplus": 1}


def test_fold_keeps_the_first_rollouts_in_log_order_and_names_the_others_surplus():
    partition = Partition(min_group=1)
    partition.add(*(started(name, group_size=2) for name in "abc"))
    partition.add(completed(1, "c"), completed(1, "b"), completed(1, "a"))
    assert partition.statuses == {"a": "emitted", "b": "emitted", "c": "surplus"}


def test_fold_names_the_size_in_the_reason_of_a_surplus_rollout():
    partition = Partition()
    partition.add(started("a"), started("b"), completed(1, "a"))
    assert partition.result("b").reason == "beyond the group's 1 rollouts"


def test_fold_counts_events_of_a_surplus_rollout():
    partition = Partition()
    partition.add(started("a"), started("b"), call("c", 1, "b"), completed(2, "b"))
    assert partition.counts["surplus_events"] == 2


def test_fold_of_a_surplus_start_again_counts_a_duplicate():
    partition = Partition()
    partition.add(started("a"), started("b"), started("b"))
    assert (partition.counts["surplus"], partition.counts["duplicate"]) == (1, 1)


def test_fold_of_the_same_start_again_counts_a_duplicate():
    partition = Partition()
    partition.add(started(), started())
    assert (partition.state.open_rollouts, partition.counts["duplicate"]) == (1, 1)


def test_fold_of_a_start_with_other_bytes_counts_a_conflict_and_the_first_holds():
    partition = Partition()
    partition.add(started(task_id="first"), started(task_id="second"), completed(1))
    assert partition.counts["conflict"] == 1
    assert partition.result().task_id == "first"


def test_fold_of_a_second_process_on_the_same_attempt_counts_a_conflict():
    partition = Partition()
    partition.add(started(), started(source=OTHER))
    assert partition.counts["conflict"] == 1


def test_fold_counts_every_event_of_a_second_main_source_as_a_conflict():
    """Two processes ran one attempt: the one that started it counts, and the other's events mix with none of its."""
    partition = Partition()
    partition.add(started(), reward(1, source=OTHER, value=0.5), completed(2, source=OTHER))
    assert (partition.counts["conflict"], partition.state.open_rollouts) == (2, 1)


def test_fold_takes_events_of_an_attached_source():
    partition = Partition()
    partition.add(started(), reward(0, source=JUDGE, name="judge"), completed(1))
    assert [each.name for each in partition.result().outcomes] == ["judge"]


def test_fold_of_a_resent_start_older_than_the_window_opens_nothing():
    partition = Partition()
    partition.at_s = WINDOW_S + 1
    partition.add(started(time_ns=0), resend=True)
    assert (partition.state.open_rollouts, partition.counts) == (0, {"stale_resend": 1})


def test_fold_of_a_resent_start_as_old_as_the_window_opens_a_rollout():
    partition = Partition()
    partition.at_s = WINDOW_S
    partition.add(started(time_ns=0), resend=True)
    assert partition.state.open_rollouts == 1


def test_fold_of_an_old_start_that_is_no_resend_opens_a_rollout():
    """A host's clock may be wrong: only what may be stored already is measured by it."""
    partition = Partition()
    partition.at_s = 10 * WINDOW_S
    partition.add(started(time_ns=0))
    assert partition.state.open_rollouts == 1


def test_fold_of_a_start_of_a_closed_group_opens_nothing():
    partition = closed_group()
    partition.add(started("late"))
    assert (partition.state.open_rollouts, partition.counts["group_reused"]) == (0, 1)


def test_fold_of_a_start_of_a_closed_group_appends_a_closing():
    """A restart above the first closing has to find one more."""
    partition = closed_group()
    caused = partition.add(started("late"))
    assert [(each.trigger, getattr(each, "group_id", None)) for each in caused] == [(2, "g")]


def test_fold_appends_a_closing_for_each_start_that_is_refused():
    partition = closed_group()
    partition.add(started("late"), started("later"))
    assert partition.closings == [1, 2, 3]


def test_fold_refuses_starts_as_long_as_the_closing_has_not_come_back():
    partition = closed_group()
    partition.at_s = 10 * WINDOW_S
    partition.add(started("late"))
    assert partition.counts["group_reused"] == 1


def test_fold_refuses_starts_until_the_window_after_the_closing_ends():
    partition = closed_group()
    partition.add(group_closed(reason="complete"))
    partition.at_s = WINDOW_S - 0.001
    partition.add(started("late"))
    assert partition.counts["group_reused"] == 1


def test_fold_of_a_start_after_the_window_opens_the_group_anew():
    partition = closed_group()
    partition.add(group_closed(reason="complete"))
    partition.at_s = WINDOW_S
    partition.add(started("new"))
    assert list(partition.state.groups["g"].rollouts) == ["new"]


def test_fold_refuses_starts_of_a_group_closed_before_any_start():
    partition = Partition()
    partition.add(group_closed(), started())
    assert partition.counts == {"group_reused": 1}


def test_fold_of_a_higher_attempt_supersedes_the_lower_one():
    partition = Partition()
    partition.add(started(attempts_max=2), started(attempt=1, attempts_max=2, source=OTHER))
    assert partition.counts["superseded_attempts"] == 1
    assert partition.state.groups["g"].rollouts["r"].attempt.number == 1


def test_fold_of_a_higher_attempt_forgets_what_the_lower_one_recorded():
    partition = Partition()
    partition.add(started(attempts_max=2), call("old", 1), reward(2, value=0.25))
    partition.add(started(attempt=1, attempts_max=2, source=OTHER))
    partition.add(call("new", 1, attempt=1, source=OTHER), completed(2, attempt=1, source=OTHER))
    assert [sample.sample_id for sample in partition.batch.samples] == ["r/1/new"]
    assert partition.result().outcomes == ()


def test_fold_counts_events_of_a_superseded_attempt():
    partition = Partition()
    partition.add(started(attempts_max=2), started(attempt=1, attempts_max=2, source=OTHER), call("old", 1))
    assert partition.counts["superseded"] == 1


def test_fold_counts_the_start_of_a_lower_attempt_as_superseded():
    partition = Partition()
    partition.add(started(attempt=1, attempts_max=2, source=OTHER), started(attempts_max=2))
    assert partition.counts["superseded"] == 1


def test_fold_counts_events_of_an_attempt_not_started_as_orphans():
    partition = Partition()
    partition.add(started(attempts_max=2), call("c", 1, attempt=1, source=OTHER))
    assert partition.counts["orphan"] == 1


def test_fold_counts_the_start_of_an_attempt_after_the_rollout_closed_as_late():
    partition = Partition()
    partition.add(started(group_size=2, attempts_max=2), completed(1))
    partition.add(started(group_size=2, attempt=1, attempts_max=2, source=OTHER))
    assert partition.counts["late"] == 1


def test_fold_counts_events_of_a_rollout_never_started_as_orphans():
    partition = Partition()
    assert partition.add(call(), completed(2)) == []
    assert partition.counts == {"orphan": 2}


def test_fold_counts_events_of_an_unknown_rollout_of_an_open_group_as_orphans():
    partition = Partition()
    partition.add(started(), call("c", 1, "unknown"))
    assert partition.counts["orphan"] == 1


def test_fold_keeps_groups_of_other_keys_apart():
    partition = Partition()
    partition.add(started("a", group_id="g"), key="g")
    partition.add(started("b", group_id="h"), key="h")
    partition.add(completed(1, "b"), key="h")
    assert partition.batch.group_id == "h"


def test_fold_counts_an_event_under_another_groups_key_as_an_orphan():
    partition = Partition()
    partition.add(started("a", group_id="g"), key="g")
    partition.add(completed(1, "a"), key="h")
    assert partition.counts["orphan"] == 1


def test_fold_counts_an_event_whose_key_is_no_utf8_as_an_orphan():
    """It must not find the group that its key looks like once mended."""
    partition = Partition()
    partition.add(started("a", group_id="g\ufffd"), key="g\ufffd")
    partition.add(record(completed(1, "a"), 0)._replace(key=b"g\xff"))
    assert partition.counts["orphan"] == 1


def test_fold_of_a_start_keeps_what_the_start_says():
    partition = Partition()
    partition.add(started(policy_version=7, split="val", metadata=b'{"a":1}'), completed(1))
    result = partition.result()
    assert (result.split, result.policy_version, result.metadata) == ("val", 7, b'{"a":1}')
