"""Functions as blocks, and as rollouts, by their events on a log in memory."""

import asyncio
import functools
import logging

import numpy as np
import pytest

from rolloutlog.eventstore import (
    InvalidEvent,
    NotOpen,
    agent,
    current_rollout,
    emit_reward,
    evaluator,
    operation,
    rollout_function,
    tool,
)
from rolloutlog.eventstore.events import RewardRecorded, RolloutCompleted, RolloutStarted, Span


def parents(published):
    """Span → the name of the span around it, and reward → that of the span it was emitted in."""
    spans = {span.span_id: span for span in published.of(Span)}
    named = {span_id: span.name for span_id, span in spans.items()} | {None: None}
    found = {span.name: named[span.parent_id] for span in spans.values()}
    return found | {reward.name: named[reward.parent_id] for reward in published.of(RewardRecorded)}


@pytest.mark.parametrize("decorator", [agent, operation, tool, evaluator], ids=lambda each: each.__name__)
def test_decorated_function_is_a_block_of_its_name(published, decorator):
    @decorator
    def check_query(query):
        emit_reward(0.2, "parses")
        return query.upper()

    with published.publisher.rollout("t"):
        assert check_query("select") == "SELECT"
    (span,) = published.of(Span)
    assert (span.name, span.kind, span.status) == ("check_query", decorator.__name__, "ok")
    assert parents(published)["parses"] == "check_query"


def test_decorated_function_with_a_name_has_that_name(published):
    @agent("writer")
    def write():
        inner()

    @operation()
    def inner():
        pass

    with published.publisher.rollout("t"):
        write()
    assert parents(published) == {"writer": None, "inner": "writer"}


def test_decorated_coroutines_at_once_keep_their_rewards_apart(published):
    @operation
    async def score(name):
        await asyncio.sleep(0)
        emit_reward(1.0, name)
        await asyncio.sleep(0)

    async def run():
        async with published.publisher.rollout("t"):
            await asyncio.gather(score("a"), score("b"))

    asyncio.run(run())
    rewards = {reward.name: reward.parent_id for reward in published.of(RewardRecorded)}
    assert len(set(rewards.values())) == 2
    assert set(rewards.values()) == {span.span_id for span in published.of(Span)}


def test_decorated_method_gets_its_instance(published):
    class Agent:
        def __init__(self):
            self.prefix = "SELECT "

        @operation
        def write(self, what):
            return self.prefix + what

    with published.publisher.rollout("t"):
        assert Agent().write("1") == "SELECT 1"
    assert parents(published) == {"write": None}


def test_decorated_function_that_raises_leaves_a_failed_block(published):
    @tool
    def run_sql():
        raise ValueError("no such table")

    with published.publisher.rollout("t"), pytest.raises(ValueError, match="no such table"):
        run_sql()
    assert published.of(Span)[0].status == "error"


def test_decorated_function_outside_of_a_rollout_runs_and_says_so_once(caplog):
    @operation
    def check_query():
        return 7

    with caplog.at_level(logging.WARNING):
        assert (check_query(), check_query()) == (7, 7)
    assert [record.getMessage()[:55] for record in caplog.records] == [
        "operation 'check_query' runs outside of any rollout: it"
    ]


def test_decorated_function_keeps_its_signature():
    """Frameworks look at it to know what to hand over."""

    @operation
    def node(state: dict, config: int) -> dict:
        """What it does."""

    assert (node.__name__, node.__doc__, list(node.__annotations__)) == (
        "node",
        "What it does.",
        ["state", "config", "return"],
    )


def generator():
    yield 1


async def async_generator():
    yield 1


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (generator, "@operation on 'generator' refused: a generator's code runs where its values are taken"),
        (async_generator, "@operation on 'async_generator' refused"),
        (classmethod(len), "write @operation below it"),
        (ValueError, "got class ValueError: decorate its methods"),
        (3, "expected a function, got 3"),
    ],
)
def test_decorator_on_what_it_cannot_take_says_why(function, text):
    with pytest.raises(TypeError) as caught:
        operation(function)
    assert text in str(caught.value)


def test_decorator_on_a_callable_object_without_name_asks_for_one():
    class Node:
        def __call__(self):
            return 1

    with pytest.raises(TypeError, match=r"give one, `@operation\('name'\)`"):
        operation(Node())
    assert operation("node")(Node())() == 1


def test_decorator_with_an_empty_name_is_refused():
    with pytest.raises(InvalidEvent, match="@operation refused: expected text that is not empty"):
        operation("")


def test_current_rollout_is_the_one_of_the_context(published):
    with published.publisher.rollout("t") as rollout:
        assert current_rollout() is rollout
    with pytest.raises(NotOpen, match="no rollout's block is open"):
        current_rollout()


# Whole rollouts


def outcomes(published):
    return {(reward.name, reward.value) for reward in published.of(RewardRecorded) if reward.scope == "rollout"}


@pytest.mark.parametrize(
    ("returned", "recorded"),
    [
        (1.0, {("reward", 1.0)}),
        (0, {("reward", 0.0)}),
        (np.float32(0.5), {("reward", 0.5)}),
        ({"rows": 1.0, "style": np.int64(2)}, {("rows", 1.0), ("style", 2.0)}),
        ({"rows": None}, {("rows", None)}),
        ({}, set()),
        (None, set()),
    ],
    ids=["float", "int", "numpy", "mapping", "no verdict", "empty mapping", "none"],
)
def test_rollout_function_publishes_what_it_returns(published, returned, recorded):
    @rollout_function
    def solve():
        return returned

    assert solve.rollout(published.publisher, task_id="t")() is returned
    assert outcomes(published) == recorded
    assert [end.status for end in published.of(RolloutCompleted)] == ["completed"]


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (True, "from 'solve', got True at $.value; return 1.0 or 0.0. The rollout ends as failed"),
        (np.True_, "return 1.0 or 0.0"),
        ("1.0", "got '1.0' at $.value; return float(...) of it, if it is one"),
        ([1.0], "got [1.0] at $.value"),
        (float("nan"), "expected a finite number or null, got nan"),
        ({"rows": True}, "use 1.0 or 0.0"),
    ],
    ids=repr,
)
def test_rollout_function_that_returns_no_number_raises_and_ends_as_failed(published, returned, text):
    @rollout_function
    def solve():
        emit_reward(0.2, "parses")
        return returned

    with pytest.raises(InvalidEvent) as caught:
        solve.rollout(published.publisher, task_id="t")()
    assert text in str(caught.value)
    assert outcomes(published) == set()
    (end,) = published.of(RolloutCompleted)
    assert (end.status, end.error.partition(":")[0]) == ("failed", "InvalidEvent")


def test_rollout_function_never_merges_what_it_emits_with_what_it_returns(published):
    @rollout_function
    def solve():
        emit_reward(0.25)
        emit_reward(0.5, scope="rollout")
        return 1.0

    solve.rollout(published.publisher, task_id="t")()
    rewards = [(reward.value, reward.scope) for reward in published.of(RewardRecorded)]
    assert rewards == [(0.25, "step"), (0.5, "rollout"), (1.0, "rollout")]


def test_rollout_function_that_raises_ends_as_failed_and_raises_on(published):
    @rollout_function
    def solve():
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError, match="no answer"):
        solve.rollout(published.publisher, task_id="t")()
    assert [end.status for end in published.of(RolloutCompleted)] == ["failed"]


def test_rollout_function_is_a_rollout_at_each_call(published):
    @rollout_function
    def solve(value):
        return value

    group = published.publisher.group("t", size=2)
    run = solve.rollout(published.publisher, group=group, policy_version=3)
    assert [run(0.0), run(value=1.0)] == [0.0, 1.0]
    starts = published.of(RolloutStarted)
    assert {(start.group_id, start.policy_version) for start in starts} == {(group.group_id, 3)}
    assert len({start.rollout_id for start in starts}) == 2


async def test_rollout_coroutines_at_once_keep_their_rewards_apart(make_published):
    published = await asyncio.to_thread(make_published)

    @rollout_function
    async def solve(value):
        await asyncio.sleep(0)
        emit_reward(value, "step")
        return value

    run = solve.rollout(published.publisher, task_id="t")
    assert await asyncio.gather(run(1.0), run(2.0)) == [1.0, 2.0]
    by_rollout = {}
    for reward in await asyncio.to_thread(published.of, RewardRecorded):
        by_rollout.setdefault(reward.rollout_id, set()).add(reward.value)
    assert sorted(map(sorted, by_rollout.values())) == [[1.0], [2.0]]


def test_rollout_function_called_itself_just_runs(published):
    @rollout_function
    def solve(value):
        return value

    assert solve(True) is True
    assert published.events() == []


def test_rollout_function_as_a_method_gets_its_instance(published):
    class Agent:
        value = 0.5

        @rollout_function
        def solve(self, factor):
            return self.value * factor

    assert Agent().solve.rollout(published.publisher, task_id="t")(2) == 1.0
    assert outcomes(published) == {("reward", 1.0)}


def test_rollout_function_that_finished_its_rollout_itself_may_return_nothing_more(published):
    @rollout_function
    def solve(value):
        current_rollout().finish(1.0)
        return value

    run = solve.rollout(published.publisher, task_id="t")
    run(None)
    with pytest.raises(NotOpen, match=r"'solve' finished its rollout before it returned 0\.5; either return"):
        run(0.5)
    assert outcomes(published) == {("reward", 1.0)}


def test_rollout_function_with_parentheses_is_the_same_as_without(published):
    @rollout_function()
    def solve(value):
        return value

    assert solve.rollout(published.publisher, task_id="t")(0.5) == 0.5
    assert outcomes(published) == {("reward", 0.5)}


def test_rollout_function_called_twice_with_one_rollout_id_is_refused(published):
    """The second rollout of one id would count for nothing, and nobody would be told."""

    @rollout_function
    def solve(value):
        return value

    run = solve.rollout(published.publisher, task_id="t", rollout_id="t-1")
    run(0.5)
    with pytest.raises(NotOpen, match="rollout t-1 not started: 'solve' has been called with this rollout_id before"):
        run(1.0)
    assert [start.rollout_id for start in published.of(RolloutStarted)] == ["t-1"]


def test_rollout_function_on_a_generator_is_refused():
    with pytest.raises(TypeError, match="@rollout_function on 'generator' refused"):
        rollout_function(generator)


def test_rollout_function_on_a_partial_runs_it(published):
    def solve(value, factor):
        return value * factor

    rollout_function(functools.partial(solve, 2)).rollout(published.publisher, task_id="t")(3)
    assert outcomes(published) == {("reward", 6.0)}
