"""What is kept of a batch."""

from dataclasses import replace

import pytest
from support.batches import batch, sample
from support.building import call, completed, started
from support.building import reward as reward_event
from unit.consumers.comparing.making import reward, rollout
from unit.consumers.folding import Partition

from rolloutlog.consumers.comparing.held import HeldGroup, HeldReward, HeldSample, held_group
from rolloutlog.eventstore.events import PolicyVersionRun


def test_group_that_is_folded_keeps_its_end_values_rewards_and_samples():
    partition = Partition()
    partition.add(
        started(policy_version=7),
        call("c", 1),
        reward_event(2, value=0.25),
        reward_event(3, value=1.0, scope="rollout"),
        completed(4),
    )
    (found,) = held_group(partition.batch).rollouts
    assert (found.rollout_id, found.attempt, found.group_id, found.task_id) == ("r", 0, "g", "t")
    assert (found.status, found.reason, found.policy_version, found.untrained) == ("emitted", None, 7, None)
    assert found.values() == {("reward", "step"): 0.25, ("reward", "final"): 1.0}
    assert found.samples == (HeldSample("c", 1.25, ()),)
    assert found.reward == 1.25
    assert [each.outcome for each in found.rewards] == ["attributed", "final"]


def test_reward_of_a_rollout_counts_a_final_value_once_however_many_samples_carry_it():
    samples = [sample("g/0/a", total=1.5, final_total=1.0), sample("g/0/b", total=1.0, final_total=1.0)]
    (found,) = held_group(batch(samples=samples)).rollouts
    assert found.reward == 1.5


def test_failed_rollout_has_its_error_as_reason():
    made = batch(samples=0)
    failed = replace(made.rollouts[0], status="failed", error="KeyError: 'x'", reason=None)
    (found,) = held_group(replace(made, rollouts=(failed,))).rollouts
    assert (found.status, found.reason, found.untrained) == ("failed", "KeyError: 'x'", "split val")


def test_policy_version_that_no_start_tells_is_the_oldest_that_wrote_a_token():
    made = batch(samples=[sample("g/0/a", policy_version_runs=(PolicyVersionRun(5, 2), PolicyVersionRun(4, 1)))])
    unknown = replace(made.rollouts[0], policy_version=None)
    (found,) = held_group(replace(made, rollouts=(unknown,))).rollouts
    assert found.policy_version == 4


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_count_as_none(value: float):
    made = batch(samples=[sample("g/0/a", total=value)])
    broken = replace(made.rollouts[0], final={"reward": value})
    (found,) = held_group(replace(made, rollouts=(broken,))).rollouts
    assert (found.values(), found.samples[0].total, found.reward) == ({}, None, None)


def test_sample_of_no_rollout_of_its_batch_is_left_out():
    (found,) = held_group(batch(samples=[sample("x/0/a", rollout_index=4)])).rollouts
    assert found.samples == ()


def test_step_rewards_that_count_for_no_call_have_no_value():
    rewards = (reward("a", 0.5, "attributed"), reward("b", 7.0, "revised"), reward("c", 0.25, "attributed"))
    assert rollout(rewards=rewards).values() == {("reward", "step"): 0.75}


def test_packed_group_comes_back_as_it_was():
    group = HeldGroup(
        "g", (rollout("a", 0.5, rewards=(reward(),)), rollout("b", samples=(HeldSample("c", None, ("c", "d")),)))
    )
    found = HeldGroup.unpack(group.pack())
    assert found == group
    assert isinstance(found.rollouts[0].rewards[0], HeldReward)


def test_packed_rollouts_take_some_200_bytes():
    rollouts = tuple(
        rollout(
            f"{index:032x}", 0.5, rewards=(reward(f"main.{index:016x}:5", 0.5),), samples=(sample(f"{index:016x}"),)
        )
        for index in range(8)
    )
    assert len(HeldGroup("g", rollouts).pack()) < 8 * 200
