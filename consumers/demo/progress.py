"""How far the loop is, by what stands in the log: batches and acknowledgements, never what a process says of itself.

Feed it records of both topics in offset order; which topic is read first makes no difference.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.demo.settings import READER, RECENT
from rolloutlog.eventstore.acks import TRAINED, Ack, StepAcknowledged


class Point(NamedTuple):
    """Policy versions first … last: how many rollouts they began, and their mean final reward."""

    first: int
    last: int
    rollouts: int
    mean: float


@dataclass
class Progress:
    """Counts so far.

    policy_version  of the newest weights
    staleness_max   greatest number of versions between the oldest of a group's calls and the weights that were trained
                    with it
    example         id of a solved rollout with two calls, the newest one
    """

    rollouts: int = 0
    samples: int = 0
    batches: int = 0
    steps: int = 0
    policy_version: int = 0
    staleness: int = 0
    staleness_max: int = 0
    example: str | None = None
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _count: Counter[int] = field(default_factory=Counter)
    _sum: Counter[int] = field(default_factory=Counter)
    _oldest: dict[str, int] = field(default_factory=dict)  # sample → oldest version in its group, until it is trained
    _trained_by: dict[str, int] = field(default_factory=dict)  # sample → version, until its batch is read

    def add_batch(self, batch: Batch) -> None:
        self.batches += 1
        self.samples += len(batch.samples)
        for rollout in batch.rollouts:
            self.rollouts += 1
            reward = rollout.final.get("reward")
            if reward is None or rollout.policy_version is None:
                continue  # it failed: there is a status, and no verdict
            self._recent.append(reward)
            self._count[rollout.policy_version] += 1
            self._sum[rollout.policy_version] += reward  # type: ignore[assignment]  # a Counter adds floats as well
            if reward == 1.0 and rollout.turn_count == 2:
                self.example = rollout.rollout_id
        for sample in batch.samples:
            if batch.policy_version_min is not None:
                self._oldest[sample.sample_id] = batch.policy_version_min
                self._measure(sample.sample_id)

    def add_ack(self, ack: Ack) -> None:
        if not isinstance(ack, StepAcknowledged) or ack.reader != READER:
            return
        for sample_id, end in ack.samples:
            if end == TRAINED:
                self._trained_by[sample_id] = self.policy_version
                self._measure(sample_id)
        if ack.offsets:  # the step's last record
            self.steps += 1
            if ack.policy_version is not None:
                self.policy_version = ack.policy_version

    @property
    def recent(self) -> float | None:
        """Mean final reward of the last RECENT rollouts; None before there are so many."""
        return sum(self._recent) / RECENT if len(self._recent) == RECENT else None

    def mean(self, version: int) -> float | None:
        """Mean final reward of the rollouts that a version began; None when there are none."""
        return self._sum[version] / self._count[version] if self._count[version] else None

    def curve(self, points_max: int) -> list[Point]:
        """Mean final reward by policy version: version 0 alone, the others in equal runs; at most `points_max`."""
        newest = max(self._count, default=0)
        width = max(1, -(-newest // (points_max - 1)))
        runs = [(0, 0)] + [(first, min(first + width - 1, newest)) for first in range(1, newest + 1, width)]
        points = []
        for first, last in runs:
            rollouts = sum(self._count[version] for version in range(first, last + 1))
            if rollouts:
                mean = sum(self._sum[version] for version in range(first, last + 1)) / rollouts
                points.append(Point(first, last, rollouts, mean))
        return points

    def _measure(self, sample_id: str) -> None:
        if sample_id in self._oldest and sample_id in self._trained_by:
            self.staleness = self._trained_by.pop(sample_id) - self._oldest.pop(sample_id)
            self.staleness_max = max(self.staleness_max, self.staleness)
