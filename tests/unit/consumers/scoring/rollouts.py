"""Closed rollouts for scorers: from events, folded without being settled."""

import json
from typing import Any

from support.building import MAIN, call, completed, ids, record, reward, started

from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.outputs import GroupLeft
from rolloutlog.consumers.scoring import RolloutView, view_of
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState, Rollout
from rolloutlog.eventstore.events import Event, Span

CLOSED_NS = 9_000


def closed(*events: Event, **start: Any) -> Rollout:
    """The rollout `r` of one group, whose events these are; its start and end are added."""
    end = completed(len(events) + 1) if not any(each.record == "RolloutCompleted" for each in events) else None
    state = PartitionState(0, FoldSettings(), settles=False)
    left = None
    for offset, event in enumerate(filter(None, [started(**start), *events, end])):
        for output in fold(state, record(event, offset)):
            left = output if isinstance(output, GroupLeft) else left
    assert left is not None
    return left.group.rollouts["r"]


def view(*events: Event, **start: Any) -> RolloutView:
    return view_of(closed(*events, **start), 0, closed_ns=CLOSED_NS)


def span(span_id: str, sequence: int, kind: str, **fields: Any) -> Span:
    given = {"attempt": 0, "source": MAIN, "time_ns": 0, "name": span_id, "start_ns": sequence, "end_ns": sequence,
             **fields}  # fmt: skip
    return Span(rollout_id="r", span_id=span_id, sequence=sequence, kind=kind, **given)


def messages(*pairs: str) -> bytes:
    """`role: content` each."""
    return json.dumps([dict(zip(("role", "content"), pair.split(": ", 1), strict=True)) for pair in pairs]).encode()


def conversation() -> tuple[Event, ...]:
    """Two calls that go on from each other, a tool between them, a reward of each scope."""
    asked, answered = "user: How many users?", "assistant: select count(*)"
    return (
        call("c1", 1, messages=messages(asked, answered), prompt_ids=ids(*range(100)), logprobs=None),
        span("t1", 2, "tool", attributes=b'{"rows": 1}'),
        call(
            "c2",
            3,
            messages=messages("tool: 42", "assistant: There are 42."),
            prompt_base="c1",
            prompt_base_tokens=101,
            prompt_ids=ids(7),
        ),
        reward(4, name="parses", value=0.5, target=None),
        reward(5, value=1.0, scope="rollout", extra_info=b'{"rows": 3}'),
    )
