"""A closed rollout's records, decoded once for all who look at it. Nothing is decoded before it is asked for.

What is in it is immutable, and guarded by a lock: scorers look from threads of their own.

Not here  what a scorer sees of it: scoring.view
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import RLock

from rolloutlog.consumers.attribution import SpanEntry
from rolloutlog.consumers.attribution.tree import NONE, SpanTree
from rolloutlog.consumers.closing import decode_span
from rolloutlog.consumers.state import Rollout
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import RewardRecorded, Span
from rolloutlog.eventstore.prompts import PromptRestore


@dataclass(frozen=True, slots=True)
class DecodedCall:
    """Spans that recorded one answer, in log order. `span`: the first with response tokens, else the first."""

    span: Span
    spans: tuple[Span, ...]
    agent: str | None


class DecodedRollout:
    """The records of the attempt that counts."""

    def __init__(self, rollout: Rollout, partition: int) -> None:
        assert rollout.closed is not None
        self.closing = rollout.closed
        self.attempt = rollout.attempt
        self.rollout = rollout
        self._partition = partition
        # as they are now: rewards are added behind them, and they are let go of when the rollout is settled
        self._records = tuple(rollout.attempt.records)
        self._lock = RLock()

    @property
    def record_count(self) -> int:
        return len(self._records)

    @property
    def rewards(self) -> tuple[RewardRecorded, ...]:
        """In log order, each id once."""
        with self._lock:
            return self._rewards

    @property
    def spans(self) -> tuple[Span, ...]:
        """In log order, each id once, without those that are refused."""
        with self._lock:
            return self._spans

    @property
    def calls(self) -> tuple[DecodedCall, ...]:
        """In turn order, without judges' calls."""
        with self._lock:
            return self._calls

    def prompt(self, span: Span) -> bytes:
        """A call's full prompt. Raises InvalidEvent when it cannot be restored."""
        with self._lock:
            return self._prompts.prompt(span)

    @cached_property
    def _rewards(self) -> tuple[RewardRecorded, ...]:
        found: dict[str, RewardRecorded] = {}
        for stored in self._records:
            if stored.kind == RewardRecorded.record:
                found.setdefault(stored.event.id, stored.event)
        return tuple(found.values())

    @cached_property
    def _spans(self) -> tuple[Span, ...]:
        found: dict[str, Span] = {}
        for stored in self._records:
            if stored.kind == Span.record:
                try:
                    span = decode_span(stored, self.rollout, self._partition)
                except InvalidEvent:
                    continue  # the rollout ends as incomplete: said where it is settled
                found.setdefault(span.span_id, span)
        return tuple(found.values())

    @cached_property
    def _calls(self) -> tuple[DecodedCall, ...]:
        agents, judged = _above(self._spans)
        groups: dict[object, list[int]] = {}
        for number, span in enumerate(self._spans):
            if span.kind == "call":
                key = (span.response_id, span.choice_index) if span.response_id else number
                groups.setdefault(key, []).append(number)
        calls: list[tuple[int, int, DecodedCall]] = []
        for numbers in groups.values():
            if not any(judged[number] for number in numbers):
                spans = tuple(self._spans[number] for number in numbers)
                span = next((each for each in spans if each.response_ids), spans[0])
                agent = next((agents[number] for number in numbers if agents[number] is not None), None)
                calls.append((span.start_ns, numbers[0], DecodedCall(span, spans, agent)))
        calls.sort(key=lambda each: each[:2])
        return tuple(call for _, _, call in calls)

    @cached_property
    def _prompts(self) -> PromptRestore:
        restore = PromptRestore()
        for span in self._spans:
            if span.kind == "call":
                restore.add(span)
        return restore


def _above(spans: Sequence[Span]) -> tuple[list[str | None], list[bool]]:
    """Per span: the name of the nearest agent above it, and whether it lies beneath an evaluator."""
    kinds = {span.kind for span in spans}
    agents: list[str | None] = [None] * len(spans)
    judged = [False] * len(spans)
    if not kinds & {"agent", "evaluator"}:
        return agents, judged
    tree = SpanTree([SpanEntry(span.span_id, span.parent_id, span.kind, span.name) for span in spans], ())
    if "agent" in kinds:
        above, _ = tree.nearest_above([kind == "agent" for kind in tree.kind])
        agents = [None if above[v] == NONE else spans[above[v]].name for v in range(len(spans))]
    if "evaluator" in kinds:
        judged = tree.any_above([kind == "evaluator" for kind in tree.kind])[: len(spans)]
    return agents, judged
