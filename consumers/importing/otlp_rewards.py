"""The rewards that OpenTelemetry traces carry.

agent-lightning  attributes `agentlightning.reward.N.name` and `.value`, or the output of a span that says `reward`, and
                 `agentlightning.link.N.key_match` and `.value_match` that say of what
GenAI            events `gen_ai.evaluation.result` with `gen_ai.evaluation.score.value`
Of one's own     a number under the attribute that `--reward-attribute` names

A reward that says what it is of, or stands within a span, is a step reward; one at a trace's root is the rollout's.
Pure.
"""

import json
from collections.abc import Iterator, Mapping
from re import compile as regex
from typing import Any, NamedTuple

from rolloutlog.consumers.importing.messages import parse_reward
from rolloutlog.consumers.importing.otlp_spans import OtlpSpan
from rolloutlog.eventstore.checks import refused
from rolloutlog.eventstore.events import Target
from rolloutlog.eventstore.rewards import REWARD_NAME

ANNOTATION = "agentlightning.annotation"
EVALUATION = "gen_ai.evaluation.result"

_REWARD = regex(r"agentlightning\.reward\.([0-9]{1,9})\.(name|value)")
_LINK = regex(r"agentlightning\.link\.([0-9]{1,9})\.(key_match|value_match)")
_OUTPUTS = ("agentops.task.output", "agentops.entity.output")
_TARGETS = {"span_id": "span_id", "gen_ai.response.id": "response_id", "response_id": "response_id"}


class FoundReward(NamedTuple):
    """A reward in a trace. `parent_id`: the span it stands within; None with no target = the rollout's."""

    name: str
    value: float | None
    time_ns: int
    target: Target | None
    parent_id: str | None
    extra: Mapping[str, Any]


def is_annotation(span: OtlpSpan) -> bool:
    """Whether a span is nothing but the note of a reward."""
    return span.name == ANNOTATION or any(_REWARD.fullmatch(name) for name in span.attributes)


def rewards_of(span: OtlpSpan, *, is_call: bool, attribute: str | None) -> Iterator[FoundReward]:
    """The rewards that a span carries. Raises InvalidEvent naming the attribute."""
    yield from _annotated(span)
    yield from _returned(span)
    for event in span.events:
        if event.name == EVALUATION:
            yield _evaluated(span, event.attributes, event.time_ns, is_call)
    if attribute is not None and attribute in span.attributes:
        value = parse_reward(span.attributes[attribute], attribute)
        target = Target("span_id", span.span_id) if is_call else None
        within = span.span_id if span.parent_id is not None and not is_call else None
        yield FoundReward(attribute, value, span.end_ns, target, within, {})


def _annotated(span: OtlpSpan) -> Iterator[FoundReward]:
    found = _numbered(span.attributes, _REWARD)
    if not found and span.name == ANNOTATION and "reward" in span.attributes:
        found = {0: {"value": span.attributes["reward"]}}
    target = _target(span.attributes)
    for index, parts in sorted(found.items()):
        name = parts.get("name", REWARD_NAME)
        if not isinstance(name, str):
            raise refused("text", name, f"agentlightning.reward.{index}.name")
        if "value" not in parts:
            raise refused("a value", "none", f"agentlightning.reward.{index}.value", quote=False)
        value = parse_reward(parts["value"], f"agentlightning.reward.{index}.value")
        yield FoundReward(name, value, span.start_ns, target, span.parent_id, {})


def _returned(span: OtlpSpan) -> Iterator[FoundReward]:
    """A function whose output is a reward."""
    for name in _OUTPUTS:
        text = span.attributes.get(name)
        if not isinstance(text, str) or '"reward"' not in text:
            continue
        try:
            output = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(output, dict) and output.get("type") == "reward":
            value = parse_reward(output.get("value"), name)
            yield FoundReward(REWARD_NAME, value, span.end_ns, _target(span.attributes), span.parent_id, {})
            return


def _evaluated(span: OtlpSpan, given: Mapping[str, Any], time_ns: int, is_call: bool) -> FoundReward:
    name = given.get("gen_ai.evaluation.name", REWARD_NAME)
    if not isinstance(name, str):
        raise refused("text", name, "gen_ai.evaluation.name")
    value = parse_reward(given.get("gen_ai.evaluation.score.value"), "gen_ai.evaluation.score.value")
    response = given.get("gen_ai.response.id")
    target = None
    if isinstance(response, str):
        target = Target("response_id", response)
    elif is_call:
        target = Target("span_id", span.span_id)
    said = {each: given[f"gen_ai.evaluation.{each}"] for each in ("score.label", "explanation")
            if f"gen_ai.evaluation.{each}" in given}  # fmt: skip
    within = span.span_id if target is None and span.parent_id is not None else None
    return FoundReward(name, value, time_ns or span.end_ns, target, within, said)


def _target(attributes: Mapping[str, Any]) -> Target | None:
    """The first link that names a call."""
    for _, parts in sorted(_numbered(attributes, _LINK).items()):
        key, value = parts.get("key_match"), parts.get("value_match")
        if isinstance(value, str) and isinstance(key, str) and key in _TARGETS:
            return Target(_TARGETS[key], value)
    return None


def _numbered(attributes: Mapping[str, Any], name: Any) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for given, value in attributes.items():
        if match := name.fullmatch(given):
            found.setdefault(int(match[1]), {})[match[2]] = value
    return found
