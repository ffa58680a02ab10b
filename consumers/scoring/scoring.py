"""Scorers asked about rollouts: from the rewards topic, from the cache, or by calling them.

A verdict that was recorded for the same scorer, version and attempt is taken as it is; one in the cache too. Whatever a
scorer does wrong ends as a failure of that rollout, and never ends the run.

Not here  calling and its limits: scoring.calling; identity and records: scoring.results
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rolloutlog.consumers.scoring.cache import Cache
from rolloutlog.consumers.scoring.calling import Caller, ScorerFailed, World
from rolloutlog.consumers.scoring.limits import ScoringLimits
from rolloutlog.consumers.scoring.loading import LoadedScorer
from rolloutlog.consumers.scoring.loops import LoopThread
from rolloutlog.consumers.scoring.recorded import Recorded, RecordedSet, newest_of
from rolloutlog.consumers.scoring.results import Failure, no_reward, source_of
from rolloutlog.consumers.scoring.threads import Stuck, Threads
from rolloutlog.consumers.scoring.view import RolloutView
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.events import RewardRecorded

MADE, CACHED, RECORDED, UNASKED = "made", "cached", "recorded", "unasked"  # how an answer was got


@dataclass(frozen=True, slots=True)
class Scored:
    """What the scorers made of a rollout.

    rewards   all that count for it beside those in its events, in the order in which `add_rewards` takes them: those
              recorded by scorers that are not asked, then those of each scorer asked, in the order of scorers
    record    those of `rewards` that have to be recorded, with --record, so that a replay of recorded rewards has the
              same ones in the same order
    failures  one for each scorer that gave no verdict
    made, cached, recorded  how many scorers were called, answered by the cache, and by the rewards topic
    ways      of each scorer asked its name, and how its answer was got
    """

    rewards: tuple[RewardRecorded, ...] = ()
    record: tuple[RewardRecorded, ...] = ()
    failures: tuple[Failure, ...] = ()
    made: int = 0
    cached: int = 0
    recorded: int = 0
    ways: tuple[tuple[str, str], ...] = ()


class Scoring:
    """Asks scorers about rollouts; one in a process, for all of its partitions."""

    def __init__(
        self,
        scorers: Sequence[LoadedScorer],
        limits: ScoringLimits,
        cache: Cache | None,
        *,
        run_id: str,
        world: World | None = None,
        calls: bool = True,
    ) -> None:
        """`calls` False: who would have to be called gives nothing, so that a dry run knows how many calls there are.

        Raises  InvalidSettings: two scorers of one name, or a limit that the workers cannot share
        """
        names = [each.name for each in scorers]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            paths = [each.path for each in scorers if each.name == twice]
            advice = "give one another name with @scorer(name=...)" if len(set(paths)) > 1 else "name it once"
            raise InvalidSettings(
                f"scorers: expected each name once, got {twice!r} from {' and '.join(paths)}: rewards are told apart "
                f"by it; {advice}"
            )
        self._cache, self._run_id, self._calls = cache, run_id, calls
        self._threads, self._loop = Threads(), LoopThread()
        self._callers = [Caller(each, limits.of(each), self._threads, self._loop, world or World()) for each in scorers]

    async def score(self, rollout: RolloutView, recorded: Recorded | None = None) -> Scored:
        """Ask every scorer. Never raises for a scorer's fault. `recorded`: of the rollout's partition."""
        sets = [] if recorded is None else recorded.sets(rollout.rollout_id, rollout.attempt)
        asked = [caller for caller in self._callers if rollout.status in caller.scorer.statuses]
        names = {caller.scorer.name for caller in self._callers}
        others = [each for each in newest_of(sets).values() if each.scorer not in names]
        answers = await _together([self._answer(caller, rollout, sets) for caller in asked])
        rewards = [reward for each in sorted(others, key=lambda one: one.offset) for _, reward in each.rewards]
        record: list[RewardRecorded] = []
        order = _Order(sets, max((each.offset for each in others), default=-1))
        failures, ways = [], [way for way, _ in answers]
        for caller, (_, verdicts) in zip(asked, answers, strict=True):
            if isinstance(verdicts, str):
                failures.append(Failure(rollout.rollout_id, rollout.attempt, caller.scorer.name, verdicts))
                continue
            rewards += verdicts
            if order.is_to_record(caller.scorer, rollout):
                record += verdicts or [no_reward(caller.scorer.name, caller.scorer.version, rollout)]
        return Scored(
            tuple(rewards),
            tuple(record),
            tuple(failures),
            ways.count(MADE),
            ways.count(CACHED),
            ways.count(RECORDED),
            tuple((caller.scorer.name, way) for caller, way in zip(asked, ways, strict=True)),
        )

    @property
    def calls_max(self) -> int:
        """Calls of one scorer that may be made at a time; 0 = there is none."""
        return max((caller.concurrency for caller in self._callers), default=0)

    async def close(self) -> None:
        """Give up what is under way."""
        self._threads.close()
        self._loop.close()

    async def _answer(
        self, caller: Caller, rollout: RolloutView, sets: Sequence[RecordedSet]
    ) -> tuple[str, tuple[RewardRecorded, ...] | str]:
        """How a scorer's answer was got, and its verdicts, or why there are none."""
        scorer = caller.scorer
        source = source_of(scorer.name, scorer.version, rollout.rollout_id, rollout.attempt)
        for each in sets:
            if each.source == source:
                return RECORDED, tuple(reward for _, reward in each.rewards)
        key = (self._run_id, scorer.name, scorer.version, rollout.rollout_id, rollout.attempt)
        if self._cache is not None:
            cached = await self._cached(self._cache.get, *key)
            if cached is not None:
                # when its group closed is told by the rollout at hand: other settings may close it elsewhere
                return CACHED, tuple(replace(each, time_ns=rollout.closed_ns) for each in cached)
        if not self._calls:
            return UNASKED, ()
        try:
            verdicts = await caller.ask(rollout)
        except ScorerFailed as error:
            return MADE, str(error)
        if self._cache is not None:
            await self._cached(self._cache.put, *key, verdicts)
        return MADE, verdicts

    async def _cached(self, function: Any, *values: Any) -> Any:
        """In a thread: another process may be writing."""
        outcome = await self._threads.run(lambda: function(*values), Stuck())
        if outcome.error is not None:
            raise outcome.error
        return outcome.value


class _Order:
    """Tells what has to be recorded for the rewards topic to have a run's rewards in the run's order.

    What is recorded already stays so as long as each scorer's set counts, and stands after the one before. From the
    first that does not on, all are recorded, again if need be.
    """

    def __init__(self, sets: Sequence[RecordedSet], after: int) -> None:
        self._newest = newest_of(sets)
        self._after = after
        self._broken = False

    def is_to_record(self, scorer: LoadedScorer, rollout: RolloutView) -> bool:
        found = self._newest.get(scorer.name)
        source = source_of(scorer.name, scorer.version, rollout.rollout_id, rollout.attempt)
        if self._broken or found is None or found.source != source or found.offset < self._after:
            self._broken = True
            return True
        self._after = found.offset
        return False


async def _together(waiting: Sequence[Any]) -> list[Any]:
    if len(waiting) == 1:
        return [await waiting[0]]
    async with asyncio.TaskGroup() as group:  # cancelled together
        tasks = [group.create_task(each) for each in waiting]
    return [task.result() for task in tasks]
