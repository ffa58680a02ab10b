"""What a scorer sees of a rollout, and that it pays only for what it looks at."""

import json
import time
from typing import Any

import numpy as np
import pytest
from support.building import call, floats, ids, reward
from unit.consumers.scoring.rollouts import closed, conversation, messages, span, view

from rolloutlog.consumers.closing import settle
from rolloutlog.consumers.scoring import view_of
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.events import PolicyVersionRun, RolloutCompleted, TokenArray


def test_view_has_the_answer_the_conversation_and_the_tools_results_in_a_line():
    it = view(*conversation())
    assert it.answer == "There are 42."
    assert [message["role"] for message in it.messages] == ["user", "assistant", "tool", "assistant"]
    assert it.tool_results == ["42"]
    assert [tool.attributes for tool in it.tools] == [{"rows": 1}]
    assert it.transcript == (
        "user: How many users?\n\nassistant: select count(*)\n\ntool: 42\n\nassistant: There are 42."
    )


def test_view_has_what_the_rollout_was_started_with_and_how_it_ended():
    it = view(metadata=b'{"difficulty": 3}', task_id="count", split="val", policy_version=7)
    assert (it.rollout_id, it.attempt, it.group_id, it.task_id, it.split) == ("r", 0, "g", "count", "val")
    assert (it.status, it.error, it.policy_version, it.closed_ns) == ("completed", None, 7, 9_000)
    assert it.metadata == {"difficulty": 3}
    assert (it.calls, it.answer, it.messages) == ((), None, [])


def test_view_of_a_failed_rollout_has_its_error():
    end = RolloutCompleted(
        rollout_id="r", attempt=0, source="main.00000000000000aa", sequence=1, time_ns=0, status="failed", error="oom"
    )
    it = view(end)
    assert (it.status, it.error) == ("failed", "oom")


def test_view_of_a_call_has_its_tokens_whole_and_read_only():
    it = view(
        call("c", 1, prompt_ids=ids(*range(70)), response_ids=ids(70, 71), logprobs=floats(-0.5, -1.0)),
        call("d", 2, prompt_base="c", prompt_base_tokens=72, prompt_ids=ids(5), finish_reason="stop", model="m"),
    )
    first, second = it.calls
    np.testing.assert_array_equal(second.prompt_ids, [*range(72), 5])
    np.testing.assert_array_equal(second.response_ids, [3, 4])
    assert first.logprobs is not None
    assert first.logprobs.tolist() == [-0.5, -1.0]
    assert (second.logprobs, second.finish_reason, second.model, second.turn_index) == (None, "stop", "m", 1)
    with pytest.raises(ValueError, match="read-only"):
        second.response_ids[0] = 9


def test_view_of_a_call_has_arrays_and_the_oldest_policy_version():
    runs = (PolicyVersionRun(4, 1), PolicyVersionRun(3, 1))
    arrays = (TokenArray("values", "<f4", (2, 1), floats(0.25, 0.5)),)
    (it,) = view(call("c", 1, policy_version_runs=runs, arrays=arrays)).calls
    assert it.policy_version == 3
    assert it.arrays["values"].tolist() == [[0.25], [0.5]]


def test_view_of_rewards_has_final_values_without_what_was_revised_or_superseded():
    it = view(
        reward(1, value=0.0, scope="rollout"),
        reward(2, value=1.0, scope="rollout", extra_info=b'{"rows": 3}'),
        reward(3, value=0.5, scope="rollout", name="style", reward_id="s"),
        reward(4, value=None, scope="rollout", name="style", supersedes="s"),
        reward(5, value=0.25, name="parses"),
    )
    assert dict(it.final) == {"reward": 1.0}
    assert it.values("parses") == [0.25]
    assert [each.value for each in it.rewards] == [0.0, 1.0, 0.5, None, 0.25]
    assert it.rewards[1].extra_info == {"rows": 3}


def test_view_of_a_reward_that_supersedes_itself_keeps_its_value_as_live_assembly_does():
    assert dict(view(reward(1, value=1.0, scope="rollout", reward_id="s", supersedes="s")).final) == {"reward": 1.0}


def test_view_of_calls_leaves_judges_out_and_joins_spans_of_one_response():
    it = view(
        span("solver", 1, "agent"),
        call("proxy", 2, parent_id="solver", response_id="x", messages=messages("user: q", "assistant: a")),
        call("client", 3, response_id="x", prompt_ids=None, response_ids=None, messages=None),
        span("judge", 4, "evaluator"),
        call("judged", 5, parent_id="judge"),
    )
    assert [(each.span_id, each.span_ids, each.agent) for each in it.calls] == [
        ("proxy", ("proxy", "client"), "solver")
    ]
    assert [each.span_id for each in it.spans] == ["solver", "proxy", "client", "judge", "judged"]
    found = it.call("client")
    assert found is not None
    assert (found.answer, it.call("judged")) == ("a", None)


def test_view_of_a_call_without_token_ids_is_a_call_to_a_scorer():
    it = view(call("c", 1, prompt_ids=None, response_ids=None, messages=messages("user: q", "assistant: a")))
    assert (it.answer, it.calls[0].response_ids.tolist()) == ("a", [])


def test_answer_that_was_recorded_with_the_next_call_alone_is_found_there():
    it = view(
        call("c1", 1, messages=messages("user: q"), prompt_ids=ids(*range(80))),
        call("c2", 2, messages=messages("assistant: a", "user: more"), prompt_base="c1", prompt_base_tokens=82),
    )
    assert [each.answer for each in it.calls] == ["a", None]
    assert [message["content"] for message in it.calls[1].messages] == ["q", "a", "more"]


def test_answer_is_not_taken_from_another_agents_conversation():
    it = view(
        span("one", 1, "agent"),
        span("two", 2, "agent"),
        call("c1", 3, parent_id="one", messages=messages("user: q")),
        call("c2", 4, parent_id="two", messages=messages("user: q", "assistant: other", "user: more")),
    )
    assert it.calls[0].answer is None


def test_answer_of_parts_and_of_tool_calls_is_text():
    said = [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"text": "b"}]}]
    tool = [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]
    it = view(call("c", 1, messages=json.dumps(said).encode()), call("d", 2, messages=json.dumps(tool).encode()))
    assert [each.answer for each in it.calls] == ["ab", ""]
    assert it.transcript == "assistant: [calls f({})]"


@pytest.mark.parametrize("bad", [b"{", b"7", b"[1, null]", b'{"role": "user"}'])
def test_view_of_messages_and_attributes_that_are_none_has_none(bad: bytes):
    it = view(call("c", 1, messages=bad), span("t", 2, "tool", attributes=bad if bad != b'{"role": "user"}' else b"[]"))
    assert (it.calls[0].messages, it.spans[1].attributes) == ([], {})


def test_view_of_bases_that_name_each_other_comes_to_an_end():
    it = view(
        call("c", 1, prompt_base="d", prompt_base_tokens=1, messages=messages("user: q")),
        call("d", 2, prompt_base="c", prompt_base_tokens=1, messages=messages("assistant: a")),
    )
    assert it.answer == "a"


def test_what_a_scorer_changes_in_its_view_is_not_in_the_next_ones():
    it = view(*conversation(), metadata=b'{"k": [1]}')
    it.metadata["k"].append(2)
    it.messages[0]["content"] = "changed"
    it.messages.clear()
    it.status = "failed"
    again = it.fresh()
    assert (again.metadata, again.status) == ({"k": [1]}, "completed")
    assert again.messages[0]["content"] == "How many users?"


def test_view_after_its_rollout_was_settled_still_shows_what_it_was_made_of():
    rollout = closed(*conversation())
    it = view_of(rollout, 0, closed_ns=1)
    rollout.attempt.records, rollout.attempt.sources = [], {}
    assert it.answer == "There are 42."


def test_looking_at_a_rollout_changes_nothing_of_what_it_comes_to():
    looked, other = closed(*conversation()), closed(*conversation())
    it = view_of(looked, 0, closed_ns=1)
    assert it.calls[1].prompt_ids.size == 102
    assert settle(looked, FoldSettings(), 0) == settle(other, FoldSettings(), 0)


def test_view_of_a_large_rollout_costs_nothing_where_spans_are_not_asked_for(monkeypatch: pytest.MonkeyPatch):
    rollout = closed(*(span(f"s{n}", n, "other") for n in range(1, 100_001)), reward(100_001, scope="rollout"))
    decoded: list[Any] = []
    monkeypatch.setattr("rolloutlog.consumers.scoring.decoded.decode_span", lambda *given: decoded.append(given))
    before = time.process_time()
    for _ in range(10):
        it = view_of(rollout, 0, closed_ns=1)
        assert (dict(it.final), it.metadata, it.status) == ({"reward": 1.0}, {}, "completed")
    assert (time.process_time() - before) / 10 < 0.1
    assert not decoded
