"""What a rollout's view is made of: spans, calls and rewards. Read only, decoded when asked for."""

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from rolloutlog.consumers.scoring.decoded import DecodedCall, DecodedRollout
from rolloutlog.consumers.scoring.messages import ASSISTANT, text_of
from rolloutlog.eventstore.events import RewardRecorded, Span
from rolloutlog.eventstore.extra_info import decode_extra_info

Conversation = Callable[[DecodedCall], list[dict[str, Any]]]


class SpanView:
    """A timed piece of work. `kind`: agent, operation, call, tool, evaluator or other; `status`: ok or error."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def span_id(self) -> str:
        return self._span.span_id

    @property
    def parent_id(self) -> str | None:
        return self._span.parent_id

    @property
    def kind(self) -> str:
        return self._span.kind

    @property
    def name(self) -> str:
        return self._span.name

    @property
    def status(self) -> str:
        return self._span.status

    @property
    def start_ns(self) -> int:
        return self._span.start_ns

    @property
    def end_ns(self) -> int:
        return self._span.end_ns

    @property
    def duration_s(self) -> float:
        return (self._span.end_ns - self._span.start_ns) / 1e9

    @property
    def links(self) -> tuple[str, ...]:
        return self._span.links

    @cached_property
    def attributes(self) -> dict[str, Any]:
        return json_object(self._span.attributes)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind} {self.name!r} {self.span_id}>"


class CallView(SpanView):
    """One answer of the policy.

    turn_index  place among the rollout's calls by (start_ns, log order), from 0
    agent       name of the nearest enclosing agent, None = none
    """

    def __init__(self, rollout: DecodedRollout, messages: Conversation, call: DecodedCall, turn_index: int) -> None:
        super().__init__(call.span)
        self._rollout, self._conversation, self._call = rollout, messages, call
        self.turn_index = turn_index
        self.agent = call.agent

    @property
    def span_ids(self) -> tuple[str, ...]:
        """Of all spans that recorded it, in log order."""
        return tuple(span.span_id for span in self._call.spans)

    @property
    def model(self) -> str | None:
        return next((span.model for span in (self._span, *self._call.spans) if span.model), None)

    @property
    def response_id(self) -> str | None:
        return self._span.response_id

    @property
    def finish_reason(self) -> str | None:
        return self._span.finish_reason

    @property
    def trainable(self) -> bool:
        return self._span.trainable

    @property
    def policy_version(self) -> int | None:
        """The oldest that wrote any of it; None = unknown."""
        known = [run.policy_version for run in self._span.policy_version_runs if run.policy_version is not None]
        return min(known, default=None)

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Of all spans that recorded it; where they differ, the first one's."""
        merged: dict[str, Any] = {}
        for span in reversed(self._call.spans):
            merged.update(json_object(span.attributes))
        return merged

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The whole conversation up to and with its answer, as far as messages were recorded; empty = none were."""
        return list(self._messages)

    @property
    def answer_message(self) -> dict[str, Any] | None:
        """The assistant message that it answered with; None where no message tells."""
        last = self._messages[-1] if self._messages else None
        return last if last is not None and last.get("role") == ASSISTANT else None

    @property
    def answer(self) -> str | None:
        """Text of that message; None where no message tells: then `response_ids` have to be decoded."""
        message = self.answer_message
        return None if message is None else text_of(message)

    @cached_property
    def prompt_ids(self) -> npt.NDArray[np.int32]:
        """The whole prompt's token ids. Raises InvalidEvent where an earlier call that it begins with is missing."""
        return np.frombuffer(self._rollout.prompt(self._span), "<i4")

    @cached_property
    def response_ids(self) -> npt.NDArray[np.int32]:
        """The answer's token ids; empty where none were recorded."""
        return np.frombuffer(self._span.response_ids or b"", "<i4")

    @cached_property
    def logprobs(self) -> npt.NDArray[np.float32] | None:
        """Natural log, one per response token; None = not recorded."""
        return None if self._span.logprobs is None else np.frombuffer(self._span.logprobs, "<f4")

    @cached_property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Further values per response token, by name."""
        return {each.name: np.frombuffer(each.data, each.dtype).reshape(each.shape) for each in self._span.arrays}

    @cached_property
    def _messages(self) -> list[dict[str, Any]]:
        return self._conversation(self._call)


class RewardView:
    """A reward that was recorded while the rollout went on, or until it closed."""

    def __init__(self, reward: RewardRecorded) -> None:
        self._reward = reward

    @property
    def reward_id(self) -> str:
        return self._reward.id

    @property
    def name(self) -> str:
        return self._reward.name

    @property
    def value(self) -> float | None:
        return self._reward.value

    @property
    def scope(self) -> str:
        return self._reward.scope

    @property
    def target(self) -> dict[str, str] | None:
        target = self._reward.target
        return None if target is None else {target.key: target.value}

    @property
    def parent_id(self) -> str | None:
        return self._reward.parent_id

    @property
    def after_call(self) -> str | None:
        return self._reward.after_call

    @property
    def supersedes(self) -> str | None:
        return self._reward.supersedes

    @property
    def scorer(self) -> str | None:
        return self._reward.scorer

    @property
    def scorer_version(self) -> str | None:
        return self._reward.scorer_version

    @property
    def time_ns(self) -> int:
        return self._reward.time_ns

    @cached_property
    def extra_info(self) -> dict[str, Any]:
        return decode_extra_info(self._reward.extra_info)

    def __repr__(self) -> str:
        return f"<RewardView {self.name} {self.value} {self.scope} {self.reward_id}>"


def json_object(encoded: bytes) -> dict[str, Any]:
    """A JSON object; empty where the bytes are none, as those of a span that a stranger published may be."""
    try:
        found = json.loads(encoded or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
