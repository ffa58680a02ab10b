"""Advantages against the group, compared with what a few plain lines give."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import batch, result, sample

from rolloutlog.consumers.samples import Sample
from rolloutlog.consumers.stream.advantages import group_advantages, rollout_weights
from rolloutlog.consumers.stream.step import Step, shard, shard_rows
from rolloutlog.eventstore.errors import InvalidSettings

Rows = Sequence[Sequence[Sequence[float | None]]]  # totals of rows, by rollout, by group


def step(groups: Rows, *, missing_reward: float | None = None) -> Step:
    samples, indices = [], []
    for group, rollouts in enumerate(groups):
        for rollout, totals in enumerate(rollouts):
            for row, total in enumerate(totals):
                samples.append(sample(f"g{group}r{rollout}/0/{row}", total=total, rollout_index=rollout))
                indices.append(group)
    batches = tuple(
        batch(
            f"g{group}",
            [each for each, index in zip(samples, indices, strict=True) if index == group],
            rollouts=tuple(result(f"g{group}r{rollout}") for rollout in range(len(rollouts))),
        )
        for group, rollouts in enumerate(groups)
    )
    return Step(4, batches, tuple(samples), tuple(indices), (0,) * len(groups), 3, missing_reward=missing_reward)


def with_final(made: Sample, final_total: float) -> Sample:
    return made._replace(final_total=final_total)


def test_rollouts_are_compared_with_their_groups_mean():
    assert group_advantages(step([[[1.0], [0.0]], [[5.0], [2.0], [2.0]]])).tolist() == [0.5, -0.5, 2.0, -1.0, -1.0]


def test_all_rows_of_a_rollout_have_its_advantage_and_count_once_for_the_mean():
    assert group_advantages(step([[[0.5, 0.25, 0.25], [0.0]]])).tolist() == [0.5, 0.5, 0.5, -0.5]


def test_final_value_on_every_row_counts_once_for_its_rollout():
    made = step([[[1.0, 1.25, 1.0], [0.0]]])
    samples = [*(with_final(each, 1.0) for each in made.samples[:3]), with_final(made.samples[3], 0.0)]
    assert group_advantages(replace(made, samples=tuple(samples))).tolist() == [0.625, 0.625, 0.625, -0.625]


def left_out(made: Step, *rows: int) -> Step:
    """Without these rows, of which the batches keep the samples."""
    kept = [row for row in range(len(made.samples)) if row not in rows]
    return replace(
        made, samples=tuple(made.samples[row] for row in kept), groups=tuple(made.groups[row] for row in kept)
    )


def test_outcome_on_a_call_that_is_left_out_still_counts_for_its_rollout():
    """The last call has the longest prompt: when it is too long, its rollout must not be taken for a failure."""
    made = step([[[None, 1.0], [0.0]]], missing_reward=0.0)
    assert group_advantages(left_out(made, 1)).tolist() == [0.5, -0.5]


def test_rollout_of_which_all_samples_are_left_out_is_compared_with_all_the_same():
    assert group_advantages(left_out(step([[[4.0], [1.0], [1.0]]]), 0)).tolist() == [-1.0, -1.0]


def test_sample_that_is_left_out_for_a_fault_counts_for_nothing():
    made = step([[[1.0], [0.0], [float("nan")]]])
    assert group_advantages(left_out(made, 2)).tolist() == [0.5, -0.5]


def test_rows_without_reward_add_nothing_to_a_rollout_that_has_one():
    assert group_advantages(step([[[None, None, 1.0], [0.0]]], missing_reward=-1.0)).tolist() == [0.5, 0.5, 0.5, -0.5]


def test_rollout_without_any_reward_has_the_missing_reward_once():
    assert group_advantages(step([[[None, None], [1.0]]], missing_reward=-1.0)).tolist() == [-1.0, -1.0, 1.0]


def test_rollout_without_reward_and_nothing_in_its_place_is_not_compared():
    assert group_advantages(step([[[None], [1.0], [0.0]]])).tolist() == [0.0, 0.5, -0.5]


def test_group_of_one_has_advantage_zero_and_is_warned_about_when_most_are(caplog: pytest.LogCaptureFixture):
    made = step([[[1.0]], [[0.3, 0.4]], [[1.0], [0.0]]])
    assert group_advantages(made, normalize_std=True, baseline="leave_one_out")[:3].tolist() == [0.0, 0.0, 0.0]
    told = [record.message.partition(",")[0] for record in caplog.records]
    assert told == ["step 4: 2 of 3 groups have one rollout with a reward"]


def test_few_groups_of_one_are_not_warned_about(caplog: pytest.LogCaptureFixture):
    group_advantages(step([[[1.0]], [[1.0], [0.0]]]))
    assert caplog.records == []


def test_leave_one_out_compares_with_the_mean_of_the_others():
    assert group_advantages(step([[[3.0], [1.0], [2.0]]]), baseline="leave_one_out").tolist() == [1.5, -1.5, 0.0]


def test_equal_rewards_give_zero_with_normalized_deviation():
    assert group_advantages(step([[[1.0], [1.0], [1.0]]]), normalize_std=True).tolist() == [0.0, 0.0, 0.0]


def test_rows_as_the_unit_are_compared_and_warned_about(caplog: pytest.LogCaptureFixture):
    assert group_advantages(step([[[1.0, 2.0], [0.0, None]]]), unit="row").tolist() == [0.0, 1.0, -1.0, 0.0]
    assert caplog.records == []
    group_advantages(step([[[1.0, 1.0, 1.0], [0.0]]]), unit="row")
    assert caplog.records[0].message.startswith("step 4: unit='row' compares rows, and rollouts have 1 to 3 of them")


@settings(deadline=None)
@given(
    st.lists(st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=4), min_size=1, max_size=5), max_size=4),
    st.sampled_from(["rollout", "row"]), st.sampled_from(["mean", "leave_one_out"]), st.booleans(),
)  # fmt: skip
def test_advantages_equal_a_direct_reference(groups: Rows, unit: str, baseline: str, normalize: bool):
    expected: list[float] = []
    for rollouts in groups:
        if unit == "rollout":
            values = [sum(totals) for totals in rollouts]
        else:
            values = [total for totals in rollouts for total in totals]
        found = []
        for at, value in enumerate(values):
            others = values[:at] + values[at + 1 :]
            less = 0.0 if not others else value - mean(others if baseline == "leave_one_out" else values)
            found.append(less / (stdev(values) + 1e-6) if normalize and others else less)
        if unit == "rollout":
            found = [each for each, totals in zip(found, rollouts, strict=True) for _ in totals]
        expected += found
    made = group_advantages(step(groups), unit=unit, baseline=baseline, normalize_std=normalize)
    assert made.dtype == np.float64
    assert made.tolist() == pytest.approx(expected, abs=1e-6)


def test_weights_give_every_rollout_the_same_say_in_a_mean_over_rows():
    weights = rollout_weights(step([[[1.0, 1.0, 1.0], [0.0]], [[1.0], [1.0]]]))
    assert weights.tolist() == [0.5, 0.5, 0.5, 1.5, 1.5, 1.5]
    assert weights.mean() == 1.0


def test_advantages_are_cut_as_the_rows_of_ranks_are():
    made = step([[[1.0], [0.0]], [[5.0], [2.0], [2.0]]])
    advantages = group_advantages(made)
    for rank in range(3):
        share = shard(made, rank, 3)
        own = shard_rows(advantages, rank, 3)
        first = made.samples.index(share.samples[0])
        assert len(own) == share.row_count
        assert own.tolist() == [*advantages[first : first + len(share.samples)], *[0.0] * share.padding_count]


@pytest.mark.parametrize("function", [group_advantages, rollout_weights])
def test_share_of_a_step_is_refused(function):
    with pytest.raises(InvalidSettings, match=r"expected a whole step, got one of 2 shares"):
        function(shard(step([[[1.0], [0.0]]]), 0, 2))


@pytest.mark.parametrize(("given", "message"), [({"unit": "turn"}, "unit: expected one of rollout, row, got 'turn'"),
    ({"baseline": "median"}, "baseline: expected one of mean, leave_one_out, got 'median'")])  # fmt: skip
def test_unknown_setting_is_refused_by_name(given: dict[str, str], message: str):
    with pytest.raises(InvalidSettings, match=f"^{message}$"):
        group_advantages(step([[[1.0]]]), **given)


def test_step_without_rows_has_no_advantages():
    assert group_advantages(step([])).shape == (0,)
