"""What a reward may be: the one check, made at publish and again when a reward is read.

Not here  ids and the envelope: eventstore.checks; which call a reward counts for: consumers.attribution
"""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from rolloutlog.eventstore.errors import InvalidEvent

SCOPES = ("step", "rollout")
TARGET_KEYS = ("span_id", "response_id", "operation")
REWARD_NAME = "reward"  # of a reward that was given no name

TEXT_CHARACTERS_MAX = 512  # as for ids


def check_reward(*, value: Any, name: Any, scope: Any, target: Any) -> None:
    """Check the parts of a reward that decide where it may count.

    value   a finite number, or None = the scorer gave no verdict
    scope   "step" or "rollout"
    target  None, or for scope "step" a mapping of exactly one of TARGET_KEYS to text
    Raises  InvalidEvent that names the field, what was expected and what came
    """
    _check_value(value)
    if not isinstance(name, str) or not 0 < len(name) <= TEXT_CHARACTERS_MAX or not _is_utf8(name):
        raise _refused(f"text of 1 to {TEXT_CHARACTERS_MAX} characters", name, "name")
    if not isinstance(scope, str) or scope not in SCOPES:
        raise _refused("'step' or 'rollout'", scope, "scope")
    if target is not None:
        _check_target(scope, target)


def _check_value(value: Any) -> None:
    if value is None:
        return
    # bool is a number to Python; True as a reward is a scorer's mistake that 1.0 would hide
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _refused("a finite number or null", value, "value", hint=_value_hint(value))
    try:
        finite = math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        finite = False
    if not finite:
        raise _refused("a finite number or null", value, "value")


def _value_hint(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "; use 1.0 or 0.0"
    if hasattr(value, "item"):
        return "; take the number out of it with `.item()`"
    return "; convert it with float() if it is one"


def _check_target(scope: str, target: Any) -> None:
    if not isinstance(target, Mapping):
        raise _refused(f"a mapping of one of {', '.join(TARGET_KEYS)} to text", target, "target")
    if scope != "step":
        raise _refused("no target on a reward of scope 'rollout'", dict(target), "target")
    keys = list(target)
    if len(keys) != 1 or not isinstance(keys[0], str) or keys[0] not in TARGET_KEYS:
        raise _refused(f"exactly one of {', '.join(TARGET_KEYS)}", dict(target), "target")
    named = target[keys[0]]
    if not isinstance(named, str) or len(named) > TEXT_CHARACTERS_MAX or not _is_utf8(named):
        raise _refused(f"text of at most {TEXT_CHARACTERS_MAX} characters", named, f"target.{keys[0]}")


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refused(expected: str, got: Any, field: str, *, hint: str = "") -> InvalidEvent:
    try:
        text = repr(got)
    except Exception:  # a repr that fails, such as of an integer with 5,000 digits, must not hide the refusal
        text = f"a {type(got).__name__}"
    if len(text) > 80:
        text = text[:77] + "..."
    return InvalidEvent(f"expected {expected}, got {text} at $.{field}{hint}", reason=field, field=f"$.{field}")
