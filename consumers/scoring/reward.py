"""What a scorer returns: its verdicts. A `Reward` that cannot be recorded is refused where the scorer makes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolloutlog.eventstore.checks import check_id, check_text, plain_number
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import ROLLOUT
from rolloutlog.eventstore.extra_info import encode_extra_info, reserved_collisions
from rolloutlog.eventstore.rewards import REWARD_NAME, TEXT_CHARACTERS_MAX, check_reward


class InvalidReward(InvalidEvent):
    """A verdict that no reward can hold: the scorer's mistake, which trying again does not mend."""


@dataclass(frozen=True, slots=True)
class Reward:
    """One verdict about a rollout, or with scope "step" about one of its calls. Fields: as `rollout.reward` takes them.

    value       a finite number, or None = no verdict
    scope       "rollout", or "step"
    target      what a step reward is for: one of span_id, response_id, operation → its value; None = found by policy
    supersedes  the id of an earlier reward that this one replaces
    parent_id   the span that a step reward stands in, after_call the last call before it: for policies to go by
    Raises      InvalidReward naming the field
    """

    value: float | None
    name: str = REWARD_NAME
    scope: str = ROLLOUT
    target: Mapping[str, str] | None = None
    supersedes: str | None = None
    parent_id: str | None = None
    after_call: str | None = None
    extra_info: Mapping[str, Any] | None = None
    reward_id: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", plain_number(self.value))
        try:
            check_reward(value=self.value, name=self.name, scope=self.scope, target=self.target)
            for field in ("supersedes", "parent_id", "reward_id"):
                if getattr(self, field) is not None:
                    check_id(getattr(self, field), field)
            check_text(self.after_call, "after_call")
            encode_extra_info(self.extra_info)
            if self.extra_info and (reserved := reserved_collisions(self.extra_info)):
                raise InvalidEvent(
                    f"expected keys that are no batch columns, got {', '.join(map(repr, reserved))} at $.extra_info; "
                    "give them other names",
                    reason="extra_info_reserved",
                    field="$.extra_info",
                )
        except InvalidEvent as error:
            known = isinstance(self.name, str) and len(self.name) <= TEXT_CHARACTERS_MAX
            text = f"reward {self.name!r} refused: {error}" if known else f"reward refused: {error}"
            raise InvalidReward(text, reason=error.reason, field=error.field) from error
        if self.value is not None:
            object.__setattr__(self, "value", float(self.value))
