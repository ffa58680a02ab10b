"""Events and records with literal defaults, for tests of pure code."""

from typing import Any

import numpy as np

from rolloutlog.eventstore.codec import HEADER, encode_event, header_of
from rolloutlog.eventstore.events import (
    Event,
    GroupClosed,
    RewardRecorded,
    RolloutCompleted,
    RolloutExpired,
    RolloutStarted,
    RunEnded,
    SourceEnded,
    Span,
)
from rolloutlog.eventstore.log import EVENTS, Record

SECOND_NS = 1_000_000_000
MAIN = "main.00000000000000aa"


def ids(*numbers: int) -> bytes:
    """Token ids, packed."""
    return np.array(numbers, "<i4").tobytes()


def floats(*numbers: float) -> bytes:
    """Log-probs, packed."""
    return np.array(numbers, "<f4").tobytes()


def started(rollout_id: str = "r", sequence: int = 0, **fields: Any) -> RolloutStarted:
    given = {"run_id": "run", "task_id": "t", "group_id": "g", "group_size": 1, "attempt": 0, "source": MAIN,
             "time_ns": 0, **fields}  # fmt: skip
    return RolloutStarted(rollout_id=rollout_id, sequence=sequence, **given)


def call(span_id: str = "c", sequence: int = 1, rollout_id: str = "r", **fields: Any) -> Span:
    given = {"attempt": 0, "source": MAIN, "time_ns": 0, "name": "chat", "kind": "call", "start_ns": sequence,
             "end_ns": sequence, "prompt_ids": ids(1, 2), "response_ids": ids(3, 4), **fields}  # fmt: skip
    return Span(rollout_id=rollout_id, span_id=span_id, sequence=sequence, **given)


def reward(sequence: int, rollout_id: str = "r", **fields: Any) -> RewardRecorded:
    given = {"attempt": 0, "source": MAIN, "time_ns": 0, "value": 1.0, **fields}
    return RewardRecorded(rollout_id=rollout_id, sequence=sequence, **given)


def completed(sequence: int, rollout_id: str = "r", **fields: Any) -> RolloutCompleted:
    given = {"attempt": 0, "source": MAIN, "time_ns": 0, **fields}
    return RolloutCompleted(rollout_id=rollout_id, sequence=sequence, **given)


def ended(sequence: int, source: str, rollout_id: str = "r", **fields: Any) -> SourceEnded:
    return SourceEnded(
        rollout_id=rollout_id, sequence=sequence, source=source, **{"attempt": 0, "time_ns": 0, **fields}
    )


def expired(as_of: int, rollout_id: str = "r", **fields: Any) -> RolloutExpired:
    given = {"attempt": 0, "source": "assembler.00000000000000dd", "sequence": 0, "time_ns": 0, "reason": "idle",
             **fields}  # fmt: skip
    return RolloutExpired(rollout_id=rollout_id, as_of=as_of, **given)


def group_closed(group_id: str = "g", reason: str = "requested", **fields: Any) -> GroupClosed:
    given = {"rollout_id": "", "attempt": 0, "source": "publisher.00000000000000ee", "sequence": 0, "time_ns": 0,
             **fields}  # fmt: skip
    return GroupClosed(group_id=group_id, reason=reason, **given)


def run_ended(sequence: int = 0, **fields: Any) -> RunEnded:
    given = {"rollout_id": "", "attempt": 0, "source": "publisher.00000000000000ee", "time_ns": 0, "run_id": "run",
             **fields}  # fmt: skip
    return RunEnded(sequence=sequence, **given)


def record(event: Event, offset: int, *, key: str = "g", log_time_ns: int = 0, resend: bool = False) -> Record:
    """The stored form of an event."""
    headers = ((HEADER, header_of(event, resend=resend).text()),)
    return Record(EVENTS, 0, offset, log_time_ns, key.encode(), encode_event(event), headers)
