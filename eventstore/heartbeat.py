"""Says that a rollout's work goes on, while its code records nothing: a long call, a slow tool.

The block's own task says so, and nobody else: in async code a timer of the loop in which the block was entered, for as
long as the task that entered it is not done. A thread beside the work would go on when the work hangs or is dead. So
blocking code says so itself, with `Rollout.heartbeat`.
"""

import logging
import sys
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from rolloutlog.eventstore import forks
from rolloutlog.eventstore.errors import StoreError

if TYPE_CHECKING:
    import asyncio

_logger = logging.getLogger(__name__)


class Pulse:
    """Lets one heartbeat through each `interval_s`. `clock`: monotonic seconds."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = monotonic) -> None:
        self.interval_s = interval_s
        self._clock = clock
        self._at_s = float("-inf")

    def is_due(self) -> bool:
        """Whether it is time; if so, the next one is `interval_s` away."""
        now = self._clock()
        if now - self._at_s < self.interval_s:
            return False
        self._at_s = now
        return True


class Beats:
    """Heartbeats of a block entered by a task.

    beat   sends one
    count  events recorded so far: where it has changed, no heartbeat is needed
    """

    def __init__(
        self,
        loop: "asyncio.AbstractEventLoop",
        task: "asyncio.Task[object]",
        interval_s: float,
        beat: Callable[[], None],
        count: Callable[[], int],
    ) -> None:
        self._loop, self._task, self._interval_s = loop, task, interval_s
        self._beat, self._count = beat, count
        self._counted = count()
        self._forks = forks.count
        self._timer = loop.call_later(interval_s, self._turn)

    def end(self) -> None:
        """The block is left."""
        self._timer.cancel()

    def _turn(self) -> None:
        if self._task.done() or self._forks != forks.count:
            return
        if self._count() == self._counted:
            try:
                self._beat()
            except StoreError as error:
                _logger.info("no heartbeat: %s", error)
        self._counted = self._count()
        self._timer = self._loop.call_later(self._interval_s, self._turn)


def begin_beats(interval_s: float, beat: Callable[[], None], count: Callable[[], int]) -> Beats | None:
    """Heartbeats of the running task, None where no task runs here or `interval_s` is 0."""
    running = sys.modules.get("asyncio")  # where nobody has imported it, no task of it runs
    if running is None or not interval_s:
        return None
    try:
        loop, task = running.get_running_loop(), running.current_task()
    except RuntimeError:
        return None
    return None if task is None else Beats(loop, task, interval_s, beat, count)
