"""A batch that is told to be plainly sound has no fault when looked at sample by sample."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import batch, result, sample
from support.building import floats, ids
from unit.consumers.stream.test_sample_checks import values

from rolloutlog.consumers.stream.sample_checks import batch_fault, sample_fault
from rolloutlog.consumers.stream.soundness import is_plainly_sound
from rolloutlog.eventstore.events import PolicyVersionRun, TokenArray

# Of each field values that are right, and wrong ones.
FIELDS = {
    "sample_id": ["r/0/c", "r/0/d", "r/1/c", "q/0/c", "/0/c", "", "c"],
    "rollout_index": [0, 1, -1, 2],
    "span_ids": [("c",), ("c", "c"), ()],
    "prompt_ids": [ids(1, 2), b"", b"abc", ids(1, -1)],
    "response_ids": [ids(3, 4, 5), ids(3, 4), ids(3, 4, -(2**31)), b"abc"],
    "response_mask": [b"\x01\x01\x01", b"\x01\x00\x01", b"\x00\x00\x00", b"\x01\x01\x02", b"\x01"],
    "logprobs": [floats(-0.5, -0.25, -1.0), None, floats(-1, -1), floats(-1, float("nan"), -1),
                 floats(3e38, 3e38, 3e38), floats(float("inf"), float("-inf"), 0)],
    "policy_version_runs": [(PolicyVersionRun(3, 3),), (), (PolicyVersionRun(None, 3),), (PolicyVersionRun(2, 3),),
                            (PolicyVersionRun(3, 1), PolicyVersionRun(4, 2)), (PolicyVersionRun(3, 2),),
                            (PolicyVersionRun(3, 4), PolicyVersionRun(3, -1)), (PolicyVersionRun(-1, 3),)],
    "total": [1.0, None, 2.0, float("nan"), float("inf")],
    "step": [{}, {"a": 1.0}, {"a": float("nan")}],
    "final": [{}, {"a": float("inf")}],
    "reward_token_index": [ids(2), ids(1), ids(3), ids(-1), ids(1, 2), b"", b"abc"],
    "reward_token_value": [values(1.0), values(0.5, 0.5), b"", values(float("nan")), b"abc"],
    "final_total": [None, 1.0, float("nan")],
    "call_tokens": [None, ids(0, 3), ids(0)],
    "arrays": [(), (TokenArray("n", "<i4", (3,), ids(1, 2, 3)),), (TokenArray("n", "?!", (3,), b""),)],
}  # fmt: skip
# Most fields are right: samples with several faults are refused for one of them anyway.
SAMPLES = st.dictionaries(st.sampled_from(sorted(FIELDS)), st.integers(0, 7), max_size=3).map(
    lambda chosen: sample("r/0/c")._replace(
        **{name: FIELDS[name][at % len(FIELDS[name])] for name, at in chosen.items()}
    )
)
ROLLOUTS = st.lists(
    st.builds(
        lambda rollout_id, attempt, status: replace(result(rollout_id), attempt=attempt, status=status),
        st.sampled_from(["r", "r", "q", ""]),
        st.sampled_from([0, 0, 1, -1]),
        st.sampled_from(["emitted", "emitted", "failed"]),
    ),
    max_size=2,
).map(lambda more: (result("r"), *more))


@given(st.lists(SAMPLES, max_size=3), ROLLOUTS, st.sampled_from([3, 3, None, -1, 2, 4]))
def test_batch_that_is_plainly_sound_has_no_fault(samples, rollouts, oldest):
    made = replace(batch("r", 0), samples=tuple(samples), rollouts=rollouts, policy_version_min=oldest)
    if is_plainly_sound(made):
        assert batch_fault(made) is None
        assert [sample_fault(each, rollouts) for each in samples] == [None] * len(samples)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"total": None},
        {"logprobs": None},
        {"policy_version_runs": ()},
        {"policy_version_runs": (PolicyVersionRun(None, 1), PolicyVersionRun(4, 2))},
        {"response_mask": b"\x01\x00\x01"},
        {"step": {"style": 0.5}, "final": {"reward": 1.0}, "final_total": 1.0},
        {"total": 1e308},
    ],
)
def test_batch_of_single_calls_is_plainly_sound(fields):
    """Told at once: what most batches are made of."""
    made = batch("r", [sample("r/0/c", **fields), sample("r/0/d")])
    assert is_plainly_sound(made)


def test_batch_without_samples_is_plainly_sound():
    assert is_plainly_sound(batch("r", 0))


@pytest.mark.parametrize("at", [0, 7])
def test_batch_with_one_bad_column_among_many_is_not_plainly_sound(at):
    samples = [sample(f"r/0/{index}") for index in range(8)]
    for fields in (
        {"prompt_ids": ids(1, -1)},
        {"response_ids": ids(-1, 1, 1)},
        {"response_mask": b"\x01\x01\x02"},
        {"logprobs": np.array([0, np.nan, 0], "<f4").tobytes()},
    ):
        bad = [each._replace(**fields) if index == at else each for index, each in enumerate(samples)]
        assert not is_plainly_sound(batch("r", bad))
