"""Rewards of a block, wherever the code is that emits them."""

import threading

import pytest

from rolloutlog.eventstore import InvalidEvent, NotOpen
from rolloutlog.eventstore.events import RewardRecorded, Span


def answer(rollout):
    with rollout.call() as call:
        call.record(prompt_ids=[1], response_ids=[2])
    return call


def test_reward_of_a_block_within_it_is_as_one_of_the_rollout(published):
    with published.publisher.rollout("t") as rollout, rollout.operation("check") as check:
        call = answer(rollout)
        rollout.reward(0.1, "rollouts")
        check.reward(0.2, "blocks", scorer="rules", extra_info={"rows": 1})
    first, second = published.of(RewardRecorded)
    assert (second.parent_id, second.after_call) == (first.parent_id, first.after_call) == (check.span_id, call.span_id)
    assert (second.name, second.value, second.scorer) == ("blocks", 0.2, "rules")


def test_reward_of_an_outer_block_has_that_block_as_its_place(published):
    with published.publisher.rollout("t") as rollout, rollout.agent("writer") as writer:
        answer(rollout)
        with rollout.operation("check"):
            answer(rollout)
            writer.reward(0.5)
    (reward,) = published.of(RewardRecorded)
    assert (reward.parent_id, reward.after_call) == (writer.span_id, None)


def test_reward_of_a_block_that_was_left_has_that_block_as_its_place(published):
    with published.publisher.rollout("t") as rollout:
        draft = answer(rollout)
        with rollout.operation("other"):
            answer(rollout)
            draft.reward(0.5)
            rollout.reward(0.25, "after")
    own, after = published.of(RewardRecorded)
    assert (own.parent_id, own.after_call) == (draft.span_id, None)
    assert after.after_call is not None


def test_reward_of_a_block_in_a_bare_thread_has_that_block_as_its_place(published):
    with published.publisher.rollout("t") as rollout, rollout.operation("check") as check:
        thread = threading.Thread(target=check.reward, args=(0.5,))
        thread.start()
        thread.join()
    assert [reward.parent_id for reward in published.of(RewardRecorded)] == [check.span_id]


def test_reward_of_a_block_that_was_not_entered_is_refused(published):
    with published.publisher.rollout("t") as rollout:
        check = rollout.operation("check")
        with pytest.raises(NotOpen, match="was not entered, and the reward would be linked to nothing"):
            check.reward(0.5)
        assert published.of(Span) == []


def test_reward_of_a_block_after_the_rollouts_end_is_refused(published):
    with published.publisher.rollout("t") as rollout, rollout.operation("check") as check:
        pass
    with pytest.raises(NotOpen, match="is finished"):
        check.reward(0.5)


def test_reward_of_a_block_names_a_bad_field(published):
    with published.publisher.rollout("t") as rollout:
        with rollout.operation("check") as check:
            pass
        with pytest.raises(InvalidEvent, match="expected a finite number or null, got True"):
            check.reward(True)
