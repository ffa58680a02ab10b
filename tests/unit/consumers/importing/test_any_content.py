"""Whatever stands in a file, it becomes events that pass the checks, or is refused by name; never another error."""

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolloutlog.consumers.importing.inputs import Input
from rolloutlog.consumers.importing.jsonl import JsonLines
from rolloutlog.consumers.importing.messages import parse_messages
from rolloutlog.consumers.importing.otlp import Options, parse_traces
from rolloutlog.consumers.importing.rendering import Bytes
from rolloutlog.consumers.importing.rollouts import Rollouts
from rolloutlog.consumers.importing.swe_agent import SweFile, parse_files
from rolloutlog.eventstore.codec import decode_event, parse_header

FILES = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

texts = st.sampled_from(["user", "assistant", "tool", "robot", "", "x" * 600, "\ud800", "[1, 2]", "[[3]]", "{", "1.5"])
messages = st.sampled_from(
    [
        {"role": "user", "content": "Hi?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "t", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": 7},
        {"role": "assistant", "parts": [{"type": "text", "content": "Hi."}, {"type": "tool_call", "name": "f"}]},
        {
            "role": "model",
            "parts": [{"type": "tool_call_response", "id": "t", "response": [1]}],
            "finish_reason": "stop",
        },
        {"parts": 7},
        {},
    ]
)
plain = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.lists(messages, max_size=2) | messages
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2), max_leaves=4
)
written = values | values.map(json.dumps)


def any_value(given: Any) -> Any:
    if isinstance(given, bool):
        return {"boolValue": given}
    if isinstance(given, int):
        return {"intValue": given}
    if isinstance(given, float):
        return {"doubleValue": given}
    if isinstance(given, list):
        return {"arrayValue": {"values": [any_value(each) for each in given]}}
    if isinstance(given, dict):
        return {"kvlistValue": {"values": [{"key": k, "value": any_value(v)} for k, v in given.items()]}}
    return {} if given is None else {"stringValue": given}


names = st.sampled_from(
    [
        "gen_ai.operation.name", "openinference.span.kind", "gen_ai.input.messages", "gen_ai.output.messages",
        "gen_ai.system_instructions", "gen_ai.prompt", "gen_ai.completion", "gen_ai.prompt.0", "gen_ai.prompt.0.role",
        "gen_ai.prompt.0.content", "gen_ai.prompt.0.tool_calls", "gen_ai.prompt.0.tool_calls.0.name",
        "gen_ai.completion.0.content", "gen_ai.completion.0", "gen_ai.completion.²", "llm.input_messages.0.message",
        "llm.input_messages.0.message.role", "llm.input_messages.0.message.contents",
        "llm.input_messages.0.message.contents.0.message_content.text", "llm.input_messages.0.message.tool_calls",
        "llm.output_messages.0.message.content", "prompt_token_ids", "response_token_ids", "logprobs.content",
        "gen_ai.response.id", "gen_ai.response.finish_reasons", "gen_ai.request.model", "gen_ai.tool.name",
        "agentlightning.reward.0.value", "agentlightning.reward.0.name", "agentlightning.link.0.key_match",
        "agentlightning.link.0.value_match", "agentops.task.output", "agentlightning.rollout_id",
        "agentlightning.attempt_id", "gen_ai.event.content", "message", "content", "id", "gen_ai.evaluation.name",
        "gen_ai.evaluation.score.value", "x." + "a." * 2_000,
    ]
)  # fmt: skip
attribute_lists = st.dictionaries(names, written, max_size=5).map(
    lambda given: [{"key": key, "value": any_value(value)} for key, value in given.items()]
)
ids = st.sampled_from([f"00000000000000a{n}" for n in range(6)])
spans = st.fixed_dictionaries(
    {
        "traceId": st.sampled_from(["ab" * 16, "cd" * 16]),
        "spanId": ids,
        "parentSpanId": ids | st.just(""),
        "name": texts,
        "startTimeUnixNano": st.integers(0, 9),
        "endTimeUnixNano": st.integers(0, 9),
        "attributes": attribute_lists,
        "events": st.lists(
            st.fixed_dictionaries(
                {
                    "name": st.sampled_from(
                        ["gen_ai.choice", "gen_ai.user.message", "gen_ai.evaluation.result", "gen_ai.content.prompt"]
                    ),
                    "attributes": attribute_lists,
                }
            ),
            max_size=2,
        ),
        "status": st.sampled_from([None, {}, {"code": 2, "message": 7}]),
    }
)


def check(content: Any) -> None:
    """All that is not refused passes the checks, and both readings agree."""
    survey = content.survey()
    entries = list(content.entries(survey, run_id="run", time_ns=1))
    assert len(entries) == survey.events
    for entry in entries:
        if entry.event is not None:
            header = parse_header(dict(entry.headers)["e"])
            assert decode_event(header.kind, entry.value) == entry.event


@FILES
@given(st.lists(spans, max_size=4))
def test_traces_of_any_content_become_events_or_are_refused(tmp_path: Path, found: list[Any]):
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": found}]}]}))
    options = Options(reward="gen_ai.evaluation.score.value", group="gen_ai.response.id")
    check(Rollouts(lambda: parse_traces(Input(file), options, Bytes()), "ab" * 16, field="span"))


@FILES
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "trajectory": st.lists(
                st.fixed_dictionaries(
                    {}, optional={"response": values, "action": values, "query": values, "state": values}
                ),
                max_size=3,
            ),
            "history": values,
            "info": values,
            "reward": values,
        },
    )
)
def test_trajectories_of_any_content_become_events_or_are_refused(tmp_path: Path, found: Any):
    file = tmp_path / "a.traj"
    file.write_text(json.dumps(found))
    check(Rollouts(lambda: parse_files([SweFile(Input(file), {})], Bytes()), "ab" * 16, field="query"))


@FILES
@given(st.lists(values, max_size=3), written)
def test_messages_of_any_content_become_events_or_are_refused(tmp_path: Path, found: list[Any], reward: Any):
    file = tmp_path / "m.jsonl"
    file.write_text(json.dumps({"task_id": "t", "messages": found, "reward": reward}))
    check(Rollouts(lambda: parse_messages(Input(file), Bytes()), "ab" * 16, field="messages"))


integers = st.integers(-1, 3)
token_lists = st.lists(integers, max_size=3)
good = {
    "RolloutStarted": {"group_id": texts, "group_size": integers, "attempts_max": integers, "metadata": values},
    "Span": {"kind": st.sampled_from(["call", "tool"]), "prompt_ids": token_lists, "response_ids": token_lists,
             "logprobs": st.lists(st.sampled_from([-1, -0.5]), max_size=3), "attributes": values, "span_id": texts},
    "RewardRecorded": {"value": integers | st.floats(), "target": values, "extra_info": values},
    "RolloutCompleted": {"awaited_names": st.lists(texts, max_size=2)},
    "RolloutExpired": {"reason": st.just("idle"), "as_of": integers, "missing_events": values},
    "GroupClosed": {"group_id": texts, "reason": st.sampled_from(["age", "complete", "requested"]), "as_of": integers},
    "RunEnded": {},
}  # fmt: skip
envelopes = {
    "attempt": integers, "sequence": integers, "time_ns": integers, "source": st.just("main.00000000000000aa"),
    "log": st.fixed_dictionaries({}, optional={"key": texts, "flags": st.sampled_from(["r", "-", 7]),
                                               "partition": integers, "offset": integers, "headers": values}),
}  # fmt: skip


@st.composite
def lines(draw: Any) -> dict[str, Any]:
    kind = draw(st.sampled_from(sorted(good)))
    made = draw(st.fixed_dictionaries({}, optional={**good[kind], **envelopes}))
    if kind not in ("GroupClosed", "RunEnded"):
        made["rollout_id"] = draw(st.sampled_from(["r", "s"]))
    if draw(st.integers(0, 9)) == 0:
        made[draw(st.sampled_from(sorted(made) or ["x"]))] = draw(values)
    return {**made, "event": kind}


@FILES
@given(st.lists(lines(), max_size=6), st.booleans())
def test_json_lines_of_any_content_become_events_or_are_refused(tmp_path: Path, found: list[Any], verbatim: bool):
    file = tmp_path / "e.jsonl"
    file.write_text("\n".join(map(json.dumps, found)))
    check(JsonLines(Input(file), verbatim=verbatim))
