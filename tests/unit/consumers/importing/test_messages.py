"""Chat trajectories: what is refused, how text is rendered, which events they become."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutlog.consumers.importing.messages import Trajectory, identities, parse_trajectory, trajectory_events
from rolloutlog.eventstore.checks import check_event
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import Event, RewardRecorded, RolloutCompleted, RolloutStarted, Span
from rolloutlog.eventstore.prompts import PromptRestore
from rolloutlog.eventstore.settings import EVENT_BYTES_MAX

DIGEST = "ab" * 16
USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "yo"}
LOOKUP = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"q":1}'}}


def line(messages: list[Any], **fields: Any) -> bytes:
    return json.dumps({"task_id": "t", "trial": 0, "reward": 1.0, "messages": messages, **fields}).encode()


def events(*messages: Any, **fields: Any) -> list[Event]:
    trajectory = parse_trajectory(line(list(messages), **fields), 3)
    return list(trajectory_events(trajectory, DIGEST, group_size=2, run_id="run", time_ns=1_000_000))


def calls(made: list[Event]) -> list[Span]:
    return [each for each in made if isinstance(each, Span) and each.kind == "call"]


def tools(made: list[Event]) -> list[Span]:
    return [each for each in made if isinstance(each, Span) and each.kind == "tool"]


def text(packed: bytes | None) -> str:
    return bytes((packed or b"")[::4]).decode()


def full(made: list[Event]) -> list[tuple[bytes, bytes]]:
    """Full prompt and answer of each call, packed."""
    restore = PromptRestore()
    for each in calls(made):
        restore.add(each)
    return [(restore.prompt(each), each.response_ids or b"") for each in calls(made)]


def refusal(raw: bytes) -> str:
    with pytest.raises(InvalidEvent) as caught:
        parse_trajectory(raw, 1)
    return str(caught.value)


# Lines


def test_line_gives_task_trial_reward_and_messages():
    assert parse_trajectory(line([USER], task_id=5, trial=2), 7) == Trajectory(7, "5", "2", 1.0, (USER,))


def test_line_may_call_its_messages_traj():
    assert parse_trajectory(b'{"task_id":"t","traj":[]}', 1).messages == ()


def test_line_without_trial_is_trial_0():
    assert parse_trajectory(b'{"task_id":"t","messages":[]}', 1).trial == "0"


def test_line_without_reward_has_none():
    assert parse_trajectory(b'{"task_id":"t","messages":[]}', 1).reward is None


def test_line_with_a_whole_reward_has_it_as_a_float():
    assert parse_trajectory(line([], reward=1), 1).reward == 1.0


def test_line_after_a_byte_order_mark_is_read():
    assert parse_trajectory(b"\xef\xbb\xbf" + line([]), 1).task_id == "t"


def test_line_that_ends_in_crlf_is_read():
    assert parse_trajectory(line([]) + b"\r\n", 1).task_id == "t"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"not json", "expected a JSON object, got text that is none"),
        (b"\xff\xfe", "expected a JSON object, got text that is none"),
        (b"[" * 100_000, "expected a JSON object, got text that is none"),
        (b"[]", "expected a JSON object, got list at $"),
        (b'{"task_id":"t"}', "expected one of traj and messages, got 0 of them at $.messages"),
        (b'{"task_id":"t","traj":[],"messages":[]}', "expected one of traj and messages, got 2 of them at $.messages"),
        (line("x"), "expected a list of messages, got 'x' at $.messages"),  # type: ignore[arg-type]
        (b'{"messages":[]}', "expected text or an integer of 1 to 200 characters, got None at $.task_id"),
        (line([], task_id=""), "got '' at $.task_id"),
        (line([], task_id=True), "got True at $.task_id"),
        (line([], task_id=1.5), "got 1.5 at $.task_id"),
        (line([], task_id="x" * 201), "at $.task_id"),
        (line([], task_id="\ud800"), "expected text that UTF-8 can hold, got half of a surrogate pair at $.task_id"),
        (line([], trial=None), "got None at $.trial"),
        (line([], reward="1"), "expected a finite number or null, got '1' at $.reward"),
        (line([], reward=True), "expected a finite number or null, got True at $.reward"),
        (line([], reward=float("nan")), "expected a finite number or null, got nan at $.reward"),
        (line([], reward=10**400), "at $.reward"),
        (line([7]), "expected a message, which is a JSON object, got 7 at $.messages[0]"),
        (line([USER, {"role": "robot"}]), "got 'robot' at $.messages[1].role"),
        (line([{"content": "x"}]), "got None at $.messages[0].role"),
        (line([{"role": ["user"]}]), "got ['user'] at $.messages[0].role"),
        (
            line([{"role": "user", "content": 7}]),
            "expected text, a list of parts or null, got 7 at $.messages[0].content",
        ),
        (line([{"role": "user", "content": [{"type": "image_url"}]}]), "expected a part with text"),
        (line([{"role": "user", "content": ["x"]}]), "expected a part with text, got 'x' at $.messages[0].content[0]"),
        (line([{"role": "user", "content": "\ud800"}]), "half of a surrogate pair at $.messages[0].content"),
        (line([{"role": "user", "name": "\ud800"}]), "half of a surrogate pair at $.messages[0].name"),
        (line([{"role": "user", "x": float("inf")}]), "expected a value that JSON can hold"),
        (line([{"role": "tool", "tool_call_id": [1]}]), "expected text or null, got [1] at $.messages[0].tool_call_id"),
        (line([{"role": "assistant", "tool_calls": {}}]), "expected a list of tool calls"),
        (line([{"role": "assistant", "tool_calls": ["x"]}]), "got 'x' at $.messages[0].tool_calls[0]"),
        (line([{"role": "assistant", "tool_calls": [{"id": "1"}]}]), "expected a tool call with a function"),
        (
            line([{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}]),
            "expected a name of 1 to 200 characters, got '' at $.messages[0].tool_calls[0].function.name",
        ),
        (
            line([{"role": "assistant", "tool_calls": [{"id": [1], "function": {"name": "f"}}]}]),
            "expected text or null, got [1] at $.messages[0].tool_calls[0].id",
        ),
    ],
)
def test_line_that_is_refused_names_the_field(raw: bytes, said: str):
    assert said in refusal(raw)


@pytest.mark.parametrize("depth", [10, 300, 850, 900, 950, 980, 1_000, 5_000])
def test_line_nested_at_any_depth_is_refused_or_becomes_events(depth: int):
    raw = b'{"task_id":"t","messages":[{"role":"assistant","x":%s}]}' % (b"[" * depth + b"]" * depth)
    try:
        trajectory = parse_trajectory(raw, 1)
    except InvalidEvent:
        return
    assert list(trajectory_events(trajectory, DIGEST, group_size=1, run_id="", time_ns=0))


# Events


def test_trajectory_becomes_a_start_calls_a_reward_and_a_completion():
    assert [type(each) for each in events(USER, ANSWER)] == [RolloutStarted, Span, RewardRecorded, RolloutCompleted]


def test_trajectory_events_are_numbered_from_0_in_one_source():
    made = events(USER, ANSWER, USER, ANSWER)
    assert [each.sequence for each in made] == [0, 1, 2, 3, 4]
    assert len({each.source for each in made}) == 1


def test_trajectory_events_pass_the_checks():
    for each in events(USER, {**ANSWER, "tool_calls": [LOOKUP]}, {"role": "tool", "content": "42"}, ANSWER):
        check_event(each)


def test_trajectory_start_has_group_size_run_and_where_it_comes_from():
    start = events(USER, ANSWER, trial=4)[0]
    assert isinstance(start, RolloutStarted)
    assert (start.task_id, start.group_size, start.run_id) == ("t", 2, "run")
    assert json.loads(start.metadata) == {"trial": "4", "line": 3}


def test_trajectory_without_reward_records_none():
    assert [type(each) for each in events(USER, ANSWER, reward=None)] == [RolloutStarted, Span, RolloutCompleted]


def test_trajectory_reward_is_of_rollout_scope():
    (found,) = [each for each in events(USER, ANSWER, reward=0.0) if isinstance(each, RewardRecorded)]
    assert (found.scope, found.value, found.name) == ("rollout", 0.0, "reward")


def test_trajectory_call_has_all_messages_before_it_as_its_prompt():
    (made,) = calls(events({"role": "system", "content": "be"}, USER, ANSWER))
    assert text(made.prompt_ids) == (
        "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_trajectory_call_has_the_message_as_its_answer():
    (made,) = calls(events(USER, ANSWER))
    assert text(made.response_ids) == "yo<|im_end|>\n"


def test_trajectory_call_writes_tool_calls_into_its_answer():
    (made,) = calls(events(USER, {"role": "assistant", "content": None, "tool_calls": [LOOKUP]}))
    assert text(made.response_ids) == (
        '<tool_call>{"name": "look", "arguments": "{\\"q\\":1}"}</tool_call><|im_end|>\n'
    )


def test_trajectory_call_joins_the_parts_of_a_content():
    (made,) = calls(events({"role": "user", "content": [{"text": "a"}, {"text": "b"}]}, ANSWER))
    assert "user\nab<|im_end|>" in text(made.prompt_ids)


def test_trajectory_token_ids_are_utf8_bytes():
    (made,) = calls(events(USER, {"role": "assistant", "content": "é"}))
    assert text(made.response_ids) == "é<|im_end|>\n"


def test_trajectory_call_holds_only_messages_after_its_base():
    long = {"role": "user", "content": "x" * 100}
    first, second = calls(events(long, ANSWER, USER, ANSWER))
    assert json.loads(first.messages or b"") == [long, ANSWER]
    assert (second.prompt_base, json.loads(second.messages or b"")) == ("call-1", [USER, ANSWER])


def test_trajectory_calls_are_in_turn_order_by_their_times():
    starts = [each.start_ns for each in calls(events(USER, ANSWER, USER, ANSWER))]
    assert starts == [1_001_000, 1_003_000]


def test_trajectory_tool_calls_become_tool_spans_with_arguments_and_result():
    (made,) = tools(
        events(USER, {**ANSWER, "tool_calls": [LOOKUP]}, {"role": "tool", "tool_call_id": "1", "content": "42"})
    )
    assert (made.name, json.loads(made.attributes)) == ("look", {"arguments": '{"q":1}', "result": "42"})


def test_trajectory_tool_results_are_found_by_id():
    two = [LOOKUP, {"id": "2", "function": {"name": "find"}}]
    results = [
        {"role": "tool", "tool_call_id": "2", "content": "B"},
        {"role": "tool", "tool_call_id": "1", "content": "A"},
    ]
    made = tools(events(USER, {**ANSWER, "tool_calls": two}, *results))
    assert [(each.name, json.loads(each.attributes)["result"]) for each in made] == [("look", "A"), ("find", "B")]


def test_trajectory_tool_results_without_id_are_found_by_order():
    two = [{"function": {"name": "look"}}, {"function": {"name": "find"}}]
    results = [{"role": "tool", "content": "A"}, {"role": "tool", "content": "B"}]
    made = tools(events(USER, {**ANSWER, "tool_calls": two}, *results))
    assert [json.loads(each.attributes)["result"] for each in made] == ["A", "B"]


def test_trajectory_tool_call_is_not_given_the_result_of_another():
    two = [LOOKUP, {"id": "2", "function": {"name": "find"}}]
    made = tools(events(USER, {**ANSWER, "tool_calls": two}, {"role": "tool", "tool_call_id": "2", "content": "B"}))
    assert [json.loads(each.attributes)["result"] for each in made] == [None, "B"]


def test_trajectory_tool_call_without_result_has_null():
    (made,) = tools(events(USER, {**ANSWER, "tool_calls": [LOOKUP]}, USER))
    assert json.loads(made.attributes)["result"] is None


# Identities


def test_identities_come_from_digest_task_trial_and_line():
    which = identities(Trajectory(3, "t", "1", None, ()), DIGEST)
    assert (which.rollout_id, which.group_id) == ("import-abababababab-t-1-3", "import-abababababab-t")


def test_identities_are_the_same_every_time():
    trajectory = Trajectory(3, "t", "1", None, ())
    assert identities(trajectory, DIGEST) == identities(trajectory, DIGEST)


@pytest.mark.parametrize(
    "other", [Trajectory(4, "t", "1", None, ()), Trajectory(3, "u", "1", None, ()), Trajectory(3, "t", "2", None, ())]
)
def test_identities_of_other_lines_differ(other: Trajectory):
    one, two = identities(Trajectory(3, "t", "1", None, ()), DIGEST), identities(other, DIGEST)
    assert one.rollout_id != two.rollout_id
    assert one.source != two.source


def test_identities_in_another_file_differ():
    trajectory = Trajectory(3, "t", "1", None, ())
    assert identities(trajectory, "cd" * 16).rollout_id != identities(trajectory, DIGEST).rollout_id


def test_identities_of_equal_tasks_share_a_group():
    assert (
        identities(Trajectory(1, "t", "1", None, ()), DIGEST).group_id
        == identities(Trajectory(9, "t", "2", None, ()), DIGEST).group_id
    )


def test_events_of_the_same_line_are_the_same_every_time():
    assert events(USER, ANSWER) == events(USER, ANSWER)


# Rendering

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
contents = st.none() | words | st.lists(st.fixed_dictionaries({"text": words}), max_size=3)
functions = st.fixed_dictionaries(
    {"name": words.filter(bool), "arguments": words | st.dictionaries(words, words, max_size=2)}
)
tool_calls = st.none() | st.lists(
    st.fixed_dictionaries({"id": st.none() | st.sampled_from(["1", "2"]), "function": functions}), max_size=3
)
messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer", "user"]), "content": contents}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": contents, "tool_calls": tool_calls}),
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["tool", "function"]),
            "content": contents,
            "tool_call_id": st.sampled_from(["1", "2"]),
        }
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(messages, max_size=12))
def test_prompt_and_answer_of_any_conversation_begin_the_next_prompt(conversation: list[Any]):
    turns = full(events(*conversation))
    for (prompt, answer), (following, _) in pairwise(turns):
        assert following.startswith(prompt + answer)


@settings(max_examples=200, deadline=None)
@given(st.lists(messages, max_size=12))
def test_prompts_restored_are_the_conversation_rendered_whole(conversation: list[Any]):
    """What the last call's prompt and answer hold ends, for each call, where that call's answer ends."""
    turns = full(events(*conversation))
    rendered = turns[-1][0] + turns[-1][1] if turns else b""
    at = 0
    for prompt, answer in turns:
        assert rendered.startswith(prompt + answer)
        assert text(prompt).endswith("<|im_start|>assistant\n")
        assert len(prompt) > at
        at = len(prompt + answer)


@settings(max_examples=200, deadline=None)
@given(st.lists(messages, max_size=12))
def test_events_of_any_conversation_pass_the_checks(conversation: list[Any]):
    made = events(*conversation)
    for each in made:
        check_event(each)
    assert len({each.span_id for each in made if isinstance(each, Span)}) == sum(isinstance(e, Span) for e in made)


def test_message_above_the_limit_of_an_event_is_refused_before_it_is_rendered():
    said = refusal(line([USER, {"role": "user", "content": "x" * EVENT_BYTES_MAX}]))
    assert said.startswith(f"expected at most {EVENT_BYTES_MAX} bytes, as events may have, got ")
    assert said.endswith(" at $.messages[1].content")
