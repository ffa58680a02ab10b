"""How groups close and what is published of them."""

import pytest
from support.building import SECOND_NS, call, completed, expired, group_closed, reward, started
from unit.consumers.folding import Partition

WINDOW_S = 600  # the default


def pair(*, first: str = "completed", second: str = "completed", **settings: object) -> Partition:
    """A closed group of two rollouts, a and b, with one call each."""
    partition = Partition(**settings)
    partition.add(started("a", group_size=2), started("b", group_size=2), call("c", 1, "a"), call("c", 1, "b"))
    partition.add(completed(2, "a", status=first), completed(2, "b", status=second))
    return partition


def open_group(size: int | None = None) -> Partition:
    """A group with one completed rollout, done, and one open one, open."""
    partition = Partition(min_group=1)
    partition.add(started("done", group_size=size), started("open", group_size=size), completed(1, "done"))
    return partition


def test_fold_publishes_a_group_when_its_last_rollout_closes():
    batch = pair().batch
    assert (batch.trigger, batch.first_event, batch.closed_reason, batch.group_size) == (5, 0, "complete", 2)


def test_fold_waits_for_rollouts_of_the_group_that_have_not_started():
    partition = Partition()
    partition.add(started("a", group_size=2), completed(1, "a"))
    assert partition.batches == []


def test_fold_publishes_samples_in_the_order_of_starts():
    partition = Partition()
    partition.add(started("b", group_size=2), started("a", group_size=2), call("c", 1, "a"), call("c", 1, "b"))
    partition.add(completed(2, "a"), completed(2, "b"))
    assert [sample.sample_id for sample in partition.batch.samples] == ["b/0/c", "a/0/c"]


def test_fold_points_each_sample_to_its_rollout():
    assert [sample.rollout_index for sample in pair().batch.samples] == [0, 1]


def test_fold_appends_a_closing_with_each_published_group():
    partition = pair()
    assert [type(each).__name__ for each in partition.outputs] == ["BatchReady", "GroupClosing"]


def test_fold_gives_the_batch_the_log_time_of_its_trigger():
    partition = Partition()
    partition.add(started())
    partition.at_s = 7
    partition.add(completed(1))
    assert partition.batch.closed_ns == 7 * SECOND_NS


def test_fold_names_the_run_and_the_config_hash_in_the_batch():
    partition = pair()
    assert (partition.batch.run_id, partition.batch.config_hash) == ("run", partition.state.settings.config_hash)


def test_fold_of_a_group_with_too_few_survivors_publishes_no_samples_and_says_why():
    batch = pair(second="failed").batch
    assert (batch.samples, batch.reason) == ((), "1 of at least 2 rollouts completed")


def test_fold_of_a_group_with_too_few_survivors_ends_them_as_group_dropped():
    assert pair(second="failed").statuses == {"a": "group_dropped", "b": "failed"}


def test_fold_of_a_group_with_enough_survivors_publishes_them():
    partition = pair(second="failed", min_group=1)
    assert partition.statuses == {"a": "emitted", "b": "failed"}
    assert [sample.sample_id for sample in partition.batch.samples] == ["a/0/c"]


def test_fold_of_a_group_of_one_needs_one_survivor():
    partition = Partition()
    partition.add(started(group_size=1), call(), completed(2))
    assert len(partition.batch.samples) == 1


def test_fold_of_a_group_without_selected_calls_says_so():
    partition = Partition()
    partition.add(started(), completed(1))
    assert (partition.batch.reason, partition.statuses) == ("no call is selected", {"r": "emitted"})


def test_fold_of_a_batch_with_samples_gives_no_reason():
    assert pair().batch.reason is None


def test_fold_of_an_evaluation_group_publishes_rewards_without_samples():
    partition = Partition()
    partition.add(started(split="val"), call(), reward(2, value=0.5), completed(3))
    assert (partition.batch.samples, partition.batch.reason) == ((), "split val")
    assert [(each.value, each.outcome) for each in partition.result().outcomes] == [(0.5, "attributed")]


def test_fold_of_an_evaluation_group_keeps_final_values_and_turn_count():
    partition = Partition()
    partition.add(started(split="test"), call(), reward(2, value=0.5, scope="rollout"), completed(3))
    assert (partition.result().final, partition.result().turn_count) == ({"reward": 0.5}, 1)


def test_fold_with_splits_set_yields_samples_of_those():
    partition = Partition(splits=("val",))
    partition.add(started(split="val"), call(), completed(2))
    assert len(partition.batch.samples) == 1


# Closed by GroupClosed


def test_fold_leaves_an_open_group_open_when_all_of_its_rollouts_are_closed():
    partition = Partition()
    partition.add(started(group_size=None), completed(1))
    assert (partition.batches, len(partition.state.groups)) == ([], 1)


def test_fold_of_a_host_closing_publishes_an_open_group():
    partition = Partition(min_group=1)
    partition.add(started(group_size=None), call(), completed(2), group_closed())
    assert (partition.batch.closed_reason, partition.batch.group_size) == ("requested", None)
    assert len(partition.batch.samples) == 1


def test_fold_of_a_host_closing_ends_open_rollouts_as_expired():
    partition = open_group()
    partition.add(group_closed())
    assert partition.statuses == {"done": "emitted", "open": "expired"}
    assert partition.result("open").reason == "group_closed"


def test_fold_of_a_host_closing_closes_a_group_of_announced_size_before_it_is_full():
    partition = open_group(size=5)
    partition.add(group_closed())
    assert partition.statuses == {"done": "emitted", "open": "expired"}


def test_fold_of_a_host_closing_counts_no_rollout_as_open():
    partition = open_group()
    partition.add(group_closed())
    assert (partition.state.open_rollouts, len(partition.state.groups)) == (0, 0)


def test_fold_of_a_host_closing_appends_one_of_its_own():
    partition = open_group()
    partition.add(group_closed())
    assert partition.closings == [3]


def test_fold_of_a_host_closing_again_changes_nothing():
    partition = open_group()
    partition.add(group_closed())
    assert partition.add(group_closed(sequence=1)) == []
    assert partition.counts["late"] == 1


def test_fold_of_a_host_closing_before_any_start_publishes_nothing():
    partition = Partition()
    assert partition.add(group_closed()) == []


def test_fold_forgets_a_closing_before_any_start_after_the_window():
    partition = Partition()
    partition.add(group_closed())
    partition.at_s = WINDOW_S
    partition.add(started())
    assert partition.state.open_rollouts == 1


def test_fold_of_a_decision_as_of_the_groups_newest_event_closes_it():
    partition = open_group()
    partition.add(group_closed(reason="age", as_of=2))
    assert partition.batch.closed_reason == "age"


@pytest.mark.parametrize("as_of", [0, 1])
@pytest.mark.parametrize("reason", ["age", "replay_bytes"])
def test_fold_of_a_group_decision_as_of_an_older_event_closes_it(reason: str, as_of: int):
    """No event makes a group younger: one that never stops sending would wait without a limit."""
    partition = open_group()
    partition.add(group_closed(reason=reason, as_of=as_of))
    assert partition.batch.closed_reason == reason


def test_fold_of_a_group_decision_as_of_an_event_that_is_not_folded_is_ignored():
    partition = open_group()
    partition.add(group_closed(reason="age", as_of=3))
    assert (partition.batches, partition.counts["stale_decision"]) == ([], 1)


def test_fold_of_a_group_decision_about_an_earlier_use_of_the_id_is_ignored():
    partition = open_group()
    partition.add(group_closed())
    partition.at_s = WINDOW_S
    partition.add(group_closed(reason="complete"))
    partition.at_s = 2 * WINDOW_S
    partition.add(started(), group_closed(reason="age", as_of=2))
    assert (partition.state.open_rollouts, partition.counts["stale_decision"]) == (1, 1)


def test_fold_of_a_group_decision_on_an_unknown_group_is_ignored():
    partition = Partition()
    partition.add(group_closed(reason="age", as_of=3))
    assert (partition.counts, partition.state.closed) == ({"stale_decision": 1}, {})


def test_fold_of_a_closing_as_complete_closes_an_open_group_without_output():
    """After a restart: a group that began below L and would otherwise be trained twice."""
    partition = open_group()
    assert partition.add(group_closed(reason="complete")) == []
    assert (len(partition.state.groups), partition.state.open_rollouts) == (0, 0)


def test_fold_of_a_closing_as_complete_counts_the_rollouts_it_closes():
    partition = open_group()
    partition.add(group_closed(reason="complete"))
    assert partition.counts["closed_before"] == 2


def test_fold_of_events_after_a_closing_as_complete_counts_them_as_late():
    partition = open_group()
    partition.add(group_closed(reason="complete"), completed(1, "open"))
    assert partition.counts["late"] == 1


def test_fold_of_a_closing_as_complete_of_an_unknown_group_refuses_its_starts():
    partition = Partition()
    partition.add(group_closed(reason="complete"), started())
    assert partition.counts == {"group_reused": 1}


def test_fold_of_the_expiry_of_a_groups_last_rollout_publishes_it():
    partition = open_group(size=2)
    partition.add(expired(1, "open"))
    assert partition.statuses == {"done": "emitted", "open": "expired"}


# What is remembered


def test_fold_measures_the_window_in_log_time_that_never_falls():
    partition = Partition()
    partition.add(started(), completed(1), group_closed(reason="complete"))
    partition.at_s = WINDOW_S
    partition.add(started("other", group_id="h"), key="h")
    partition.at_s = 0
    partition.add(started("new"))
    assert partition.state.groups["g"].rollouts.keys() == {"new"}


def test_fold_forgets_closed_groups_after_the_window():
    partition = Partition()
    for number in range(1_000):
        partition.at_s = number * 10
        group = f"g{number}"
        partition.add(started(group_id=group), completed(1), group_closed(group, reason="complete"), key=group)
        partition.state.watermark()
    assert len(partition.state.closed) <= WINDOW_S / 10 + 1
    assert len(partition.state.pins) + len(partition.state.closed_pins) <= 2 * WINDOW_S / 10


def test_fold_keeps_no_spans_of_closed_rollouts():
    partition = Partition()
    partition.add(started("a", group_size=2), call("c", 1, "a"), completed(2, "a"))
    assert partition.state.groups["g"].rollouts["a"].attempt.records == []
