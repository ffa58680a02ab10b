"""Judges in processes of their own, and forked workers: what they record reaches the samples, on both logs."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.processes import assemble
from support.store import Store

from rolloutlog.eventstore import EventPublisher, Rollout, RolloutRef, emit_reward
from rolloutlog.eventstore.codec import HEADER, parse_header

pytestmark = pytest.mark.timeout(180)

JUDGE = """
import sys, threading
from rolloutlog.eventstore import EventPublisher, emit_reward

with EventPublisher.open(sys.argv[1]) as events, events.attach() as attached:
    with attached.evaluator("judge"):
        emit_reward(0.5, "style")
        emit_reward(0.75, "draft", target={"span_id": attached.ref.after_call})
    attached.reward(0.25, "outcome", scope="rollout")
    if sys.argv[2:]:
        events.flush(30)
        print("ready", flush=True)
        threading.Event().wait()
"""

JUDGES: list["subprocess.Popen[str]"] = []


@pytest.fixture(autouse=True)
def no_judge_left() -> Iterator[None]:
    yield
    for judge in JUDGES:
        judge.kill()
        judge.communicate()
    JUDGES.clear()


def start_judge(url: str, ref: RolloutRef, *mode: str) -> "subprocess.Popen[str]":
    judge = subprocess.Popen(
        [sys.executable, "-c", JUDGE, url, *mode],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | ref.environment(),
    )
    JUDGES.append(judge)
    return judge


def judged(events: EventPublisher) -> tuple[Rollout, RolloutRef]:
    """A rollout of two calls, begun; its ref was made after the first."""
    rollout = events.rollout("t", rollout_id="r-7")
    with rollout.agent("writer"):
        with rollout.call() as call:
            call.record(prompt_ids=[1, 2], response_ids=[3])
        ref = rollout.ref("judge", awaited=True, timeout_s=30)
        with rollout.call() as call:
            call.record(prompt_ids=[1, 2, 3, 4], response_ids=[5])
    return rollout, ref


def test_rewards_of_a_judge_in_another_process_reach_the_samples(store: Store) -> None:
    with EventPublisher.open(store.url) as events:
        rollout, ref = judged(events)
        rollout.finish()
        events.flush(30)
        waiting = assemble(store.url)
        assert waiting.finish() == 0, waiting.stderr
        assert "1 still open in 1 groups" in waiting.stdout, "it awaits the judge"
        judge = start_judge(store.url, ref)
        assert judge.wait(60) == 0
    command = assemble(store.url)
    assert command.finish() == 0, command.stderr
    (batch,) = store.batches()
    assert [dict(sample.step) for sample in batch.samples] == [{"draft": 0.75}, {"style": 0.5}]
    assert [dict(sample.final) for sample in batch.samples] == [{}, {"outcome": 0.25}]
    assert store.dead_letters() == []


def test_killed_judge_keeps_its_rollout_open_and_is_named(store: Store) -> None:
    with EventPublisher.open(store.url) as events:
        rollout, ref = judged(events)
        judge = start_judge(store.url, ref, "hang")
        assert judge.stdout is not None
        assert judge.stdout.readline() == "ready\n"
        judge.kill()
        judge.wait(30)
        rollout.finish()
    command = assemble(store.url)
    assert command.finish() == 0, command.stderr
    assert "1 still open in 1 groups" in command.stdout
    assert "rollout r-7 (attempt 0) misses the end of judge" in command.stdout + command.stderr
    assert store.batches() == []


def test_judge_that_attaches_again_after_another_was_killed_closes_nothing(store: Store) -> None:
    """The killed one's source has not ended: what it still owed is unknown, so the rollout waits for a decision."""
    with EventPublisher.open(store.url) as events:
        rollout, ref = judged(events)
        killed = start_judge(store.url, ref, "hang")
        assert killed.stdout is not None
        assert killed.stdout.readline() == "ready\n"
        killed.kill()
        killed.wait(30)
        rollout.finish()
        assert start_judge(store.url, ref).wait(60) == 0
    command = assemble(store.url)
    assert command.finish() == 0, command.stderr
    assert "1 still open in 1 groups" in command.stdout


def work(events: EventPublisher, rollout: Rollout, ref: RolloutRef) -> None:
    rollout.reward(0.5, "forked")
    with events.attach(ref):
        emit_reward(0.25, "attached")


def test_forked_workers_and_their_parent_lose_nothing(store: Store) -> None:
    """Both sides go on publishing after the fork, each with its own connection."""
    with EventPublisher.open(store.url) as events:
        with events.rollout("t", rollout_id="r-7") as rollout, rollout.agent("writer"):
            with rollout.call() as call:
                call.record(prompt_ids=[1, 2], response_ids=[3])
            refs = [rollout.ref(f"worker-{number}", awaited=True, timeout_s=30) for number in range(2)]
            fork = multiprocessing.get_context("fork")
            workers = [fork.Process(target=work, args=(events, rollout, ref)) for ref in refs]
            for worker in workers:
                worker.start()
            for _ in range(20):
                rollout.reward(0.125, "parent")
                events.flush(30)
            for worker in workers:
                worker.join(60)
        assert [worker.exitcode for worker in workers] == [0, 0]
    command = assemble(store.url)
    assert command.finish() == 0, command.stderr
    (batch,) = store.batches()
    assert dict(batch.samples[0].step) == {"forked": 1.0, "attached": 0.5, "parent": 2.5}
    ends = [parse_header(dict(record.headers)[HEADER]) for record in store.events()]
    assert sorted(end.source.rpartition(".")[0] for end in ends if end.kind == "SourceEnded") == [
        "fork", "fork", "worker-0", "worker-1",
    ]  # fmt: skip
