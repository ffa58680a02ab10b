"""Collecting batches into steps: order, staleness, filters, and how samples end."""

import logging
from collections import Counter

import numpy as np
import pytest
from support.batches import batch, published, sample
from support.building import ids

from rolloutlog.consumers.stream.acked import Reached
from rolloutlog.consumers.stream.collector import Collector, StepSettings, Taken
from rolloutlog.eventstore.errors import InvalidSettings


def settings(**given) -> StepSettings:
    return StepSettings(**{"groups_per_step": 2, "max_staleness": None, "missing_reward": "exclude", **given})


def collector(*arrived, version=None, reached=None, **given) -> Collector:
    """With these (batch, partition, offset) arrived in their order."""
    made = Collector(settings(**given), reached or {0: Reached(0), 1: Reached(0)}, number=7, origin="trainer.x")
    for each, partition, offset in arrived:
        made.add(published(each, offset, partition), version)
    return made


def offsets_of(taken: Taken) -> dict[int, int]:
    return {partition: each.offset for partition, each in taken.reached.items()}


def group_ids(step) -> list[str]:
    return [each.group_id for each in step.batches]


def test_step_holds_its_batches_by_partition_and_offset_whatever_their_arrival():
    made = collector((batch("b"), 1, 0), (batch("a"), 0, 4))
    step, taken = made.form(None)
    assert group_ids(step) == ["a", "b"]
    assert step.groups == (0, 0, 1, 1)
    assert [each.sample_id for each in step.samples] == ["a/0/0", "a/0/1", "b/0/0", "b/0/1"]
    assert step.number == 7
    assert offsets_of(taken) == {0: 5, 1: 1}
    assert Counter(each.end for each in taken.samples) == {"trained": 4}
    assert taken.batch_ids == ("id-a", "id-b")


def test_step_takes_batches_as_they_arrived_and_leaves_the_rest():
    made = collector((batch("a"), 0, 0), (batch("b"), 0, 1), (batch("c"), 0, 2))
    step, taken = made.form(None)
    assert group_ids(step) == ["a", "b"]
    assert offsets_of(taken) == {0: 2, 1: 0}
    assert made.form(None) is None
    made.add(published(batch("d"), 0, 1), None)
    step, taken = made.form(None)
    assert (step.number, group_ids(step)) == (8, ["c", "d"])
    assert offsets_of(taken) == {0: 3, 1: 1}


def test_stale_group_is_passed_over_and_all_its_samples_end_stale():
    made = collector((batch("old", version=3), 0, 0), (batch("a", version=4), 0, 1), version=6, max_staleness=2)
    assert made.form(6) is None
    made.add(published(batch("b", version=9), 2), 6)
    step, taken = made.form(6)
    assert group_ids(step) == ["a", "b"]
    assert step.staleness == (2, -3)
    assert step.staleness_max == 2
    assert [each for each in taken.samples if each.end == "stale"] == [("old/0/0", "stale"), ("old/0/1", "stale")]
    assert offsets_of(taken)[0] == 3
    assert taken.batch_ids == ("id-a", "id-b")


def test_group_that_becomes_stale_while_it_waits_is_passed_over():
    made = collector((batch("a", version=4), 0, 0), version=5, max_staleness=1)
    made.add(published(batch("b", version=6), 1), 5)
    assert made.is_whole(5)
    assert made.form(6) is None
    made.add(published(batch("c", version=6), 2), 6)
    step, taken = made.form(6)
    assert group_ids(step) == ["b", "c"]
    assert Counter(each.end for each in taken.samples) == {"stale": 2, "trained": 4}


def test_unknown_policy_version_is_never_stale_and_said_once(caplog):
    with caplog.at_level(logging.WARNING):
        made = collector((batch("a", version=None), 0, 0), (batch("b", version=None), 0, 1), version=9, max_staleness=0)
    step, _ = made.form(9)
    assert step.staleness == (None, None)
    assert [record.message.partition(":")[0] for record in caplog.records] == ["group a (0"]


def test_staleness_without_a_stream_version_is_unknown_when_any_is_allowed():
    step, _ = collector((batch("a"), 0, 0), (batch("b"), 0, 1)).form(None)
    assert step.staleness == (None, None)


def test_max_staleness_without_a_stream_version_is_refused():
    with pytest.raises(InvalidSettings, match=r"max_staleness=0: expected set_policy_version\(version\)"):
        collector((batch("a"), 0, 0), max_staleness=0)


def test_sample_without_reward_ends_filtered_and_its_group_goes_on():
    mixed = batch("a", [sample("a/0/x", total=None), sample("a/0/y")])
    step, taken = collector((mixed, 0, 0), (batch("b", 1), 0, 1)).form(None)
    assert [each.sample_id for each in step.samples] == ["a/0/y", "b/0/0"]
    assert taken.samples == [("a/0/y", "trained"), ("a/0/x", "filtered"), ("b/0/0", "trained")]


def test_group_without_a_sample_left_is_not_in_the_step():
    empty = batch("a", [sample("a/0/x", total=None)])
    made = collector((empty, 0, 0), (batch("b"), 0, 1))
    assert made.form(None) is None
    made.add(published(batch("c"), 2), None)
    step, taken = made.form(None)
    assert group_ids(step) == ["b", "c"]
    assert step.evaluations == ()
    assert ("a/0/x", "filtered") in taken.samples


def test_missing_reward_as_a_number_keeps_the_sample_and_its_raw_total():
    mixed = batch("a", [sample("a/0/x", total=None)])
    step, taken = collector((mixed, 0, 0), (batch("b", 1), 0, 1), missing_reward=0).form(None)
    assert step.totals == (0.0, 1.0)
    assert step.samples[0].total is None
    assert Counter(each.end for each in taken.samples) == {"trained": 2}


def test_sample_above_the_token_limits_ends_filtered():
    long_prompt, long_response = sample("p", prompt_ids=ids(1, 2, 3)), sample("r", response_ids=ids(*range(5)))
    made = collector(
        (batch("a", [long_prompt, long_response, sample("fits")]), 0, 0), (batch("b", 1), 0, 1),
        prompt_tokens_max=2, response_tokens_max=4,
    )  # fmt: skip
    step, taken = made.form(None)
    assert [each.sample_id for each in step.samples] == ["fits", "b/0/0"]
    assert Counter(each.end for each in taken.samples) == {"trained": 2, "filtered": 2}
    assert made.counts["samples_too_long"] == 2


def test_group_without_samples_is_handed_on_and_counts_as_none():
    made = collector((batch("val", 0), 0, 0), (batch("a"), 0, 1), (batch("b"), 0, 2), (batch("late", 0), 0, 3))
    step, taken = made.form(None)
    assert group_ids(step) == ["a", "b"]
    assert [each.group_id for each in step.evaluations] == ["val"]
    assert offsets_of(taken)[0] == 3
    assert made.counts == {"batches": 2, "evaluations": 2}


def test_last_step_is_smaller_when_the_run_has_ended():
    made = collector((batch("a"), 0, 0))
    step, _ = made.form(None, last=True)
    assert group_ids(step) == ["a"]
    assert made.form(None, last=True) is None


def test_last_step_is_left_unread_with_drop_last():
    made = collector((batch("val", 0), 0, 0), (batch("a"), 0, 1), (batch("val2", 0), 0, 2), drop_last=True)
    assert made.form(None, last=True) is None
    assert offsets_of(made.form_rest())[0] == 1
    assert made.form_rest() is None


def test_rest_after_the_last_step_ends_with_the_run():
    made = collector((batch("a", version=3), 0, 0), (batch("val", 0), 1, 0), version=9, max_staleness=0)
    assert made.form(9, last=True) is None
    rest = made.form_rest()
    assert rest.samples == [("a/0/0", "stale"), ("a/0/1", "stale")]
    assert offsets_of(rest) == {0: 1, 1: 1}
    assert [each.group_id for each in rest.evaluations] == ["val"]


def test_offsets_reach_past_records_without_a_batch_unless_one_waits():
    made = collector((batch("a"), 0, 0), (batch("b"), 0, 1), (batch("c"), 0, 2))
    made.reach({0: Reached(8), 1: Reached(5)})
    _, taken = made.form(None)
    assert offsets_of(taken) == {0: 2, 1: 5}
    made.add(published(batch("d"), 8), None)
    _, taken = made.form(None)
    assert offsets_of(taken) == {0: 9, 1: 5}


def test_end_of_the_run_is_reached_only_where_nothing_waits_and_nothing_came_after():
    made = collector((batch("a"), 0, 0), (batch("b"), 0, 1), (batch("c"), 1, 0))
    made.reach({0: Reached(3, ended=True), 1: Reached(2, ended=True)})
    _, taken = made.form(None)
    assert taken.reached == {0: Reached(3, ended=True), 1: Reached(0)}
    made.add(published(batch("d"), 3), None)
    _, taken = made.form(None)
    assert taken.reached == {0: Reached(4), 1: Reached(2, ended=True)}


def test_groups_are_counted_as_they_wait_become_stale_and_leave():
    made = collector((batch("a", version=1), 0, 0), (batch("val", 0), 0, 1), version=1, max_staleness=1)
    counts = [made.group_count]
    made.add(published(batch("old", version=0), 2), 5)
    counts.append(made.group_count)
    made.is_whole(5)
    counts.append(made.group_count)
    for offset in (3, 4, 5):
        made.add(published(batch(f"g{offset}", version=5), offset), 5)
    counts.append(made.group_count)
    made.form(5)
    counts.append(made.group_count)
    assert counts == [1, 1, 0, 3, 1]


@pytest.mark.parametrize(
    "given",
    [
        {"groups_per_step": np.int64(2), "max_staleness": np.int32(3), "prompt_tokens_max": np.uint8(9)},
        {"missing_reward": np.float32(0.5)},
        {"missing_reward": np.int64(0)},
    ],
)
def test_settings_of_numpy_are_kept_as_plain_numbers(given):
    made = settings(**given)
    assert all(type(getattr(made, name)) in (int, float) for name in given)
    assert all(getattr(made, name) == value for name, value in given.items())


def test_step_with_most_samples_unrewarded_is_warned_about(caplog):
    poor = batch("a", [sample("a/0/x", total=None), sample("a/0/y", total=None), sample("a/0/z")])
    collector((poor, 0, 0), (batch("b", 0), 0, 1), groups_per_step=1).form(None)
    assert [record.message for record in caplog.records] == [
        "step 7: 2 of 3 samples carry no reward: see `rolloutlog batches dump`, field outcomes"
    ]


def test_step_with_half_its_samples_rewarded_is_not_warned_about(caplog):
    collector((batch("a", [sample("x", total=None), sample("y", total=0.0)]), 0, 0), groups_per_step=1).form(None)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups_per_step": 0}, "groups_per_step: expected an integer from 1, got 0"),
        ({"groups_per_step": True}, "groups_per_step: expected an integer from 1, got True"),
        ({"max_staleness": -1}, "max_staleness: expected an integer from 0 or None, got -1"),
        ({"max_staleness": 1.5}, "max_staleness: expected an integer from 0 or None, got 1.5"),
        ({"missing_reward": "zero"}, "missing_reward: expected 'exclude' or a finite number, got 'zero'"),
        ({"missing_reward": float("nan")}, "missing_reward: expected 'exclude' or a finite number, got nan"),
        ({"missing_reward": None}, "missing_reward: expected 'exclude' or a finite number, got None"),
        ({"prompt_tokens_max": 0}, "prompt_tokens_max: expected an integer from 1 or None, got 0"),
    ],
)
def test_unusable_setting_is_refused_by_name(given, message):
    with pytest.raises(InvalidSettings, match=f"^{message}$"):
        settings(**given)


def test_step_holds_no_sample_that_is_rejected_in_its_batches():
    """What it says of a rollout or a reward cannot be relied on, and metrics are made of batches."""
    bad = sample("g/0/b", total=float("nan"))
    made = collector((batch("g", [sample("g/0/a"), bad, sample("g/0/c", total=None)]), 0, 0), groups_per_step=1)
    step, taken = made.form(None)
    assert [each.sample_id for each in step.batches[0].samples] == ["g/0/a", "g/0/c"]
    assert (step.metrics()["train/samples"], step.metrics()["train/total/mean"]) == (2, 1.0)
    ends = {each.sample_id: each.end for each in taken.samples}
    assert ends == {"g/0/a": "trained", "g/0/b": "rejected", "g/0/c": "filtered"}
