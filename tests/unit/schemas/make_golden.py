"""Golden records: one of every schema, its bytes in `schemas/golden/{Record}.v{N}.bin` with a `.json` beside.

`python tests/unit/schemas/make_golden.py` writes the files of newest versions that are missing. It never changes one:
`python -m rolloutlog.schemas.release` then pins them (docs/schemas.md).
"""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from rolloutlog.eventstore.codec import encode_record
from rolloutlog.eventstore.events import (
    Event,
    GroupClosed,
    MissingEvents,
    PolicyVersionRun,
    RewardRecorded,
    RolloutCompleted,
    RolloutExpired,
    RolloutHeartbeat,
    RolloutStarted,
    RunEnded,
    SourceEnded,
    Span,
    Target,
    TokenArray,
)
from rolloutlog.schemas import newest, versions
from rolloutlog.schemas.release import to_json

GOLDEN = Path(__file__).parents[3] / "schemas" / "golden"

MAIN = "main.00112233445566aa"
TIME_NS = 1_700_000_000_123_456_789


def _ids(*tokens: int) -> bytes:
    return np.array(tokens, "<i4").tobytes()


def _floats(*numbers: float) -> bytes:
    return np.array(numbers, "<f4").tobytes()


def _in(sequence: int, source: str = MAIN) -> dict[str, Any]:
    return {"rollout_id": "r-7", "attempt": 1, "source": source, "sequence": sequence, "time_ns": TIME_NS + sequence}


def _without(sequence: int) -> dict[str, Any]:
    envelope = _in(sequence, "publisher.ffeeddccbbaa0099")
    return {**envelope, "rollout_id": "", "attempt": 0}


EVENTS: tuple[Event, ...] = (
    RolloutStarted(
        **_in(0), run_id="5a" * 16, task_id="airline-3", group_id="g-1", group_size=4, split="val", attempts_max=3,
        policy_version=0, metadata=b'{"host":"h\xc3\xb6st"}',
    ),
    Span(
        **_in(1), span_id="s-2", parent_id="s-0", name="chat", kind="call", start_ns=TIME_NS, end_ns=TIME_NS + 9,
        status="error", attributes=b'{"a":1}', links=("s-1", "s-0"), model="policy", response_id="resp-1",
        choice_index=1, prompt_base="s-1", prompt_base_tokens=70, prompt_ids=_ids(0, 2**31 - 1),
        response_ids=_ids(7, 8, 9), logprobs=_floats(-0.5, -0.25, 0.0),
        policy_version_runs=(PolicyVersionRun(3, 2), PolicyVersionRun(None, 1)), finish_reason="stop",
        messages=b'[{"role":"user","content":"hi"}]',
        arrays=(TokenArray("experts", "|u1", (3, 2), bytes(range(6))),), trainable=False,
    ),
    RewardRecorded(
        **_in(2), reward_id="w-1", name="format", value=-0.125, scope="step", target=Target("operation", "check_query"),
        parent_id="s-0", after_call="s-2", supersedes="w-0", scorer="judge", scorer_version="2",
        extra_info=b'{"acc":{"$nan":1}}',
    ),
    RolloutCompleted(
        **_in(3), status="failed", error="ValueError: no", awaited_names=("gateway",), awaited_rewards=("format", "a"),
    ),
    SourceEnded(**_in(4, "gateway.0123456789abcdef")),
    RolloutHeartbeat(**_in(5)),
    RunEnded(**_without(0), run_id="5a" * 16),
    RolloutExpired(
        **_in(0, "assembler.0123456789abcdef"), reason="grace", as_of=88_213,
        missing_events=(MissingEvents(MAIN, 3, 5),), missing_names=("gateway",), missing_rewards=("format",),
    ),
    GroupClosed(**_without(1), group_id="g-1", reason="age", as_of=2**40),
)  # fmt: skip

_ROLLOUT = {
    "rollout_id": "r-7", "attempt": 1, "task_id": "airline-3", "split": "train", "status": "emitted", "reason": "none",
    "error": "ValueError: no", "policy_version": 3, "turn_count": 2, "final": {"reward": 1.0},
    "outcomes": [
        {
            "reward_id": "w-1", "name": "format", "value": 0.5, "scope": "step", "outcome": "attributed",
            "rule": "enclosing", "calls": ["s-2"], "found": [], "scorer": "judge", "scorer_version": "2", "offset": 12,
        }
    ],
    "extra_info_refused": ["uid"], "first_event": 10, "closing_event": 14, "metadata": b"{}",
}  # fmt: skip
_SAMPLE = {
    "sample_id": "r-7/1/s-2", "rollout_index": 0, "turn_index": 1, "span_ids": ["s-2"], "prompt_ids": _ids(1, 2),
    "response_ids": _ids(3, 4), "response_mask": b"\x01\x01", "logprobs": _floats(-0.5, -1.0),
    "policy_version_runs": [{"policy_version": 3, "tokens": 2}], "total": 1.5, "step": {"format": 0.5},
    "final": {"reward": 1.0}, "reward_token_index": _ids(1), "reward_token_value": np.array([1.5], "<f8").tobytes(),
    "extra_info": b'{"acc":1}', "model": "policy", "finish_reason": "stop",
    "final_total": 1.0, "call_tokens": _ids(0, 2),
    "arrays": [{"name": "experts", "dtype": "|u1", "shape": [2], "data": b"\x01\x02"}],
}  # fmt: skip

RECORDS: dict[str, dict[str, Any]] = {
    "RunCreated": {"run_id": "5a" * 16, "partitions": 32, "created_ns": TIME_NS},
    "OwnerClaimed": {
        "app": "assembler", "topic": "events", "partition": 3, "host": "h", "pid": 4711, "time_ns": TIME_NS,
    },
    "ImportRecorded": {
        "digest": "ab" * 16, "file": "a.jsonl", "status": "finished", "offsets": [{"partition": 1, "offset": 2}],
        "lines": 40, "rollouts": 39, "refused": 1, "time_ns": TIME_NS,
    },
    "StepAcknowledged": {
        "reader": "trainer", "step": 7, "policy_version": 8, "batch_ids": ["cd" * 16],
        "samples": [{"sample_id": "r-7/1/s-2", "end": "trained"}], "offsets": [{"partition": 0, "offset": 9}],
        "time_ns": TIME_NS, "topic": "output.judged",
    },
    "StepAwaited": {
        "reader": "trainer", "step": 7, "groups": 3, "time_ns": TIME_NS, "topic": "output.judged",
    },
    "Rewound": {
        "reader": "trainer", "step": 5, "offsets": [{"partition": 0, "offset": 9}], "policy_version": 6,
        "time_ns": TIME_NS, "line": TIME_NS - 1, "topic": "output.judged",
    },
    "AssemblerStatus": {
        "app": "assembler", "partition": 1, "host": "h", "pid": 4711, "time_ns": TIME_NS, "position": 20,
        "watermark": 10, "end": 21, "open_rollouts": 2, "open_groups": 1, "oldest_open_ns": TIME_NS,
        "counts": {"conflict": 1}, "waiting": ["group g-1: 1 of 2 rollouts started"], "ended": True,
    },
    "ArchivedRecord": {
        "offset": 2**40, "log_time_ns": TIME_NS, "key": b"g-1", "value": b"\xc3\x01", "headers": [
            {"name": "e", "value": b"Span/-/0/1/main.00112233445566aa/r-7"}, {"name": "none", "value": None},
        ],
    },
    "OutputCreated": {
        "name": "judged", "run_id": "5a" * 16, "config_hash": "01" * 16, "settings": b'{"merge":"none"}',
        "scorers": [{"name": "judge", "version": "2", "source": "23" * 16, "deterministic": False}],
        "selection": {"from_ns": TIME_NS, "to_ns": None, "groups": ["g-1"], "rollouts": ["r-7"]},
        "first": [10, 0], "ends": [2**40, 7], "rewards_ends": [3, 0], "time_ns": TIME_NS, "source": "log",
        "record": True, "rewards_before_ns": TIME_NS,
        "rewards_of": [{"name": "slow", "version": "1"}, {"name": "old", "version": None}],
    },
    "SettingsUsed": {"config_hash": "01" * 16, "settings": b'{"merge":"none"}', "time_ns": TIME_NS},
    "TrainingBatch": {
        "batch_id": "ef" * 16, "group_id": "g-1", "run_id": "5a" * 16, "config_hash": "01" * 16, "input_partition": 3,
        "trigger": 14, "first_event": 10, "closed_ns": TIME_NS, "closed_reason": "complete", "group_size": 4,
        "policy_version_min": 3, "policy_version_max": 4, "reason": "min_group", "part": 0, "parts": 1,
        "rollouts": [_ROLLOUT], "samples": [_SAMPLE],
    },
}  # fmt: skip


def golden_fields() -> dict[str, dict[str, Any]]:
    """Record name → the fields of its golden record, as the codec takes and gives them."""
    plain = {event.record: {f.name: _plain(getattr(event, f.name)) for f in fields(event)} for event in EVENTS}
    return {**plain, **RECORDS}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, PolicyVersionRun | TokenArray | Target | MissingEvents):
        return {key: _plain(item) for key, item in asdict(value).items()}
    return value


def main() -> None:
    for name, values in golden_fields().items():
        stem = GOLDEN / f"{name}.v{newest(name).version}"
        if not stem.with_name(stem.name + ".bin").exists():
            stem.with_name(stem.name + ".bin").write_bytes(encode_record(name, values))
            stem.with_name(stem.name + ".json").write_text(to_json(values), encoding="utf-8")
            print("wrote", stem.name)
    assert {schema.name for schema in versions()} == set(golden_fields())


if __name__ == "__main__":
    main()
