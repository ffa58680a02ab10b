"""What agents hold: blocks, answers, rewards and the end, as events on a log in memory."""

import asyncio
import threading

import numpy as np
import pytest

from rolloutlog.eventstore import InvalidEvent, NotOpen, RecordTooLarge, emit_reward
from rolloutlog.eventstore.events import (
    PolicyVersionRun,
    RewardRecorded,
    RolloutCompleted,
    RolloutStarted,
    Span,
    Target,
    TokenArray,
)
from rolloutlog.eventstore.group import Group
from rolloutlog.eventstore.partitioner import partition_of


def spans(published):
    return {span.name: span for span in published.of(Span)}


class Message:
    def model_dump(self):
        return {}


class OnDevice:
    """As a tensor that is on a device, or has a gradient."""

    def __array__(self, *arguments, **keywords):
        raise RuntimeError("on a device")


def endless():
    message = {}
    message["again"] = message
    return message


def answer(call, prompt=(1, 2), response=(3,), **more):
    call.record(prompt_ids=list(prompt), response_ids=list(response), **more)


def test_rollout_block_publishes_start_and_completion(published):
    with published.publisher.rollout(
        "airline-3", rollout_id="r-7", policy_version=np.int64(0), metadata={"seed": 3}, awaited_rewards=["judge"]
    ):
        pass
    start, end = published.events()
    assert isinstance(start, RolloutStarted)
    assert (start.task_id, start.group_id, start.group_size, start.split) == ("airline-3", "r-7", 1, "train")
    assert (start.run_id, start.policy_version, start.metadata) == (published.publisher.run_id, 0, b'{"seed":3}')
    assert isinstance(end, RolloutCompleted)
    assert (end.status, end.error, end.awaited_rewards, end.awaited_names) == ("completed", None, ("judge",), ())
    assert start.source == end.source
    assert start.source.startswith("main.")


def test_rollout_of_a_group_takes_its_task_and_partition(published):
    group = published.publisher.group("airline-3", size=2)
    for _ in range(2):
        with published.publisher.rollout(group=group):
            pass
    starts = published.of(RolloutStarted)
    assert {(s.task_id, s.group_id, s.group_size) for s in starts} == {("airline-3", group.group_id, 2)}
    assert {record.key for record in published.log.events} == {group.group_id.encode()}
    assert {record.partition for record in published.log.events} == {partition_of(group.group_id.encode(), 4)}


def test_group_ids_are_fresh_for_each_use(published):
    assert published.publisher.group("t") != published.publisher.group("t")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "expected a task_id or a group, got neither at $.task_id"),
        ({"task_id": ""}, "expected text that is not empty, got '' at $.task_id"),
        ({"task_id": 5}, "expected text, got 5 at $.task_id"),
        ({"task_id": "t", "rollout_id": 5}, "expected text, got 5 at $.rollout_id"),
        ({"group": "g"}, "expected a Group, as `events.group(...)` gives, or none, got 'g' at $.group"),
        ({"task_id": "t", "policy_version": "v3"}, "got 'v3' at $.policy_version"),
        ({"task_id": "t", "metadata": 5}, "expected a mapping, got 5 at $.metadata"),
        ({"task_id": "t", "metadata": {"a": [{"b": {1}}]}}, "got set (not JSON) at $.metadata.a[0].b"),
        ({"task_id": "t", "awaited_rewards": 5}, "expected a list of texts, got 5 at $.awaited_rewards"),
        ({"task_id": "t", "split": "dev"}, "expected one of train, val, test, got 'dev' at $.split"),
        ({"task_id": "t", "attempt": 1}, "expected an attempt below attempts_max 1, got 1 at $.attempt"),
        ({"task_id": "t", "policy_version": -1}, "got -1 at $.policy_version"),
        ({"task_id": "t", "metadata": {"a": {1}}}, "expected a value that JSON can hold, got set"),
        ({"task_id": "t", "awaited_rewards": "judge"}, "expected a list of texts, got 'judge' at $.awaited_rewards"),
        (
            {"task_id": "t", "attempt": 1, "attempts_max": 2},
            "RolloutStarted refused: expected the rollout_id of the attempts before, got none at $.rollout_id",
        ),
        ({"task_id": "t", "metadata": {"a": {1}}, "rollout_id": "r"}, "(rollout r, attempt 0)"),
        ({"task_id": "t", "source": "main"}, "expected `name.16 hex digits`, got 'main' at $.source"),
        ({"task_id": "t", "group": Group("g", "u")}, "expected the group's task 'u', got 't' at $.task_id"),
    ],
)
def test_rollout_with_bad_argument_is_refused_where_it_is_made(published, arguments, text):
    with pytest.raises(InvalidEvent) as caught:
        published.publisher.rollout(**arguments)
    assert text in str(caught.value)
    assert published.events() == []


def test_spans_carry_kind_parent_times_and_attributes(published):
    with published.publisher.rollout("t") as rollout:
        with rollout.agent("planner") as agent:
            published.now_ns += 5
            with rollout.operation("check", links=["s-1"]) as operation, rollout.tool("sql") as tool:
                tool.set(rows=3, text="hé")
                tool.set(rows=np.int64(4))
                published.now_ns += 7
        with rollout.evaluator("judge"):
            pass
    found = spans(published)
    assert {name: span.kind for name, span in found.items()} == {
        "planner": "agent", "check": "operation", "sql": "tool", "judge": "evaluator",
    }  # fmt: skip
    assert found["sql"].parent_id == operation.span_id
    assert found["check"].parent_id == agent.span_id
    assert found["check"].links == ("s-1",)
    assert (found["planner"].parent_id, found["judge"].parent_id) == (None, None)
    assert found["sql"].end_ns - found["sql"].start_ns == 7
    assert found["planner"].end_ns - found["planner"].start_ns == 12
    assert found["sql"].attributes == '{"rows":4,"text":"hé"}'.encode()
    assert found["sql"].status == "ok"


def test_block_left_by_an_exception_is_an_error_and_lets_it_through(published):
    with published.publisher.rollout("t") as rollout:
        with pytest.raises(KeyError, match="k"), rollout.tool("sql"):
            raise KeyError("k")
        rollout.finish(1.0)
    assert spans(published)["sql"].status == "error"
    assert spans(published)["sql"].attributes == b'{"error":"KeyError: \'k\'"}'
    assert published.of(RolloutCompleted)[0].status == "completed"


def test_block_given_id_and_times_records_them(published):
    ticks = iter(range(1, 99)).__next__
    with (
        published.publisher.rollout("t", source="main.00112233445566aa", clock=ticks) as rollout,
        rollout.tool("sql", span_id="s-9", start_ns=500, end_ns=600),
    ):
        pass
    found = spans(published)["sql"]
    assert (found.span_id, found.start_ns, found.end_ns, found.source) == ("s-9", 500, 600, "main.00112233445566aa")
    assert published.of(RolloutStarted)[0].time_ns == 1


def test_span_id_given_twice_is_refused(published):
    """The second would count as the first, and a prompt that begins with it would come back wrong."""
    with published.publisher.rollout("t") as rollout:
        with rollout.tool("a", span_id="s-9"):
            pass
        with (
            pytest.raises(InvalidEvent, match="expected each span id once, got 's-9' again"),
            rollout.tool("b", span_id="s-9"),
        ):
            pass


def test_block_entered_twice_is_refused(published):
    with published.publisher.rollout("t") as rollout:
        with rollout.tool("a") as block:
            pass
        with pytest.raises(NotOpen, match="block 'a' was entered before"), block:
            pass


def test_call_records_its_answer(published):
    with published.publisher.rollout("t") as rollout, rollout.call(model="policy") as call:
        call.record(
            prompt_ids=np.array([1, 2]), response_ids=b"\x03\0\0\0\x04\0\0\0", logprobs=[-0.5, -0.25],
            response_id="resp-1", choice_index=1, finish_reason="stop", messages=[{"role": "user"}],
            arrays={"experts": np.array([[1, 2], [3, 4]], ">i2")}, trainable=False, policy_version=[(3, 1), (None, 1)],
        )  # fmt: skip
    found = spans(published)["chat"]
    assert (found.kind, found.model, found.response_id, found.choice_index) == ("call", "policy", "resp-1", 1)
    assert (found.prompt_ids, found.response_ids) == (b"\x01\0\0\0\x02\0\0\0", b"\x03\0\0\0\x04\0\0\0")
    assert found.logprobs == np.array([-0.5, -0.25], "<f4").tobytes()
    assert (found.finish_reason, found.messages, found.trainable) == ("stop", b'[{"role":"user"}]', False)
    assert found.arrays == (TokenArray("experts", "<i2", (2, 2), b"\1\0\2\0\3\0\4\0"),)
    assert found.policy_version_runs == (PolicyVersionRun(3, 1), PolicyVersionRun(None, 1))


def test_call_policy_version_covers_all_its_response_tokens(published):
    with published.publisher.rollout("t") as rollout, rollout.call(policy_version=4) as call:
        answer(call, response=[1, 2, 3])
    assert spans(published)["chat"].policy_version_runs == (PolicyVersionRun(4, 3),)


def test_calls_of_a_conversation_store_prompts_once(published):
    prompt = list(range(100))
    with published.publisher.rollout("t") as rollout:
        with rollout.call(name="a") as first:
            answer(first, prompt, [7])
        with rollout.call(name="b") as second:
            answer(second, [*prompt, 7, 8], [9])
    found = spans(published)["b"]
    assert (found.prompt_base, found.prompt_base_tokens, found.prompt_ids) == (first.span_id, 101, b"\x08\0\0\0")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"logprobs": [-0.5]}, "expected 2 log-probs, one per response token, got 1 at $.logprobs"),
        ({"response_ids": [1, -2]}, "expected token ids from 0 to 2**31 - 1, got -2 at $.response_ids[1]"),
        ({"policy_version": [(1, 1)]}, "expected runs of 2 response tokens in all, got 1 at $.policy_version_runs"),
        ({"policy_version": ["x"]}, "expected an integer, or runs of (version or None, tokens), got 'x'"),
        ({"arrays": {"x": [1.0]}}, "expected a shape whose first axis is 2 response tokens, got (1,) at $.arrays.x"),
        ({"messages": "hi"}, "expected a list of messages, got str at $.messages"),
        ({"messages": 5}, "expected a list of messages, got int at $.messages"),
        ({"messages": ["hi"]}, "expected messages that are mappings, got 'hi' at $.messages[0]"),
        ({"messages": [Message()]}, "expected messages that are mappings, such as `.model_dump()` gives, got"),
        (
            {"messages": [{"role": "user"}, {"content": [{"data": object()}]}]},
            "expected a value that JSON can hold, got object (not JSON) at $.messages[1].content[0].data",
        ),
        ({"messages": [{"score": float("nan")}]}, "got float (Out of range float values"),
        ({"messages": [endless()]}, "$.messages[0].again.again"),
        ({"policy_version": "v3"}, "runs of (version or None, tokens), got 'v3' at $.policy_version"),
        ({"policy_version": 1.5}, "runs of (version or None, tokens), got 1.5 at $.policy_version"),
        ({"policy_version": -1}, "got -1 at $.policy_version"),
        ({"policy_version": True}, "got True at $.policy_version"),
        ({"policy_version": ["v3"]}, "runs of (version or None, tokens), got 'v3' at $.policy_version[0]"),
        ({"policy_version": [(1, 1), (2, "x")]}, "got 'x' at $.policy_version[1]"),
        ({"arrays": [1, 2]}, "expected a mapping of names to arrays, got list at $.arrays"),
        ({"arrays": np.array([1, 2])}, "expected a mapping of names to arrays, got ndarray at $.arrays"),
        ({"arrays": {5: [1, 2]}}, "expected text, got 5 at $.arrays"),
        ({"arrays": {"x": OnDevice()}}, "expected an array of numbers, got on a device at $.arrays.x"),
        ({"arrays": {"x": [[1], [2, 3]]}}, "expected an array of numbers, got setting an array element"),
        ({"prompt_ids": None}, "expected the response's whole prompt (an empty list for none), got no prompt_ids"),
        ({"prompt_ids": OnDevice()}, "got OnDevice (on a device) at $.prompt_ids"),
        ({"response_ids": [True, False]}, "got True at $.response_ids[0]"),
        ({"logprobs": OnDevice()}, "got OnDevice (on a device) at $.logprobs"),
        ({"logprobs": [0.5, 0.9]}, "at most 0, got 0.5 at $.logprobs[0]; were probabilities passed? give their logs"),
        ({"response_id": 7}, "expected text, got 7 at $.response_id"),
        ({"trainable": 1}, "expected true or false, got 1 at $.trainable"),
    ],
)
def test_record_that_is_refused_names_the_field_and_can_be_called_again(published, arguments, text):
    with published.publisher.rollout("t", rollout_id="r-7") as rollout, rollout.call() as call:
        with pytest.raises(InvalidEvent) as caught:
            call.record(**{"prompt_ids": [1], "response_ids": [2, 3]} | arguments)
        assert text in str(caught.value)
        assert "(rollout r-7, attempt 0)" in str(caught.value)
        answer(call)
    assert spans(published)["chat"].response_ids == b"\x03\0\0\0"


def test_record_twice_is_refused(published):
    with published.publisher.rollout("t") as rollout, rollout.call() as call:
        answer(call)
        with pytest.raises(InvalidEvent, match="expected one answer a call, got a second in 'chat'"):
            answer(call)


def test_event_above_the_limit_is_refused_by_name_and_leaves_no_gap(make_published):
    published = make_published(event_bytes_max=1_000)
    with published.publisher.rollout("t", rollout_id="r-7") as rollout:
        with pytest.raises(RecordTooLarge) as caught, rollout.tool("sql") as tool:
            tool.set(text="x" * 1_000)
        assert "Span 'sql' not recorded: expected at most 1000 bytes, got 11" in str(caught.value)
        assert "(rollout r-7, attempt 0)" in str(caught.value)
        rollout.reward(0.5)
    assert [type(event) for event in published.events()] == [RolloutStarted, RewardRecorded, RolloutCompleted]


def test_reward_knows_its_parent_and_the_last_call_seen(published):
    with published.publisher.rollout("t") as rollout:
        rollout.reward(0.0, name="before")
        with rollout.agent("planner") as agent:
            with rollout.operation("plan"), rollout.call() as call:
                answer(call)
            emit_reward(0.2)
        rollout.reward(0.3, name="after")
    before, inside, after = published.of(RewardRecorded)
    assert (before.parent_id, before.after_call) == (None, None)
    assert (inside.parent_id, inside.after_call, inside.value) == (agent.span_id, call.span_id, 0.2)
    assert (after.parent_id, after.after_call) == (None, call.span_id)


def test_reward_after_a_call_without_answer_names_the_one_before(published):
    """A call span with neither tokens nor response id is no call to attribution: it would be found by no rule."""
    with published.publisher.rollout("t") as rollout:
        with rollout.call() as call:
            answer(call)
        with rollout.call():
            pass
        rollout.reward(1.0)
    assert published.of(RewardRecorded)[0].after_call == call.span_id


def test_reward_in_an_agent_that_saw_no_call_names_none_of_another_agent(published):
    """The call named would count as beneath the reward's parent, so the reward would train the other agent."""
    with published.publisher.rollout("t") as rollout:
        with rollout.agent("outer"), rollout.call() as call:
            answer(call)
        with rollout.agent("inner"):
            emit_reward(0.1)
        rollout.reward(0.2)
    inner, after = published.of(RewardRecorded)
    assert (inner.after_call, after.after_call) == (None, call.span_id)


def test_reward_after_an_inner_agent_names_its_last_call(published):
    with published.publisher.rollout("t") as rollout, rollout.agent("outer"):
        with rollout.call(name="a") as first:
            answer(first)
        with rollout.agent("inner"):
            emit_reward(0.0)
            with rollout.operation("plan"), rollout.call(name="b") as second:
                answer(second)
            emit_reward(0.1)
        emit_reward(0.2)
    assert [reward.after_call for reward in published.of(RewardRecorded)] == [None, second.span_id, second.span_id]
    assert first.span_id != second.span_id


async def test_reward_of_an_agent_in_a_task_names_its_own_calls(published):
    async def work(rollout, name):
        async with rollout.agent(name):
            emit_reward(0.0, name=f"{name}-before")
            async with rollout.call() as call:
                answer(call)
            await asyncio.sleep(0)
            emit_reward(1.0, name=name)
            return call.span_id

    async with published.publisher.rollout("t") as rollout, rollout.agent("outer"):
        async with rollout.call() as first:
            answer(first)
        calls = await asyncio.gather(work(rollout, "x"), work(rollout, "y"))
        await asyncio.to_thread(emit_reward, 1.0, name="thread")
        emit_reward(1.0, name="outer")
    named = {reward.name: reward.after_call for reward in published.of(RewardRecorded)}
    assert named == {
        "x-before": None, "y-before": None, "x": calls[0], "y": calls[1],
        "thread": first.span_id, "outer": first.span_id,
    }  # fmt: skip


async def test_agent_left_in_another_task_than_entered_in_leaves_both_usable(published):
    async with published.publisher.rollout("t") as rollout:
        async with rollout.call() as first:
            answer(first)
        agent = rollout.agent("a")
        await asyncio.create_task(agent.__aenter__())
        await asyncio.create_task(agent.__aexit__(None, None, None))
        emit_reward(1.0)
    assert published.of(RewardRecorded)[0].after_call == first.span_id
    assert spans(published)["a"].status == "ok"


def test_reward_takes_everything_it_is_given(published):
    with published.publisher.rollout("t") as rollout:
        first = rollout.reward(np.float32(0.5), reward_id="w-1")
        second = rollout.reward(
            1, "format", target={"operation": "plan"}, extra_info={"acc": np.float64(1), "nan": float("nan")},
            supersedes=first, scorer="rules", scorer_version="2",
        )  # fmt: skip
    one, two = published.of(RewardRecorded)
    assert (one.id, first, one.value) == ("w-1", "w-1", 0.5)
    assert second == two.id == f"{two.source}:{two.sequence}"
    assert (two.name, two.value, two.target, two.scope) == ("format", 1.0, Target("operation", "plan"), "step")
    assert (two.supersedes, two.scorer, two.scorer_version) == ("w-1", "rules", "2")
    assert two.extra_info.startswith(b'{"acc":')


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda rollout: rollout.agent(5), "expected text, got 5 at $.name"),
        (lambda rollout: rollout.tool("a", links="s-1"), "expected a list of texts, got 's-1' at $.links"),
        (lambda rollout: rollout.tool("a", links=5), "expected a list of texts, got 5 at $.links"),
        (lambda rollout: rollout.tool("a", links=[5]), "expected text, got 5 at $.links"),
        (lambda rollout: rollout.tool("a", start_ns="now"), "got 'now' at $.start_ns"),
        (lambda rollout: rollout.tool("a", end_ns=1.5), "got 1.5 at $.end_ns"),
        (lambda rollout: rollout.call(model=5), "expected text, got 5 at $.model"),
        (lambda rollout: rollout.call(policy_version="v3"), "got 'v3' at $.policy_version"),
    ],
)
def test_block_with_bad_argument_is_refused_where_it_is_made(published, make, text):
    with published.publisher.rollout("t", rollout_id="r-7") as rollout:
        with pytest.raises(InvalidEvent) as caught:
            make(rollout)
        assert text in str(caught.value)
        assert "(rollout r-7, attempt 0)" in str(caught.value)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda rollout: answer(rollout.call()), "use `with rollout.call(...) as call:` and `call.record(...)` within"),
        (lambda rollout: rollout.call().record(), "record refused: block 'chat' of rollout r-7 was not entered"),
        (lambda rollout: rollout.tool("sql").set(rows=1), "set refused: block 'sql' of rollout r-7 was not entered"),
        (
            lambda rollout: rollout.agent("a").set(rows=1),
            "use `with rollout.agent(...) as agent:` and `agent.set(...)`",
        ),
    ],
)
def test_recording_in_a_block_that_was_not_entered_is_refused(published, use, text):
    """It would be lost without a word: only a block that is left publishes."""
    with published.publisher.rollout("t", rollout_id="r-7") as rollout, pytest.raises(NotOpen) as caught:
        use(rollout)
    assert text in str(caught.value)


@pytest.mark.parametrize("use", ["record", "set"])
def test_recording_in_a_block_that_was_left_is_refused(published, use):
    with published.publisher.rollout("t", rollout_id="r-7") as rollout:
        with rollout.call() as call:
            pass
        with pytest.raises(NotOpen, match="block 'chat' of rollout r-7 has ended; nothing more can be recorded in it"):
            answer(call) if use == "record" else call.set(a=1)


@pytest.mark.parametrize("arguments", [{}, {"finish_reason": "stop"}, {"logprobs": []}, {"policy_version": 3}])
def test_record_of_nothing_is_refused(published, arguments):
    with published.publisher.rollout("t") as rollout, rollout.call() as call:
        with pytest.raises(InvalidEvent) as caught:
            call.record(**arguments)
        assert "expected prompt_ids and response_ids, a response_id, or messages, got none of them" in str(caught.value)
        answer(call)


@pytest.mark.parametrize(
    "arguments",
    [
        {"response_ids": []},
        {"response_ids": [], "prompt_ids": [1]},
        {"prompt_ids": [1]},
        {"messages": []},
        {"response_id": "resp-1"},
        {"prompt_ids": [], "response_ids": [1]},
        {"response_ids": [], "policy_version": 3, "logprobs": []},
    ],
)
def test_record_of_a_call_without_tokens_or_with_an_empty_prompt_is_accepted(published, arguments):
    with published.publisher.rollout("t") as rollout, rollout.call() as call:
        call.record(**arguments)
    found = spans(published)["chat"]
    assert (
        found.response_ids
        == {None: None, 0: b"", 1: b"\x01\0\0\0"}[
            None if "response_ids" not in arguments else len(arguments["response_ids"])
        ]
    )


def test_record_takes_numpy_numbers_as_versions_and_indices(published):
    with published.publisher.rollout("t") as rollout, rollout.call(policy_version=np.int64(3)) as call:
        answer(call, choice_index=np.int32(1))
    found = spans(published)["chat"]
    assert (found.policy_version_runs, found.choice_index) == ((PolicyVersionRun(3, 1),), 1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"value": True}, "got True at $.value; use 1.0 or 0.0"),
        ({"value": np.True_}, "at $.value; use 1.0 or 0.0"),
        ({"value": np.array([1.0])}, "at $.value; take the number out of it with `.item()`"),
        ({"value": "0.5"}, "got '0.5' at $.value"),
        ({"value": float("nan")}, "got nan at $.value"),
        ({"value": 1.0, "target": {"span": "x"}}, "expected exactly one of span_id, response_id, operation"),
        ({"value": 1.0, "target": {"span_id": "x"}, "scope": "rollout"}, "expected no target on a reward of scope"),
        ({"value": 1.0, "scope": "group"}, "got 'group' at $.scope"),
        ({"value": 1.0, "extra_info": {"uid": 1, "acc": 1, "values": 2}}, "got 'uid', 'values' at $.extra_info"),
        ({"value": 1.0, "extra_info": {"a": object()}}, "$.extra_info"),
        ({"value": 1.0, "extra_info": [1]}, "expected a mapping, got list at $.extra_info"),
    ],
)
def test_reward_that_is_refused_names_the_field_and_leaves_no_gap(published, arguments, text):
    with published.publisher.rollout("t", rollout_id="r-7") as rollout:
        with pytest.raises(InvalidEvent) as caught:
            rollout.reward(**arguments)
        assert text in str(caught.value)
        assert str(caught.value).startswith("RewardRecorded 'reward' refused: ")
        assert "(rollout r-7, attempt 0)" in str(caught.value)
    assert [type(event) for event in published.events()] == [RolloutStarted, RolloutCompleted]


def test_emit_reward_outside_of_any_rollout_says_so():
    with pytest.raises(NotOpen, match="reward 'reward' not recorded: no rollout's block is open in this context"):
        emit_reward(1.0)


def test_emit_reward_in_a_bare_thread_says_how_to_start_one():
    texts = []

    def work():
        with pytest.raises(NotOpen) as caught:
            emit_reward(1.0)
        texts.append(str(caught.value))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "has no context: use `asyncio.to_thread`, or start it with `contextvars.copy_context().run`" in texts[0]


def test_emit_reward_in_nested_rollouts_goes_to_the_inner_one(published):
    with published.publisher.rollout("t", rollout_id="r-1"):
        with published.publisher.rollout("t", rollout_id="r-2"):
            emit_reward(1.0)
        emit_reward(2.0)
    assert {event.rollout_id: event.value for event in published.of(RewardRecorded)} == {"r-2": 1.0, "r-1": 2.0}


def test_emit_reward_within_a_block_of_a_rollout_used_without_its_own(published):
    rollout = published.publisher.rollout("t")
    with rollout.agent("planner"):
        emit_reward(0.5)
    rollout.finish()
    assert [type(event).__name__ for event in published.events()] == [
        "RolloutStarted", "RewardRecorded", "Span", "RolloutCompleted",
    ]  # fmt: skip


def test_finish_publishes_rewards_of_the_rollout_then_its_end(published):
    with published.publisher.rollout("t") as rollout:
        rollout.finish({"correct": 1, "format": np.float32(0.5)})
    rewards = published.of(RewardRecorded)
    assert [(r.name, r.value, r.scope, r.parent_id, r.after_call) for r in rewards] == [
        ("correct", 1.0, "rollout", None, None),
        ("format", 0.5, "rollout", None, None),
    ]
    assert published.events()[-1].status == "completed"


def test_finish_with_reward_zero_publishes_it_and_with_none_does_not(published):
    with published.publisher.rollout("t") as rollout:
        rollout.finish(0.0)
    with published.publisher.rollout("t") as rollout:
        rollout.finish(None)
    assert [reward.value for reward in published.of(RewardRecorded)] == [0.0]


def test_finish_with_one_bad_reward_publishes_nothing_and_can_be_called_again(published):
    with published.publisher.rollout("t") as rollout:
        with pytest.raises(InvalidEvent, match=r"got nan at \$.value"):
            rollout.finish({"correct": 1.0, "format": float("nan")})
        rollout.finish(1.0)
    assert [reward.name for reward in published.of(RewardRecorded)] == ["reward"]


def test_finish_with_a_bad_reward_among_several_names_it(published):
    with published.publisher.rollout("t", rollout_id="r-7") as rollout, pytest.raises(InvalidEvent) as caught:
        rollout.finish({"correct": 1.0, "format": "yes"})
    assert str(caught.value) == (
        "RewardRecorded 'format' refused: expected a finite number or null, got 'yes' at $.value; convert it with "
        "float() if it is one (rollout r-7, attempt 0)"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"error": "no"}, "expected status 'failed' with an error, or no error, got 'completed' at $.status"),
        ({"error": ValueError("no")}, "expected status 'failed' with an error, or no error"),
        ({"status": "failed", "error": 5}, "expected text or an exception, got 5 at $.error"),
        ({"status": "failed", "error": ValueError}, "expected text or an exception, got <class 'ValueError'>"),
        ({"status": "done"}, "expected one of completed, failed, got 'done' at $.status"),
    ],
)
def test_finish_with_a_status_and_error_that_do_not_fit_is_refused_and_can_be_called_again(published, arguments, text):
    with published.publisher.rollout("t") as rollout:
        with pytest.raises(InvalidEvent) as caught:
            rollout.finish(**arguments)
        assert text in str(caught.value)
        assert str(caught.value).startswith("RolloutCompleted refused: ")
        rollout.finish(0.5, status="failed", error="no")
    end = published.of(RolloutCompleted)[0]
    assert (end.status, end.error) == ("failed", "no")
    assert [reward.value for reward in published.of(RewardRecorded)] == [0.5]


def test_finish_within_open_blocks_ends_them_first(published):
    with published.publisher.rollout("t") as rollout, rollout.agent("planner"), rollout.call() as call:
        answer(call)
        published.now_ns += 9
        rollout.finish(1.0)
        published.now_ns += 9
    assert [getattr(event, "name", type(event).__name__) for event in published.events()] == [
        "RolloutStarted", "chat", "planner", "reward", "RolloutCompleted",
    ]  # fmt: skip
    assert spans(published)["planner"].end_ns - spans(published)["planner"].start_ns == 9
    assert spans(published)["planner"].status == "ok"


@pytest.mark.parametrize("use", ["reward", "agent", "record", "set", "finish", "enter"])
def test_recording_after_the_end_is_refused_by_name(published, use):
    with published.publisher.rollout("t", rollout_id="r-7") as rollout, rollout.call() as call:
        rollout.finish()
        with pytest.raises(NotOpen, match=r"rollout r-7.*(is finished|has ended)"):
            {
                "reward": lambda: rollout.reward(1.0),
                "agent": lambda: rollout.agent("x").__enter__(),
                "record": lambda: answer(call),
                "set": lambda: call.set(a=1),
                "finish": lambda: rollout.finish(),
                "enter": lambda: rollout.__enter__(),
            }[use]()
    assert type(published.events()[-1]) is RolloutCompleted


def test_exception_in_the_block_completes_the_rollout_as_failed_and_goes_on(published):
    with (
        pytest.raises(ValueError, match="no such airline"),
        published.publisher.rollout("t") as rollout,
        rollout.agent("planner"),
    ):
        raise ValueError("no such airline")
    end = published.of(RolloutCompleted)[0]
    assert (end.status, end.error) == ("failed", "ValueError: no such airline")
    assert published.of(RewardRecorded) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_interrupt_in_the_block_completes_the_rollout_as_failed_and_goes_on(published, error):
    with pytest.raises(error), published.publisher.rollout("t"):
        raise error
    end = published.of(RolloutCompleted)[0]
    assert (end.status, end.error) == ("failed", error.__name__)


def test_exception_after_finish_goes_on_and_changes_nothing(published):
    def work():
        with published.publisher.rollout("t") as rollout:
            rollout.finish(1.0)
            raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        work()
    assert published.of(RolloutCompleted)[0].status == "completed"


def test_exception_whose_text_is_broken_or_long_still_completes_the_rollout(published):
    class Broken(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    for error in (Broken(), ValueError("\ud800"), ValueError("x" * 10_000)):
        with pytest.raises(type(error)), published.publisher.rollout("t"):
            raise error
    texts = [end.error for end in published.of(RolloutCompleted)]
    assert sorted(len(text) for text in texts) == [6, 18, 4_096]


def test_exception_in_a_block_that_cannot_be_recorded_is_not_hidden(make_published, caplog):
    published = make_published(event_bytes_max=1_000)

    def work():
        with published.publisher.rollout("t") as rollout, rollout.tool("sql") as tool:
            tool.set(text="x" * 1_000)
            raise KeyError("k")

    with pytest.raises(KeyError) as caught:
        work()
    assert "rolloutlog: Span 'sql' not recorded" in caught.value.__notes__[0]
    assert "Span 'sql' not recorded" in caplog.text
    assert published.of(RolloutCompleted)[0].status == "failed"


def test_span_that_cannot_be_recorded_at_the_end_makes_the_rollout_failed(make_published):
    """A rollout that lacks a call must not look complete."""
    published = make_published(event_bytes_max=1_000)

    def work():
        with published.publisher.rollout("t") as rollout:
            tool = rollout.tool("sql").__enter__()
            tool.set(text="x" * 1_000)

    with pytest.raises(RecordTooLarge):
        work()
    assert published.of(RolloutCompleted)[0].status == "failed"


async def test_blocks_work_with_async_with_and_tasks_take_their_parents_place(published):
    async def work(rollout, name):
        async with rollout.operation(name):
            await asyncio.sleep(0)
            async with rollout.call(name=f"call-{name}") as call:
                answer(call)
            await asyncio.sleep(0)
            emit_reward(1.0, name=name)
            return call.span_id

    async with published.publisher.rollout("t") as rollout, rollout.agent("planner") as agent:
        async with rollout.call(name="first") as first:
            answer(first)
        calls = await asyncio.gather(work(rollout, "x"), work(rollout, "y"))
        emit_reward(1.0, name="z")
    found = spans(published)
    assert {found["x"].parent_id, found["y"].parent_id} == {agent.span_id}
    assert found["call-y"].parent_id == found["y"].span_id
    rewards = {reward.name: reward for reward in published.of(RewardRecorded)}
    assert (rewards["x"].parent_id, rewards["x"].after_call) == (found["x"].span_id, calls[0])
    assert (rewards["y"].parent_id, rewards["y"].after_call) == (found["y"].span_id, calls[1])
    assert (rewards["z"].parent_id, rewards["z"].after_call) == (agent.span_id, first.span_id)


async def test_cancelled_task_completes_its_rollout_as_failed(published):
    async def work():
        async with published.publisher.rollout("t") as rollout, rollout.tool("wait"):
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert published.of(RolloutCompleted)[0].error == "CancelledError"
    assert spans(published)["wait"].status == "error"


def test_threads_and_refusals_on_one_rollout_leave_no_gap(published):
    def work(rollout, number):
        for index in range(100):
            with rollout.tool(f"t-{number}") as tool:
                tool.set(index=index)
            with pytest.raises(InvalidEvent):
                rollout.reward(float("nan"))
            rollout.reward(float(index), name=f"r-{number}")

    with published.publisher.rollout("t") as rollout:
        threads = [threading.Thread(target=work, args=(rollout, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(published.events()) == 2 + 4 * 200  # `events` checks the numbers
    for number in range(4):
        values = [reward.value for reward in published.of(RewardRecorded) if reward.name == f"r-{number}"]
        assert values == list(map(float, range(100)))
