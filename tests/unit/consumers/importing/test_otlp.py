"""OTLP JSON: how traces become rollouts, calls and rewards, in each of the conventions."""

import json
from pathlib import Path
from typing import Any

import pytest

from rolloutlog.consumers.importing.inputs import Input
from rolloutlog.consumers.importing.otlp import Options, OtlpRollout, parse_traces
from rolloutlog.consumers.importing.rendering import Bytes
from rolloutlog.eventstore.checks import check_event
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import Event, RewardRecorded, RolloutCompleted, RolloutStarted, Span, Target
from rolloutlog.eventstore.prompts import PromptRestore
from rolloutlog.eventstore.tokens import unpack_token_ids

TRACE = "5b8efff798038103d269b633813fc60c"
ROOT, CALL, TOOL, OTHER = "00000000000000a1", "00000000000000a2", "00000000000000a3", "00000000000000a4"


def value(given: Any) -> dict[str, Any]:
    """A plain value as an AnyValue."""
    if isinstance(given, bool):
        return {"boolValue": given}
    if isinstance(given, int):
        return {"intValue": str(given)}
    if isinstance(given, float):
        return {"doubleValue": given}
    if isinstance(given, list):
        return {"arrayValue": {"values": [value(each) for each in given]}}
    if isinstance(given, dict):
        return {"kvlistValue": {"values": attributes(given)}}
    return {"stringValue": given}


def attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": value(each)} for name, each in given.items()]


def span(span_id: str, parent: str = "", start: int = 0, end: int = 10, name: str = "x", **fields: Any) -> Any:
    """`fields`: of the span as OTLP has them; `given`: its attributes."""
    given = fields.pop("given", {})
    return {
        "traceId": TRACE,
        "spanId": span_id,
        "parentSpanId": parent,
        "name": name,
        "kind": 3,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": attributes(given),
        "status": {},
        **fields,
    }


def event(name: str, time: int = 5, **given: Any) -> dict[str, Any]:
    return {
        "name": name,
        "timeUnixNano": str(time),
        "attributes": attributes({key.replace("__", "."): each for key, each in given.items()}),
    }


def request(*spans: Any, resource: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": attributes({"service.name": "agent", **(resource or {})})},
                "scopeSpans": [{"scope": {"name": "openai"}, "spans": list(spans)}],
            }
        ]
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "traces.jsonl"


def parse(file: Path, *requests: Any, **options: str) -> list[tuple[str, OtlpRollout | InvalidEvent]]:
    file.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in requests))
    return list(parse_traces(Input(file), Options(**options), Bytes()))  # type: ignore[arg-type]


def made_of(rollout: Any) -> list[Event]:
    if isinstance(rollout, InvalidEvent):
        raise rollout
    made = list(rollout.events("ab" * 16, group_size=1, run_id="run", time_ns=0))
    for each in made:
        check_event(each)
    return made


def events(file: Path, *spans: Any, **options: str) -> list[Event]:
    """The events of the only rollout."""
    ((_, rollout),) = parse(file, request(*spans), **options)
    return made_of(rollout)


def refusal(file: Path, *spans: Any) -> str:
    with pytest.raises(InvalidEvent) as caught:
        events(file, *spans)
    return str(caught.value)


def spans_of(made: list[Event]) -> dict[str, Span]:
    return {each.span_id: each for each in made if isinstance(each, Span)}


def text(packed: bytes | None) -> str:
    return bytes((packed or b"")[::4]).decode()


def rewards_of(made: list[Event]) -> list[tuple[Any, ...]]:
    return [
        (each.name, each.value, each.scope, each.target, each.parent_id)
        for each in made
        if isinstance(each, RewardRecorded)
    ]


# Conventions of messages

PROMPT = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n"
ANSWER = 'Look.\n<tool_call>{"name": "find", "arguments": "{\\"q\\":1}"}</tool_call><|im_end|>\n'
ARGUMENTS = '{"q":1}'

NEWER = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m-1",
    "gen_ai.response.id": "resp-1",
    "gen_ai.response.finish_reasons": ["tool_calls"],
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
    "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "Hi?"}]}]),
    "gen_ai.output.messages": json.dumps(
        [
            {
                "role": "assistant",
                "parts": [
                    {"type": "reasoning", "content": "hm"},
                    {"type": "text", "content": "Look."},
                    {"type": "tool_call", "id": "t", "name": "find", "arguments": ARGUMENTS},
                ],
                "finish_reason": "tool_call",
            }
        ]
    ),
}
OLDER = {
    "gen_ai.request.model": "m-1",
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "Be brief.",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": "Hi?",
    "gen_ai.completion.0.content": "Look.",
    "gen_ai.completion.0.finish_reason": "tool_calls",
    "gen_ai.completion.0.tool_calls.0.id": "t",
    "gen_ai.completion.0.tool_calls.0.name": "find",
    "gen_ai.completion.0.tool_calls.0.arguments": ARGUMENTS,
}
OPEN_INFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "m-1",
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "Be brief.",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.contents.0.message_content.type": "text",
    "llm.input_messages.1.message.contents.0.message_content.text": "Hi?",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "Look.",
    "llm.output_messages.0.message.tool_calls.0.tool_call.id": "t",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "find",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": ARGUMENTS,
}
TOOL_CALLS = [{"id": "t", "type": "function", "function": {"name": "find", "arguments": ARGUMENTS}}]
ONE_TEXT = {
    "gen_ai.request.model": "m-1",
    "gen_ai.prompt": json.dumps([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi?"}]),
    "gen_ai.completion": json.dumps([{"role": "assistant", "content": "Look.", "tool_calls": TOOL_CALLS}]),
}
STRUCTURED = {
    **NEWER,
    "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "Hi?"}]}],
}
BY_EVENTS = [
    event("gen_ai.system.message", content="Be brief."),
    event("gen_ai.user.message", gen_ai__event__content=json.dumps({"content": "Hi?"})),
    event(
        "gen_ai.choice",
        index=0,
        finish_reason="tool_calls",
        message=json.dumps({"role": "assistant", "content": "Look.", "tool_calls": TOOL_CALLS}),
    ),
]
DETAILS = [
    {
        "name": "gen_ai.client.inference.operation.details",
        "timeUnixNano": "5",
        "attributes": attributes({name: NEWER[name] for name in NEWER if "messages" in name or "system" in name}),
    }
]


@pytest.mark.parametrize(
    "made",
    [
        span(CALL, given=NEWER),
        span(CALL, given=STRUCTURED),
        span(CALL, given=OLDER),
        span(CALL, given=OPEN_INFERENCE),
        span(CALL, given=ONE_TEXT),
        span(CALL, given={"gen_ai.request.model": "m-1", "gen_ai.operation.name": "chat"}, events=BY_EVENTS),
        span(CALL, given={"gen_ai.request.model": "m-1", "gen_ai.operation.name": "chat"}, events=DETAILS),
    ],
    ids=["newer", "structured", "older", "openinference", "one text", "events", "details"],
)
def test_call_of_any_convention_has_the_same_prompt_and_answer(file: Path, made: Any):
    (call,) = spans_of(events(file, made)).values()
    assert (call.kind, call.model) == ("call", "m-1")
    assert (text(call.prompt_ids), text(call.response_ids)) == (PROMPT, ANSWER)


def test_call_has_response_id_finish_reason_and_messages(file: Path):
    (call,) = spans_of(events(file, span(CALL, given=NEWER))).values()
    assert (call.response_id, call.finish_reason) == ("resp-1", "tool_calls")
    assert json.loads(call.messages or b"")[1] == {"role": "user", "content": "Hi?"}


def test_calls_that_go_on_share_their_prompt(file: Path):
    longer = [
        {"role": "user", "parts": [{"type": "text", "content": "Hi?"}]},
        json.loads(str(NEWER["gen_ai.output.messages"]))[0],
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "t", "response": {"found": 7}}]},
    ]
    following = {**NEWER, "gen_ai.input.messages": json.dumps(longer), "gen_ai.response.id": "resp-2"}
    made = spans_of(events(file, span(CALL, given=NEWER), span(OTHER, start=20, end=30, given=following)))
    restore = PromptRestore()
    for each in made.values():
        restore.add(each)
    assert made[OTHER].prompt_base == CALL
    assert text(restore.prompt(made[OTHER])) == (
        f'{PROMPT}{ANSWER}<|im_start|>tool\n{{"found": 7}}<|im_end|>\n<|im_start|>assistant\n'
    )


@pytest.mark.parametrize(
    "given",
    [
        {"prompt_token_ids": [1, 2], "response_token_ids": [3, 4], "response_logprobs": [-0.5, -0.25]},
        {"prompt_token_ids": "[1, 2]", "response_token_ids": "[3, 4]",
         "logprobs.content": '[{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]'},
        {"llm.hosted_vllm.prompt_token_ids": "[1, 2]", "llm.hosted_vllm.response_token_ids": "[[3, 4]]",
         "response_logprobs": [-0.5, -0.25]},
    ],
)  # fmt: skip
def test_call_with_token_ids_has_those_and_not_its_texts(file: Path, given: dict[str, Any]):
    (call,) = spans_of(events(file, span(CALL, given={**NEWER, **given}))).values()
    assert unpack_token_ids(call.prompt_ids or b"").tolist() == [1, 2]
    assert unpack_token_ids(call.response_ids or b"").tolist() == [3, 4]
    assert call.logprobs == b"\0\0\0\xbf\0\0\x80\xbe"
    assert "token_ids" not in call.attributes.decode()


def test_call_without_content_is_recorded_without_tokens(file: Path):
    (call,) = spans_of(events(file, span(CALL, given={"gen_ai.operation.name": "chat"}))).values()
    assert (call.kind, call.prompt_ids, call.response_ids) == ("call", None, None)


# Spans


def test_trace_becomes_a_rollout_with_its_spans_by_their_ends(file: Path):
    made = events(
        file,
        span(ROOT, "", 0, 100, "agent run", given={"openinference.span.kind": "AGENT", "agent.name": "bob"}),
        span(CALL, ROOT, 10, 20, given=NEWER),
        span(TOOL, ROOT, 30, 40, given={"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "find"}),
    )
    assert [getattr(each, "span_id", type(each).__name__) for each in made] == [
        "RolloutStarted", CALL, TOOL, ROOT, "RolloutCompleted",
    ]  # fmt: skip
    spans = spans_of(made)
    assert [(each.kind, each.name, each.parent_id) for each in spans.values()] == [
        ("call", "x", ROOT),
        ("tool", "find", ROOT),
        ("agent", "bob", None),
    ]
    assert (spans[TOOL].start_ns, spans[TOOL].end_ns, spans[TOOL].time_ns) == (30, 40, 40)
    start = made[0]
    assert isinstance(start, RolloutStarted)
    assert (start.rollout_id, start.group_id, start.group_size) == (
        f"import-abababababab-{TRACE}",
        f"import-abababababab-{TRACE}",
        1,
    )
    assert start.task_id == "agent run"


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"openinference.span.kind": "CHAIN"}, "operation"),
        ({"openinference.span.kind": "EVALUATOR"}, "evaluator"),
        ({"openinference.span.kind": "RETRIEVER"}, "other"),
        ({"traceloop.span.kind": "workflow"}, "operation"),
        ({"traceloop.span.kind": "tool"}, "tool"),
        ({"gen_ai.operation.name": "embeddings", "gen_ai.request.model": "e"}, "other"),
        ({"http.method": "GET"}, "other"),
    ],
)
def test_span_has_the_kind_that_its_convention_says(file: Path, given: dict[str, Any], kind: str):
    assert spans_of(events(file, span(ROOT, given=given)))[ROOT].kind == kind


def test_call_within_a_call_counts_once(file: Path):
    outer, inner = span(ROOT, given=OLDER), span(CALL, ROOT, given=OLDER)
    assert [each.kind for each in spans_of(events(file, outer, inner)).values()] == ["call", "other"]


def test_call_within_a_call_that_has_the_token_ids_is_the_one_that_counts(file: Path):
    inner = span(CALL, ROOT, given={"prompt_token_ids": [1], "response_token_ids": [2]})
    found = spans_of(events(file, span(ROOT, given=OLDER), inner))
    assert (found[ROOT].kind, found[CALL].kind) == ("other", "call")


def test_root_with_an_error_fails_its_rollout(file: Path):
    made = events(file, span(ROOT, status={"code": 2, "message": "boom"}), span(CALL, ROOT, given=NEWER))
    end = made[-1]
    assert isinstance(end, RolloutCompleted)
    assert (end.status, end.error) == ("failed", "boom")
    assert spans_of(made)[ROOT].status == "error"


def test_ids_in_base64_are_read_as_hex(file: Path):
    made = span("AAAAAAAAAKI=", traceId="W47/95gDgQPSabYzgT/GDA==", given=NEWER)
    ((place, rollout),) = parse(file, request(made))
    assert place == f"line 1, trace {TRACE}"
    assert list(spans_of(made_of(rollout))) == [CALL]


def test_numbers_that_json_lacks_are_kept_as_text(file: Path):
    made = span(ROOT)
    made["attributes"] = [{"key": "x", "value": {"doubleValue": "NaN"}}]
    assert json.loads(spans_of(events(file, made))[ROOT].attributes) == {"x": "nan"}


# Rollouts, attempts, groups


def test_traces_are_rollouts_however_their_spans_stand_in_the_file(file: Path):
    other = {"traceId": "ab" * 16}
    found = parse(
        file, request(span(CALL, ROOT, given=NEWER), span(CALL, given=NEWER, **other)), request(span(ROOT)),
    )  # fmt: skip
    assert [place for place, _ in found] == [f"line 1, trace {TRACE}", f"line 1, trace {'ab' * 16}"]
    assert list(spans_of(made_of(found[0][1]))) == [CALL, ROOT]


def test_one_document_over_many_lines_is_read_whole(file: Path):
    document = json.dumps(request(span(CALL, given=NEWER)), indent=2)
    ((place, rollout),) = parse(file, document)
    assert (place, len(spans_of(made_of(rollout)))) == (f"request 1, trace {TRACE}", 1)


def test_attribute_names_the_rollout_across_traces(file: Path):
    found = parse(
        file,
        request(span(CALL, given={**NEWER, "run": 7})),
        request(span(ROOT, traceId="ab" * 16), resource={"run": "7"}),
        rollout="run",
    )
    ((_, rollout),) = found
    start = made_of(rollout)[0]
    assert start.rollout_id == "import-abababababab-7"


def test_spans_without_the_attribute_are_of_the_rollout_of_their_trace(file: Path):
    found = parse(file, request(span(ROOT, given={"run": "r-7"}), span(CALL, ROOT, given=NEWER)), rollout="run")
    assert len(found) == 1
    assert set(spans_of(made_of(found[0][1]))) == {ROOT, CALL}


def test_group_attribute_groups_and_names_the_task(file: Path):
    found = parse(
        file,
        request(span(ROOT, given={"task": "t-1"})),
        request(span(ROOT, traceId="ab" * 16, given={"task": "t-1"})),
        group="task",
    )
    starts = [made_of(rollout)[0] for _, rollout in found]
    assert {(each.group_id, each.task_id) for each in starts if isinstance(each, RolloutStarted)} == {
        ("import-abababababab-t-1", "t-1")
    }
    assert len({rollout.group for _, rollout in found if isinstance(rollout, OtlpRollout)}) == 1


def test_attempts_of_agent_lightning_come_one_after_the_other(file: Path):
    def of(attempt: str) -> dict[str, str]:
        return {"agentlightning.rollout_id": "ro-1", "agentlightning.attempt_id": attempt}

    second = span(OTHER, traceId="ab" * 16, start=50, end=60, given={**NEWER, **of("at-2")})
    made = events(file, second, span(CALL, given={**NEWER, **of("at-1")}))
    starts = [each for each in made if isinstance(each, RolloutStarted)]
    ends = [each for each in made if isinstance(each, RolloutCompleted)]
    assert [(each.attempt, each.attempts_max) for each in starts] == [(0, 2), (1, 2)]
    assert [(each.attempt, each.status) for each in ends] == [(0, "failed"), (1, "completed")]
    assert [(each.span_id, each.attempt) for each in spans_of(made).values()] == [(CALL, 0), (OTHER, 1)]


# Rewards


def test_rewards_of_agent_lightning_are_linked_stepwise_or_final(file: Path):
    ids = {"agentlightning.rollout_id": "ro-1"}
    linked = {
        "agentlightning.reward.0.name": "primary",
        "agentlightning.reward.0.value": 0.5,
        "agentlightning.reward.1.name": "style",
        "agentlightning.reward.1.value": 1,
        "agentlightning.link.0.key_match": "gen_ai.response.id",
        "agentlightning.link.0.value_match": "resp-1",
    }
    plain = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1.0}
    annotation = "agentlightning.annotation"
    made = events(
        file,
        span(ROOT, "", 0, 100, given=ids),
        span(CALL, ROOT, 10, 20, given=NEWER),
        span(TOOL, ROOT, 25, 25, annotation, given={**linked, **ids}),
        span(OTHER, ROOT, 30, 30, annotation, given={**plain, **ids}),
        span("00000000000000b1", "", 110, 110, annotation, traceId="ab" * 16, given={**plain, **ids}),
    )
    assert rewards_of(made) == [
        ("primary", 0.5, "step", Target("response_id", "resp-1"), ROOT),
        ("style", 1.0, "step", Target("response_id", "resp-1"), ROOT),
        ("primary", 1.0, "step", None, ROOT),
        ("primary", 1.0, "rollout", None, None),
    ]
    assert set(spans_of(made)) == {ROOT, CALL}


def test_reward_that_a_function_returned_is_found_in_its_output(file: Path):
    output = json.dumps({"type": "reward", "value": 0.25})
    made = events(file, span(ROOT), span(TOOL, ROOT, given={"agentops.task.output": output}))
    assert rewards_of(made) == [("reward", 0.25, "step", None, ROOT)]


def test_evaluation_events_are_rewards_of_the_span_that_they_stand_in(file: Path):
    result = event(
        "gen_ai.evaluation.result",
        gen_ai__evaluation__name="relevance",
        gen_ai__evaluation__score__value=0.75,
        gen_ai__evaluation__explanation="close",
    )
    made = events(file, span(ROOT, events=[result]), span(CALL, ROOT, given=NEWER, events=[result]))
    assert rewards_of(made) == [
        ("relevance", 0.75, "rollout", None, None),
        ("relevance", 0.75, "step", Target("span_id", CALL), None),
    ]
    assert all(b"close" in each.extra_info for each in made if isinstance(each, RewardRecorded))


def test_reward_attribute_is_a_reward_of_the_span_that_carries_it(file: Path):
    made = events(
        file, span(ROOT, given={"score": 1}), span(CALL, ROOT, given={**NEWER, "score": 0.5}), reward="score"
    )  # fmt: skip
    assert sorted(rewards_of(made), key=str) == [
        ("score", 0.5, "step", Target("span_id", CALL), None),
        ("score", 1.0, "rollout", None, None),
    ]


# What is refused


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nonsense", "expected an OTLP request, which is a JSON object, got text that is none"),
        ("[]", "expected an OTLP request, which is a JSON object, got list"),
        ({"resourceLogs": []}, "expected traces, which are resourceSpans, got 'resourceLogs' at $.resourceSpans"),
        ({"resourceSpans": 7}, "expected a list, got 7 at $.resourceSpans"),
        ({"resourceSpans": [7]}, "expected an object, got 7 at $.resourceSpans[0]"),
        ({"resourceSpans": [{"scopeSpans": [{"spans": [7]}]}]}, "at $.resourceSpans[0].scopeSpans[0].spans[0]"),
        (request(span("xyz", traceId="no")), "expected 32 hex digits, got 'no' at $.resourceSpans[0]"),
    ],
)
def test_line_that_is_refused_names_the_field_and_the_rest_is_read(file: Path, given: Any, said: str):
    found = parse(file, request(span(CALL, given=NEWER)), given)
    refused = [(place, str(each)) for place, each in found if isinstance(each, InvalidEvent)]
    assert [place for place, _ in refused] == ["line 2"]
    assert said in refused[0][1]
    assert sum(isinstance(each, OtlpRollout) for _, each in found) == 1


def test_first_line_that_is_refused_leaves_the_others(file: Path):
    found = parse(file, '{"resourceSpans": [', request(span(CALL, given=NEWER)))
    assert [place for place, _ in found] == ["line 1", f"line 2, trace {TRACE}"]


def test_rollout_of_a_refused_span_is_refused_as_a_whole(file: Path):
    bad = span("xyz")
    found = parse(file, request(span(CALL, given=NEWER), bad), request(span(CALL, traceId="ab" * 16, given=NEWER)))
    assert [place for place, _ in found] == [f"line 1, trace {TRACE}", f"line 2, trace {'ab' * 16}"]
    assert "expected 16 hex digits, got 'xyz' at $.resourceSpans[0].scopeSpans[0].spans[1].spanId" in str(found[0][1])


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (span(CALL, given={**NEWER, "gen_ai.input.messages": "x"}), "expected a list, or JSON of one, got 'x'"),
        (
            span(CALL, given={**NEWER, "gen_ai.input.messages": '[{"role":"bot"}]'}),
            "got 'bot' at $.messages[1].role",
        ),
        (span(CALL, given={"prompt_token_ids": [1], "response_token_ids": "x"}), "at $.response_token_ids"),
        (span(CALL, given={"prompt_token_ids": [1], "response_token_ids": [-1]}), "got -1 at $.response_ids[0]"),
        (
            span(CALL, given={"prompt_token_ids": [1], "response_token_ids": [2], "response_logprobs": [-1.0, -1.0]}),
            "expected 1 log-probs, one per response token, got 2",
        ),
        (span(ROOT, given={"agentlightning.reward.0.value": "high"}), "at $.agentlightning.reward.0.value"),
    ],
)
def test_span_that_is_refused_is_named_with_its_attribute(file: Path, made: Any, said: str):
    assert said in refusal(file, made)


@pytest.mark.parametrize(
    ("field", "given", "said"),
    [
        ("startTimeUnixNano", "soon", "expected nanoseconds since 1970, got 'soon' at $."),
        ("endTimeUnixNano", -1, "expected nanoseconds since 1970, got -1"),
        ("name", 7, "expected text, got 7"),
        ("attributes", {}, "expected a list of attributes, got {}"),
        ("attributes", [{"key": "a", "value": {"intValue": "x"}}], "expected an integer, as text or number, got 'x'"),
        ("attributes", [{"key": "a", "value": 7}], "expected a value such as {'stringValue': ...}, got 7"),
        ("events", [7], "expected an object, got 7"),
        ("links", [{"spanId": "x"}], "expected 16 hex digits, got 'x'"),
    ],
)
def test_field_of_a_span_that_is_refused_is_named(file: Path, field: str, given: Any, said: str):
    ((_, refused),) = parse(file, request(span(CALL, **{field: given})))
    assert isinstance(refused, InvalidEvent)
    assert said in str(refused)
    assert f"spans[0].{field}" in str(refused)


def test_parent_of_zeros_is_none(file: Path):
    found = spans_of(events(file, span(ROOT, parent="0" * 16, given={"score": 1.0}), reward="score"))
    assert found[ROOT].parent_id is None


def test_reward_at_a_root_whose_parent_is_zeros_is_the_rollouts(file: Path):
    made = events(file, span(ROOT, parent="0" * 16, given={"score": 1.0}), reward="score")
    assert [each.scope for each in made if isinstance(each, RewardRecorded)] == ["rollout"]


def test_rollout_of_two_traces_with_the_same_span_id_is_refused(file: Path):
    """Calls are told apart by their span ids alone: the second one's prompt would be taken for the first one's."""
    of_one = {"given": {"session": "s"}}
    ((_, rollout),) = parse(
        file, request(span(CALL, **of_one), span(CALL, traceId="ab" * 16, **of_one)), rollout="session"
    )
    with pytest.raises(InvalidEvent, match=f"got {CALL} in traces {TRACE} and ab.* at \\$.spanId"):
        made_of(rollout)


def test_token_ids_with_a_bool_among_them_are_refused(file: Path):
    given = {"prompt_token_ids": [1, True], "response_token_ids": [2]}
    assert "expected numbers, got True at $.prompt_token_ids[1]" in refusal(file, span(CALL, given=given))
