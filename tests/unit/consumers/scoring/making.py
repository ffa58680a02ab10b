"""Scorers for tests, made of functions of the test itself, and a world whose time passes at once."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rolloutlog.consumers.scoring import Cache, LoadedScorer, Recorded, Scored, Scoring, ScoringLimits
from rolloutlog.consumers.scoring.calling import World
from rolloutlog.consumers.scoring.view import RolloutView

Result = TypeVar("Result")


class Time:
    """A clock that sleeping moves. `slept`: how long each time, in seconds."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now_s += seconds
        await asyncio.sleep(0)

    @property
    def world(self) -> World:
        return World(clock=lambda: self.now_s, sleep=self.sleep, random=lambda: 0.5)


def loaded(function: Callable[..., Any], name: str = "judge", version: str = "1", **settings: Any) -> LoadedScorer:
    is_async = asyncio.iscoroutinefunction(function) or hasattr(function, "__aiter__")
    return LoadedScorer(name, f"scorers:{name}", function, version, "0" * 32, is_async=is_async, **settings)


async def score_with(
    scorers: list[LoadedScorer],
    *rollouts: RolloutView,
    cache: Cache | None = None,
    recorded: Recorded | None = None,
    world: World | None = None,
    run_id: str = "run",
    **limits: Any,
) -> list[Scored]:
    """What the scorers make of each rollout, all asked at once."""
    scoring = Scoring(scorers, ScoringLimits(**limits), cache, run_id=run_id, world=world or Time().world)
    try:
        return list(await asyncio.gather(*(scoring.score(each, recorded) for each in rollouts)))
    finally:
        await scoring.close()


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(work, 30))
