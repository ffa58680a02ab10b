"""What a reward may be."""

from typing import Any

import numpy as np
import pytest

from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.rewards import check_reward


def ascii_type(value: Any) -> str:
    """For a test's id: Python does not print an integer of 5,000 digits."""
    return type(value).__name__


@pytest.mark.parametrize("value", [None, 0, 1.5, -2.0, np.float32(0.5), np.int64(3)])
def test_reward_with_a_finite_number_or_none_is_accepted(value: Any) -> None:
    check_reward(value=value, name="reward", scope="step", target=None)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), True, np.bool_(True), "1", [1.0], 10**400, 10**5000], ids=ascii_type
)
def test_reward_with_another_value_is_refused_at_value(value: Any) -> None:
    with pytest.raises(InvalidEvent, match=r"expected a finite number or null, got .* at \$\.value") as error:
        check_reward(value=value, name="reward", scope="step", target=None)
    assert error.value.reason == "value"


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (True, "; use 1.0 or 0.0"),
        (np.bool_(False), "; use 1.0 or 0.0"),
        (np.array(1.0), "; take the number out of it with `.item()`"),
        (np.array([1.0]), "; take the number out of it with `.item()`"),
        ("1", "; convert it with float() if it is one"),
    ],
    ids=ascii_type,
)
def test_reward_with_a_value_of_another_type_is_refused_with_what_to_do(value: Any, hint: str) -> None:
    with pytest.raises(InvalidEvent) as error:
        check_reward(value=value, name="reward", scope="step", target=None)
    assert str(error.value).endswith(f" at $.value{hint}")


@pytest.mark.parametrize(
    ("scope", "target"),
    [
        ("step", {}),
        ("step", {"span_id": "a", "operation": "b"}),
        ("step", {"agent": "a"}),
        ("step", {"span_id": 3}),
        ("step", "a"),
        ("rollout", {"span_id": "a"}),
    ],
)
def test_reward_with_a_target_that_is_not_one_known_key_is_refused_at_target(scope: str, target: Any) -> None:
    with pytest.raises(InvalidEvent, match=r"at \$\.target"):
        check_reward(value=1.0, name="reward", scope=scope, target=target)


@pytest.mark.parametrize("scope", ["group", "", None, []])
def test_reward_with_another_scope_is_refused_at_scope(scope: Any) -> None:
    with pytest.raises(InvalidEvent, match=r"expected 'step' or 'rollout', got .* at \$\.scope"):
        check_reward(value=1.0, name="reward", scope=scope, target=None)


@pytest.mark.parametrize("name", ["", None, 3, "x" * 513, "\ud800"])
def test_reward_with_a_name_that_is_no_short_text_is_refused_at_name(name: Any) -> None:
    with pytest.raises(InvalidEvent, match=r"at \$\.name"):
        check_reward(value=1.0, name=name, scope="step", target=None)
