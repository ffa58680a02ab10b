"""Trainers that are killed, restarted, rolled back and fenced: the ledger's sums hold, and weights are what it says."""

import asyncio
import json
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support import trainer as program
from support.batches import assert_ledger_holds, batch, end_records, last_words, published_ids, records_of, sample
from support.processes import assemble, wait_until
from support.store import Store

from rolloutlog.consumers.ledger_reading import read_ledger
from rolloutlog.consumers.stream.acked import Reached
from rolloutlog.consumers.trainer import BatchStream, FencedOut
from rolloutlog.deploy.kafka import Broker
from rolloutlog.eventstore import EventPublisher
from rolloutlog.eventstore.acks import Rewound, read_ack
from rolloutlog.eventstore.log import ACKS, BATCHES

pytestmark = pytest.mark.timeout(180)

PROGRAM = Path(program.__file__)
DEADLINE_S = 60.0


class Trainer:
    """The program, running. `lines`: what it printed, word by word."""

    def __init__(self, url: str, checkpoint: Path, *options: str) -> None:
        self.lines: list[list[str]] = []
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), url, str(checkpoint), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.split())

    def wait_for(self, point: str) -> None:
        wait_until(lambda: any(line[0] == point for line in self.lines), f"the trainer at {point}: {self.lines[-3:]}")

    def handed_out(self, step: int) -> list[str]:
        (ids,) = [line[2:] for line in self.lines if line[:2] == ["handed_out", str(step)]]
        return ids

    def all_handed_out(self) -> list[str]:
        return [each for line in self.lines if line[0] == "handed_out" for each in line[2:]]

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self._reading.join(DEADLINE_S)

    def finish(self) -> int:
        assert self.process.stderr is not None
        code = self.process.wait(DEADLINE_S)
        self.errors = self.process.stderr.read()
        self._reading.join(DEADLINE_S)
        return code


@pytest.fixture
def trainers() -> Iterator[list[Trainer]]:
    started: list[Trainer] = []
    yield started
    for each in started:
        each.kill()


@pytest.fixture
def start(trainers: list[Trainer], store: Store, tmp_path: Path):
    def start_(*options: str) -> Trainer:
        trainers.append(Trainer(store.url, tmp_path / "checkpoint", *options))
        return trainers[-1]

    return start_


def fill(store: Store, groups: int, *, end: bool = True) -> None:
    """Groups of two samples over all partitions; every fifth has a sample without a reward."""
    records = []
    for index in range(groups):
        name = f"g{index}"
        samples = [sample(f"{name}/0/a"), sample(f"{name}/0/b", total=None if index % 5 == 0 else 0.5)]
        records += records_of(batch(name, samples, version=0), index % store.partitions)
    store.append(records + (end_records(store.partitions) if end else []))


def assert_weights_are_what_the_ledger_says(store: Store, tmp_path: Path) -> None:
    weights = json.loads((tmp_path / "checkpoint").read_text())["weights"]
    assert len(weights) == len(set(weights)), "a sample was trained twice"
    assert sorted(weights) == sorted(name for name, end in last_words(store).items() if end == "trained")


def test_trainer_killed_before_its_acknowledgement_is_handed_the_same_samples_again(store, start, tmp_path) -> None:
    fill(store, 12)
    first = start("--stop-at", "trained:2")
    first.wait_for("stopped")
    first.kill()
    assert_ledger_holds(store, in_flight=len(published_ids(store)) - len(last_words(store)))
    second = start()
    assert second.finish() == 0, second.errors
    assert set(first.handed_out(2)) <= set(second.all_handed_out())
    assert not set(first.handed_out(0) + first.handed_out(1)) & set(second.all_handed_out())
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 21, "filtered": 3}
    assert_weights_are_what_the_ledger_says(store, tmp_path)


def test_trainer_killed_after_its_acknowledgement_rewinds_to_its_checkpoint(store, start, tmp_path) -> None:
    fill(store, 12)
    first = start("--every", "2", "--stop-at", "acked:4")
    first.wait_for("stopped")
    first.kill()
    second = start("--every", "2", "--stop-at", "handed_out:4")
    second.wait_for("stopped")
    (rewound,) = [ack for ack in map(read_ack, store.records(ACKS, [0])) if isinstance(ack, Rewound)]
    assert (rewound.step, rewound.policy_version) == (4, 4)
    assert_ledger_holds(store, in_flight=len(published_ids(store)) - len(last_words(store)))
    second.go_on()
    assert second.finish() == 0, second.errors
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 21, "filtered": 3}
    assert_weights_are_what_the_ledger_says(store, tmp_path)


def test_trainer_rolled_back_20_steps_trains_them_again(store, start, tmp_path) -> None:
    fill(store, 60)
    first = start("--keep", "--stop-at", "saved:25")
    first.wait_for("stopped")
    first.kill()
    shutil.copy(tmp_path / "checkpoint.6", tmp_path / "checkpoint")
    second = start("--stop-at", "handed_out:6")
    second.wait_for("stopped")
    in_flight = len(published_ids(store)) - len(last_words(store))
    assert_ledger_holds(store, in_flight=in_flight)
    second.go_on()
    assert second.finish() == 0, second.errors
    assert sum(assert_ledger_holds(store, in_flight=0).values()) == 120
    assert_weights_are_what_the_ledger_says(store, tmp_path)


def test_second_trainer_of_a_name_fences_the_first(store, start, tmp_path) -> None:
    fill(store, 12)
    first = start("--stop-at", "trained:1")
    first.wait_for("stopped")
    second = start("--stop-at", "handed_out:1")
    second.wait_for("stopped")
    first.go_on()
    assert first.finish() == program.EXIT_FENCED
    assert f"taken over by host {socket.gethostname()}, pid {second.process.pid}" in first.errors
    second.go_on()
    assert second.finish() == 0, second.errors
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 21, "filtered": 3}
    assert_weights_are_what_the_ledger_says(store, tmp_path)


def test_trainer_waiting_while_another_takes_its_name_ends(store, start, tmp_path) -> None:
    fill(store, 2, end=False)
    with BatchStream.open(
        store.url, groups_per_step=2, max_staleness=None, missing_reward=0, warn_s=0.5, wait_s=60
    ) as stream:
        stream.ack(stream.next_step(), policy_version=None)
        found: list[BaseException] = []

        def wait() -> None:
            try:
                stream.next_step()
            except FencedOut as error:
                found.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        second = start("--stop-at", "handed_out:1")
        waiting.join(DEADLINE_S)
        assert [type(error) for error in found] == [FencedOut]
        assert f"pid {second.process.pid}" in str(found[0])


def test_run_from_hosts_through_the_assembler_to_its_end_trains_every_sample(store) -> None:
    assembler = assemble(store.url, until_end=False)
    trained: list[str] = []
    with EventPublisher.open(store.url) as events, opened(store.url) as stream:
        for number in range(12):
            group = events.group("task", size=2)
            for _ in range(2):
                with events.rollout(group=group, policy_version=number) as rollout:
                    with rollout.call(policy_version=number) as call:
                        call.record(prompt_ids=[1, 2], response_ids=[3, number], logprobs=[-0.5, -0.25])
                    rollout.finish(1.0)
        events.end_run()
        for step in stream:
            trained += [each.sample_id for each in step.samples]
            stream.ack(step, policy_version=step.number + 1)
    assembler.terminate()
    assert assembler.finish() == 0, assembler.stderr
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 24}
    assert sorted(trained) == sorted(published_ids(store))


def test_end_of_a_run_that_retention_removed_is_no_lost_history(store) -> None:
    """The position stands behind it and the markers of its transaction, and says that the run has ended there."""

    async def publish() -> None:
        owner = await store.log.own("assembler", "events", 0)
        for number in range(4):
            await owner.commit(records_of(batch(f"g{number}"), number % store.partitions), {})
        await owner.commit(end_records(store.partitions), {})
        await owner.close()

    store.run(publish())
    with opened(store.url) as stream:
        for step in stream:
            stream.ack(step, policy_version=None)
        state = stream.state_dict()
    ranges = store.run(store.log.ranges(BATCHES, range(store.partitions)))
    for partition, span in ranges.items():
        store.cut(BATCHES, partition, span.end)
    with opened(store.url) as stream:
        stream.load_state_dict(state)
        assert stream.next_step(timeout_s=10) is None
    fill(store, 2)
    with opened(store.url) as stream:
        assert [step.number for step in stream] == [2]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["loading", "ending"])
def test_trainer_killed_amid_a_rewind_or_the_end_of_the_run_keeps_the_ledger(store, when) -> None:
    rng = random.Random(5)
    records = [record for index in range(8) for record in records_of(batch(f"g{index}", 1), index % store.partitions)]
    store.append([*records, *records_of(batch("val", 0)), *end_records(store.partitions)])
    with opened(store.url) as stream:
        state = stream.state_dict()
    for _ in range(8):
        running = subprocess.Popen(
            [sys.executable, "-c", REWINDING, store.url, json.dumps(state), when], stdout=subprocess.PIPE
        )
        assert running.stdout is not None
        running.stdout.readline()
        time.sleep(rng.random() * 0.15)  # any moment
        running.kill()
        running.wait()
        running.stdout.close()
        assert_ledger_holds(store, in_flight=len(published_ids(store)) - len(last_words(store)))
        assert store.run(read_ledger(store.log)).samples("trainer").ends == Counter(last_words(store).values())
    with opened(store.url) as stream:
        for step in stream:
            stream.ack(step, policy_version=None)
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 8}


REWINDING = """
import json, sys
from rolloutlog.consumers.trainer import BatchStream
url, state, when = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
stream = BatchStream.open(url, groups_per_step=2, max_staleness=None, missing_reward=0)
print("at work", flush=True)
while True:
    stream.load_state_dict(state)
    for step in stream:
        stream.ack(step, policy_version=None)
        if when == "loading":
            break
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_trainer_killed_at_any_moment_keeps_ledger_and_weights(store, start, tmp_path, seed) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    fill(store, 200)
    for _ in range(8):
        running = start("--every", str(rng.choice([1, 3])))
        wait_until(lambda each=running: bool(each.lines) or each.process.poll() is not None, "the trainer at work")
        time.sleep(rng.random() * 0.3)  # any moment
        running.kill()
        assert_ledger_holds(store, in_flight=len(published_ids(store)) - len(last_words(store)))
    last = start()
    assert last.finish() == 0, last.errors
    assert sum(assert_ledger_holds(store, in_flight=0).values()) == 400
    assert_weights_are_what_the_ledger_says(store, tmp_path)


# what only Kafka does


def opened(url: str, **given) -> BatchStream:
    return BatchStream.open(url, groups_per_step=2, max_staleness=None, missing_reward=0, wait_s=60, **given)


def offsets_of(reached: Mapping[int, Reached]) -> dict[int, int]:
    return {partition: each.offset for partition, each in reached.items()}


def kafka_store(broker: Broker) -> Store:
    return Store(f"kafka://{broker.bootstrap}/run{random.SystemRandom().getrandbits(40):x}", partitions=2)


@pytest.mark.kafka
def test_step_longer_than_the_brokers_idle_limit_disturbs_nothing(tmp_path) -> None:
    """The broker closes every connection meanwhile, as the default of 10 minutes does in a long step."""
    idle = {"connections.max.idle.ms": "1000"}
    with Broker.start(tmp_path / "kafka", properties=idle) as broker, kafka_store(broker) as store:
        fill(store, 12)
        with opened(store.url) as stream:
            for step in stream:
                if step.number == 0:
                    time.sleep(4)  # the optimizer's step
                stream.ack(step, policy_version=step.number)
            assert stream.state_dict()["step"] == 6
        assert assert_ledger_holds(store, in_flight=0) == {"trained": 24}


@pytest.mark.kafka
def test_broker_that_restarts_during_a_step_costs_no_sample(own_broker) -> None:
    with kafka_store(own_broker) as store:
        fill(store, 12)
        with opened(store.url) as stream:
            for step in stream:
                if step.number == 1:
                    own_broker.kill()
                    restarting = threading.Timer(2.0, own_broker.restart)
                    restarting.start()
                    stream.ack(step, policy_version=1)
                    restarting.join()
                else:
                    stream.ack(step, policy_version=step.number)
        assert assert_ledger_holds(store, in_flight=0) == {"trained": 24}


@pytest.mark.kafka
def test_reader_whose_partition_was_quiet_is_not_told_of_lost_history(own_broker) -> None:
    """A transaction's marker stands behind its last batch; retention removes both, and nothing of it is lost."""
    with kafka_store(own_broker) as store:

        async def commit() -> None:
            owner = await store.log.own("assembler", "events", 0)
            await owner.commit([*records_of(batch("a")), *records_of(batch("b"))], {})
            await owner.commit([*records_of(batch("c"), 1), *records_of(batch("d"), 1)], {})
            await owner.close()

        store.run(commit())
        ends = store.run(store.log.ranges(BATCHES, [0, 1]))
        reached = {partition: span.end for partition, span in ends.items()}
        with opened(store.url) as stream:
            prefetch = stream._work.parts.prefetch
            while stream.state_dict()["step"] < 2:
                step = stream.next_step()
                assert step is not None
                if step.number == 1:
                    wait_until(lambda: offsets_of(prefetch.reached()) == reached, "all read")
                stream.ack(step, policy_version=None)
            offsets = stream.state_dict()["offsets"]
        assert offsets == {"0": ends[0].end, "1": ends[1].end}
        for partition in (0, 1):
            store.cut(BATCHES, partition, ends[partition].end)
        fill(store, 4)
        with opened(store.url) as stream:
            step = stream.next_step()
            assert step is not None
            assert step.number == 2


def test_stream_in_async_code_gives_way_while_it_waits(store) -> None:
    async def wait() -> int:
        turns = 0
        async with opened(store.url) as stream:
            waiting = asyncio.create_task(stream.anext_step())
            while not waiting.done():
                turns += 1
                if turns == 5:
                    await asyncio.to_thread(lambda: None)
                    waiting.cancel()
                await asyncio.sleep(0.01)
        return turns

    assert asyncio.run(wait()) >= 5
