"""Verdicts are checked where a scorer makes them, as publishing a reward checks it."""

from typing import Any

import numpy as np
import pytest

from rolloutlog.consumers.scoring import Reward
from rolloutlog.consumers.scoring.reward import InvalidReward


@pytest.mark.parametrize("value", [1, 0.0, -2.5, np.float32(0.5), np.int64(3)])
def test_reward_of_any_number_has_a_float(value: Any):
    assert type(Reward(value).value) is float


def test_reward_without_a_value_is_no_verdict():
    assert Reward(None, "style").value is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"value": True}, r"reward 'reward' refused: expected a finite number or null, got True at \$.value; use 1.0"),
        ({"value": float("inf")}, r"got inf at \$.value"),
        ({"value": "1"}, r"got '1' at \$.value; convert it with float"),
        ({"value": 1.0, "name": ""}, r"reward '' refused: .*at \$.name"),
        ({"value": 1.0, "scope": "token"}, r"expected 'step' or 'rollout', got 'token' at \$.scope"),
        ({"value": 1.0, "target": {"span_id": "c"}}, r"no target on a reward of scope 'rollout'"),
        ({"value": 1.0, "scope": "step", "target": {"call": "c"}}, r"exactly one of span_id"),
        ({"value": 1.0, "supersedes": ""}, r"expected text that is not empty, got '' at \$.supersedes"),
        ({"value": 1.0, "reward_id": 7}, r"expected text, got 7 at \$.reward_id"),
        ({"value": 1.0, "extra_info": {"a": object()}}, r"at \$.extra_info.a"),
        ({"value": 1.0, "extra_info": {"values": 1}}, r"expected keys that are no batch columns, got 'values'"),
    ],
)
def test_reward_that_cannot_be_recorded_is_refused_by_field(given: dict[str, Any], text: str):
    with pytest.raises(InvalidReward, match=text):
        Reward(**given)
