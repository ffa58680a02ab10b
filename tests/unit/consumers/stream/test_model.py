"""Random orders of all that a trainer can do, on one log: after each the ledger equals a reference, and its sums hold.

Batches of several ages and sizes, with and without rewards or samples, and ends of the run come in between. The stream
is opened again with other settings, rewound to any state saved before, copied to a new name. The seed is printed.
"""

import json
import os
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.batches import batch, end_records, last_words, published_ids, records_of, sample
from support.store import Store

from rolloutlog.consumers.ledger_reading import read_ledger
from rolloutlog.consumers.trainer import BatchStream, Step, WaitedTooLong
from rolloutlog.eventstore.errors import InvalidSettings

SEED = int(os.environ.get("SEED", "0"))
OPERATIONS = 60
PARTITIONS = 3
WAIT_S = 0.1

pytestmark = pytest.mark.timeout(120)


class Trainer:
    """One log, and a stream of the newest reader's name. `steps`: handed out and not acknowledged."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self.store = store
        self.rng = rng
        self.groups = 0
        self.version = 0
        self.reader = 0
        self.saved: list[dict[str, Any]] = []
        self.steps: list[Step] = []
        self.stream = self._opened()

    def publish(self) -> None:
        records = []
        for _ in range(self.rng.randint(1, 8)):
            self.groups += 1
            name = f"g{self.groups}"
            samples = [
                sample(f"{name}/0/{i}", total=self.rng.choice([None, 1.0])) for i in range(self.rng.randrange(4))
            ]
            made = batch(name, samples, version=self.rng.choice([None, 0, 1, 2, 5, 9]))
            records += records_of(made, self.rng.randrange(PARTITIONS))
        self.store.append(records)

    def end_run(self) -> None:
        self.store.append(end_records(PARTITIONS))

    def reopen(self) -> None:
        self.stream.close()
        self.stream = self._opened()

    def train_on(self) -> None:
        self.version += self.rng.randint(0, 2)
        self.stream.set_policy_version(self.version)

    def take(self) -> None:
        try:
            step = self.stream.next_step(WAIT_S)
        except WaitedTooLong:
            return
        if step is not None:
            self.steps.append(step)

    def acknowledge(self) -> None:
        if self.steps:
            self.stream.ack(self.steps.pop(0), policy_version=self.version)

    def save(self) -> None:
        self.saved.append(json.loads(json.dumps(self.stream.state_dict())))

    def load(self) -> None:
        """Any state but one that is ahead by now: that is refused, and changes nothing."""
        if self.saved:
            with suppress(InvalidSettings):
                self.stream.load_state_dict(self.rng.choice(self.saved))
                self.steps.clear()

    def copy(self) -> None:
        """To a new name, which begins where the old one is."""
        state = self.stream.state_dict()
        self.reader += 1
        self.saved.clear()
        self.reopen()
        self.stream.load_state_dict(state)

    def train_to_the_end(self) -> None:
        while self.steps:
            self.acknowledge()
        try:
            for step in iter(lambda: self.stream.next_step(WAIT_S), None):
                self.stream.ack(step, policy_version=self.version)
        except WaitedTooLong:
            pass

    def _opened(self) -> BatchStream:
        self.steps.clear()
        choice = self.rng.choice
        stream = BatchStream.open(
            self.store.url, reader=f"r{self.reader}", groups_per_step=choice([1, 2, 3]),
            max_staleness=choice([None, 0, 2, 5]), drop_last=choice([True, False, False]),
            prefetch_bytes=choice([1, 10**6]), missing_reward=choice(["exclude", 0]),
        )  # fmt: skip
        stream.set_policy_version(self.version)
        return stream


def assert_ledger_is_the_reference(store: Store) -> None:
    known = published_ids(store)
    ledger = store.run(read_ledger(store.log))
    # The rollouts of these batches have no events.
    assert [each for each in ledger.problems() if "never started" not in each] == []
    for reader in ledger.readers:
        samples = ledger.samples(reader)
        assert samples.ends == Counter(last_words(store, reader).values())
        assert samples.published == len(known) == samples.ends.total() + samples.in_flight + samples.skipped
        assert samples.in_flight >= 0


@pytest.mark.parametrize(
    "seed", [SEED, SEED + 1, *(pytest.param(SEED + n, marks=pytest.mark.slow) for n in range(2, 20))]
)
def test_any_order_of_what_a_trainer_does_keeps_the_ledger(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    done: list[str] = []
    with Store(f"sqlite:///{tmp_path}/log.db", partitions=PARTITIONS) as store:
        trainer = Trainer(store, rng)
        try:
            operations = [
                *[trainer.take] * 3, *[trainer.acknowledge] * 3, *[trainer.publish] * 2, trainer.end_run,
                trainer.reopen, trainer.train_on, trainer.save, trainer.load, trainer.copy, trainer.train_to_the_end,
            ]  # fmt: skip
            for number in range(OPERATIONS):
                operation = rng.choice(operations)
                done.append(operation.__name__)
                operation()
                if number % 6 == 5:
                    assert_ledger_is_the_reference(store)
            trainer.end_run()
            trainer.stream.close()
            trainer.stream = BatchStream.open(
                store.url, reader=f"r{trainer.reader}", groups_per_step=2, max_staleness=None, missing_reward=0
            )
            for step in trainer.stream:
                trainer.stream.ack(step, policy_version=trainer.version)
            assert_ledger_is_the_reference(store)
            assert store.run(read_ledger(store.log)).samples(f"r{trainer.reader}").in_flight == 0
        finally:
            print(*done)
            trainer.stream.close()
