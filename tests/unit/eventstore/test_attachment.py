"""Work that is attached to a rollout, here in the process that began it."""

import asyncio
import contextvars
import re

import pytest

from rolloutlog.eventstore import InvalidEvent, InvalidSettings, NotOpen, RolloutRef, emit_reward
from rolloutlog.eventstore.events import RewardRecorded, RolloutStarted, SourceEnded, Span


@pytest.fixture
def rollout(published):
    return published.publisher.rollout("t", rollout_id="r-7")


def attached(published):
    """Events of attached sources."""
    return [event for event in published.events() if not event.source.startswith(("main.", "publisher."))]


def test_attachment_publishes_from_a_source_of_its_own_and_ends_it(published, rollout):
    ref = rollout.ref("judge")
    with published.publisher.attach(ref) as judge, judge.evaluator("style"):
        judge.reward(0.5, "style")
    events = attached(published)
    assert [type(event) for event in events] == [RewardRecorded, Span, SourceEnded]
    assert len({event.source for event in events}) == 1
    assert re.fullmatch(r"judge\.[0-9a-f]{16}", events[0].source)
    assert {(event.rollout_id, event.attempt) for event in events} == {("r-7", 0)}
    assert {record.key for record in published.log.events} == {b"r-7"}


def test_attachment_nests_where_its_ref_was_made(published, rollout):
    with rollout.agent("a", span_id="a1"):
        with rollout.call(span_id="c1") as call:
            call.record(prompt_ids=[1], response_ids=[2])
        ref = rollout.ref("judge")
    with published.publisher.attach(ref.text()) as judge:
        emit_reward(0.25, "outside")
        with judge.operation("check", span_id="o1"):
            emit_reward(0.5, "inside")
        with judge.agent("critic"):
            emit_reward(0.75, "own agent")
    rewards = {event.name: event for event in published.of(RewardRecorded)}
    assert (rewards["outside"].parent_id, rewards["outside"].after_call) == ("a1", "c1")
    assert (rewards["inside"].parent_id, rewards["inside"].after_call) == ("o1", "c1")
    assert rewards["own agent"].after_call is None, "an agent sees no call from before its block"
    assert {span.name: span.parent_id for span in published.of(Span)}["check"] == "a1"


def test_attachments_own_calls_are_the_last_ones_seen_in_it(published, rollout):
    ref = RolloutRef(published.publisher.run_id, "r-7", "r-7", 0, "gateway", "a1", "c1")
    with published.publisher.attach(ref) as gateway:
        with gateway.call(span_id="c2") as call:
            call.record(prompt_ids=list(range(100)), response_ids=[2])
        with gateway.call(span_id="c3") as call:
            call.record(prompt_ids=[*range(100), 2, 5], response_ids=[3])
        gateway.reward(1.0, "length")
    assert published.of(RewardRecorded)[0].after_call == "c3"
    assert [span.prompt_base for span in published.of(Span)] == [None, "c2"]


def test_prompts_are_shared_within_one_attachment_alone(published, rollout):
    ref = rollout.ref("gateway")
    for _ in range(2):
        with published.publisher.attach(ref) as gateway, gateway.call() as call:
            call.record(prompt_ids=list(range(100)), response_ids=[2])
    assert [span.prompt_base for span in published.of(Span)] == [None, None]


def test_attachment_that_recorded_nothing_still_ends(published, rollout):
    published.publisher.attach(rollout.ref("judge")).end()
    assert [(type(event), event.sequence) for event in attached(published)] == [(SourceEnded, 0)]


def test_attachment_left_by_an_exception_ends_and_the_exception_goes_on(published, rollout):
    ref = rollout.ref("judge")
    with pytest.raises(KeyError), published.publisher.attach(ref) as judge, judge.tool("sql"):
        raise KeyError("k")
    span, end = attached(published)
    assert (span.status, type(end)) == ("error", SourceEnded)


def test_attachment_after_its_end_refuses_by_name(published, rollout):
    judge = published.publisher.attach(rollout.ref("judge"))
    judge.end()
    judge.end()
    with pytest.raises(NotOpen, match="reward refused: this attachment 'judge' to rollout r-7, attempt 0, has ended"):
        judge.reward(1.0)
    with pytest.raises(NotOpen, match="entering its block refused"):
        judge.__enter__()
    assert [type(event) for event in attached(published)] == [SourceEnded]


@pytest.mark.parametrize("scope", ["step", "rollout"])
def test_reward_without_a_name_is_refused_where_work_is_attached(published, rollout, scope):
    """Two judges' outcomes under one default name would revise each other."""
    with published.publisher.attach(rollout.ref("judge")) as judge:
        for emit in (judge.reward, emit_reward):
            with pytest.raises(InvalidEvent) as caught:
                emit(0.5, scope=scope)
        emit_reward(0.25, "reward", scope=scope)
    assert str(caught.value) == (
        "RewardRecorded refused: expected a name, since it is not the rollout's own block that emits it, got none at "
        "$.name; name it after who judges, such as 'style': outcomes that share the default 'reward' revise each other "
        "(rollout r-7, attempt 0)"
    )
    assert [(event.name, event.value) for event in published.of(RewardRecorded)] == [("reward", 0.25)]


def test_block_open_at_the_end_of_an_attachment_is_published_before_it(published, rollout):
    judge = published.publisher.attach(rollout.ref("judge"))
    with judge.evaluator("style"):
        judge.end()
    assert [type(event) for event in attached(published)] == [Span, SourceEnded]


def test_block_that_cannot_be_recorded_does_not_keep_an_attachment_from_ending(published, rollout):
    def work() -> None:
        with published.publisher.attach(rollout.ref("judge")) as judge:
            judge.tool("sql", start_ns=2, end_ns=1).__enter__()

    with pytest.raises(InvalidEvent):
        contextvars.copy_context().run(work)
    assert [type(event) for event in attached(published)] == [SourceEnded]


def test_attach_to_a_rollout_of_another_run_is_refused_by_name(published):
    with pytest.raises(InvalidSettings) as caught:
        published.publisher.attach(RolloutRef("other", "g", "r-7", 0, "judge"))
    assert "attach to rollout r-7 refused: expected a ref of run " in str(caught.value)
    assert "got one of run other; open the log that the rollout's host has open" in str(caught.value)


def test_attach_takes_the_ref_of_the_environment(published, rollout, monkeypatch):
    monkeypatch.setenv("ROLLOUTLOG_REF", rollout.ref("tool").text())
    with published.publisher.attach() as tool:
        assert tool.ref.name == "tool"


async def test_gateway_serves_many_rollouts_at_once(published):
    """Tasks share nothing: each reward reaches the rollout whose attachment its task has entered."""
    events = published.publisher
    rollouts = [events.rollout("t", rollout_id=f"r-{number}") for number in range(50)]

    async def serve(text: str, number: int) -> None:
        async with events.attach(text) as gateway, gateway.call() as call:
            await asyncio.sleep(0)
            call.record(prompt_ids=[number], response_ids=[number])
            emit_reward(float(number), "length")

    refs = [await rollout.aref("gateway") for rollout in rollouts]
    await asyncio.gather(*(serve(ref.text(), number) for number, ref in enumerate(refs)))
    await events.aflush()
    rewards = await asyncio.to_thread(published.of, RewardRecorded)
    assert {reward.rollout_id: reward.value for reward in rewards} == {f"r-{n}": float(n) for n in range(50)}
    assert len({reward.source for reward in rewards}) == 50
    assert len(await asyncio.to_thread(published.of, RolloutStarted)) == 50
