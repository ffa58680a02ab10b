"""Steps as verl's DataProto, with the real verl: its concat, advantages, padding and metrics. `make test-verl`."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from support.batches import sample
from support.building import ids
from unit.consumers.adapters.stepping import step

pytest.importorskip("verl", reason="verl and torch are large, and not installed here: make test-verl runs this")

import torch
from verl import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator, agg_loss
from verl.trainer.ppo.metric_utils import compute_data_metrics
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.reward import extract_reward
from verl.workers.utils.padding import left_right_2_no_padding

from rolloutlog.consumers.adapters.verl import StepRefused, to_verl
from rolloutlog.consumers.stream.advantages import group_advantages
from rolloutlog.consumers.stream.padding import SampleTooLong
from rolloutlog.consumers.stream.step import Step, shard
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.events import PolicyVersionRun

GROUPS = {"g0": [1.0, 0.0, 0.25], "g1": [0.5, 2.0]}


def converted(made: Step, **settings) -> DataProto:
    return to_verl(made, **{"prompt_tokens": 3, "response_tokens": 4, "pad_id": 9, **settings})


def with_rewards(data: DataProto) -> DataProto:
    """As verl's trainer does between taking a batch and its advantages."""
    scores, extra = extract_reward(data)
    data.batch["token_level_scores"] = data.batch["token_level_rewards"] = scores
    data.non_tensor_batch.update({key: np.array(values) for key, values in extra.items()})
    return data


def test_tensors_are_those_that_a_rollout_of_verl_gives():
    batch = converted(step({"g": [1.0]})).batch
    assert batch["prompts"].tolist() == [[9, 1, 2]]
    assert batch["responses"].tolist() == [[3, 4, 5, 9]]
    assert batch["input_ids"].tolist() == [[9, 1, 2, 3, 4, 5, 9]]
    assert batch["attention_mask"].tolist() == [[0, 1, 1, 1, 1, 1, 0]]
    assert batch["position_ids"].tolist() == [[0, 0, 1, 2, 3, 4, 4]]
    assert batch["response_mask"].tolist() == [[1, 1, 1, 0]]
    assert batch["rm_scores"].tolist() == [[0.0, 0.0, 1.0, 0.0]]
    assert batch["rollout_log_probs"].tolist() == [[-0.5, -0.25, -1.0, 0.0]]
    types = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in batch.items()}
    floats = {"rm_scores", "rollout_log_probs"}
    assert types == {name: "float32" if name in floats else "int64" for name in types}


def test_tokens_of_a_tool_are_attended_to_and_not_trained():
    made = step({"g": [1.0]}, response_mask=b"\x01\x00\x01")
    batch = converted(made).batch
    assert batch["response_mask"].tolist() == [[1, 0, 1, 0]]
    assert batch["attention_mask"].tolist() == [[0, 1, 1, 1, 1, 1, 0]]


def test_columns_say_what_a_row_is():
    runs = (PolicyVersionRun(3, 1), PolicyVersionRun(None, 1), PolicyVersionRun(4, 1))
    columns = converted(step({"g0": [1.0], "g1": [0.0]}, policy_version_runs=runs)).non_tensor_batch
    assert columns["uid"].tolist() == ["g0", "g1"]
    assert columns["sample_id"].tolist() == ["g0-0/0/c", "g1-0/0/c"]
    assert columns["rollout_id"].tolist() == ["g0-0", "g1-0"]
    assert columns["min_global_steps"].tolist() == [3, 3]
    assert columns["max_global_steps"].tolist() == [4, 4]
    assert columns["__num_turns__"].dtype == np.int32


def test_version_0_and_no_version_are_two_things():
    zero = converted(step({"g": [1.0]}, policy_version_runs=(PolicyVersionRun(0, 3),))).non_tensor_batch
    none = converted(step({"g": [1.0]}, policy_version_runs=())).non_tensor_batch
    assert (zero["min_global_steps"][0], none["min_global_steps"][0]) == (0, None)


def test_grpo_advantages_of_verl_are_ours_of_rows():
    made = step(GROUPS)
    data = compute_advantage(with_rewards(converted(made)), AdvantageEstimator.GRPO, norm_adv_by_std_in_grpo=True)
    ours = group_advantages(made, unit="row", normalize_std=True)
    np.testing.assert_allclose(data.batch["advantages"][:, 0].numpy(), ours, atol=1e-6)
    np.testing.assert_allclose(data.batch["advantages"][:, 3].numpy(), 0.0)


def test_grpo_advantages_without_std_are_ours():
    made = step(GROUPS)
    data = compute_advantage(with_rewards(converted(made)), AdvantageEstimator.GRPO, norm_adv_by_std_in_grpo=False)
    np.testing.assert_allclose(data.batch["advantages"][:, 0].numpy(), group_advantages(made, unit="row"), atol=1e-6)


def test_gae_of_verl_keeps_the_reward_when_a_tool_answers_last():
    made = step(
        {"g": [1.0]},
        response_mask=b"\x01\x01\x00",
        reward_token_index=ids(1),
    )
    data = with_rewards(converted(made))
    data.batch["values"] = torch.zeros(1, 4)
    data = compute_advantage(data, AdvantageEstimator.GAE, config={})
    assert data.batch["returns"][0, :2].tolist() == [1.0, 1.0]


def test_extra_info_is_one_column_per_key_over_the_step_in_first_seen_order():
    data = converted(step(GROUPS, [{"acc": 1.0}, {"pred": [1, 2], "acc": 0.0}, {}, {"pred": [3, 4]}, {"acc": 1.0}]))
    assert data.meta_info["reward_extra_keys"] == ["acc", "pred"]
    scores, extra = extract_reward(data)
    assert extra["acc"].tolist() == [1.0, 0.0, None, None, 1.0]
    assert extra["pred"].shape == (5,)
    assert extra["pred"].tolist() == [None, [1, 2], None, [3, 4], None]
    assert scores.sum(dim=1).tolist() == [1.0, 0.0, 0.25, 0.5, 2.0]


def test_dense_numbers_of_extra_info_stay_numbers():
    data = converted(step({"g": [1.0, 0.0]}, [{"acc": 1.0}, {"acc": 0.0}]))
    assert data.non_tensor_batch["acc"].dtype == np.float64


def test_key_of_extra_info_named_like_a_column_has_none_and_the_warning_names_the_sample(caplog):
    made = step({"g": [1.0, 0.0]}, [{"acc": 1.0}, {"sample_id": 1, "acc": 0.0}])
    data = converted(made)
    assert data.meta_info["reward_extra_keys"] == ["acc"]
    assert data.non_tensor_batch["sample_id"].tolist() == ["g-0/0/c", "g-1/0/c"]
    assert "'sample_id' (first in g-1/0/c)" in caplog.text


def test_key_of_extra_info_named_like_a_column_may_be_prefixed():
    data = converted(step({"g": [1.0, 0.0]}, [{}, {"sample_id": 1}]), on_collision="prefix")
    assert data.meta_info["reward_extra_keys"] == ["reward/sample_id"]
    assert data.non_tensor_batch["sample_id"].tolist() == ["g-0/0/c", "g-1/0/c"]


def test_columns_of_the_prompts_data_go_with_their_rows_and_win_over_extra_info():
    made = step({"g": [1.0, 0.0]}, [{"level": 1}])
    data = converted(made, columns={"data_source": ["gsm8k", "math"], "raw_prompt": [["a"], ["b"]]})
    assert data.non_tensor_batch["raw_prompt"].tolist() == [["a"], ["b"]]
    assert data.meta_info["reward_extra_keys"] == ["level"]
    assert converted(made, columns={"level": [7, 8]}).meta_info["reward_extra_keys"] == []
    with pytest.raises(InvalidSettings, match="'uid' is a column"):
        converted(made, columns={"uid": [1, 2]})
    with pytest.raises(InvalidSettings, match="expected 2 values of 'data_source'"):
        converted(made, columns={"data_source": ["gsm8k"]})


def test_chunks_concatenate_and_pickle_to_the_same_rows():
    data = converted(step({"g0": [1.0, 0.0], "g1": [0.5, 2.0]}, [{"acc": 1.0}, {"pred": [1, 2]}]))
    again = DataProto.concat([pickle.loads(pickle.dumps(each)) for each in data.chunk(2)])
    assert again.batch.keys() == data.batch.keys()
    for name in data.batch.keys():  # noqa: SIM118 a TensorDict iterates over its rows
        assert torch.equal(again.batch[name], data.batch[name]), name
    for name, column in data.non_tensor_batch.items():
        assert again.non_tensor_batch[name].tolist() == column.tolist(), name
    assert again.meta_info == data.meta_info


def test_pickles_as_raw_numpy_too(monkeypatch):
    monkeypatch.setenv("VERL_DATAPROTO_SERIALIZATION_METHOD", "numpy")
    data = converted(step(GROUPS))
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again.batch["input_ids"], data.batch["input_ids"])


def test_engines_take_the_padding_out():
    jagged = left_right_2_no_padding(converted(step(GROUPS)).to_tensordict())
    assert [row.tolist() for row in jagged["input_ids"].unbind()] == [[1, 2, 3, 4, 5]] * 5
    assert [row.tolist() for row in jagged["position_ids"].unbind()] == [[0, 1, 2, 3, 4]] * 5


def test_rows_of_padding_change_neither_advantages_nor_losses_nor_scores():
    plain, more = with_rewards(converted(step(GROUPS))), with_rewards(converted(step(GROUPS), rows_multiple_of=4))
    assert (len(plain), len(more)) == (5, 8)
    assert more.non_tensor_batch["is_padding"].tolist() == [False] * 5 + [True] * 3
    assert more.non_tensor_batch["sample_id"].tolist()[4:] == ["g1-1/0/c", None, None, None]
    plain, more = (compute_advantage(each, AdvantageEstimator.GRPO) for each in (plain, more))
    assert torch.equal(more.batch["advantages"][:5], plain.batch["advantages"])
    assert not more.batch["advantages"][5:].any()
    for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
        losses = [agg_loss(each.batch["advantages"] ** 2, each.batch["response_mask"], mode) for each in (plain, more)]
        torch.testing.assert_close(losses[0], losses[1])
    means = [compute_data_metrics(each, use_critic=False)["critic/score/mean"] for each in (plain, more)]
    assert means[0] == pytest.approx(means[1])
    jagged = left_right_2_no_padding(more.to_tensordict())
    assert [len(row) for row in jagged["input_ids"].unbind()] == [5] * 5 + [2] * 3


def test_log_probs_are_left_out_when_a_sample_has_none(caplog):
    made = step({"g": [1.0, 0.0]})
    lacking = made.samples[1]._replace(logprobs=None)
    data = converted(replace(made, samples=(made.samples[0], lacking)))
    assert "rollout_log_probs" not in data.batch
    assert "1 of 2 samples have no log-probs, g-1/0/c the first" in caplog.text


def test_sample_without_reward_is_refused_unless_a_number_stands_for_it():
    made = step({"g": [1.0]})
    made = replace(made, samples=(sample("g-0/0/c", total=None),))
    with pytest.raises(StepRefused, match=r"sample g-0/0/c has no reward"):
        converted(made)
    assert converted(replace(made, missing_reward=-1.0)).batch["rm_scores"].tolist() == [[0.0, 0.0, -1.0, 0.0]]


def test_sample_that_is_too_long_or_without_prompt_is_refused_by_name():
    with pytest.raises(SampleTooLong, match="g-0/0/c"):
        converted(step({"g": [1.0]}), response_tokens=2)
    with pytest.raises(StepRefused, match="g-0/0/c has no prompt"):
        converted(step({"g": [1.0]}, prompt_ids=b""))


def test_share_of_a_step_and_unknown_settings_are_refused():
    with pytest.raises(InvalidSettings, match="one of 2 shares of step 7"):
        converted(shard(step(GROUPS), 0, 2))
    with pytest.raises(InvalidSettings, match="on_collision"):
        converted(step(GROUPS), on_collision="drop")
    with pytest.raises(InvalidSettings, match="rows_multiple_of"):
        converted(step(GROUPS), rows_multiple_of=0)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"w": "xyz"}, "3 values of 'w', one per sample, got str"),
        ({"w": 3}, "3 values of 'w', one per sample, got int"),
        ({"w": [1]}, "3 values of 'w', one per sample, got 1"),
        ({3: [1, 2, 3]}, "names that are text, got 3"),
        ([("w", [1, 2, 3])], "a mapping of names to values, got list"),
        ({"rollout_log_probs": [1, 2, 3]}, "makes itself"),
    ],
)
def test_columns_that_are_no_values_by_row_are_refused_saying_what_came(columns, text):
    """Also a name that is free in this step alone, for want of log-probs."""
    with pytest.raises(InvalidSettings, match=text):
        converted(step({"a": [1.0, 0.0], "b": [0.5]}, logprobs=None), columns=columns)


def test_reward_beyond_float32_is_refused_by_name():
    """It would be infinite, and the loss of the whole step with it."""
    with pytest.raises(StepRefused, match=r"sample a-1/0/c has reward -1e\+300, which verl's float32 does not hold"):
        converted(step({"a": [1.0, -1e300]}))
