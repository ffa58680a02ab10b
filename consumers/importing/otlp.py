"""OpenTelemetry traces in OTLP JSON, as events of rollouts.

One trace is one rollout, unless an attribute of its spans or their resource names it: agent-lightning's
`agentlightning.rollout_id`, or the one that is given. `agentlightning.attempt_id` tells attempts apart. Model calls
become calls, with the token ids that they carry, else those of their messages. What a span is: otlp_kinds; what the
conventions are called: otlp_messages, otlp_rewards.

Order     by the time at which spans end and rewards are given, as hosts publish them
Ended     a root span with status error: failed. An attempt that another followed: failed
Refused   a rollout of which one span is bad: without that span it would be another
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutlog.consumers.importing.chat import check_message, json_text
from rolloutlog.consumers.importing.inputs import Input
from rolloutlog.consumers.importing.otlp_kinds import kinds_of, name_of
from rolloutlog.consumers.importing.otlp_messages import exchange_of, is_token_attribute, tokens_of
from rolloutlog.consumers.importing.otlp_rewards import FoundReward, is_annotation, rewards_of
from rolloutlog.consumers.importing.otlp_spans import OtlpSpan, read_spans
from rolloutlog.consumers.importing.otlp_spool import Spool
from rolloutlog.consumers.importing.rendering import Renderer, Rendering
from rolloutlog.consumers.importing.rollouts import Envelope, Parsed, id_prefix, short, source_of
from rolloutlog.eventstore.checks import ID_CHARACTERS_MAX, refused
from rolloutlog.eventstore.conversation import Conversation
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import (
    COMPLETED,
    FAILED,
    ROLLOUT,
    STEP,
    Event,
    RewardRecorded,
    RolloutCompleted,
    RolloutStarted,
    Span,
)
from rolloutlog.eventstore.extra_info import encode_extra_info
from rolloutlog.eventstore.json_text import json_bytes
from rolloutlog.eventstore.recording import make_recording

ROLLOUT_ATTRIBUTE = "agentlightning.rollout_id"
ATTEMPT_ATTRIBUTE = "agentlightning.attempt_id"

_MODELS = ("gen_ai.response.model", "gen_ai.request.model", "llm.response.model_name", "llm.model_name")


@dataclass(frozen=True, slots=True)
class Options:
    """Names of attributes; None = none. `group`: equal values are one group, and one task."""

    rollout: str | None = None
    group: str | None = None
    reward: str | None = None


@dataclass(frozen=True, slots=True)
class OtlpRollout:
    """The spans of one rollout. `name`: its trace or the value of its attribute; `group_name` None = one of its own."""

    name: str
    group_name: str | None
    spans: Sequence[OtlpSpan]
    options: Options
    rendering: Rendering

    @property
    def group(self) -> str:
        return f"rollout {self.name}" if self.group_name is None else f"group {self.group_name}"

    def events(self, digest: str, *, group_size: int, run_id: str, time_ns: int) -> Iterator[Event]:
        prefix = id_prefix(digest)
        rollout_id = f"{prefix}-{short(self.name)}"
        group_id = rollout_id if self.group_name is None else f"{prefix}-{short(self.group_name)}"
        attempts = _attempts(self.spans)
        for number, spans in enumerate(attempts):
            _check_ids(spans)
            begun_ns = min(span.start_ns for span in spans)
            envelope = Envelope(rollout_id, source_of(digest, rollout_id, number), begun_ns, number)
            yield RolloutStarted(
                **envelope.next(),
                run_id=run_id,
                task_id=short(self.group_name or _root_name(spans) or self.name),
                group_id=group_id,
                group_size=group_size,
                attempts_max=len(attempts),
                metadata=json_text({"trace_id": spans[0].trace_id}),
            )
            yield from _Attempt(spans, envelope, self.options, Renderer(self.rendering)).events()
            error = "another attempt followed" if number + 1 < len(attempts) else _error(spans)
            yield RolloutCompleted(
                **envelope.next(max(span.end_ns for span in spans)),
                status=COMPLETED if error is None else FAILED,
                error=error,
            )


class _Attempt:
    """Makes the events of one attempt."""

    def __init__(self, spans: Sequence[OtlpSpan], envelope: Envelope, options: Options, renderer: Renderer) -> None:
        self._spans, self._envelope, self._options, self._renderer = spans, envelope, options, renderer
        self._conversation = Conversation()
        self._kinds = kinds_of(spans)

    def events(self) -> Iterator[Event]:
        for _, _, made in sorted(self._parts(), key=lambda part: part[:2]):
            yield self._reward(made) if isinstance(made, FoundReward) else self._span(made)

    def _parts(self) -> Iterator[tuple[int, int, OtlpSpan | FoundReward]]:
        """Each with its time, and at one time spans before rewards."""
        for span in self._spans:
            try:
                if not is_annotation(span):
                    yield span.end_ns, 0, span
                is_call = self._kinds[span.span_id] == "call"
                for reward in rewards_of(span, is_call=is_call, attribute=self._options.reward):
                    yield reward.time_ns, 1, reward
            except InvalidEvent as error:
                raise _named(error, span) from error

    def _reward(self, found: FoundReward) -> RewardRecorded:
        of_rollout = found.target is None and found.parent_id is None
        return RewardRecorded(
            **self._envelope.next(found.time_ns),
            name=found.name,
            value=found.value,
            scope=ROLLOUT if of_rollout else STEP,
            target=found.target,
            parent_id=found.parent_id,
            extra_info=encode_extra_info(dict(found.extra)) if found.extra else b"",
        )

    def _span(self, span: OtlpSpan) -> Span:
        kind = self._kinds[span.span_id]
        try:
            fields = self._call_fields(span) if kind == "call" else {}
            attributes = {name: value for name, value in span.attributes.items() if not is_token_attribute(name)}
            if span.error is not None:
                attributes.setdefault("error", span.error)
            return Span(
                **self._envelope.next(span.end_ns),
                span_id=span.span_id,
                parent_id=span.parent_id,
                name=(name_of(span, kind) or kind)[:ID_CHARACTERS_MAX],
                kind=kind,
                start_ns=span.start_ns,
                end_ns=span.end_ns,
                status="ok" if span.error is None else "error",
                attributes=json_bytes(_finite(attributes), "attributes") if attributes else b"",
                links=tuple(span.links),
                **fields,
            )
        except InvalidEvent as error:
            raise _named(error, span) from error

    def _call_fields(self, span: OtlpSpan) -> dict[str, Any]:
        attributes = span.attributes
        fields: dict[str, Any] = {"model": next(filter(None, map(attributes.get, _MODELS)), None)}
        exchange, tokens = exchange_of(span), tokens_of(span)
        response_id = attributes.get("gen_ai.response.id")
        response_id = response_id if isinstance(response_id, str) and response_id else None
        if exchange is None and tokens is None and response_id is None:
            return fields
        prompt = exchange.prompt if exchange is not None else ()
        answer = exchange.answer if exchange is not None else None
        for index, message in enumerate(prompt):
            check_message(message, f"messages[{index}]")
        if answer is not None:
            check_message(answer, "answer")
        prompt_ids: Any = None
        response_ids: Any = None
        if tokens is not None:
            prompt_ids, response_ids = tokens.prompt_ids, tokens.response_ids
        elif answer is not None:
            prompt_ids, response_ids = self._renderer.prompt(prompt), self._renderer.answer(answer)
        recording = make_recording(
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            logprobs=None if tokens is None else tokens.logprobs,
            response_id=response_id,
            choice_index=0,
            finish_reason=_finish_reason(attributes) or (exchange.finish_reason if exchange is not None else None),
            messages=prompt if exchange is not None else None,
            arrays=None,
            trainable=True,
            policy_version=None,
        )
        made = self._conversation.fields(recording)
        self._conversation.remember(span.span_id, recording, made)
        return {**fields, **made}


def parse_traces(file: Input, options: Options, rendering: Rendering) -> Iterator[Parsed]:
    """The rollouts of a file, in the order of their first spans."""
    spool = Spool()
    faults: dict[str, tuple[str, InvalidEvent]] = {}  # trace → its first bad span
    named: dict[str, set[str]] = {}  # trace → the rollouts that its spans name
    try:
        for place, span, trace_id in read_spans(file):
            if isinstance(span, InvalidEvent):
                if trace_id is None:
                    yield place, span
                else:
                    faults.setdefault(trace_id, (place, span))
                continue
            name = _attribute(span, options.rollout or ROLLOUT_ATTRIBUTE)
            if name is None:
                spool.add(f"trace {span.trace_id}", span)
            else:
                spool.add(f"rollout {name}", span)
                named.setdefault(span.trace_id, set()).add(name)
        for trace, names in named.items():
            # Spans that name none are of the rollout that the others of their trace name.
            if len(names) == 1 and f"trace {trace}" in spool:
                spool.merge(f"trace {trace}", f"rollout {next(iter(names))}")
        told = set()
        for key in spool.names():
            spans = _once(spool.spans(key))
            bad = [span.trace_id for span in spans if span.trace_id in faults]
            if bad:
                told.update(bad)
                place, error = faults[bad[0]]
                yield f"{place}, {key}", error
            else:
                yield f"{spans[0].place}, {key}", _rollout(key, spans, options, rendering)
        yield from (fault for trace, fault in faults.items() if trace not in told)
    finally:
        spool.close()


def _rollout(key: str, spans: Sequence[OtlpSpan], options: Options, rendering: Rendering) -> OtlpRollout:
    groups = [_attribute(span, options.group) for span in spans] if options.group is not None else []
    group = next((found for found in groups if found is not None), None)
    return OtlpRollout(key.partition(" ")[2], group, spans, options, rendering)


def _once(spans: list[OtlpSpan]) -> list[OtlpSpan]:
    """Without spans that were exported twice."""
    return list({(span.trace_id, span.span_id): span for span in reversed(spans)}.values())[::-1]


def _check_ids(spans: Sequence[OtlpSpan]) -> None:
    """An attempt may have spans of several traces, whose ids are told apart within a trace alone."""
    traces: dict[str, str] = {}
    for span in spans:
        other = traces.setdefault(span.span_id, span.trace_id)
        if other != span.trace_id:
            got = f"{span.span_id} in traces {other} and {span.trace_id}"
            raise refused("a span id once in all traces of a rollout's attempt", got, "spanId", quote=False)


def _attempts(spans: Sequence[OtlpSpan]) -> list[list[OtlpSpan]]:
    """By attempt, in the order in which they began. Spans that name none are of the last one."""
    by_name: dict[str | None, list[OtlpSpan]] = {}
    for span in spans:
        by_name.setdefault(_attribute(span, ATTEMPT_ATTRIBUTE), []).append(span)
    unnamed = by_name.pop(None, [])
    attempts = sorted(by_name.values(), key=lambda each: min(span.start_ns for span in each))
    if not attempts:
        return [unnamed]
    attempts[-1].extend(unnamed)
    return attempts


def _finish_reason(attributes: Mapping[str, Any]) -> str | None:
    reasons = attributes.get("gen_ai.response.finish_reasons")
    if isinstance(reasons, list) and reasons and isinstance(reasons[0], str):
        return reasons[0]
    return None


def _roots(spans: Sequence[OtlpSpan]) -> list[OtlpSpan]:
    ids = {span.span_id for span in spans}
    return [span for span in spans if span.parent_id not in ids and not is_annotation(span)]


def _root_name(spans: Sequence[OtlpSpan]) -> str | None:
    roots = _roots(spans)
    return min(roots, key=lambda span: span.start_ns).name if roots else None


def _error(spans: Sequence[OtlpSpan]) -> str | None:
    return next((span.error for span in _roots(spans) if span.error is not None), None)


def _attribute(span: OtlpSpan, name: str) -> str | None:
    value = span.attributes.get(name, span.resource.get(name))
    return None if value is None or value == "" else str(value)


def _finite(value: Any) -> Any:
    """What JSON lacks, as text."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return value


def _named(error: InvalidEvent, span: OtlpSpan) -> InvalidEvent:
    return InvalidEvent(f"span {span.span_id}: {error}", reason=error.reason, field=error.field)
