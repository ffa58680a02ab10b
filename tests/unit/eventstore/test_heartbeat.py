"""Heartbeats: from the block's own task, for as long as it lives, and from blocking code that calls for them."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from rolloutlog.eventstore.errors import BufferFull
from rolloutlog.eventstore.events import RolloutCompleted, RolloutHeartbeat, RolloutStarted, Span
from rolloutlog.eventstore.heartbeat import Pulse, begin_beats
from rolloutlog.eventstore.scope import NotOpen

BEAT_S = 0.01


async def until(met: Callable[[], bool], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not met():  # noqa: ASYNC110 - told by timers, which set no event
            await asyncio.sleep(0.002)


# When a heartbeat is let through


def test_pulse_lets_one_heartbeat_through_each_interval():
    now = [100.0]
    pulse = Pulse(60.0, lambda: now[0])
    found = []
    for now[0] in (100.0, 130.0, 159.9, 160.0, 160.1, 400.0):
        found.append(pulse.is_due())
    assert found == [True, False, False, True, False, True]


async def test_beats_are_sent_while_nothing_is_recorded():
    beats: list[int] = []
    running = begin_beats(BEAT_S, lambda: beats.append(1), lambda: 7)
    assert running is not None
    await until(lambda: len(beats) >= 3)
    running.end()


async def test_beats_are_left_out_while_events_are_recorded():
    beats: list[int] = []
    counts = iter(range(1_000_000))
    running = begin_beats(0.001, lambda: beats.append(1), lambda: next(counts))
    await asyncio.sleep(0.05)
    assert running is not None
    running.end()
    assert (beats, next(counts) > 3) == ([], True)


async def test_beats_end_with_the_task_that_began_them():
    """A block that its task never left: nobody works in it any more."""
    beats: list[int] = []

    async def work() -> None:
        begin_beats(BEAT_S, lambda: beats.append(1), lambda: 7)

    await asyncio.create_task(work())
    await asyncio.sleep(5 * BEAT_S)
    assert beats == []


async def test_beats_stop_while_the_loop_hangs():
    beats: list[int] = []
    running = begin_beats(BEAT_S, lambda: beats.append(1), lambda: 7)
    threading.Event().wait(10 * BEAT_S)
    assert (running is not None, beats) == (True, [])
    await until(lambda: bool(beats))


def test_beats_begin_nowhere_but_in_a_task():
    assert begin_beats(BEAT_S, lambda: None, lambda: 7) is None


async def test_beat_that_the_buffer_has_no_room_for_is_left_out():
    """The work goes on: it learns of a full buffer where it records something."""
    tried: list[int] = []

    def beat() -> None:
        tried.append(1)
        raise BufferFull("full")

    running = begin_beats(BEAT_S, beat, lambda: 7)
    assert running is not None
    await until(lambda: len(tried) >= 2)
    running.end()


async def test_beats_with_an_interval_of_0_do_not_begin():
    assert begin_beats(0, lambda: None, lambda: 7) is None


# Of rollouts


def kinds(published) -> list[type]:
    return [type(event) for event in published.events()]


async def test_rollout_block_of_a_task_that_awaits_sends_heartbeats(make_published):
    published = make_published(heartbeat_s=BEAT_S)
    async with published.publisher.rollout("task"):
        await asyncio.sleep(6 * BEAT_S)
    found = kinds(published)
    assert found[0] is RolloutStarted
    assert found[-1] is RolloutCompleted
    assert set(found[1:-1]) == {RolloutHeartbeat}


async def test_rollout_block_entered_with_a_plain_with_in_a_task_sends_heartbeats(make_published):
    published = make_published(heartbeat_s=BEAT_S)
    with published.publisher.rollout("task"):
        await until(lambda: RolloutHeartbeat in kinds(published))


async def test_attached_block_of_a_task_that_awaits_sends_heartbeats_until_it_is_left(make_published):
    """A judge that takes long after the rollout was completed."""
    published = make_published(heartbeat_s=BEAT_S)
    rollout = published.publisher.rollout("task")
    ref = await rollout.aref("judge", awaited=True)
    rollout.finish()
    async with published.publisher.attach(ref) as judge:
        await until(lambda: kinds(published).count(RolloutHeartbeat) >= 2)
    found = kinds(published)
    await asyncio.sleep(4 * BEAT_S)
    assert {e.source for e in published.of(RolloutHeartbeat)} == {judge.source}
    assert kinds(published) == found


async def test_rollout_that_is_finished_in_its_block_sends_none_after_it(make_published):
    published = make_published(heartbeat_s=BEAT_S)
    async with published.publisher.rollout("task") as rollout:
        rollout.finish()
        await asyncio.sleep(4 * BEAT_S)
    assert kinds(published) == [RolloutStarted, RolloutCompleted]


async def test_rollout_block_that_was_left_sends_none(make_published):
    published = make_published(heartbeat_s=BEAT_S)
    async with published.publisher.rollout("task"):
        pass
    await asyncio.sleep(4 * BEAT_S)
    assert kinds(published) == [RolloutStarted, RolloutCompleted]


async def test_rollout_whose_task_ended_without_leaving_its_block_sends_none(make_published):
    published = make_published(heartbeat_s=BEAT_S)
    held = []

    async def work() -> None:
        held.append(published.publisher.rollout("task"))
        await held[0].__aenter__()

    await asyncio.create_task(work())
    await asyncio.sleep(4 * BEAT_S)
    assert kinds(published) == [RolloutStarted]


def test_rollout_block_of_blocking_code_sends_none_by_itself(make_published):
    published = make_published(heartbeat_s=BEAT_S)
    with published.publisher.rollout("task"):
        threading.Event().wait(5 * BEAT_S)
    assert kinds(published) == [RolloutStarted, RolloutCompleted]


def test_rollout_of_blocking_code_sends_a_heartbeat_each_interval_at_most(published):
    with published.publisher.rollout("task") as rollout, rollout.tool("download"):
        for _ in range(1_000):
            rollout.heartbeat()
    assert kinds(published) == [RolloutStarted, RolloutHeartbeat, Span, RolloutCompleted]


def test_heartbeat_of_an_attached_tool_comes_from_its_own_source(published):
    with published.publisher.rollout("task") as rollout, published.publisher.attach(rollout.ref("tool")) as tool:
        tool.heartbeat()
    (heartbeat,) = published.of(RolloutHeartbeat)
    assert (heartbeat.source, heartbeat.rollout_id) == (tool.source, rollout.rollout_id)


def test_heartbeat_after_the_end_is_refused(published):
    with published.publisher.rollout("task") as rollout:
        pass
    with pytest.raises(NotOpen, match="heartbeat refused"):
        rollout.heartbeat()
