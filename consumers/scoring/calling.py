"""One scorer, called within its limits until it gives an answer that can be recorded, or has failed often enough.

Order  wait for a free place (`concurrency`), wait for the rate, call, at most `timeout_s`; after an error wait a while
       without holding the place, then try again. An answer that is no reward is not asked for again.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

from rolloutlog.consumers.named_function import WrongAnswer, shown, told
from rolloutlog.consumers.scoring import loops, threads
from rolloutlog.consumers.scoring.limits import Allowed
from rolloutlog.consumers.scoring.loading import LoadedScorer
from rolloutlog.consumers.scoring.loops import LoopLost, LoopThread, Place
from rolloutlog.consumers.scoring.results import events_of
from rolloutlog.consumers.scoring.reward import InvalidReward, Reward
from rolloutlog.consumers.scoring.threads import Outcome, Stuck, Threads
from rolloutlog.consumers.scoring.view import RolloutView
from rolloutlog.eventstore.checks import plain_number
from rolloutlog.eventstore.events import RewardRecorded

BACKOFF_S, BACKOFF_S_MAX = 0.5, 30.0  # before the first further try; doubled for each after it
STUCK_MAX = 64  # calls that were given up and still go on: beyond it, a scorer is not called any more
REWARDS_SPARE = 10_000  # an answer may have as many rewards as its rollout events, and these: generators may be endless

_OURS = frozenset({__file__, loops.__file__, threads.__file__})


@dataclass(frozen=True, slots=True)
class World:
    """What calling depends on beside its input. Times in seconds."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = Random().random


class ScorerFailed(Exception):
    """It gave no verdict; the text says why."""


class Caller:
    """Calls one scorer; one in a process."""

    def __init__(self, scorer: LoadedScorer, allowed: Allowed, plain: Threads, loop: LoopThread, world: World) -> None:
        self.scorer, self._allowed, self._world = scorer, allowed, world
        self._plain, self._async = plain, loop
        self._free = asyncio.Semaphore(allowed.concurrency)
        self._next_s = 0.0  # when the next call may begin
        self._stuck = Stuck()

    @property
    def concurrency(self) -> int:
        return self._allowed.concurrency

    async def ask(self, rollout: RolloutView) -> tuple[RewardRecorded, ...]:
        """Its verdicts about a rollout. Raises ScorerFailed."""
        tries, number = self._allowed.retries + 1, 1
        while True:
            async with self._free:
                if self._stuck.count >= STUCK_MAX:
                    raise ScorerFailed(
                        f"expected it to return within {self._allowed.timeout_s:g} s, got {self._stuck.count} calls "
                        "that have not returned so far; it is not called any more until one does"
                    )
                await self._wait_for_rate()
                place = Place()
                outcome, timed_out = await self._call_in_time(rollout, place)
                if isinstance(outcome.error, LoopLost) or (timed_out and await self._async.was_lost(place)):
                    continue  # another call kept the loop: that was no try
            if outcome.error is None:
                events: tuple[RewardRecorded, ...] = outcome.value
                return events
            final = isinstance(outcome.error, WrongAnswer | InvalidReward) and not timed_out
            if final or number == tries:
                raise ScorerFailed(self._words(outcome.error, number))
            await self._world.sleep(self._backoff_s(number))
            number += 1

    async def _wait_for_rate(self) -> None:
        if self._allowed.rate_per_s is None:
            return
        now_s = self._world.clock()
        begin_s = max(now_s, self._next_s)
        self._next_s = begin_s + 1 / self._allowed.rate_per_s
        if begin_s > now_s:
            await self._world.sleep(begin_s - now_s)

    async def _call_in_time(self, rollout: RolloutView, place: Place) -> tuple[Outcome, bool]:
        """And whether its time was over."""
        if self.scorer.is_async:
            await self._async.ready()
        try:
            return await self._call(rollout, rollout.fresh(), place), False
        except TimeoutError:
            error = WrongAnswer(f"expected an answer within {self._allowed.timeout_s:g} s, got none")
            return Outcome(error=error), True

    async def _call(self, rollout: RolloutView, given: RolloutView, place: Place) -> Outcome:
        """Raises TimeoutError. What is awaitable runs on the scorers' loop, all else in a thread.

        given  what the scorer gets, and may change: answers are checked by `rollout`
        """
        async with asyncio.timeout(self._allowed.timeout_s):
            if self.scorer.is_async:
                return await self._async.run(lambda: self._answered(rollout, given), self._stuck, place)
            outcome = await self._plain.run(lambda: self._called(rollout, given), self._stuck)
            if isinstance(outcome.value, _Awaitable):
                found = outcome.value.found
                await self._async.ready()
                return await self._async.run(lambda: self._awaited(found, rollout), self._stuck, place)
            return outcome

    def _called(self, rollout: RolloutView, given: RolloutView) -> Any:
        answer = self.scorer.function(given)
        if inspect.isawaitable(answer) or isinstance(answer, AsyncIterable):
            return _Awaitable(answer)  # of a plain function that returns a coroutine
        return self._events(_rewards(answer, _most(rollout)), rollout)

    async def _answered(self, rollout: RolloutView, given: RolloutView) -> tuple[RewardRecorded, ...]:
        return await self._awaited(self.scorer.function(given), rollout)

    async def _awaited(self, answer: Any, rollout: RolloutView) -> tuple[RewardRecorded, ...]:
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, AsyncIterable):
            most = _most(rollout)
            found: list[Any] = []
            async for each in answer:
                found.append(each)
                if len(found) > most:
                    break
            answer = found
        return self._events(_rewards(answer, _most(rollout)), rollout)

    def _events(self, verdicts: list[Reward], rollout: RolloutView) -> tuple[RewardRecorded, ...]:
        return events_of(verdicts, self.scorer.name, self.scorer.version, rollout)

    def _words(self, error: BaseException, tries: int) -> str:
        text = str(error) if isinstance(error, InvalidReward) else told(error, _OURS)
        return f"{text}; tried {tries} times" if tries > 1 else text

    def _backoff_s(self, number: int) -> float:
        """After the `number`-th try. Spread, so that calls that failed together don't come again together."""
        exact: float = min(BACKOFF_S * 2 ** min(number - 1, 16), BACKOFF_S_MAX)  # no float holds 2 ** 1024
        return exact * (0.5 + self._world.random())


@dataclass(frozen=True, slots=True)
class _Awaitable:
    found: Any


def _most(rollout: RolloutView) -> int:
    return rollout.record_count + REWARDS_SPARE


def _rewards(answer: Any, most: int) -> list[Reward]:
    """The rewards of an answer. Raises WrongAnswer."""
    if answer is None:
        return []
    if isinstance(answer, Reward):
        return [answer]
    if isinstance(answer, str | bytes | Mapping) or not isinstance(answer, Iterable):
        raise WrongAnswer(f"expected a Reward, several, or None, got {shown(answer)}{_hint(answer)}")
    found = list(islice(answer, most + 1))
    for each in found:
        if not isinstance(each, Reward):
            raise WrongAnswer(f"expected a Reward, got {shown(each)}{_hint(each)}")
    if len(found) > most:
        raise WrongAnswer(f"expected at most {most} rewards, got more")
    return found


def _hint(value: Any) -> str:
    number = plain_number(value)
    try:
        return f"; return Reward({number!r})" if type(number) in (int, float) else ""
    except ValueError:  # an integer of thousands of digits
        return ""
