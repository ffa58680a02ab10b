"""Which spans are one call, and whose call it is.

A proxy, a framework and a wrapper may each record the same answer of the policy: spans of kind `call` with one response
id and choice are one call when at least one of them has response token ids.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rolloutlog.consumers.attribution.model import SpanEntry
from rolloutlog.consumers.attribution.tree import NONE, SpanTree


@dataclass(slots=True, eq=False)
class Call:
    """One answer of the policy.

    spans     numbers of its spans, in log order
    named     the span it is named after: the first with response token ids; its times are the call's
    recorded  position in the log of the first of its spans
    judge     beneath an evaluator: neither trained on nor rewarded, and found by no rule
    agent, model  None = has none
    """

    spans: list[int]
    named: SpanEntry
    recorded: int
    judge: bool
    agent: str | None
    model: str | None
    selected: bool = False
    turn_index: int = -1

    @property
    def span_id(self) -> str:
        return self.named.span_id


class Calls:
    """The calls of a rollout.

    every          in the order in which they were recorded, judges' calls included
    turns          without judges' calls, by (start_ns, log order)
    of_span        per span number: the call it belongs to
    agents         of all calls in `turns`; None stands for a call without one
    """

    __slots__ = ("_of_response", "agents", "every", "of_span", "tree", "turns")

    def __init__(self, tree: SpanTree, positions: Sequence[int]) -> None:
        self.tree = tree
        agent_above, _ = tree.nearest_above([kind == "agent" for kind in tree.kind])
        judged = tree.any_above([kind == "evaluator" for kind in tree.kind])
        self.every: list[Call] = []
        self.of_span: list[Call | None] = [None] * len(tree)
        self._of_response: dict[str, Call] = {}
        for members in _together(tree.spans):
            spans = [tree.spans[v] for v in members]
            named = next(span for span in spans if span.token_count > 0)
            call = Call(
                spans=members,
                named=named,
                recorded=positions[members[0]],
                judge=any(judged[v] for v in members),
                agent=next((tree.spans[agent_above[v]].name for v in members if agent_above[v] != NONE), None),
                model=named.model or next((span.model for span in spans if span.model), None),
            )
            self.every.append(call)
            for v in members:
                self.of_span[v] = call
            if call.named.response_id:
                self._of_response.setdefault(call.named.response_id, call)
        # by log order among equal starts: two calls can start in one millisecond
        self.turns = sorted((c for c in self.every if not c.judge), key=lambda c: (c.named.start_ns, c.recorded))
        for turn_index, call in enumerate(self.turns):
            call.turn_index = turn_index
        self.agents = {call.agent for call in self.turns}

    def by_span(self, span_id: str) -> Call | None:
        """The call that a span belongs to, a judge's too."""
        v = self.tree.number.get(span_id)
        return None if v is None else self.of_span[v]

    def by_response(self, response_id: str) -> Call | None:
        """The first recorded call with a response id, a judge's too."""
        return self._of_response.get(response_id)


def in_turn_order(calls: Iterable[Call]) -> list[Call]:
    return sorted(calls, key=lambda call: call.turn_index)


def _together(spans: Sequence[SpanEntry]) -> list[list[int]]:
    """Numbers of the spans of each call, by first span."""
    groups: dict[object, list[int]] = {}
    for v, span in enumerate(spans):
        if span.kind == "call":
            # an empty response id is none: such spans are never joined
            key = (span.response_id, span.choice_index) if span.response_id else v
            groups.setdefault(key, []).append(v)
    return [members for members in groups.values() if any(spans[v].token_count > 0 for v in members)]
