"""Events: the immutable facts of a rollout, as values.

Every event has the envelope `rollout_id, attempt, source, sequence, time_ns`; (rollout, attempt, source, sequence) is
its identity. Fields, units and meaning stand in `schemas/{Kind}.v1.avsc`, one field here for each field there.

Token ids are int32 little-endian bytes, log-probs float32 little-endian bytes (`tokens`, `logprobs` make them): fifty
times faster to write and read than arrays of numbers.

Not here  bytes of an event: eventstore.codec; what is refused: eventstore.checks
"""

from dataclasses import dataclass
from typing import ClassVar

STEP, ROLLOUT = "step", "rollout"

SPAN_KINDS = ("agent", "operation", "call", "tool", "evaluator", "other")
SPAN_STATUSES = ("ok", "error")
SPLITS = ("train", "val", "test")
SCOPES = (STEP, ROLLOUT)
TARGET_KEYS = ("span_id", "response_id", "operation")
COMPLETED, FAILED = "completed", "failed"
IDLE, AGE, GRACE, RETRY, REPLAY_BYTES = "idle", "age", "grace", "retry", "replay_bytes"
EXPIRY_REASONS = (IDLE, AGE, GRACE, RETRY)
COMPLETE, REQUESTED = "complete", "requested"
DECIDED_GROUP_REASONS = (AGE, REPLAY_BYTES)  # by the partition's owner, as of some event
GROUP_REASONS = (COMPLETE, REQUESTED, *DECIDED_GROUP_REASONS)


@dataclass(frozen=True, kw_only=True)
class Event:
    """The envelope. `source` is `{name}.{16 hex digits}`; `sequence` counts from 0 within it."""

    record: ClassVar[str] = "Event"

    rollout_id: str
    attempt: int
    source: str
    sequence: int
    time_ns: int


@dataclass(frozen=True, kw_only=True)
class RolloutStarted(Event):
    record: ClassVar[str] = "RolloutStarted"

    run_id: str
    task_id: str
    group_id: str
    group_size: int | None = None
    split: str = "train"
    attempts_max: int = 1
    policy_version: int | None = None
    metadata: bytes = b""


@dataclass(frozen=True, slots=True)
class PolicyVersionRun:
    """`tokens` consecutive response tokens written by one policy version; None = unknown."""

    policy_version: int | None
    tokens: int


@dataclass(frozen=True, slots=True)
class TokenArray:
    """Values per response token: C-order bytes of `dtype` and `shape`, first axis = response tokens."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Span(Event):
    record: ClassVar[str] = "Span"

    span_id: str
    parent_id: str | None = None
    name: str
    kind: str
    start_ns: int
    end_ns: int
    status: str = "ok"
    attributes: bytes = b""
    links: tuple[str, ...] = ()
    model: str | None = None
    response_id: str | None = None
    choice_index: int = 0
    prompt_base: str | None = None
    prompt_base_tokens: int = 0
    prompt_ids: bytes | None = None
    response_ids: bytes | None = None
    logprobs: bytes | None = None
    policy_version_runs: tuple[PolicyVersionRun, ...] = ()
    finish_reason: str | None = None
    messages: bytes | None = None
    arrays: tuple[TokenArray, ...] = ()
    trainable: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """What a step reward is linked to: one of TARGET_KEYS and its value."""

    key: str
    value: str


@dataclass(frozen=True, kw_only=True)
class RewardRecorded(Event):
    record: ClassVar[str] = "RewardRecorded"

    reward_id: str | None = None
    name: str = "reward"
    value: float | None = None
    scope: str = STEP
    target: Target | None = None
    parent_id: str | None = None
    after_call: str | None = None
    supersedes: str | None = None
    scorer: str | None = None
    scorer_version: str | None = None
    extra_info: bytes = b""

    @property
    def id(self) -> str:
        """The reward's identity: `reward_id`, by default its source and sequence."""
        return f"{self.source}:{self.sequence}" if self.reward_id is None else self.reward_id


@dataclass(frozen=True, kw_only=True)
class RolloutCompleted(Event):
    record: ClassVar[str] = "RolloutCompleted"

    status: str = COMPLETED
    error: str | None = None
    awaited_names: tuple[str, ...] = ()
    awaited_rewards: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SourceEnded(Event):
    record: ClassVar[str] = "SourceEnded"


@dataclass(frozen=True, kw_only=True)
class RolloutHeartbeat(Event):
    record: ClassVar[str] = "RolloutHeartbeat"


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event):
    record: ClassVar[str] = "RunEnded"

    run_id: str


@dataclass(frozen=True, slots=True)
class MissingEvents:
    """A gap in a source's events, both ends included."""

    source: str
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class RolloutExpired(Event):
    record: ClassVar[str] = "RolloutExpired"

    reason: str
    as_of: int
    missing_events: tuple[MissingEvents, ...] = ()
    missing_names: tuple[str, ...] = ()
    missing_rewards: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupClosed(Event):
    record: ClassVar[str] = "GroupClosed"

    group_id: str
    reason: str
    as_of: int | None = None


KINDS: dict[str, type[Event]] = {
    kind.record: kind
    for kind in (
        RolloutStarted,
        Span,
        RewardRecorded,
        RolloutCompleted,
        SourceEnded,
        RolloutHeartbeat,
        RunEnded,
        RolloutExpired,
        GroupClosed,
    )
}

# Kinds that belong to no rollout: their envelope's rollout_id is empty and their attempt 0.
WITHOUT_ROLLOUT = frozenset({RunEnded.record, GroupClosed.record})
