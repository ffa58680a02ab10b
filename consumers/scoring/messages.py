"""The conversation of each call, put together again.

A call stores only the messages after those of its prompt's base. Hosts record the prompt's messages, with or without
the answer behind them; where it is not behind them, it is the assistant message with which a later call goes on: one
that has this call as its base, or else the next of the same agent.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rolloutlog.consumers.scoring.decoded import DecodedCall
from rolloutlog.eventstore.events import Span

ASSISTANT = "assistant"
TOOL_ROLES = ("tool", "function")


class Messages:
    """Of the calls of one rollout, in turn order."""

    def __init__(self, calls: Sequence[DecodedCall]) -> None:
        self._calls = calls
        self._place = {id(call): place for place, call in enumerate(calls)}
        self._spans = {(span.source, span.span_id): span for call in calls for span in call.spans}
        self._own: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._next: dict[int, int] | None = None
        self._based: dict[tuple[str, str], int] = {}

    def of(self, call: DecodedCall) -> list[dict[str, Any]]:
        """A call's conversation, with its answer where that is known."""
        messages = self._recorded(call)
        if not messages or messages[-1].get("role") == ASSISTANT:
            return messages
        for later in self._later(call):
            more = self._recorded(later)
            at = len(messages)
            if len(more) > at and more[at].get("role") == ASSISTANT and more[:at] == messages:
                return [*messages, more[at]]
        return messages

    def _recorded(self, call: DecodedCall) -> list[dict[str, Any]]:
        """As recorded: base's messages and own, of the first of its spans that has any."""
        for span in (call.span, *call.spans):
            found = self._joined(span)
            if found:
                return found
        return []

    def _joined(self, span: Span) -> list[dict[str, Any]]:
        # A chain of bases can be as long as the rollout has calls: walked, not recursed.
        chain, at, seen = [], span, set[str]()
        while at.span_id not in seen:
            seen.add(at.span_id)  # bases of a stranger's events may go round
            chain.append(at)
            base = None if at.prompt_base is None else self._spans.get((at.source, at.prompt_base))
            if base is None:
                break
            at = base
        return [message for each in reversed(chain) for message in self._own_of(each)]

    def _own_of(self, span: Span) -> list[dict[str, Any]]:
        key = (span.source, span.span_id)
        if key not in self._own:
            self._own[key] = _parsed(span.messages)
        return self._own[key]

    def _later(self, call: DecodedCall) -> Iterable[DecodedCall]:
        if self._next is None:
            self._index()
        assert self._next is not None
        places = [self._based.get((span.source, span.span_id)) for span in call.spans]
        places.append(self._next.get(self._place[id(call)]))
        return [self._calls[place] for place in places if place is not None]

    def _index(self) -> None:
        """Of each call the first that has it as base, and the next of its agent."""
        self._next = {}
        last: dict[str | None, int] = {}
        for place, call in enumerate(self._calls):
            for span in call.spans:
                if span.prompt_base is not None:
                    self._based.setdefault((span.source, span.prompt_base), place)
            if call.agent in last:
                self._next[last[call.agent]] = place
            last[call.agent] = place


def text_of(message: Mapping[str, Any]) -> str:
    """A message's text: its content, or the texts of its content's parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)


def transcript_of(messages: Iterable[Mapping[str, Any]]) -> str:
    lines = []
    for message in messages:
        calls = message.get("tool_calls") or ()
        parts = [text_of(message), *(_tool_call(each) for each in calls if isinstance(each, Mapping))]
        lines.append(f"{message.get('role')}: " + "\n".join(filter(None, parts)))
    return "\n\n".join(lines)


def _tool_call(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    named = function if isinstance(function, Mapping) else call
    return f"[calls {named.get('name')}({named.get('arguments', '')})]"


def _parsed(encoded: bytes | None) -> list[dict[str, Any]]:
    try:
        found = json.loads(encoded or b"[]")
    except (ValueError, RecursionError):
        return []  # bytes of a stranger's event
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
