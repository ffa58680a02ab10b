"""Hosts, assembler, trainer and broker killed or stopped at random, for a while; then everything ends, and adds up.

A stopped trainer whose name another one takes goes on later: what it then acknowledges must not be stored. The seed is
printed, `SEED=7` begins with another one. Moments are real: a seed gives the same actions, not the same run.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import trainer as program
from support.batches import assert_ledger_holds, last_words, published_ids
from support.processes import Command, assemble, wait_until
from support.store import Store

from rolloutlog.consumers.ledger_reading import read_ledger
from rolloutlog.deploy.kafka import Broker
from rolloutlog.eventstore import EventPublisher
from rolloutlog.eventstore.codec import HEADER, parse_header
from rolloutlog.eventstore.group import Group

TESTS = Path(__file__).parents[1]
SEED = int(os.environ.get("SEED", "1"))
PARTITIONS = 2
ACTIONS = 12
PAUSE_S = 0.6  # at most
AT_WORK_S = 6.0  # for a trainer to be at work again; when it is not, the next action comes all the same
LAG_MAX = 20
END_S = 90.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class Soak:
    """A log and all who work on it. Whoever ends by himself must say why he may."""

    def __init__(self, store: Store, directory: Path, rng: random.Random, broker: Broker | None = None) -> None:
        self.store = store
        self.broker = broker
        self.checkpoint = directory / "checkpoint"
        self.actions: list[str] = []
        self._rng = rng
        self._directory = directory
        self._hosts = [self._host() for _ in range(2)]
        self._assembler = self._assemble()
        self._trainers = [self._trainer()]
        self._stopped: list[subprocess.Popen[bytes]] = []

    def act(self) -> None:
        act = self._rng.choice([
            self.kill_trainer, self.kill_trainer, self.stop_trainer, self.continue_trainers, self.kill_assembler,
            self.kill_host, *([self.kill_broker] if self.broker else []),
        ])  # fmt: skip
        self.actions.append(act.__name__)
        before = self._saved_ns()
        act()
        deadline = time.monotonic() + (AT_WORK_S if self._rng.random() < 0.8 else 0.0)
        while time.monotonic() < deadline and self._saved_ns() == before:
            time.sleep(0.01)
        time.sleep(self._rng.uniform(0.0, PAUSE_S))  # any moment

    def kill_trainer(self) -> None:
        self._trainers[-1].kill()
        self._trainers.append(self._trainer())

    def stop_trainer(self) -> None:
        """Another one takes its name meanwhile."""
        if self._trainers[-1].poll() is None:
            self._trainers[-1].send_signal(signal.SIGSTOP)
            self._stopped.append(self._trainers[-1])
        self._trainers.append(self._trainer())

    def continue_trainers(self) -> None:
        while self._stopped:
            self._stopped.pop().send_signal(signal.SIGCONT)
        if self._trainers[-1].poll() is not None:
            self._trainers.append(self._trainer())

    def kill_assembler(self) -> None:
        self._assembler.kill()
        self._assembler.finish()
        self._assembler = self._assemble()

    def kill_host(self) -> None:
        host = self._hosts.pop(0)
        host.kill()
        host.wait()
        self._hosts.append(self._host())

    def kill_broker(self) -> None:
        assert self.broker is not None
        self.broker.kill()
        time.sleep(self._rng.uniform(0.0, 1.0))
        self.broker.restart()

    def end(self) -> None:
        """No more faults: what is owed comes. The last trainer goes on from its checkpoint to the end of the run."""
        self.continue_trainers()
        for host in self._hosts:
            host.kill()
            host.wait()
        self._end_run()
        for trainer in self._trainers:
            trainer.kill()
            # Killed, fenced, or at the end of the run; anything else is a fault of its own.
            assert trainer.wait() in (0, program.EXIT_FENCED, -signal.SIGKILL), self._errors()
        last = self._trainer()
        try:
            assert last.wait(END_S) == 0, self._errors()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the last trainer does not end\n{self._errors()}\n{self._assembler.stderr}") from None
        self._assembler.terminate()
        assert self._assembler.finish() == 0, self._assembler.stderr

    def _saved_ns(self) -> int:
        return self.checkpoint.stat().st_mtime_ns

    def close(self) -> None:
        for each in (*self._trainers, *self._hosts):
            each.kill()
            each.wait()

    def _end_run(self) -> None:
        published = {batch.group_id for batch in self.store.batches()}
        started = {
            (record.key or b"").decode()
            for record in self.store.events()
            if parse_header(dict(record.headers)[HEADER]).rollout_id
        }
        with EventPublisher.open(self.store.url) as events:
            for group_id in sorted(started - published):
                events.close_group(Group(group_id, "task"))  # its host may have been killed
            events.end_run()
            events.flush(60)

    def _host(self) -> subprocess.Popen[bytes]:
        return self._start("host.py", "follow", self.store.url, str(LAG_MAX))

    def _trainer(self) -> subprocess.Popen[bytes]:
        options = ["--every", self._rng.choice("13"), "--max-staleness", "12"]
        return self._start("trainer.py", self.store.url, str(self.checkpoint), *options)

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._directory / "errors").open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, str(TESTS / "support" / name), *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
            )  # fmt: skip

    def _assemble(self) -> Command:
        return assemble(self.store.url, until_end=False)

    def _errors(self) -> str:
        return (self._directory / "errors").read_text()[-6_000:]


def assert_all_adds_up(soak: Soak) -> None:
    store = soak.store
    ledger = store.run(read_ledger(store.log))
    assert ledger.problems() == []
    rollouts, samples = ledger.rollouts(), ledger.samples("trainer")
    assert (rollouts.open, rollouts.missing, rollouts.cut) == (0, 0, 0)
    assert rollouts.started == rollouts.ends.total() + rollouts.refused.total()
    assert (samples.in_flight, samples.skipped, samples.cut) == (0, 0, 0)
    assert assert_ledger_holds(store, in_flight=0) == samples.ends
    weights = json.loads(soak.checkpoint.read_text())["weights"]
    assert len(weights) == len(set(weights)), "a sample was trained twice for good"
    assert sorted(weights) == sorted(name for name, end in last_words(store).items() if end == "trained")
    print(f"{rollouts.started} rollouts, {len(published_ids(store))} samples: {dict(samples.ends)}")


def run(soak: Soak) -> None:
    try:
        wait_until(lambda: soak.checkpoint.exists(), "the first trainer at work")
        for _ in range(ACTIONS):
            soak.act()
        soak.end()
        assert_all_adds_up(soak)
    finally:
        print("actions", *soak.actions)
        soak.close()


@pytest.fixture
def own_store(own_broker: Broker) -> Iterator[Store]:
    with Store(f"kafka://{own_broker.bootstrap}/soak-{uuid.uuid4().hex[:12]}", partitions=PARTITIONS) as store:
        yield store


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_run_whose_processes_are_killed_and_stopped_at_random_adds_up(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    with Store(f"sqlite:///{tmp_path}/log.db", partitions=PARTITIONS) as store:
        run(Soak(store, tmp_path, random.Random(seed)))


@pytest.mark.kafka
def test_run_whose_processes_and_broker_are_killed_and_stopped_at_random_adds_up(
    own_broker: Broker, own_store: Store, tmp_path: Path
) -> None:
    print("seed", SEED)
    run(Soak(own_store, tmp_path, random.Random(SEED), own_broker))
