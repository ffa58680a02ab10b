"""Where code is, by context variables."""

import asyncio
import contextvars

from rolloutlog.eventstore import scope


class Rollout:
    finished = False


A, B = Rollout(), Rollout()


def isolated(test):
    """Run the test in a context of its own."""

    def run():
        contextvars.Context().run(test)

    run.__name__ = test.__name__
    return run


@isolated
def test_scope_of_nested_rollouts_keeps_their_spans_apart():
    scope.enter(A, None)
    scope.enter(A, "a1")
    scope.enter(B, None)
    scope.enter(B, "b1")
    assert scope.current_rollout() is B
    assert (scope.enclosing_span(A), scope.enclosing_span(B)) == ("a1", "b1")
    scope.leave(B, "b1")
    scope.leave(B, None)
    assert scope.current_rollout() is A


@isolated
def test_scope_of_blocks_that_end_out_of_order_keeps_the_inner_one():
    scope.enter(A, "outer")
    scope.enter(A, "inner")
    scope.leave(A, "outer")
    assert scope.enclosing_span(A) == "inner"
    scope.leave(A, "inner")
    assert scope.enclosing_span(A) is None


@isolated
def test_scope_left_where_it_was_never_entered_changes_nothing():
    scope.enter(A, "a1")
    contextvars.copy_context().run(scope.leave, A, "a1")
    assert scope.enclosing_span(A) == "a1"
    scope.leave(A, "never")
    assert scope.enclosing_span(A) == "a1"


@isolated
def test_last_call_outlives_its_blocks_and_is_of_the_same_rollout():
    scope.see_call(A, "c1")
    scope.see_call(B, "c2")
    assert (scope.last_call(A), scope.last_call(B)) == ("c1", "c2")
    scope.see_call(A, "c3")
    assert (scope.last_call(A), scope.last_call(B)) == ("c3", "c2")
    scope.forget(A)
    assert (scope.last_call(A), scope.last_call(B)) == (None, "c2")


@isolated
def test_last_calls_of_finished_rollouts_are_dropped():
    done = Rollout()
    scope.see_call(done, "c1")
    done.finished = True
    scope.see_call(A, "c2")
    assert scope.last_call(done) is None


async def test_task_begins_with_a_copy_of_its_parents_scope():
    async def child(name):
        before = (scope.enclosing_span(A), scope.last_call(A))
        scope.enter(A, name)
        scope.see_call(A, f"call-{name}")
        await asyncio.sleep(0)
        return before, scope.enclosing_span(A), scope.last_call(A)

    scope.enter(A, "outer")
    scope.see_call(A, "c1")
    assert await asyncio.gather(asyncio.create_task(child("x")), asyncio.create_task(child("y"))) == [
        (("outer", "c1"), "x", "call-x"),
        (("outer", "c1"), "y", "call-y"),
    ]
    assert (scope.enclosing_span(A), scope.last_call(A)) == ("outer", "c1")


def agent(name):
    scope.enter(A, name, is_agent=True)


@isolated
def test_agent_sees_no_call_from_before_its_block():
    scope.see_call(A, "c1")
    agent("inner")
    assert scope.last_call(A) is None


@isolated
def test_agent_that_saw_a_call_hands_it_out():
    scope.see_call(A, "c1")
    agent("inner")
    scope.see_call(A, "c2")
    assert scope.last_call(A) == "c2"
    scope.leave(A, "inner")
    assert scope.last_call(A) == "c2"


@isolated
def test_agent_that_saw_no_call_leaves_the_one_from_before():
    scope.see_call(A, "c1")
    agent("inner")
    scope.leave(A, "inner")
    assert scope.last_call(A) == "c1"


@isolated
def test_agents_within_agents_each_see_their_own_calls():
    agent("outer")
    scope.see_call(A, "c1")
    agent("inner")
    assert scope.last_call(A) is None
    scope.leave(A, "inner")
    assert scope.last_call(A) == "c1"
    agent("next")
    scope.see_call(A, "c2")
    scope.leave(A, "next")
    assert scope.last_call(A) == "c2"
    scope.leave(A, "outer")
    assert scope.last_call(A) == "c2"


@isolated
def test_agents_hide_nothing_of_other_rollouts():
    scope.see_call(B, "b1")
    agent("inner")
    assert scope.last_call(B) == "b1"


@isolated
def test_operations_hide_nothing():
    scope.see_call(A, "c1")
    scope.enter(A, "operation")
    assert scope.last_call(A) == "c1"


@isolated
def test_agents_left_out_of_order_hand_out_to_the_agents_that_are_open():
    agent("outer")
    scope.see_call(A, "c1")
    agent("inner")
    scope.leave(A, "outer")
    assert scope.last_call(A) is None
    scope.see_call(A, "c2")
    scope.leave(A, "inner")
    assert scope.last_call(A) == "c2"


@isolated
def test_agent_left_in_another_context_changes_that_one_alone():
    agent("outer")
    scope.see_call(A, "c1")
    contextvars.Context().run(scope.leave, A, "outer")
    assert scope.last_call(A) == "c1"
    copied = contextvars.copy_context()
    copied.run(scope.leave, A, "outer")
    assert (copied.run(scope.enclosing_span, A), copied.run(scope.last_call, A)) == (None, "c1")
    assert (scope.enclosing_span(A), scope.last_call(A)) == ("outer", "c1")


async def test_agent_in_a_task_sees_its_own_calls_and_hides_nothing_of_its_parent():
    async def child():
        agent("inner")
        first = scope.last_call(A)
        scope.see_call(A, "c2")
        await asyncio.sleep(0)
        scope.leave(A, "inner")
        return first, scope.last_call(A)

    scope.see_call(A, "c1")
    assert await asyncio.gather(asyncio.create_task(child()), asyncio.create_task(child())) == [(None, "c2")] * 2
    assert scope.last_call(A) == "c1"


@isolated
def test_memory_of_calls_does_not_grow_with_agents():
    for index in range(100):
        agent(f"a{index}")
        scope.see_call(A, f"c{index}")
        scope.leave(A, f"a{index}")
    assert len(scope._seen.get()) == 1


@isolated
def test_scope_left_everywhere_is_left_in_the_context_it_was_copied_from():
    """Callbacks of a framework may be told of an end in a copy of the context."""
    scope.enter(A, None)
    scope.enter(A, "node", is_agent=True)
    contextvars.copy_context().run(scope.leave_everywhere, A, "node")
    assert (scope.current_rollout(), scope.enclosing_span(A)) == (A, None)
    scope.see_call(A, "c1")
    assert scope.last_call(A) == "c1"
    scope.enter(A, "next")
    assert scope.enclosing_spans(A) == ["next", None]


@isolated
def test_scope_of_a_finished_rollout_whose_spans_were_left_everywhere_is_left():
    scope.enter(A, None)
    scope.enter(B, None)
    scope.enter(B, "node2")
    contextvars.copy_context().run(scope.leave_everywhere, B, "node2")
    scope.leave(B, None)
    assert scope.current_rollout() is A


@isolated
def test_scope_enclosing_spans_within_an_agent_end_with_it():
    scope.enter(A, "a")
    scope.enter(A, "agent", is_agent=True)
    scope.enter(B, "b")
    scope.enter(A, "op")
    assert scope.enclosing_spans(A) == ["op", "agent", "a", None]
    assert scope.enclosing_spans(A, within_agent=True) == ["op", "agent"]


@isolated
def test_scope_run_in_a_block_has_seen_no_call_and_leaves_no_trace():
    scope.enter(A, None)
    scope.see_call(A, "c1")
    assert scope.run_in_block(A, "x", lambda: (scope.enclosing_span(A), scope.last_call(A, "before"))) == ("x", None)
    assert (scope.enclosing_span(A), scope.last_call(A)) == (None, "c1")


@isolated
def test_leaving_a_rollout_leaves_what_is_still_open_of_it_and_nothing_else():
    """A block entered by hand and never left must not catch what is emitted after its rollout."""
    for rollout, span_id in ((A, None), (A, "a1"), (B, None), (B, "b1"), (B, "b2")):
        scope.enter(rollout, span_id)
    scope.leave(B, None)
    assert scope.current_rollout() is A
    assert (scope.enclosing_span(A), scope.enclosing_span(B)) == ("a1", None)
