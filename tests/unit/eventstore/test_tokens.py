"""Token ids and log-probs as packed bytes."""

import numpy as np
import pytest

from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.tokens import pack_logprobs, pack_token_ids


class Tensor:
    """What is no numpy array and becomes one."""

    def __init__(self, values):
        self._values = np.array(values)

    def __array__(self, *arguments, **keywords):
        return self._values


PACKED = b"\x01\0\0\0\xff\xff\xff\x7f"


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2**31 - 1],
        (1, 2**31 - 1),
        np.array([1, 2**31 - 1]),
        np.array([1, 2**31 - 1], ">i8"),
        np.array([1, 0, 2**31 - 1, 0], "<i4")[::2],
        PACKED,
        bytearray(PACKED),
        memoryview(PACKED),
        Tensor([1, 2**31 - 1]),
    ],
)
def test_pack_token_ids_of_any_form_gives_int32_little_endian(ids):
    assert pack_token_ids(ids, "prompt_ids") == PACKED


@pytest.mark.parametrize("ids", [[], (), np.array([], "i8"), np.array([]), b""])
def test_pack_token_ids_of_none_gives_no_bytes(ids):
    assert pack_token_ids(ids, "prompt_ids") == b""


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([1, -2], "got -2 at $.prompt_ids[1]"),
        ([1, 2**31], "got 2147483648 at $.prompt_ids[1]"),
        ([1, 2.0], "got 2.0 at $.prompt_ids[1]"),
        ([1, None], "got None at $.prompt_ids[1]"),
        (np.array([1, 2**31]), "got 2147483648 at $.prompt_ids[1]"),
        (np.array([2**63], "u8"), "got 9223372036854775808 at $.prompt_ids[0]"),
        (np.array([1.0]), "expected integers of one dimension, got float64 of shape (1,) at $.prompt_ids"),
        (np.array([[1]]), "got int64 of shape (1, 1) at $.prompt_ids"),
        (np.array([True]), "got bool of shape (1,) at $.prompt_ids"),
        ([True], "got True at $.prompt_ids[0]"),
        ((False, True), "got False at $.prompt_ids[0]"),
        ([np.True_], " at $.prompt_ids[0]"),
        (Tensor([True]), "got bool of shape (1,) at $.prompt_ids"),
        ([[1], [2]], "got [1] at $.prompt_ids[0]"),
        (5, "got 5 at $.prompt_ids"),
        (b"\0\0\0", "expected 4 bytes a token, got 3 bytes at $.prompt_ids"),
    ],
)
def test_pack_token_ids_refuses_what_it_would_change(ids, text):
    with pytest.raises(InvalidEvent) as caught:
        pack_token_ids(ids, "prompt_ids")
    assert text in str(caught.value)
    assert caught.value.field == "$.prompt_ids"


def test_pack_token_ids_refuses_text():
    """A text is a sequence too: array("i", "ab") fails, and must be ours."""
    with pytest.raises(InvalidEvent):
        pack_token_ids("ab", "prompt_ids")


@pytest.mark.parametrize("logprobs", [[-0.5, 0], (-0.5, 0.0), np.array([-0.5, 0.0]), np.array([-0.5, 0], "<f2")])
def test_pack_logprobs_of_any_form_gives_float32_little_endian(logprobs):
    assert pack_logprobs(logprobs, "logprobs") == np.array([-0.5, 0], "<f4").tobytes()


@pytest.mark.parametrize(
    ("logprobs", "text"),
    [
        ([0.0, float("nan")], "expected finite float32, got nan at $.logprobs[1]"),
        ([float("-inf")], "expected finite float32, got -inf at $.logprobs[0]"),
        ([1e300], "expected finite float32, got inf at $.logprobs[0]"),
        ([None, 0.0], "expected a flat list of numbers, got list"),
        (["-0.5"], "expected a flat list of numbers, got list"),
        ([[0.0]], "expected a flat list of numbers, got list"),
        ([[0.0], [1.0, 2.0]], "expected a flat list of numbers, got list"),
        ([True], "expected a flat list of numbers, got list"),
        ([False, -0.5], "expected a flat list of numbers, got list"),
        (
            [-0.5, 0.02],
            "expected natural logs of probabilities, at most 0, got 0.02 at $.logprobs[1]; were probabilities passed? "
            "give their logs",
        ),
        (np.array([0.9, 0.1]), "got 0.9 at $.logprobs[0]; were probabilities passed? give their logs"),
        (np.array([0.0, 1.0], "<f4").tobytes(), "got 1 at $.logprobs[1]; were probabilities passed?"),
        (b"\0", "expected 4 bytes a log-prob, got 1 bytes at $.logprobs"),
    ],
)
def test_pack_logprobs_refuses_what_it_would_change(logprobs, text):
    with pytest.raises(InvalidEvent) as caught:
        pack_logprobs(logprobs, "logprobs")
    assert text in str(caught.value)


def test_pack_logprobs_takes_what_rounding_leaves_above_zero():
    assert pack_logprobs([0.0078125, -0.5], "logprobs") == np.array([0.0078125, -0.5], "<f4").tobytes()
