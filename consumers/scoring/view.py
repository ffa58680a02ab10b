"""What a scorer is given: one closed rollout as its events tell it. Read only; docs/scorers.md shows what is in it.

Nothing is decoded before it is asked for, so that a scorer that looks at little costs little, however large the
rollout. What a scorer changes in what it was given (a message, an attribute) changes its own view alone.

Not here  spans, calls and rewards: scoring.parts; decoding: scoring.decoded; messages: scoring.messages
"""

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from rolloutlog.consumers.scoring.decoded import DecodedCall, DecodedRollout
from rolloutlog.consumers.scoring.messages import TOOL_ROLES, Messages, text_of, transcript_of
from rolloutlog.consumers.scoring.parts import CallView, RewardView, SpanView, json_object
from rolloutlog.consumers.state import Rollout
from rolloutlog.eventstore.events import ROLLOUT


class RolloutView:
    """One closed rollout: the attempt that counts.

    status     completed, failed or expired; `error`: what a failed one said, `reason`: why it closed so
    closed_ns  log time at which its group closed, UTC nanoseconds
    """

    def __init__(self, decoded: DecodedRollout, closed_ns: int) -> None:
        self._decoded = decoded
        started, completed = decoded.attempt.started, decoded.attempt.completed
        self.rollout_id: str = decoded.rollout.rollout_id
        self.attempt: int = decoded.attempt.number
        self.group_id: str = started.group_id
        self.task_id: str = started.task_id
        self.split: str = started.split
        self.policy_version: int | None = started.policy_version
        self.status: str = decoded.closing.status
        self.reason: str | None = decoded.closing.reason
        self.error: str | None = None if completed is None else completed.error
        self.closed_ns = closed_ns

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What the rollout was started with."""
        return json_object(self._decoded.attempt.started.metadata)

    # Rewards

    @cached_property
    def rewards(self) -> tuple[RewardView, ...]:
        """Those in its events, in log order. What scorers recorded afterwards is not among them."""
        return tuple(map(RewardView, self._decoded.rewards))

    @cached_property
    def final(self) -> Mapping[str, float]:
        """The rollout's final values: reward name → the last value of scope rollout that no other superseded."""
        found: dict[str, RewardView] = {}
        seen: dict[str, RewardView] = {}
        for reward in self.rewards:
            replaced = seen.get(reward.supersedes or "")  # an earlier one alone, as live assembly has it
            if replaced is not None and found.get(replaced.name) is replaced:
                del found[replaced.name]
            if reward.scope == ROLLOUT and reward.value is not None:
                found[reward.name] = reward
            seen[reward.reward_id] = reward
        return MappingProxyType({name: reward.value for name, reward in found.items() if reward.value is not None})

    def values(self, name: str) -> list[float]:
        """Values of all rewards of a name, step rewards too, in log order."""
        return [each.value for each in self.rewards if each.name == name and each.value is not None]

    # Calls and other spans

    @cached_property
    def calls(self) -> tuple[CallView, ...]:
        """The policy's calls, in turn order. Calls of judges, beneath an evaluator, are among `spans` alone."""
        found = enumerate(self._decoded.calls)
        return tuple(CallView(self._decoded, self._conversation, call, index) for index, call in found)

    @cached_property
    def spans(self) -> tuple[SpanView, ...]:
        """Every span, in log order."""
        return tuple(map(SpanView, self._decoded.spans))

    @property
    def tools(self) -> tuple[SpanView, ...]:
        """Spans in which a tool ran, in log order."""
        return self.spans_of("tool")

    def spans_of(self, kind: str, name: str | None = None) -> tuple[SpanView, ...]:
        """Spans of a kind, and of a name where one is given, in log order."""
        return tuple(each for each in self.spans if each.kind == kind and name in (None, each.name))

    def span(self, span_id: str) -> SpanView | None:
        return self._by_id.get(span_id)

    def call(self, span_id: str) -> CallView | None:
        """The call that a span recorded; None for other spans, and for a judge's."""
        return self._calls_by_id.get(span_id)

    # The conversation of the last call

    @property
    def answer(self) -> str | None:
        """Text of the last call's answer; None where there is no call, or no message tells its answer."""
        return self.calls[-1].answer if self.calls else None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The last call's conversation with its answer. Each call of several agents has its own: `calls`."""
        return self.calls[-1].messages if self.calls else []

    @property
    def tool_results(self) -> list[str]:
        """Texts of the tools' messages in it."""
        return [text_of(message) for message in self.messages if message.get("role") in TOOL_ROLES]

    @property
    def transcript(self) -> str:
        """It as text, `role: text` for each message, with tool calls: for a judge's prompt."""
        return transcript_of(self.messages)

    def fresh(self) -> "RolloutView":
        """The same rollout with nothing of what was changed in this view."""
        return RolloutView(self._decoded, self.closed_ns)

    @property
    def record_count(self) -> int:
        """How many events it has."""
        return self._decoded.record_count

    @cached_property
    def _by_id(self) -> dict[str, SpanView]:
        return {each.span_id: each for each in self.spans}

    @cached_property
    def _calls_by_id(self) -> dict[str, CallView]:
        return {span_id: call for call in self.calls for span_id in call.span_ids}

    def _conversation(self, call: DecodedCall) -> list[dict[str, Any]]:
        return self._messages.of(call)

    @cached_property
    def _messages(self) -> Messages:
        return Messages(self._decoded.calls)

    def __repr__(self) -> str:
        return f"<RolloutView {self.rollout_id} attempt {self.attempt} {self.status}, task {self.task_id}>"


def view_of(rollout: Rollout, partition: int, *, closed_ns: int) -> RolloutView:
    """The view of a closed rollout that still has its records.

    closed_ns  log time at which its group closed: the time of every reward that a scorer gives it
    """
    return RolloutView(DecodedRollout(rollout, partition), closed_ns)
