"""What the rewards of batches come to."""

from dataclasses import replace
from typing import Any

import pytest
from support.batches import batch, result, sample
from support.building import call, completed, reward, started
from unit.consumers.folding import Partition

from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.metrics import Grouped, RewardMetrics, flat_metrics
from rolloutlog.consumers.stream.step import Step
from rolloutlog.eventstore.events import Event, PolicyVersionRun


def closed(*events: Event, group_id: str = "g", attribution: Any = None, **fields: Any) -> Batch:
    partition = Partition(attribution=attribution or AttributionSettings())
    partition.add(started(group_id=group_id, **fields), *events, completed(len(events) + 1), key=group_id)
    return partition.batch


def metrics(*batches: Batch) -> RewardMetrics:
    grouped = Grouped()
    for each in batches:
        grouped.add(each)
    return grouped.metrics()[None]


FINAL = reward(2, value=1.0, scope="rollout")
STEP = reward(3, value=0.25)


def test_final_step_and_total_of_one_name_are_apart():
    found = metrics(closed(call("c", 1), FINAL, STEP))
    name = found.names["reward"]
    assert (name.final.value, name.step.value, name.total.value, found.total.value) == (1.0, 0.25, 1.25, 1.25)


@pytest.mark.parametrize("final", ["last_call", "every_call", "none"])
def test_mean_of_final_does_not_move_when_a_step_reward_is_added(final: str):
    attribution = AttributionSettings(final=final, weights={"reward": 3.0, "style": 5.0})
    calls = (call("a", 1, start_ns=1), call("b", 2, start_ns=2))
    finals = (reward(3, value=0.5, scope="rollout"),)
    steps = (reward(4, value=7.0), reward(5, value=9.0, name="style"))
    without = metrics(closed(*calls, *finals, attribution=attribution)).names["reward"].final
    added = metrics(closed(*calls, *finals, *steps, attribution=attribution)).names["reward"].final
    assert (added.value, added.count) == (without.value, without.count) == (0.5, 1)


def test_final_counts_once_a_rollout_however_many_calls_it_reaches():
    calls = [call(f"c{i}", i) for i in range(1, 4)]
    many = closed(*calls, reward(4, value=1.0, scope="rollout"), attribution=AttributionSettings(final="every_call"))
    one = closed(call("c", 1), reward(2, value=0.0, scope="rollout"), group_id="h")
    assert metrics(many, one).names["reward"].final.value == 0.5


def test_rollouts_and_samples_without_a_value_are_in_no_mean():
    found = metrics(closed(call("c", 1), FINAL, STEP), closed(call("c", 1), group_id="h"))
    assert (found.rollout_count, found.sample_count) == (2, 2)
    name = found.names["reward"]
    assert (name.final.value, name.final.count) == (1.0, 1)
    assert (name.step.value, name.step.count) == (0.25, 1)
    assert (found.total.value, found.total.count) == (1.25, 1)


def test_reward_of_zero_is_in_the_mean():
    found = metrics(closed(call("c", 1), reward(2, value=0.0)))
    assert (found.total.value, found.total.count) == (0.0, 1)


def test_mean_of_nothing_is_none():
    assert metrics(closed(call("c", 1))).total.value is None


def test_outcomes_are_counted_by_rule():
    events = (call("c", 1), reward(2), reward(3), reward(4, value=None), reward(5, scope="rollout"))
    assert metrics(closed(*events)).names["reward"].outcomes == {
        ("attributed", "enclosing"): 2,
        ("no_verdict", None): 1,
        ("final", "final"): 1,
    }


def test_rewards_that_count_for_no_call_are_counted_with_what_found_it():
    filtered = closed(call("c", 1, trainable=False), reward(2, name="style"))
    assert metrics(filtered).names["style"].outcomes == {("filtered", "enclosing"): 1}


def test_total_of_a_name_is_of_the_samples_that_it_reached():
    samples = [
        sample("r/0/a", total=2.0, step={"style": 1.0}, final={"reward": 1.0}),
        sample("r/0/b", total=5.0, step={"reward": 5.0}),
        sample("r/0/c", total=None),
    ]
    found = metrics(batch("g", samples))
    assert (found.names["style"].total.value, found.names["reward"].total.value) == (2.0, 3.5)
    assert (found.total.value, found.total.count) == (3.5, 2)


def test_values_at_the_limit_of_what_a_float_holds_have_a_mean():
    samples = [sample(f"r/0/{i}", total=1.7e308) for i in range(3)]
    assert metrics(batch("g", samples)).total.value == pytest.approx(1.7e308)


def test_rollouts_beyond_the_groups_size_are_left_out():
    made = batch("g", 1, rollouts=(result("r"), replace(result("s"), status="surplus")))
    assert metrics(made).rollout_count == 1


def test_metrics_by_policy_version_take_that_of_the_start_else_the_oldest_of_the_calls():
    runs = (PolicyVersionRun(7, 1), PolicyVersionRun(4, 1))
    grouped = Grouped("policy_version")
    grouped.add(closed(call("c", 1, policy_version_runs=runs), policy_version=9))
    grouped.add(closed(call("c", 1, policy_version_runs=runs), group_id="h"))
    grouped.add(closed(call("c", 1), group_id="i"))
    grouped.add(closed(call("c", 1), group_id="j", policy_version=0))
    assert list(grouped.metrics()) == [0, 4, 9, None]


def test_metrics_by_task_and_split_are_apart():
    made = closed(call("c", 1), FINAL, task_id="one", split="val")
    for by, key in (("task", "one"), ("split", "val")):
        grouped = Grouped(by)
        grouped.add(made)
        assert list(grouped.metrics()) == [key]


def test_flat_metrics_name_split_reward_and_what_is_counted():
    events = (call("c", 1), call("d", 2), reward(3, value=0.5), reward(4, value=1.0, scope="rollout"))
    assert flat_metrics([closed(*events)]) == {
        "train/rollouts": 1,
        "train/samples": 2,
        "train/total/mean": 1.5,
        "train/total/null": 1,
        "train/reward/final/mean": 1.0,
        "train/reward/final/null": 0,
        "train/reward/step/mean": 0.5,
        "train/reward/step/null": 1,
        "train/reward/total/mean": 1.5,
        "train/reward/total/null": 1,
        "train/reward/outcome/attributed/enclosing": 1,
        "train/reward/outcome/final": 1,
    }


def test_flat_metrics_have_no_mean_of_nothing():
    assert flat_metrics([closed(call("c", 1))]) == {
        "train/rollouts": 1,
        "train/samples": 1,
        "train/total/null": 1,
    }


def test_metrics_of_a_step_hold_its_evaluations_and_samples_that_ended_filtered():
    made = batch("g", [sample("g/0/a", total=1.0), sample("g/0/b", total=None)])
    evaluated = closed(call("c", 1), FINAL, split="val")
    step = Step(0, (made,), made.samples[:1], (0,), (0,), 3, evaluations=(evaluated,))
    found = step.metrics()
    assert (found["train/total/mean"], found["train/total/null"]) == (1.0, 1)
    assert (found["val/reward/final/mean"], found["val/samples"]) == (1.0, 0)


@pytest.mark.parametrize("index", [-1, 1])
def test_sample_of_a_rollout_that_the_batch_does_not_have_counts_for_none(index: int):
    """Another program may have written it: trainers reject it, and go on."""
    found = metrics(batch("g", [sample("g/0/a", total=1.0), sample("g/0/b", total=5.0, rollout_index=index)]))
    assert (found.sample_count, found.total.value) == (1, 1.0)
