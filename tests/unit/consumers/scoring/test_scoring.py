"""What scorers' answers come to: rewards, failures in words, and never the end of a run."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit.consumers.scoring.making import Time, loaded, run, score_with
from unit.consumers.scoring.rollouts import closed, conversation, view

from rolloutlog.consumers.closing import settle
from rolloutlog.consumers.scoring import (
    Cache,
    Reward,
    RolloutView,
    Scored,
    Scoring,
    ScoringLimits,
    add_failures,
    add_rewards,
    view_of,
)
from rolloutlog.consumers.scoring import calling as calling_module
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.errors import InvalidSettings


def scored(function: Callable[..., Any], **limits: Any) -> Scored:
    (found,) = run(score_with([loaded(function)], view(*conversation()), **{"retries": 0, **limits}))
    return found


def failure(function: Callable[..., Any], **limits: Any) -> str:
    found = scored(function, **limits)
    assert (found.rewards, found.record, found.made) == ((), (), 1)
    (failed,) = found.failures
    assert (failed.rollout_id, failed.attempt, failed.scorer) == ("r", 0, "judge")
    return failed.reason


def test_score_is_a_reward_whose_identity_follows_from_scorer_version_and_rollout():
    (reward,) = scored(lambda rollout: Reward(0.5, extra_info={"why": "short"})).rewards
    assert (reward.value, reward.name, reward.scope, reward.scorer, reward.scorer_version) == (
        0.5,
        "reward",
        "rollout",
        "judge",
        "1",
    )
    assert reward.id == "judge.7eb8f48ed40bc552:0"
    assert (reward.time_ns, reward.rollout_id, reward.attempt) == (9_000, "r", 0)
    assert reward.extra_info == b'{"why":"short"}'


def yields(rollout: RolloutView) -> Iterator[Reward]:
    yield Reward(1.0)
    for call in rollout.calls:
        yield Reward(0.5, "style", scope="step", target={"span_id": call.span_id})


async def awaits(rollout: RolloutView) -> list[Reward]:
    await asyncio.sleep(0)
    return list(yields(rollout))


async def yields_async(rollout: RolloutView) -> AsyncIterator[Reward]:
    for each in yields(rollout):
        await asyncio.sleep(0)
        yield each


@pytest.mark.parametrize(
    "function", [yields, awaits, yields_async, lambda rollout: awaits(rollout), lambda rollout: yields_async(rollout)]
)
def test_score_of_every_form_of_function_is_the_same(function: Callable[..., Any]):
    assert [(each.name, each.sequence) for each in scored(function).rewards] == [
        ("reward", 0),
        ("style", 1),
        ("style", 2),
    ]


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_score_of_a_scorer_that_says_nothing_is_none_and_no_failure(nothing: Any):
    found = scored(lambda rollout: nothing)
    assert (found.rewards, found.failures, found.made) == ((), (), 1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (0.5, "expected a Reward, several, or None, got 0.5 of type float; return Reward(0.5)"),
        (True, "expected a Reward, several, or None, got True of type bool"),
        ("good", "expected a Reward, several, or None, got 'good' of type str"),
        ([Reward(1.0), 2], "expected a Reward, got 2 of type int; return Reward(2)"),
        ({"reward": 1.0}, "expected a Reward, several, or None, got {'reward': 1.0} of type dict"),
        (
            [Reward(1.0, reward_id="x"), Reward(1.0, reward_id="x")],
            "expected each reward id once, got 'x' again, which another reward of this answer has",
        ),
    ],
)
def test_score_of_an_answer_that_is_no_reward_says_what_came(answer: Any, reason: str):
    assert failure(lambda rollout: answer, retries=3) == reason, "and it is not asked again"


def test_score_of_a_bare_number_says_what_to_return():
    assert failure(lambda rollout: np.float32(0.5)).endswith("of type float32; return Reward(0.5)")
    assert failure(lambda rollout: 10**5_000, retries=3) == (
        "expected a Reward, several, or None, got an object of type int"
    )


def test_score_of_a_reward_that_no_event_can_hold_is_not_asked_for_again():
    asked = []

    def judge(rollout: RolloutView) -> Reward:
        asked.append(1)
        return Reward(float("nan"))

    reason = "reward 'reward' refused: expected a finite number or null, got nan at $.value"
    assert (failure(judge, retries=3), len(asked)) == (reason, 1)


def test_score_of_more_rewards_than_a_rollout_can_have_is_refused():
    def endless(rollout: RolloutView) -> Iterator[Reward]:
        while True:
            yield Reward(1.0)

    assert failure(endless) == "expected at most 10006 rewards, got more"


def test_score_that_raises_midway_counts_for_nothing_and_tells_where():
    def judge(rollout: RolloutView) -> Iterator[Reward]:
        yield Reward(1.0)
        raise KeyError("rubric")

    reason = failure(judge)
    assert reason.startswith("Traceback (most recent call last):\n")
    assert "unit.consumers.scoring.test_scoring, line " in reason
    assert reason.endswith(", in judge\n    raise KeyError(\"rubric\")\nKeyError: 'rubric'")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
def test_score_that_raises_what_ends_a_program_is_a_failure(error: BaseException):
    def plain(rollout: RolloutView) -> None:
        raise error

    async def waiting(rollout: RolloutView) -> None:
        raise error

    name = type(error).__name__
    assert name in failure(plain).splitlines()[-1]
    assert name in failure(waiting).splitlines()[-1]


def test_score_by_an_async_scorer_whose_own_task_exits_goes_on_for_the_others():
    async def exits(rollout: RolloutView) -> Reward:
        async def leave() -> None:
            sys.exit(4)

        left = asyncio.get_running_loop().create_task(leave())
        await asyncio.sleep(0)
        del left
        return Reward(1.0)

    found = run(score_with([loaded(exits)], view(*conversation()), view(*conversation()), retries=0, timeout_s=5.0))
    assert [each.value for one in found for each in one.rewards] == [1.0, 1.0]


def test_score_after_errors_is_tried_again_with_growing_pauses():
    passed = Time()
    answers = iter([OSError("503"), OSError("503"), OSError("503"), Reward(1.0)])

    async def judge(rollout: RolloutView) -> Reward:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    found = scored(judge, retries=3, world=passed.world)
    assert (len(found.rewards), found.failures, passed.slept) == (1, (), [0.5, 1.0, 2.0])


def test_score_after_a_thousand_errors_is_still_tried_again():
    """Pauses double up to 30 s; 2 ** 1024 is no float."""

    def judge(rollout: RolloutView) -> None:
        raise OSError("503")

    assert failure(judge, retries=1_100).endswith("OSError: 503; tried 1101 times")


def test_score_that_keeps_failing_says_how_often_it_was_tried():
    def judge(rollout: RolloutView) -> None:
        raise OSError("503")

    assert failure(judge, retries=2).endswith("OSError: 503; tried 3 times")


@pytest.mark.parametrize("is_async", [False, True])
def test_score_that_never_returns_fails_after_its_timeout(is_async: bool):
    ended = threading.Event()

    def plain(rollout: RolloutView) -> None:
        ended.wait(20)

    async def waiting(rollout: RolloutView) -> None:
        await asyncio.sleep(20)

    reason = failure(waiting if is_async else plain, timeout_s=0.05, retries=1)
    ended.set()
    assert reason == "expected an answer within 0.05 s, got none; tried 2 times"


def test_async_scorer_that_blocks_its_loop_stops_neither_the_run_nor_plain_scorers():
    ended = threading.Event()

    async def blocks(rollout: RolloutView) -> None:
        ended.wait(20)

    scorers = [loaded(blocks, "blocks", timeout_s=0.2), loaded(lambda rollout: Reward(1.0), "plain")]
    (found,) = run(score_with(scorers, view(), retries=0))
    ended.set()
    assert ([each.scorer for each in found.rewards], [each.scorer for each in found.failures]) == (
        ["plain"],
        ["blocks"],
    )


def test_scorer_that_never_returns_is_not_called_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calling_module, "STUCK_MAX", 3)
    ended, asked = threading.Event(), []

    def judge(rollout: RolloutView) -> None:
        asked.append(1)
        ended.wait(20)

    found = run(score_with([loaded(judge)], *[view()] * 6, concurrency=1, timeout_s=0.05, retries=0))
    ended.set()
    assert len(asked) == 3
    assert found[-1].failures[0].reason == (
        "expected it to return within 0.05 s, got 3 calls that have not returned so far; it is not called any more "
        "until one does"
    )


def test_scorer_that_changes_who_the_rollout_is_still_judges_that_one():
    def vandal(rollout: RolloutView) -> Reward:
        rollout.closed_ns = -1
        rollout.rollout_id, rollout.attempt = "other", 7
        rollout._decoded = None  # type: ignore[assignment]
        return Reward(1.0)

    (reward,) = scored(vandal).rewards
    assert (reward.rollout_id, reward.attempt, reward.time_ns) == ("r", 0, 9_000)


def test_process_that_a_scorer_forks_ends_where_it_comes_back_from_it():
    def forks(rollout: RolloutView) -> Reward:
        child = os.fork()
        if child:
            os.waitpid(child, 0)  # without an end it waits for ever
        return Reward(1.0)

    assert len(scored(forks, timeout_s=10.0).rewards) == 1


def test_scorer_that_changes_what_it_is_given_changes_nothing_for_others():
    def vandal(rollout: RolloutView) -> Reward:
        rollout.metadata.clear()
        rollout.messages[0].clear()
        rollout.rollout_id = "other"
        return Reward(0.0)

    def reader(rollout: RolloutView) -> Reward:
        return Reward(float(len(rollout.metadata) + len(rollout.messages[0])))

    scorers = [loaded(vandal, "vandal"), loaded(reader, "reader")]
    (found,) = run(score_with(scorers, view(*conversation(), metadata=b'{"k": 1}'), concurrency=1))
    assert [(each.rollout_id, each.value) for each in found.rewards] == [("r", 0.0), ("r", 3.0)]


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_at_a_time_are_at_most_the_concurrency(is_async: bool):
    going, most, lock = 0, 0, threading.Lock()

    def begin() -> None:
        nonlocal going, most
        with lock:
            going += 1
            most = max(most, going)

    def end() -> None:
        nonlocal going
        with lock:
            going -= 1

    def plain(rollout: RolloutView) -> None:
        begin()
        time.sleep(0.01)
        end()

    async def waiting(rollout: RolloutView) -> None:
        begin()
        await asyncio.sleep(0.01)
        end()

    run(score_with([loaded(waiting if is_async else plain)], *[view()] * 12, concurrency=3))
    assert most == 3


def test_calls_begin_at_the_rate_retries_included():
    passed = Time()
    begun: list[float] = []

    async def judge(rollout: RolloutView) -> Reward:
        begun.append(passed.now_s)
        if len(begun) == 1:
            raise OSError("429")
        return Reward(1.0)

    run(score_with([loaded(judge)], view(), view(), concurrency=1, rate_per_s=2.0, world=passed.world))
    assert [round(each - 100.0, 6) for each in begun] == [0.0, 0.5, 1.0]


def test_score_cancelled_leaves_calls_behind_and_ends_at_once():
    async def scenario() -> float:
        waiting = threading.Event()
        cancelled = threading.Event()

        async def judge(rollout: RolloutView) -> None:
            waiting.set()
            try:
                await asyncio.sleep(20)
            finally:
                cancelled.set()

        scoring = Scoring([loaded(judge)], ScoringLimits(), None, run_id="run")
        task = asyncio.create_task(scoring.score(view()))
        await asyncio.to_thread(waiting.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await scoring.close()
        assert await asyncio.to_thread(cancelled.wait, 5), "the scorer is told"
        return 0.0

    run(scenario())


def test_rollouts_that_did_not_complete_are_scored_where_the_scorer_says_so():
    start = {"attempts_max": 1}
    it = view(**start)
    it.status = "expired"
    scorers = [
        loaded(lambda rollout: Reward(1.0), "one"),
        loaded(lambda rollout: Reward(0.0), "two", statuses=("failed", "expired")),
    ]
    (found,) = run(score_with(scorers, it))
    assert ([each.scorer for each in found.rewards], found.made) == (["two"], 1)


def test_rollout_with_rewards_added_settles_with_them_behind_its_own():
    rollout = closed(*conversation())
    (found,) = run(score_with([loaded(yields)], view_of(rollout, 0, closed_ns=1)))
    add_rewards(rollout, found.rewards)
    settled, letters = settle(rollout, FoldSettings(), 0)
    assert (settled.status, letters) == ("completed", [])
    assert [(each.name, each.outcome, each.offset) for each in settled.outcomes] == [
        ("parses", "attributed", 4),
        ("reward", "revised", 5),
        ("reward", "final", -1),
        ("style", "attributed", -1),
        ("style", "attributed", -1),
    ]


def test_rollout_whose_scorer_failed_is_incomplete_and_says_which():
    rollout = closed(*conversation())
    (found,) = run(score_with([loaded(lambda rollout: 7)], view_of(rollout, 0, closed_ns=1)))
    add_failures(rollout, found.failures)
    settled, _ = settle(rollout, FoldSettings(), 0)
    assert (settled.status, settled.samples) == ("incomplete", ())
    assert settled.reason == (
        "scorer judge failed: expected a Reward, several, or None, got 7 of type int; return Reward(7)"
    )


def test_scoring_with_two_scorers_of_one_name_is_refused():
    with pytest.raises(InvalidSettings, match="expected each name once, got 'judge' from scorers:judge and"):
        Scoring([loaded(len), loaded(sum)], ScoringLimits(), None, run_id="run")


def test_scoring_with_the_same_scorer_twice_says_to_name_it_once():
    with pytest.raises(InvalidSettings, match="name it once"):
        Scoring([loaded(len), loaded(len)], ScoringLimits(), None, run_id="run")


def test_limits_are_shared_by_the_workers_and_never_exceeded_together():
    allowed = ScoringLimits(workers=2).of(loaded(len, concurrency=5, rate_per_s=3.0, timeout_s=9.0, retries=0))
    assert (allowed.concurrency, allowed.rate_per_s, allowed.timeout_s, allowed.retries) == (2, 1.5, 9.0, 0)
    with pytest.raises(InvalidSettings, match="scorer judge: expected at most 1 workers, got 2: it allows 1 calls"):
        ScoringLimits(workers=2).of(loaded(len, concurrency=1))


def test_limits_of_the_command_line_go_before_the_scorers_own():
    own = loaded(len, concurrency=5, rate_per_s=3.0, timeout_s=9.0, retries=0)
    allowed = ScoringLimits(concurrency=1, rate_per_s=1.0, timeout_s=2.0, retries=4).of(own)
    assert (allowed.concurrency, allowed.rate_per_s, allowed.timeout_s, allowed.retries) == (1, 1.0, 2.0, 4)


def test_scorer_that_is_not_to_be_called_gives_what_is_recorded_or_cached_and_is_counted_otherwise(tmp_path: Path):
    """A dry run: nothing is called, and it is known how many calls there would be."""
    rollout = view(*conversation())
    known = loaded(lambda rollout: Reward(0.5, "known"), "known")
    new = loaded(lambda rollout: pytest.fail("it was called"), "new")
    cache = Cache(tmp_path / "scores.db")
    run(score_with([known], rollout, cache=cache))
    scoring = Scoring([known, new], ScoringLimits(), cache, run_id="run", calls=False)
    found = run(scoring.score(rollout))
    run(scoring.close())
    cache.close()
    assert found.ways == (("known", "cached"), ("new", "unasked"))
    assert ([each.name for each in found.rewards], found.failures, found.made) == (["known"], (), 0)
