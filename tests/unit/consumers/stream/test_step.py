"""Steps: their rows, padded arrays, and shares of ranks."""

import pickle

import numpy as np
import pytest
from support.batches import batch, sample
from support.building import floats, ids

from rolloutlog.consumers.stream.padding import SampleTooLong
from rolloutlog.consumers.stream.step import Step, shard, shard_rows
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.events import PolicyVersionRun


def step(*batches, number=0, missing_reward=None, **fields) -> Step:
    return Step(
        number=number,
        batches=batches,
        samples=tuple(each for made in batches for each in made.samples),
        groups=tuple(index for index, made in enumerate(batches) for _ in made.samples),
        staleness=fields.pop("staleness", tuple(0 for _ in batches)),
        policy_version=3,
        missing_reward=missing_reward,
        **fields,
    )


def test_padded_writes_prompts_to_the_right_and_responses_to_the_left():
    padded = step(batch("g", 1)).padded(4, 5, pad_id=9)
    assert padded.prompt_ids.tolist() == [[9, 9, 1, 2]]
    assert padded.prompt_mask.tolist() == [[0, 0, 1, 1]]
    assert padded.response_ids.tolist() == [[3, 4, 5, 9, 9]]
    assert padded.response_mask.tolist() == [[1, 1, 1, 0, 0]]
    assert padded.attention_mask.tolist() == [[1, 1, 1, 0, 0]]
    assert padded.logprobs.tolist() == [[-0.5, -0.25, -1.0, 0.0, 0.0]]
    assert padded.token_rewards.tolist() == [[0.0, 0.0, 1.0, 0.0, 0.0]]
    assert padded.total.tolist() == [1.0]


def test_padded_arrays_have_the_stated_types():
    padded = step(batch("g", 2)).padded(4, 5, 0)
    found = {name: (getattr(padded, name).dtype.name, getattr(padded, name).shape) for name in type(padded).__slots__}
    assert found == {
        "prompt_ids": ("int32", (2, 4)),
        "prompt_mask": ("uint8", (2, 4)),
        "response_ids": ("int32", (2, 5)),
        "response_mask": ("uint8", (2, 5)),
        "attention_mask": ("uint8", (2, 5)),
        "logprobs": ("float32", (2, 5)),
        "has_logprobs": ("bool", (2,)),
        "token_rewards": ("float64", (2, 5)),
        "total": ("float64", (2,)),
        "group_index": ("int32", (2,)),
        "rollout_index": ("int32", (2,)),
        "policy_version_min": ("int64", (2,)),
        "is_padding": ("bool", (2,)),
    }


def test_padded_arrays_can_be_written():
    padded = step(batch("g", 1)).padded(4, 5, 9)
    for name in type(padded).__slots__:
        assert getattr(padded, name).flags.writeable, name


def test_padded_without_rows_or_tokens_has_empty_arrays():
    assert step().padded(4, 5, 9).prompt_ids.shape == (0, 4)
    assert step(padding_count=2).padded(0, 1, 9).prompt_mask.shape == (2, 0)


def test_padded_to_the_exact_length_pads_nothing():
    padded = step(batch("g", 1)).padded(2, 3, 9)
    assert padded.prompt_ids.tolist() == [[1, 2]]
    assert padded.response_ids.tolist() == [[3, 4, 5]]


def test_padded_keeps_tool_tokens_out_of_the_response_mask():
    made = sample(response_mask=b"\x01\x00\x01")
    padded = step(batch("g", [made])).padded(2, 4, 0)
    assert padded.response_mask.tolist() == [[1, 0, 1, 0]]
    assert padded.attention_mask.tolist() == [[1, 1, 1, 0]]


def test_padded_empty_prompt_has_no_prompt_tokens():
    padded = step(batch("g", [sample(prompt_ids=b"")])).padded(2, 3, 9)
    assert padded.prompt_ids.tolist() == [[9, 9]]
    assert padded.prompt_mask.tolist() == [[0, 0]]


def test_padded_without_logprobs_says_so():
    padded = step(batch("g", [sample("a", logprobs=None), sample("b")])).padded(2, 3, 0)
    assert padded.has_logprobs.tolist() == [False, True]
    assert padded.logprobs[0].tolist() == [0.0, 0.0, 0.0]


def test_padded_adds_rewards_at_their_tokens_up_to_the_total():
    made = sample(total=0.75, reward_token_index=ids(0, 2, 2), reward_token_value=np.array([0.5, 0.5, -0.25]).tobytes())
    padded = step(batch("g", [made])).padded(2, 3, 0)
    assert padded.token_rewards.tolist() == [[0.5, 0.0, 0.25]]
    assert padded.total.tolist() == [0.75]


def test_padded_missing_reward_stands_at_the_last_policy_token():
    made = sample(total=None, response_mask=b"\x01\x01\x00")
    whole = step(batch("g", [made, sample("b")]), missing_reward=-0.5)
    padded = whole.padded(2, 3, 0)
    assert padded.token_rewards[0].tolist() == [0.0, -0.5, 0.0]
    assert padded.total.tolist() == [-0.5, 1.0]
    assert whole.totals == (-0.5, 1.0)
    assert whole.samples[0].total is None


def test_padded_missing_reward_left_so_is_nan():
    padded = step(batch("g", [sample(total=None)])).padded(2, 3, 0)
    assert np.isnan(padded.total).tolist() == [True]
    assert padded.token_rewards.tolist() == [[0.0, 0.0, 0.0]]


def test_padded_rows_name_group_rollout_and_oldest_policy_version():
    made = [
        sample("a", rollout_index=1, policy_version_runs=tuple(PolicyVersionRun(each, 1) for each in (None, 5, 4))),
        sample("b", policy_version_runs=()),
    ]  # fmt: skip
    padded = step(batch("g", 1), batch("h", made)).padded(2, 3, 0)
    assert padded.group_index.tolist() == [0, 1, 1]
    assert padded.rollout_index.tolist() == [0, 1, 0]
    assert padded.policy_version_min.tolist() == [3, 4, -1]
    assert padded.is_padding.tolist() == [False, False, False]


@pytest.mark.parametrize(
    ("limits", "message"),
    [((1, 3), r"sample g/0/0: expected a prompt of at most 1 tokens, got 2; nothing is cut.*prompt_tokens_max=1"),
     ((2, 2), r"sample g/0/0: expected a response of at most 2 tokens, got 3; nothing is cut.*response_tokens_max=2")],
)  # fmt: skip
def test_padded_longer_sample_is_refused_by_name(limits, message):
    with pytest.raises(SampleTooLong, match=message):
        step(batch("g", 1)).padded(*limits, 0)


def test_padded_negative_length_is_refused():
    with pytest.raises(InvalidSettings, match="prompt_tokens: expected an integer from 0 to 2147483647, got -1"):
        step(batch("g", 1)).padded(-1, 3, 0)


def test_staleness_max_passes_over_unknown_ones():
    assert step(batch("g"), batch("h"), staleness=(None, 2)).staleness_max == 2
    assert step(batch("g"), staleness=(None,)).staleness_max is None


def test_step_survives_pickling():
    made = step(batch("g"), batch("h", 1), origin="trainer.1")
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(("rows", "world"), [(7, 3), (1, 4), (8, 2), (5, 4), (0, 2), (3, 1)])
def test_shards_hold_every_row_once_in_order_and_are_equally_long(rows, world):
    whole = step(batch("g", rows // 2), batch("h", rows - rows // 2))
    shards = [shard(whole, rank, world) for rank in range(world)]
    assert tuple(each for part in shards for each in part.samples) == whole.samples
    assert tuple(each for part in shards for each in part.groups) == whole.groups
    assert len({part.row_count for part in shards}) == 1
    assert max(part.padding_count for part in shards) <= 1


def test_shard_pads_with_tagged_rows_that_carry_nothing():
    part = shard(step(batch("g", 3)), 1, 2)
    padded = part.padded(2, 3, pad_id=9)
    assert padded.is_padding.tolist() == [False, True]
    assert padded.prompt_ids[1].tolist() == [9, 9]
    assert padded.response_mask[1].tolist() == [0, 0, 0]
    assert padded.total.tolist() == [1.0, 0.0]
    assert padded.group_index.tolist() == [0, -1]
    assert [each.sample_id for each in part.samples] == ["g/0/2"]


def test_shard_carries_its_own_samples_alone_and_the_groups_of_all():
    whole = step(batch("g", 2), batch("h", 2), evaluations=(batch("val", 0),))
    first, second = shard(whole, 0, 2), shard(whole, 1, 2)
    assert [[each.sample_id for each in made.samples] for made in second.batches] == [[], ["h/0/0", "h/0/1"]]
    assert second.padded(2, 3, 0).group_index.tolist() == [1, 1]
    assert (len(first.evaluations), len(second.evaluations)) == (1, 0)


@pytest.mark.parametrize("rank", [-1, 2])
def test_shard_of_a_rank_outside_of_the_world_is_refused(rank):
    with pytest.raises(
        InvalidSettings, match=f"expected a rank from 0 and below its world, got rank {rank} of world 2"
    ):
        shard(step(batch("g")), rank, 2)


def test_shard_of_a_share_is_refused():
    with pytest.raises(InvalidSettings, match="expected a whole step"):
        shard(shard(step(batch("g", 1)), 1, 2), 0, 2)


def test_padded_leaves_logprobs_of_tool_tokens_as_recorded():
    made = sample(response_mask=b"\x01\x00\x01", logprobs=floats(-0.5, 0.0, -1.0))
    assert step(batch("g", [made])).padded(2, 3, 0).logprobs.tolist() == [[-0.5, 0.0, -1.0]]


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0), ("0", 2), (0, 1.0), (True, 2)])
def test_share_of_rows_for_a_rank_that_is_none_is_refused(rank, world):
    """It would be all padding, and a rank would train on nothing without a word."""
    with pytest.raises(InvalidSettings, match="expected a rank from 0 and below its world"):
        shard_rows(np.arange(4), rank, world)
