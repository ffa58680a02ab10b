"""Groups on their way from the fold to the output: scored in any order, settled and handed on in trigger order.

Memory  GROUPS_MAX groups, or more where scorers may be asked about more at once, or BYTES_MAX of events are in it at
        once, for one partition
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rolloutlog.consumers.outputs import GroupLeft, RunEnding
from rolloutlog.consumers.scoring import Recorded, Scored, Scoring, add_failures, add_rewards, view_of
from rolloutlog.consumers.state import Rollout, Stored

GROUPS_MAX = 64
AHEAD = 2  # rollouts in it for each call that may be made, so that a slow one keeps no other from being made
ROLLOUTS_MAX = 4_096  # that this may come to
BYTES_MAX = 32 * 2**20

Left = GroupLeft | RunEnding


@dataclass(slots=True)
class Scores:
    """What scorers made of a group, by rollout in the order of their starts."""

    of_rollouts: list[tuple[Rollout, Scored]] = field(default_factory=list)


@dataclass(slots=True)
class Work:
    """What one event caused. `watermark`: L right after that event was folded."""

    trigger: int
    watermark: int
    left: Sequence[Left]
    size_bytes: int
    scoring: "asyncio.Task[Scores] | None"

    @property
    def rollouts(self) -> int:
        return sum(len(each.group.rollouts) for each in self.left if isinstance(each, GroupLeft))


class Pipeline:
    """The groups of one partition that are being scored."""

    def __init__(self, partition: int, scoring: Scoring, recorded: Recorded, *, calls_max: int = 0) -> None:
        """`calls_max`: of one scorer at a time."""
        self._partition, self._scoring, self._recorded = partition, scoring, recorded
        self._rollouts_least, self._rollouts = min(AHEAD * calls_max, ROLLOUTS_MAX), 0
        self._works: deque[Work] = deque()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._works)

    @property
    def groups(self) -> int:
        """How many are in it."""
        return sum(isinstance(each, GroupLeft) for work in self._works for each in work.left)

    @property
    def full(self) -> bool:
        enough = len(self._works) >= GROUPS_MAX and self._rollouts >= self._rollouts_least
        return enough or self._size_bytes >= BYTES_MAX

    @property
    def oldest(self) -> Work | None:
        """The first that is not handed on yet: nothing behind it is out either."""
        return self._works[0] if self._works else None

    def add(self, trigger: int, watermark: int, left: Sequence[Left]) -> None:
        """Begin to score a group that left the fold; the end of the run waits for its turn."""
        groups = [each for each in left if isinstance(each, GroupLeft)]
        size_bytes = sum(len(stored.value or b"") for each in groups for stored in _records(each))
        task = asyncio.create_task(self._score(groups)) if groups else None
        work = Work(trigger, watermark, left, size_bytes, task)
        self._works.append(work)
        self._size_bytes += size_bytes
        self._rollouts += work.rollouts

    def done(self) -> Iterator[tuple[Work, Scores]]:
        """Take out what is done, up to the first that is not. Raises what went wrong in it."""
        while self._works and (self._works[0].scoring is None or self._works[0].scoring.done()):
            work = self._works.popleft()
            self._size_bytes -= work.size_bytes
            self._rollouts -= work.rollouts
            yield work, Scores() if work.scoring is None else work.scoring.result()

    async def wait(self, within_s: float) -> None:
        """Wait for the oldest one."""
        if self._works and self._works[0].scoring is not None:
            await asyncio.wait({self._works[0].scoring}, timeout=within_s)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = [work.scoring for work in self._works if work.scoring is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._works.clear()
        self._size_bytes = self._rollouts = 0

    async def _score(self, groups: Sequence[GroupLeft]) -> Scores:
        rollouts = [(rollout, each.closed_ns) for each in groups for rollout in each.group.rollouts.values()]
        found = await asyncio.gather(*(self._score_rollout(*each) for each in rollouts))
        return Scores([(rollout, scored) for (rollout, _), scored in zip(rollouts, found, strict=True)])

    async def _score_rollout(self, rollout: Rollout, closed_ns: int) -> Scored:
        scored = await self._scoring.score(view_of(rollout, self._partition, closed_ns=closed_ns), self._recorded)
        add_rewards(rollout, scored.rewards)
        add_failures(rollout, scored.failures)
        return scored


def _records(left: GroupLeft) -> Iterator[Stored]:
    for rollout in left.group.rollouts.values():
        yield from rollout.attempt.records
