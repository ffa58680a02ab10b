"""A rollout host of the demo: one process that works on tasks, group by group, until it is told to stop.

Before each group it waits while the trainer is behind (`hold`), so that rollouts do not grow old in the log. Before
each rollout it takes the newest weights that the trainer acknowledged; a group can hold rollouts of several versions.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np

from rolloutlog.consumers.demo.agent import solve
from rolloutlog.consumers.demo.policy import Weights
from rolloutlog.consumers.demo.settings import GROUP_SIZE, LAG_MAX, READER
from rolloutlog.consumers.demo.tasks import TASKS, open_shop
from rolloutlog.consumers.demo.weights import load_weights
from rolloutlog.eventstore import EventPublisher
from rolloutlog.eventstore.errors import StillBehind

HOLD_S = 0.5  # between two looks at whether to stop


def run_host(url: str, weights_folder: Path, *, host: int, seed: int, stopped: Callable[[], bool]) -> None:
    """Work until `stopped()`; the group that is under way is finished. What a policy draws depends on nothing but
    `seed`, `host`, the rollout's number and the weights."""
    with EventPublisher.open(url) as events, open_shop() as shop:
        newest = _Newest(events, weights_folder)
        rollouts = count()
        for number in count():
            if not _may_start(events, stopped):
                return
            # Every host walks over the tasks from a place of its own, so that no step lacks one of them for long.
            task = TASKS[(number + host * len(TASKS) // 2) % len(TASKS)]
            group = events.group(task_id=task.task_id, size=GROUP_SIZE)
            for _ in range(GROUP_SIZE):
                version, weights = newest.weights()
                random = np.random.default_rng([seed, host, next(rollouts)])
                with events.rollout(group=group, policy_version=version) as rollout:
                    rollout.finish(reward=solve(rollout, task, shop, weights, version, random))


def _may_start(events: EventPublisher, stopped: Callable[[], bool]) -> bool:
    """Wait while the trainer is behind; False = stopped meanwhile."""
    while not stopped():
        with suppress(StillBehind):
            events.hold(LAG_MAX, timeout_s=HOLD_S, reader=READER)
            return not stopped()
    return False


class _Newest:
    """The newest weights, read when the version changes."""

    def __init__(self, events: EventPublisher, folder: Path) -> None:
        self._events = events
        self._folder = folder
        self._version = 0
        self._weights = load_weights(folder, 0)

    def weights(self) -> tuple[int, Weights]:
        version = self._events.policy_version(reader=READER) or 0  # None before the first acknowledgement
        if version != self._version:
            self._version, self._weights = version, load_weights(self._folder, version)
        return self._version, self._weights
