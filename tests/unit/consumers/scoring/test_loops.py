"""Async scorers share a loop: a call that keeps it costs its own rollout, and no other."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from unit.consumers.scoring.making import loaded, run, score_with
from unit.consumers.scoring.rollouts import view

from rolloutlog.consumers.scoring import Reward, RolloutView, Scored, loops
from rolloutlog.consumers.scoring import calling as calling_module

ASKED = 6


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What hanging calls wait for; a loop has 0.1 s for a sign of life."""
    monkeypatch.setattr(loops, "SIGN_S", 0.1)
    event = threading.Event()
    yield event
    event.set()


def first_hangs(hang: Callable[[], object]) -> Callable[[RolloutView], object]:
    """A scorer that hangs whenever it is asked about the first rollout."""
    first: list[str] = []

    async def judge(rollout: RolloutView) -> Reward:
        if not first or rollout.task_id == first[0]:
            first[:] = [rollout.task_id]
            hang()
        await asyncio.sleep(0.02)
        return Reward(1.0)

    return judge


def asked(judge: Callable[[RolloutView], object], retries: int) -> list[Scored]:
    views = [view(task_id=f"t{number}") for number in range(ASKED)]
    return run(score_with([loaded(judge)], *views, timeout_s=0.3, retries=retries))


@pytest.mark.parametrize("retries", [0, 2])
def test_async_scorer_that_never_returns_costs_no_other_rollout(ended: threading.Event, retries: int):
    found = asked(first_hangs(lambda: ended.wait(20)), retries)
    assert [len(each.rewards) for each in found] == [0] + [1] * (ASKED - 1)
    tried = "; tried 3 times" if retries else ""
    assert found[0].failures[0].reason == f"expected an answer within 0.3 s, got none{tried}"


def test_calls_that_another_one_kept_are_not_counted_as_hanging(
    ended: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    """With two that hang it would not be called any more."""
    monkeypatch.setattr(calling_module, "STUCK_MAX", 2)
    found = asked(first_hangs(lambda: ended.wait(20)), 0)
    assert sum(len(each.rewards) for each in found) == ASKED - 1


def test_loops_are_replaced_so_often_and_no_more(ended: threading.Event, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loops, "LOOPS_MAX", 0)
    found = asked(first_hangs(lambda: ended.wait(20)), 0)
    assert sum(len(each.failures) for each in found) == ASKED


def test_async_scorer_that_is_only_slow_keeps_its_loop(ended: threading.Event):
    """A client of an LLM server belongs to one loop."""
    seen: set[int] = set()

    async def judge(rollout: RolloutView) -> None:
        seen.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(20)

    found = asked(judge, 1)
    assert (len(seen), sum(len(each.failures) for each in found)) == (1, ASKED)
