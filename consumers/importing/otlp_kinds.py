"""What a span of a trace is: a call, a tool, an agent, an operation, an evaluator, or something else.

A call within a call, such as a client's around a proxy's, is the same call: the one with token ids counts, else the
outer one. Pure.
"""

from collections.abc import Sequence

from rolloutlog.consumers.importing.otlp_messages import exchange_of, tokens_of
from rolloutlog.consumers.importing.otlp_spans import OtlpSpan
from rolloutlog.eventstore.errors import InvalidEvent

_OPERATIONS = {
    "chat": "call",
    "text_completion": "call",
    "generate_content": "call",
    "execute_tool": "tool",
    "invoke_agent": "agent",
    "create_agent": "agent",
    "invoke_workflow": "operation",
}
_KINDS = {"llm": "call", "tool": "tool", "agent": "agent", "evaluator": "evaluator", "chain": "operation",
          "workflow": "operation", "task": "operation", "operation": "operation"}  # fmt: skip
_KIND_ATTRIBUTES = ("openinference.span.kind", "traceloop.span.kind", "agentops.span.kind")


def kinds_of(spans: Sequence[OtlpSpan]) -> dict[str, str]:
    """Kind by span id. Of calls within calls one remains."""
    by_id = {span.span_id: span for span in spans}
    kinds = {span.span_id: _kind(span) for span in spans}
    for span in sorted(spans, key=lambda each: (each.start_ns, -each.end_ns)):
        if kinds[span.span_id] != "call":
            continue
        outer, seen = span.parent_id, {span.span_id}
        while outer in by_id and kinds[outer] != "call" and outer not in seen:
            seen.add(outer)
            outer = by_id[outer].parent_id
        if outer in by_id and outer not in seen and kinds[outer] == "call":
            inner_counts = _has_tokens(span) and not _has_tokens(by_id[outer])
            kinds[outer if inner_counts else span.span_id] = "other"
    return kinds


def _kind(span: OtlpSpan) -> str:
    attributes = span.attributes
    operation = attributes.get("gen_ai.operation.name")
    if isinstance(operation, str) and operation in _OPERATIONS:
        return _OPERATIONS[operation]
    for name in _KIND_ATTRIBUTES:
        kind = attributes.get(name)
        if isinstance(kind, str) and kind:
            return _KINDS.get(kind.lower(), "other")
    if span.name == "agentlightning.operation":
        return "operation"
    if operation is None and (_has_tokens(span) or _has_messages(span)):
        return "call"
    return "other"


def _has_messages(span: OtlpSpan) -> bool:
    """Whether a span carries messages, well formed or not."""
    try:
        return exchange_of(span) is not None
    except InvalidEvent:
        return True  # refused when they are read


def _has_tokens(span: OtlpSpan) -> bool:
    try:
        return tokens_of(span) is not None
    except InvalidEvent:
        return True  # bad ones, which are refused when they are read


def name_of(span: OtlpSpan, kind: str) -> str:
    named = {"tool": ("gen_ai.tool.name", "tool.name"), "agent": ("gen_ai.agent.name", "agent.name")}
    for attribute in named.get(kind, ()):
        found = span.attributes.get(attribute)
        if isinstance(found, str) and found:
            return found
    return span.name
