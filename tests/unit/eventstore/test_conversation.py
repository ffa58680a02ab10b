"""Messages of a call are stored after those of its base: joined, they are the call's again."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutlog.eventstore.conversation import Conversation
from rolloutlog.eventstore.recording import Recording, make_recording


def recording(prompt, messages, response=(1,)) -> Recording:
    return make_recording(
        prompt_ids=np.array(prompt, "<i4"), response_ids=list(response), logprobs=None, response_id=None,
        choice_index=0, finish_reason=None, messages=messages, arrays=None, trainable=True, policy_version=None,
    )  # fmt: skip


def through(calls):
    """The stored fields of each call, by span id in order."""
    conversation, stored = Conversation(), {}
    for index, (prompt, messages) in enumerate(calls):
        call = recording(prompt, messages)
        fields = conversation.fields(call)
        conversation.remember(f"s{index}", call, fields)
        stored[f"s{index}"] = fields
    return stored


def joined(stored, span_id):
    """A call's messages: its base's, then its own."""
    if not span_id:
        return []
    fields = stored[span_id]
    return joined(stored, fields.get("prompt_base")) + json.loads(fields["messages"] or b"[]")


USER, TOOL = {"role": "user", "content": "hé"}, {"role": "tool", "content": "42"}
LONG = list(range(100))


def test_messages_that_begin_with_the_bases_are_stored_once():
    stored = through([(LONG, [USER]), ([*LONG, 1, 2], [USER, TOOL])])
    assert stored["s0"]["messages"] == '[{"role":"user","content":"hé"}]'.encode()
    assert stored["s1"]["prompt_base"] == "s0"
    assert stored["s1"]["messages"] == b'[{"role":"tool","content":"42"}]'


def test_messages_that_do_not_begin_with_the_bases_make_it_no_base():
    stored = through([(LONG, [USER]), ([*LONG, 1, 2], [TOOL])])
    assert stored["s1"]["prompt_base"] is None
    assert stored["s1"]["messages"] == b'[{"role":"tool","content":"42"}]'


def test_messages_fewer_than_the_bases_make_it_no_base():
    stored = through([(LONG, [USER, TOOL]), ([*LONG, 1, 2], [USER])])
    assert stored["s1"]["prompt_base"] is None


def test_call_without_messages_shares_tokens_and_passes_on_the_bases_messages():
    stored = through([(LONG, [USER]), ([*LONG, 1, 2], None), ([*LONG, 1, 2, 1, 3], [USER, TOOL])])
    assert [fields["prompt_base"] for fields in stored.values()] == [None, "s0", "s1"]
    assert stored["s1"]["messages"] is None
    assert stored["s2"]["messages"] == b'[{"role":"tool","content":"42"}]'


def test_messages_after_a_base_without_any_are_stored_whole():
    stored = through([(LONG, None), ([*LONG, 1, 2], [USER])])
    assert stored["s1"]["prompt_base"] == "s0"
    assert stored["s1"]["messages"] == '[{"role":"user","content":"hé"}]'.encode()


def test_memory_of_messages_ends_with_the_calls_that_can_be_a_base():
    conversation = Conversation()
    for index in range(100):
        call = recording([index] * 80, [USER])
        conversation.remember(f"s{index}", call, conversation.fields(call))
    assert len(conversation._messages) == 16


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_messages_of_any_calls_come_back_the_same(data):
    calls = []
    for _ in range(data.draw(st.integers(1, 8))):
        base = data.draw(st.sampled_from(calls)) if calls and data.draw(st.booleans()) else (LONG, [])
        tail = data.draw(st.lists(st.integers(0, 2), max_size=3))
        kept = data.draw(st.sampled_from([base[1] or [], [], None]))
        more = data.draw(st.lists(st.sampled_from([USER, TOOL]), max_size=2))
        calls.append(([*base[0], 1, *tail], None if kept is None else [*kept, *more]))
    stored = through(calls)
    for index, (_, messages) in enumerate(calls):
        if messages is not None:
            assert joined(stored, f"s{index}") == messages
