"""Random histories of a partition: whatever happens, everything ends within its limits, and once."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from support.building import call, completed, group_closed, reward, started
from unit.consumers.owning import Owner, World

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.outputs import BatchReady, Output
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.eventstore.events import Event, RolloutHeartbeat, SourceEnded

TURN_S = 5.0


class History:
    """Hosts that send, fall silent and send too late; owners that pause, are killed, and decide after they were fenced.

    published  outputs of all owners, in the order in which they were committed
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.world = World()
        self.limits: dict[str, Any] = {
            "idle_s": rng.choice([5, 60, 600]), "age_s": rng.choice([20, 300, 3_000]), "grace_s": rng.choice([1, 20]),
            "retry_s": rng.choice([1, 100]), "group_age_s": rng.choice([2, 90, 900]),
            "replay_bytes_max": rng.choice([1, 3_000, 2**31]),
        }  # fmt: skip
        self.owner = Owner(self.world, **self.limits)
        self.published: list[Output] = []
        self._attempts: list[tuple[str, str, int, str]] = []
        self._sequences: dict[tuple[str, int, str], int] = {}

    def happen(self) -> None:
        """One thing."""
        things: list[tuple[int, Callable[[], object]]] = [
            (25, self._start), (40, self._send), (5, self._close_group), (15, self._go_on), (4, self._pause),
            (3, self._set_log_clock), (3, self._tell_log_time), (5, self._restart),
        ]  # fmt: skip
        (thing,) = self.rng.choices([each for _, each in things], [weight for weight, _ in things])
        thing()

    def end(self) -> float:
        """All hosts are gone: how long until nothing is open any more."""
        self.owner.turn()
        most_s = self.limits["age_s"] + self.limits["group_age_s"] + 2 * self.limits["grace_s"] + 10 * TURN_S
        took_s = 0.0
        while self.owner.state.groups and took_s <= most_s:
            self.owner.run(TURN_S, each_s=TURN_S)
            took_s += TURN_S
        assert not self.owner.state.groups, f"open after {took_s} s with {self.limits}"
        self.published += self.owner.outputs
        return took_s

    def _start(self) -> None:
        rng = self.rng
        group_id, attempt = f"g{rng.randint(0, 12)}", rng.choice([0, 0, 0, 1, 2])
        rollout_id, source = f"{group_id}-r{rng.randint(0, 4)}", f"main.{rng.choice([1, 1, 1, 2]):016x}"
        self._sequences[rollout_id, attempt, source] = 1
        self._attempts.append((group_id, rollout_id, attempt, source))
        most = max(attempt + 1, rng.choice([1, 2, 9]))
        self.world.append(
            started(rollout_id, group_id=group_id, group_size=rng.choice([1, 2, 3, None]), attempt=attempt,
                    attempts_max=most, source=source),
            key=group_id,
        )  # fmt: skip

    def _send(self) -> None:
        if not self._attempts:
            return
        rng = self.rng
        group_id, rollout_id, attempt, source = rng.choice(self._attempts[-12:])
        source = source if rng.random() < 0.8 else f"{rng.choice(['judge', 'other'])}.00000000000000cc"
        key = rollout_id, attempt, source
        sequence = self._sequences.get(key, 0) + (rng.random() < 0.06)  # now and then one is lost
        self._sequences[key] = sequence + 1
        self.world.append(self._event(rollout_id, sequence, {"attempt": attempt, "source": source}), key=group_id)

    def _event(self, rollout_id: str, sequence: int, common: dict[str, Any]) -> Event:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.3:
            return call(f"c{sequence}", sequence, rollout_id, **common)
        if kind < 0.5:
            return reward(sequence, rollout_id, name=rng.choice(["x", "judge"]), scope="rollout", **common)
        if kind < 0.75:
            signs = SourceEnded if kind < 0.55 else RolloutHeartbeat
            return signs(rollout_id=rollout_id, sequence=sequence, time_ns=0, **common)
        awaited = {name: ("judge",) for name in ("awaited_names", "awaited_rewards") if rng.random() < 0.2}
        status = rng.choice(["completed", "completed", "failed"])
        return completed(sequence, rollout_id, status=status, **awaited, **common)

    def _close_group(self) -> None:
        group_id = f"g{self.rng.randint(0, 12)}"
        self.world.append(group_closed(group_id), key=group_id)

    def _go_on(self) -> None:
        self.owner.run(self.rng.choice([1, 5, 30, 200]), each_s=self.rng.choice([1, TURN_S]))

    def _pause(self) -> None:
        self.world.at_s += self.rng.choice([5, 30, 4_000])
        self.owner.turn()

    def _set_log_clock(self) -> None:
        self.world.log_ahead_s += self.rng.choice([5_000, 86_400])

    def _tell_log_time(self) -> None:
        self.owner.deciding.hear_log_time(self.world.log_time_ns)

    def _restart(self) -> None:
        before, decides_late = self.owner, self.rng.random() < 0.5
        if decides_late:
            before.append(before.decide())  # killed before it reads them
        self.published += before.outputs
        self.owner = Owner(self.world, committed=before.committed, **self.limits)


def batches_of(outputs: list[Output]) -> list[Batch]:
    return [each.batch for each in outputs if isinstance(each, BatchReady)]


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_random_history_ends_within_its_limits_and_as_one_fold_of_the_log_says(first: int):
    for seed in range(first, first + 20):
        history = History(seed)
        for _ in range(history.rng.randint(20, 120)):
            history.happen()
        history.end()
        state, outputs = PartitionState(0, FoldSettings(min_group=1)), list[Output]()
        for entry in history.world.records:
            outputs += fold(state, entry)
        assert batches_of(history.published) == batches_of(outputs), f"seed {seed}"
