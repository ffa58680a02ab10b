"""Rows of several calls: their columns, and where rewards sit."""

from typing import Any

import numpy as np
import pytest
from support.building import call, completed, floats, ids, reward, started
from unit.consumers.folding import Partition

from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.consumers.samples import Sample, cut_array, cut_runs, split_calls
from rolloutlog.eventstore.events import Event, PolicyVersionRun, Target, TokenArray
from rolloutlog.eventstore.extra_info import encode_extra_info

FIRST: dict[str, Any] = {"prompt_ids": ids(1, 2), "response_ids": ids(3, 4)}
SECOND: dict[str, Any] = {"prompt_ids": ids(1, 2, 3, 4, 5), "response_ids": ids(6)}
THIRD: dict[str, Any] = {"prompt_ids": ids(1, 2, 3, 4, 5, 6, 7, 8), "response_ids": ids(9, 10)}


def rows(*events: Event, merge: str = "trajectory", **attribution: Any) -> tuple[Sample, ...]:
    partition = Partition(merge=merge, attribution=AttributionSettings(**attribution))
    partition.add(started(), *events, completed(len(events) + 1))
    return partition.batch.samples


def row(*events: Event, **attribution: Any) -> Sample:
    (found,) = rows(*events, **attribution)
    return found


def three(*more: Event, **attribution: Any) -> Sample:
    return row(call("a", 1, **FIRST), call("b", 2, **SECOND), call("c", 3, **THIRD), *more, **attribution)


def linked(sequence: int, span_id: str, value: float, **fields: Any) -> Event:
    return reward(sequence, value=value, target=Target("span_id", span_id), **fields)


def rewards(made: Sample) -> list[tuple[int, float]]:
    index = np.frombuffer(made.reward_token_index, "<i4").tolist()
    return list(zip(index, np.frombuffer(made.reward_token_value, "<f8").tolist(), strict=True))


def test_row_holds_the_first_prompt_then_responses_and_what_was_observed_between():
    made = three()
    assert made.prompt_ids == ids(1, 2)
    assert made.response_ids == ids(3, 4, 5, 6, 7, 8, 9, 10)
    assert made.response_mask == b"\x01\x01\x00\x01\x00\x00\x01\x01"
    assert made.call_ranges == ((0, 2), (3, 4), (6, 8))


def test_row_is_named_after_its_first_call_and_names_all():
    made = three()
    assert (made.sample_id, made.turn_index, made.span_ids) == ("r/0/a", 0, ("a", "b", "c"))


def test_row_has_model_and_finish_reason_of_its_last_call():
    first = call("a", 1, model="m1", finish_reason="stop", **FIRST)
    made = row(first, call("b", 2, model="m2", finish_reason="length", **SECOND))
    assert (made.model, made.finish_reason) == ("m2", "length")


def test_row_of_one_call_is_that_calls_sample():
    events = [call("a", 1, logprobs=floats(-1, -2), **FIRST), reward(2, value=0.5)]
    assert rows(*events) == rows(*events, merge="none")
    assert rows(*events)[0].call_tokens is None


def test_log_probs_are_zero_where_the_mask_is_zero():
    made = row(call("a", 1, logprobs=floats(-1, -2), **FIRST), call("b", 2, logprobs=floats(-3), **SECOND))
    assert made.logprobs == floats(-1, -2, 0, -3)


def test_row_of_calls_without_log_probs_has_none():
    assert three().logprobs is None


def test_arrays_are_zero_where_the_mask_is_zero_and_keep_their_type():
    first = TokenArray("n", "<i2", (2, 1), np.array([7, 8], "<i2").tobytes())
    second = TokenArray("n", "<i2", (1, 1), np.array([9], "<i2").tobytes())
    made = row(call("a", 1, arrays=(first,), **FIRST), call("b", 2, arrays=(second,), **SECOND))
    assert made.arrays == (TokenArray("n", "<i2", (4, 1), np.array([7, 8, 0, 9], "<i2").tobytes()),)


def test_policy_versions_of_observed_tokens_are_unknown_and_equal_runs_are_one():
    made = row(
        call("a", 1, policy_version_runs=(PolicyVersionRun(3, 2),), **FIRST),
        call("b", 2, policy_version_runs=(PolicyVersionRun(4, 1),), **SECOND),
        call("c", 3, **THIRD),
    )
    assert made.policy_version_runs == (
        PolicyVersionRun(3, 2), PolicyVersionRun(None, 1), PolicyVersionRun(4, 1), PolicyVersionRun(None, 4)
    )  # fmt: skip


def test_policy_version_over_two_calls_without_observation_is_one_run():
    runs = {"policy_version_runs": (PolicyVersionRun(3, 2),)}
    second = {"prompt_ids": ids(1, 2, 3, 4), "response_ids": ids(5, 6)}
    made = row(call("a", 1, **FIRST, **runs), call("b", 2, **second, **runs))
    assert made.policy_version_runs == (PolicyVersionRun(3, 4),)


def test_row_without_policy_versions_has_no_runs():
    assert three().policy_version_runs == ()


# Rewards


def test_step_rewards_sit_at_the_last_token_of_their_calls():
    made = three(linked(4, "a", 0.5), linked(5, "b", 0.25))
    assert rewards(made) == [(1, 0.5), (3, 0.25)]
    assert (made.total, made.step, made.final_total) == (0.75, {"reward": 0.75}, None)


def test_final_value_sits_at_the_last_token_of_the_row():
    made = three(reward(4, value=1.0, scope="rollout"))
    assert (rewards(made), made.final, made.final_total) == ([(7, 1.0)], {"reward": 1.0}, 1.0)


def test_final_value_that_reaches_every_call_counts_once_a_row():
    made = three(reward(4, value=1.0, scope="rollout"), linked(5, "c", 0.5), final="every_call")
    assert (rewards(made), made.total, made.final_total) == ([(7, 1.5)], 1.5, 1.0)


def test_final_value_that_reaches_every_call_is_on_each_row():
    other = call("x", 2, prompt_ids=ids(50), response_ids=ids(60))
    made = rows(call("a", 1, **FIRST), other, reward(3, value=1.0, scope="rollout"), final="every_call")
    assert [each.total for each in made] == [1.0, 1.0]


def test_final_value_of_the_last_call_is_on_its_row_alone():
    other = call("x", 2, prompt_ids=ids(50), response_ids=ids(60))
    made = rows(call("a", 1, **FIRST), other, call("b", 3, **SECOND), reward(4, value=1.0, scope="rollout"))
    assert [(each.span_ids, each.total) for each in made] == [(("a", "b"), 1.0), (("x",), None)]


def test_reward_never_sits_on_a_tools_token():
    made = three(*(linked(4 + at, span_id, 1.0) for at, span_id in enumerate("abc")))
    assert [made.response_mask[at] for at, _ in rewards(made)] == [1, 1, 1]


def test_weights_count_at_the_tokens_and_not_in_the_named_values():
    made = three(linked(4, "a", 0.5, name="style"), reward(5, value=1.0, scope="rollout"), weights={"style": 2.0})
    assert (rewards(made), made.total, made.step) == ([(1, 1.0), (7, 1.0)], 2.0, {"style": 0.5})


def test_row_that_no_reward_reaches_has_total_none():
    made = three()
    assert (made.total, made.reward_token_index, made.step, made.final) == (None, b"", {}, {})


def test_row_of_rewards_that_are_zero_has_total_zero():
    made = three(linked(4, "a", 0.0))
    assert (rewards(made), made.total) == ([(1, 0.0)], 0.0)


def test_extra_info_of_all_rewards_that_count_for_the_row_is_joined():
    made = three(
        linked(4, "a", 0.5, name="style", extra_info=encode_extra_info({"n": 1})),
        linked(5, "b", 0.5, name="style", extra_info=encode_extra_info({"n": 2})),
        reward(6, value=1.0, scope="rollout", name="judge", extra_info=encode_extra_info({"n": 3, "why": "x"})),
    )
    assert made.extra_info == b'{"style/n":2,"judge/n":3,"why":"x"}'


# Undone


def test_split_gives_each_call_its_full_prompt_and_its_own_columns():
    made = row(
        call("a", 1, logprobs=floats(-1, -2), policy_version_runs=(PolicyVersionRun(3, 2),), **FIRST),
        call("b", 2, logprobs=floats(-3), policy_version_runs=(PolicyVersionRun(4, 1),), **SECOND),
        linked(3, "b", 0.5),
    )  # fmt: skip
    first, second = split_calls(made)
    assert (first.span_id, first.prompt_ids, first.response_ids, first.reward) == ("a", ids(1, 2), ids(3, 4), None)
    assert (second.span_id, second.prompt_ids, second.response_ids) == ("b", ids(1, 2, 3, 4, 5), ids(6))
    assert (second.logprobs, second.policy_version_runs, second.reward) == (floats(-3), (PolicyVersionRun(4, 1),), 0.5)


def test_split_of_one_call_gives_it_whole():
    made = row(call("a", 1, logprobs=floats(-1, -2), **FIRST), reward(2, value=0.5))
    (only,) = split_calls(made)
    assert (only.prompt_ids, only.response_ids, only.logprobs, only.reward) == (
        made.prompt_ids, made.response_ids, made.logprobs, 0.5
    )  # fmt: skip


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 6, [(3, 2), (None, 1), (4, 3)]), (1, 4, [(3, 1), (None, 1), (4, 1)]), (2, 3, [(None, 1)]), (4, 4, [])],
)
def test_runs_are_cut_to_a_range_of_tokens(start: int, end: int, expected: list[tuple[int | None, int]]):
    runs = (PolicyVersionRun(3, 2), PolicyVersionRun(None, 1), PolicyVersionRun(4, 3))
    assert [(each.policy_version, each.tokens) for each in cut_runs(runs, start, end)] == expected


def test_array_without_values_per_token_is_cut_too():
    assert cut_array(TokenArray("n", "<f4", (3, 0), b""), 1, 3) == TokenArray("n", "<f4", (2, 0), b"")
