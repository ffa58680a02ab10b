"""What a sample of an unknown writer is refused for, by name."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.batches import batch, result, sample
from support.building import floats, ids

from rolloutlog.consumers.stream.sample_checks import batch_fault, sample_fault
from rolloutlog.eventstore.events import PolicyVersionRun, TokenArray

ROLLOUTS = (result("r"),)


def values(*numbers: float) -> bytes:
    return np.array(numbers, "<f8").tobytes()


def test_sample_as_the_assembler_makes_them_has_no_fault():
    assert sample_fault(sample(), ROLLOUTS) is None
    assert sample_fault(sample(total=None, logprobs=None, policy_version_runs=()), ROLLOUTS) is None


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"rollout_index": 1}, "rollout_index: expected one of the batch's 1 rollouts, got 1"),
        ({"prompt_ids": b"abc"}, "prompt_ids: expected 4 bytes a token, got 3 bytes"),
        ({"prompt_ids": ids(1, -1)}, "prompt_ids: expected token ids from 0 to 2**31 - 1, got 4294967295 at index 1"),
        ({"response_ids": ids(3, 4, -(2**31))},
         "response_ids: expected token ids from 0 to 2**31 - 1, got 2147483648 at index 2"),
        ({"response_mask": b"\x01" * 4}, "response_mask: expected 3 values, one per response token, got 4"),
        ({"response_mask": b"\x01\x01\x02"}, "response_mask: expected 0 and 1, got 2"),
        ({"response_mask": b"\x00\x00\x00"}, "response_mask: expected a token that the policy wrote, got none"),
        ({"logprobs": floats(-1, -1)}, "logprobs: expected 3 values, one per response token, got 2"),
        ({"logprobs": b"abcde"}, "logprobs: expected 3 values, one per response token, got 1.25"),
        ({"logprobs": floats(-1, float("nan"), -1)}, "logprobs: expected finite numbers, got others"),
        ({"reward_token_index": ids(3)}, "reward_token_index: expected indices into 3 response tokens, got 3"),
        ({"reward_token_index": ids(-1)}, "reward_token_index: expected indices into 3 response tokens, got -1"),
        ({"reward_token_index": ids(1), "response_mask": b"\x01\x00\x01"},
         "reward_token_index: expected tokens that the policy wrote, got index 1 with mask 0"),
        ({"reward_token_value": values(0.5, 0.5)},
         "reward_token_value: expected one of 8 bytes per index, got 16 for 4 of indices"),
        ({"total": 0.5, "reward_token_value": values(1.0), "reward_token_index": ids(2)},
         "total: expected the sum of its rewards, 1.0, got 0.5"),
        ({"total": float("inf")}, "total: expected finite rewards, got inf"),
        ({"total": None, "reward_token_value": values(1.0), "reward_token_index": ids(2)},
         "total: expected a number with rewards, got None"),
        ({"total": 1.0, "reward_token_value": b"", "reward_token_index": b""},
         "total: expected none without rewards, got 1.0"),
        ({"arrays": (TokenArray("n", "<i4", (2,), ids(1, 2)),)},
         "arrays.n: expected a first axis of 3 response tokens, got shape (2,)"),
        ({"arrays": (TokenArray("n", "<i4", (3, 2), ids(1, 2)),)}, "arrays.n: expected 24 bytes, got 8"),
        ({"arrays": (TokenArray("n", "?!", (3,), b""),)},
         "arrays.n: expected a little-endian dtype of numbers, got '?!'"),
        ({"arrays": (TokenArray("n", "|O", (3,), bytes(24)),)},
         "arrays.n: expected a little-endian dtype of numbers, got '|O'"),
        ({"arrays": (TokenArray("n", "f4,f4", (3,), bytes(24)),)},
         "arrays.n: expected a little-endian dtype of numbers, got 'f4,f4'"),
        ({"arrays": (TokenArray("n", ",", (3,), b""),)},
         "arrays.n: expected a little-endian dtype of numbers, got ','"),
        ({"arrays": (TokenArray("n", "<b8", (3,), b""),)}, "arrays.n: expected a dtype that numpy knows, got '<b8'"),
        ({"arrays": (TokenArray("n", "<f4", (3, -1, -1), bytes(12)),)},
         "arrays.n: expected 1 to 32 axes from 0 to 2**31 - 1, got shape (3, -1, -1)"),
        ({"arrays": (TokenArray("n", "<f4", (3, 2**40, 0), b""),)},
         "arrays.n: expected 1 to 32 axes from 0 to 2**31 - 1, got shape (3, 1099511627776, 0)"),
        ({"arrays": (TokenArray("n", "<i4", (3,), bytes(12)),) * 2},
         "arrays: expected each array once, got ['n', 'n']"),
        ({"policy_version_runs": (PolicyVersionRun(1, 2),)},
         "policy_version_runs: expected runs of 3 response tokens in all, got 2"),
        ({"policy_version_runs": (PolicyVersionRun(-1, 3),)}, "policy_version_runs: expected versions from 0, got -1"),
        ({"reward_token_index": ids(2, 1), "reward_token_value": values(0.5, 0.5)},
         "reward_token_index: expected ascending indices, got 1 after 2"),
        ({"reward_token_index": ids(2, 2), "reward_token_value": values(0.5, 0.5)},
         "reward_token_index: expected ascending indices, got 2 after 2"),
        ({"final_total": float("nan")}, "final_total: expected a finite number, got nan"),
        ({"final_total": 1.0, "total": None, "reward_token_index": b"", "reward_token_value": b""},
         "final_total: expected none without rewards, got 1.0"),
        ({"step": {"a": float("inf")}}, "step: expected finite numbers, got inf of a"),
        ({"final": {"a": float("nan")}}, "final: expected finite numbers, got nan of a"),
        ({"span_ids": ("a", "b")}, "call_tokens: expected places of 2 calls, got none"),
        ({"span_ids": ()}, "call_tokens: expected places of 0 calls, got none"),
        ({"span_ids": ("a", "a"), "call_tokens": ids(0, 1, 1, 3)}, "span_ids: expected each call once, got one twice"),
        ({"call_tokens": ids(0, 3, 3)}, "call_tokens: expected 8 bytes, 8 a call, got 12"),
        ({"call_tokens": ids(2, 4)}, "call_tokens: expected ascending places within 3 response tokens, got others"),
        ({"call_tokens": ids(0, 2)}, "call_tokens: expected mask 1 in calls alone, got others"),
        ({"response_mask": b"\x01\x00\x01", "call_tokens": ids(0, 3)},
         "call_tokens: expected mask 1 in calls alone, got others"),
    ],
)  # fmt: skip
def test_sample_with_a_fault_is_named_with_field_expected_and_got(fields: dict[str, Any], fault: str):
    assert sample_fault(sample(**fields), ROLLOUTS) == fault


@pytest.mark.parametrize(
    ("sample_id", "fault"),
    [
        ("", "sample_id: expected text that is not empty, got ''"),
        ("other/0/c", "rollout_index: expected the rollout that its id names, other, attempt 0, got r, attempt 0"),
        ("r/1/c", "rollout_index: expected the rollout that its id names, r, attempt 1, got r, attempt 0"),
    ],
)
def test_sample_of_another_rollout_than_its_id_names_is_named(sample_id: str, fault: str):
    """It would be compared with the wrong rollouts."""
    assert sample_fault(sample(sample_id), ROLLOUTS) == fault


def test_sample_of_a_rollout_that_is_not_emitted_is_named():
    rollouts = (replace(result("r"), status="failed"),)
    assert sample_fault(sample(), rollouts) == (
        "rollout_index: expected a rollout that is emitted, got r, which is failed"
    )


@pytest.mark.parametrize(
    ("version", "fault"),
    [
        (4, "expected a policy_version_min of at most 3, which wrote g/0/0, got 4"),
        (None, "expected a policy_version_min of at most 3, which wrote g/0/0, got None"),
        (-1, "expected a policy_version_min from 0, got -1"),
    ],
)
def test_batch_that_names_no_oldest_version_of_its_samples_is_named(version: int | None, fault: str):
    """It would count as fresher than it is."""
    assert batch_fault(batch("g", [sample("g/0/0")], version=version)) == fault


def test_batch_as_the_assembler_makes_them_has_no_fault():
    assert batch_fault(batch("g", 3)) is None
    assert batch_fault(batch("g", [sample("any name")])) is None


def test_two_winners_of_one_rollout_are_named():
    both = (result("g"), replace(result("g"), attempt=1))
    assert batch_fault(batch("g", 1, rollouts=both)) == (
        "expected samples of one attempt of each rollout, got attempts 0 and 1 of rollout g"
    )


def test_samples_of_two_attempts_are_named():
    assert batch_fault(batch("g", [sample("r/x/0/a"), sample("r/x/1/a")])) == (
        "expected samples of one attempt of each rollout, got attempts 0 and 1 of rollout r/x"
    )


def test_rollout_that_is_emitted_twice_is_named():
    made = batch("g", 1, rollouts=(result("g"), result("g")))
    assert batch_fault(made) == "expected each rollout once, got rollout g, attempt 0, twice"


def test_start_beyond_the_group_is_no_winner():
    surplus = replace(result("g"), attempt=1, status="surplus")
    assert batch_fault(batch("g", 1, rollouts=(result("g"), surplus))) is None


def test_sample_that_is_there_twice_is_named():
    assert batch_fault(batch("g", [sample("g/0/a")] * 2)) == "expected each sample once, got g/0/a twice"
