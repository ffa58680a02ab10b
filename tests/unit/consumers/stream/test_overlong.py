"""Samples above a stream's token limits: what is cut stays consistent, and no reward is lost."""

import numpy as np
import pytest
from support.batches import result, sample
from support.building import floats, ids

from rolloutlog.consumers.samples import Sample, split_calls
from rolloutlog.consumers.stream.overlong import Limits
from rolloutlog.consumers.stream.sample_checks import sample_fault
from rolloutlog.eventstore.events import PolicyVersionRun, TokenArray


def values(*numbers: float) -> bytes:
    return np.array(numbers, "<f8").tobytes()


def row() -> Sample:
    """Two calls of two and three tokens, with two of a tool between them; each has a reward."""
    return sample(
        total=0.75, span_ids=("a", "b"), prompt_ids=ids(1, 2, 3), response_ids=ids(10, 11, 12, 13, 14, 15, 16),
        response_mask=b"\x01\x01\x00\x00\x01\x01\x01", logprobs=floats(-1, -2, 0, 0, -3, -4, -5),
        policy_version_runs=(PolicyVersionRun(3, 2), PolicyVersionRun(None, 2), PolicyVersionRun(4, 3)),
        reward_token_index=ids(1, 6), reward_token_value=values(0.5, 0.25), call_tokens=ids(0, 2, 4, 7),
        arrays=(TokenArray("n", "|u1", (7, 2), bytes(range(14))),),
    )  # fmt: skip


def rewards(made: Sample) -> list[tuple[int, float]]:
    index = np.frombuffer(made.reward_token_index, "<i4").tolist()
    return list(zip(index, np.frombuffer(made.reward_token_value, "<f8").tolist(), strict=True))


def cut(response_tokens: int, rule: str, made: Sample | None = None) -> Sample:
    found = Limits(None, response_tokens, response_rule=rule).cut(made or row())
    assert found is not None
    return found


def test_sample_that_fits_exactly_stays_itself():
    made = row()
    assert Limits(3, 7, "truncate_left", "truncate_right").cut(made) is made
    assert not Limits(3, 7).drop(made)


@pytest.mark.parametrize("limits", [Limits(2, None), Limits(None, 6)])
def test_longer_sample_is_dropped_by_default(limits: Limits):
    assert limits.drop(row())


@pytest.mark.parametrize(("rule", "left"), [("truncate_left", (2, 3)), ("truncate_right", (1, 2))])
def test_prompt_is_cut_on_the_side_that_the_rule_names(rule: str, left: tuple[int, ...]):
    limits = Limits(2, None, prompt_rule=rule)
    made = limits.cut(row())
    assert made is not None
    assert not limits.drop(row())
    assert (made.prompt_ids, made.response_ids) == (ids(*left), row().response_ids)


def test_response_cut_on_the_right_keeps_all_columns_of_the_first_tokens():
    made = cut(5, "truncate_right")
    assert made.response_ids == ids(10, 11, 12, 13, 14)
    assert made.response_mask == b"\x01\x01\x00\x00\x01"
    assert made.logprobs == floats(-1, -2, 0, 0, -3)
    assert made.policy_version_runs == (PolicyVersionRun(3, 2), PolicyVersionRun(None, 2), PolicyVersionRun(4, 1))
    assert made.arrays == (TokenArray("n", "|u1", (5, 2), bytes(range(10))),)
    assert made.call_ranges == ((0, 2), (4, 5))


def test_response_cut_on_the_left_keeps_all_columns_of_the_last_tokens():
    made = cut(4, "truncate_left")
    assert made.response_ids == ids(13, 14, 15, 16)
    assert made.response_mask == b"\x00\x01\x01\x01"
    assert made.logprobs == floats(0, -3, -4, -5)
    assert made.policy_version_runs == (PolicyVersionRun(None, 1), PolicyVersionRun(4, 3))
    assert made.arrays == (TokenArray("n", "|u1", (4, 2), bytes(range(6, 14))),)
    assert made.call_ranges == ((0, 0), (1, 4))


@pytest.mark.parametrize(
    ("tokens", "rule", "expected"),
    [(6, "truncate_right", [(1, 0.5), (5, 0.25)]), (4, "truncate_right", [(1, 0.75)]),
     (1, "truncate_right", [(0, 0.75)]), (6, "truncate_left", [(0, 0.5), (5, 0.25)]),
     (5, "truncate_left", [(2, 0.5), (4, 0.25)]), (1, "truncate_left", [(0, 0.75)])],
)  # fmt: skip
def test_reward_on_a_token_left_out_moves_to_the_nearest_policy_token_that_stays(tokens, rule, expected):
    made = cut(tokens, rule)
    assert rewards(made) == expected
    assert made.total == 0.75


@pytest.mark.parametrize("rule", ["truncate_left", "truncate_right"])
@pytest.mark.parametrize("tokens", range(1, 7))
def test_cut_sample_passes_the_checks(tokens: int, rule: str):
    made = cut(tokens, rule)
    assert sample_fault(made, (result("r"),)) is None
    assert len(list(split_calls(made))) == 2


def test_response_of_which_no_policy_token_stays_is_dropped():
    made = sample(response_mask=b"\x00\x00\x01")
    assert Limits(None, 2, response_rule="truncate_right").cut(made) is None


def test_sample_without_reward_or_log_probs_is_cut_too():
    made = cut(2, "truncate_right", sample(total=None, logprobs=None, policy_version_runs=()))
    assert (made.total, made.logprobs, rewards(made), made.response_ids) == (None, None, [], ids(3, 4))
