"""Settings of attribution. Every one changes output, so `canonical()` goes into the config hash."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rolloutlog.consumers.attribution.custom import is_custom, load_policy
from rolloutlog.eventstore.errors import InvalidSettings

POLICIES = ("enclosing", "nearest", "first_occurrence", "first_sibling", "none")
POLICIES_0_3 = ("first_occurrence", "first_sibling")  # Agent Lightning 0.3's matching
LINK_SUBTREES = ("last", "all", "split")
REDUCES = ("sum", "last", "mean", "max")
FINALS = ("last_call", "every_call", "none")

_CHOICES = {
    "policy": (*POLICIES, "package.module:function"),
    "link_subtree": LINK_SUBTREES,
    "reduce": REDUCES,
    "final": FINALS,
}
_PATTERNS = ("agent", "operation", "model", "exclude_agent", "exclude_operation")


@dataclass(frozen=True, slots=True)
class AttributionSettings:
    """Which calls are trained on and how rewards count for them: docs/rewards.md.

    agent, operation, model            regular expressions that a selected call must match (searched); None = any
    exclude_agent, exclude_operation   regular expressions that it must not match
    policy        how a step reward without a target finds its call; `package.module:function` is imported here
    link_subtree  what a link to a span that is no call means: its last earlier call, all, or split over them
    reduce        several rewards of one name on one call become one value
    final         which selected calls the rollout's final values reach
    weights       factor of a reward name in totals; 1 where not given
    Raises        InvalidSettings that names the setting, what was expected and what came
    """

    agent: str | None = None
    operation: str | None = None
    model: str | None = None
    exclude_agent: str | None = None
    exclude_operation: str | None = None
    policy: str = "enclosing"
    link_subtree: str = "last"
    reduce: str = "sum"
    final: str = "last_call"
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _PATTERNS:
            _check_pattern(name, getattr(self, name))
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if name == "policy" and isinstance(value, str) and is_custom(value):
                load_policy(value)
            elif not isinstance(value, str) or value not in choices:
                raise _unusable(name, f"one of {', '.join(choices)}", value)
        # a copy, so that the caller's mapping cannot change a setting afterwards
        object.__setattr__(self, "weights", _checked_weights(self.weights))

    def canonical(self) -> dict[str, Any]:
        """Every setting, defaults included, as plain JSON values in one fixed order; and the source of a policy."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in (*_PATTERNS, *_CHOICES)}
        plain["weights"] = dict(sorted(self.weights.items()))
        if is_custom(self.policy):
            plain["policy_source"] = load_policy(self.policy).source
        return plain


def settings_from(values: Mapping[str, Any]) -> AttributionSettings:
    """Settings from a mapping such as a TOML table. Raises InvalidSettings, for an unknown name too."""
    known = (*_PATTERNS, *_CHOICES, "weights")
    for name in values:
        if name not in known:
            raise InvalidSettings(f"attribution setting {name!r} is unknown: expected one of {', '.join(known)}")
    return AttributionSettings(**values)


def _check_pattern(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise _unusable(name, "a regular expression or None", value)
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        raise _unusable(name, f"a regular expression ({error})", value) from error


def _checked_weights(weights: Any) -> dict[str, float]:
    if not isinstance(weights, Mapping):
        raise _unusable("weights", "a mapping of reward name to finite number", weights)
    checked = {}
    for name, weight in weights.items():
        if not isinstance(name, str):
            raise _unusable("weights", "reward names that are text", name)
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise _unusable(f"weights.{name}", "a finite number", weight)
        try:
            checked[name] = float(weight)
        except OverflowError:
            raise _unusable(f"weights.{name}", "a finite number", weight) from None
        if not math.isfinite(checked[name]):
            raise _unusable(f"weights.{name}", "a finite number", weight)
    return checked


def _unusable(name: str, expected: str, got: Any) -> InvalidSettings:
    return InvalidSettings(f"attribution setting {name!r} is unusable: expected {expected}, got {got!r}")
