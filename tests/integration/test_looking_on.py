"""Looking at a log while processes work on it: statuses, the ledger, one rollout, and batches as they come."""

import json
import signal
import uuid
from typing import Any

import pytest
from support.building import started
from support.processes import Command, assemble, wait_until
from support.store import Store
from support.workload import make_workload, new_record, whole_group

from rolloutlog.consumers.ledger_reading import read_ledger
from rolloutlog.consumers.trainer import BatchStream
from rolloutlog.deploy.kafka import Broker
from rolloutlog.eventstore.acks import Rewound, SampleEnd, StepAcknowledged, ack_records
from rolloutlog.eventstore.codec import encode_event
from rolloutlog.eventstore.errors import LogUnavailable
from rolloutlog.eventstore.events import RunEnded
from rolloutlog.eventstore.log import BATCHES, META, NewRecord

STATUS_S = 0.2
OUTAGE_S = 150.0
EXIT_DIFFERENT, EXIT_LOG = 1, 3


def run(store: Store, command: str, *arguments: str, code: int = 0) -> str:
    """Run a command to its end; returns what it printed."""
    process = Command(command, "--log", store.url, *arguments)
    assert process.finish() == code, process.stderr
    return process.stdout


def status(store: Store, *arguments: str, code: int = 0) -> dict[str, Any]:
    found = json.loads(run(store, "status", "--json", *arguments, code=code))
    assert isinstance(found, dict)
    return found


def status_count(store: Store) -> int:
    return sum((record.key or b"").startswith(b"status/") for record in store.records(META, [0]))


# Statuses


def test_status_of_a_live_assembler_says_what_is_open_and_what_it_waits_for(store: Store) -> None:
    store.append([*whole_group("done"), new_record(started("open-1", group_id="g"), key="g", partition=2)])
    command = assemble(store.url, until_end=False, status_interval_s=STATUS_S)

    def is_told() -> bool:
        found = status(store)["partitions"]
        return all(each["alive"] for each in found) and found[0]["counts"].get("batches") == 1

    wait_until(is_told, "a status of every partition")
    found = status(store)
    first, third = found["partitions"][0], found["partitions"][2]
    assert {each["pid"] for each in found["partitions"]} == {command.pid}
    assert (first["open_rollouts"], first["oldest_open_ns"]) == (0, None)
    assert (third["open_rollouts"], third["open_groups"]) == (1, 1)
    assert third["waiting"] == ["group g: rollout open-1 (attempt 0) is not completed"]
    assert third["oldest_open_ns"] == third["watermark_ns"] > 0
    command.terminate()
    assert command.finish() == 0, command.stderr
    assert "open: group g: rollout open-1 (attempt 0) is not completed" in run(store, "status")


def test_status_of_an_assembler_that_ended_is_its_last_one(store: Store) -> None:
    store.append(whole_group("g", partition=1))
    assert assemble(store.url, status_interval_s=3600).finish() == 0
    found = status(store)["partitions"]
    assert len(found) == store.partitions
    assert (found[1]["counts"]["batches"], found[1]["open_rollouts"]) == (1, 0)


def test_status_is_not_written_by_an_assembler_that_was_fenced(store: Store) -> None:
    first = assemble(store.url, until_end=False, status_interval_s=STATUS_S, position_interval_s=0.5)
    wait_until(lambda: status_count(store) >= store.partitions, "statuses of the first")
    second = assemble(store.url, until_end=False, status_interval_s=STATUS_S)
    assert first.finish() == 4, first.stderr
    written = status_count(store)
    wait_until(lambda: status_count(store) >= written + 2 * store.partitions, "statuses of the second")
    assert {each["pid"] for each in status(store)["partitions"]} == {second.pid}
    second.terminate()
    assert second.finish() == 0, second.stderr


def test_status_watched_goes_on_until_it_is_stopped_and_exits_0(store: Store) -> None:
    command = Command("status", "--log", store.url, "--json", "--watch")
    store.append(whole_group("g"))
    wait_until(lambda: len(command.printed) >= 2, "two looks")
    command.process.send_signal(signal.SIGINT)
    assert command.finish() == 0, command.stderr
    assert [json.loads(line)["log"] for line in command.stdout.splitlines()] == [store.url] * len(
        command.stdout.splitlines()
    )


def test_status_of_a_missing_log_exits_3(tmp_path) -> None:
    command = Command("status", "--log", f"sqlite:///{tmp_path}/none.db")
    assert command.finish() == EXIT_LOG


# The ledger


def test_ledger_of_a_run_with_faults_adds_up_and_agrees_with_the_batches(store: Store) -> None:
    store.append(make_workload(11, groups=40).records)
    assert assemble(store.url).finish() == 0
    ledger = status(store, "--ledger")["ledger"]
    rollouts = ledger["rollouts"]
    ends = {name: rollouts[name] for name in ("emitted", "failed", "expired", "incomplete", "group_dropped", "surplus")}
    found = [each.status for batch in store.batches() for each in batch.rollouts]
    assert ends == {name: found.count(name) for name in ends}
    assert rollouts["started"] == len(found) + sum(rollouts["refused"].values()) + rollouts["open"]
    assert (ledger["problems"], ledger["history_cut"], rollouts["missing"]) == ([], [], 0)


def test_ledger_while_an_assembler_is_killed_and_started_again_adds_up(store: Store) -> None:
    store.append(make_workload(12, groups=40).records)
    for _ in range(3):
        command = assemble(store.url, on_step=lambda self, partition, step: self.kill() if step == "confirm" else None)
        command.finish()
        assert status(store, "--ledger")["ledger"]["problems"] == []
    assert assemble(store.url).finish() == 0
    assert status(store, "--ledger")["ledger"]["problems"] == []


def test_ledger_counts_the_last_word_of_each_reader(store: Store) -> None:
    store.append([*whole_group("a"), *whole_group("b"), *whole_group("c", partition=1)])
    assert assemble(store.url).finish() == 0
    samples = [sample.sample_id for batch in store.batches() for sample in batch.samples]
    ends = store.run(store.log.ranges(BATCHES, [0]))[0].end
    for each in (
        StepAcknowledged("trainer", 0, 1, (), (SampleEnd(samples[0], "trained"),), {}, 0),
        StepAcknowledged("trainer", 1, 2, (), (SampleEnd(samples[1], "trained"),), {0: ends}, 0),
        Rewound("trainer", 1, {0: 0}, 1, 0),
        StepAcknowledged("trainer", 1, 2, (), (SampleEnd(samples[1], "stale"),), {0: ends}, 0),
    ):
        store.append(ack_records(each))
    found = status(store, "--ledger")
    assert found["ledger"]["problems"] == []
    assert found["ledger"]["samples"] == {
        "trainer": {"published": 3, "trained": 1, "stale": 1, "filtered": 0, "rejected": 0, "skipped": 0,
                    "in_flight": 1, "cut": 0}
    }  # fmt: skip
    assert [each["next_step"] for each in found["readers"]] == [2]


def test_ledger_of_a_trainer_that_is_rewound_adds_up_after_every_step(store: Store) -> None:
    for index in range(8):
        store.append(whole_group(f"g{index}", rollouts=2, partition=index % store.partitions))
    assert assemble(store.url).finish() == 0

    def samples(reader: str = "trainer") -> dict[str, int]:
        ledger = store.run(read_ledger(store.log))
        assert ledger.problems() == []
        found = ledger.samples(reader)
        return {**found.ends, "skipped": found.skipped, "in_flight": found.in_flight}

    how: dict[str, Any] = {"groups_per_step": 2, "max_staleness": None, "missing_reward": "exclude"}
    with BatchStream.open(store.url, **how) as stream:
        stream.set_policy_version(0)
        for trained in (4, 8):
            stream.ack(stream.next_step(), policy_version=1)
            assert samples() == {"trained": trained, "skipped": 0, "in_flight": 16 - trained}
        checkpoint = stream.state_dict()
        stream.ack(stream.next_step(), policy_version=2)
        assert samples() == {"trained": 12, "skipped": 0, "in_flight": 4}
        stream.load_state_dict(checkpoint)
        assert samples() == {"trained": 8, "skipped": 0, "in_flight": 8}
        stream.set_policy_version(1)
        stream.ack(stream.next_step(), policy_version=2)
        assert samples() == {"trained": 12, "skipped": 0, "in_flight": 4}


def test_ledger_of_a_batch_that_nobody_started_exits_1(store: Store) -> None:
    store.append(whole_group("g"))
    assert assemble(store.url).finish() == 0
    store.cut("events", 0, 2)
    assert status(store, "--ledger")["ledger"]["history_cut"] != []  # the start is gone, and no alarm
    store.append([NewRecord(BATCHES, 0, b"g", b"nothing")])
    assert status(store, "--ledger", code=EXIT_DIFFERENT)["ledger"]["problems"] == [
        "1 records of batches cannot be read"
    ]


# One rollout


def test_explain_of_a_published_rollout_prints_where_its_rewards_went(store: Store) -> None:
    store.append([*whole_group("other", partition=3), *whole_group("group", rollouts=2, partition=3)])
    assert assemble(store.url).finish() == 0
    lines = run(store, "explain", "group-r1").splitlines()
    assert lines[:2] == ["rollout group-r1, attempt 0, task t, group group, split train", "emitted"]
    assert lines[-2].endswith("final, it belongs to the rollout and reaches call group-r1-c")
    assert lines[-1] == "call chat  no model, 2 + 4 tokens, 0 ms  total 1  group-r1-c"


def test_explain_of_an_open_and_of_an_unknown_rollout_say_so(store: Store) -> None:
    store.append([new_record(started("open-1", group_id="g"), key="g")])
    assert "open: (attempt 0) is not completed" in run(store, "explain", "open")
    assert run(store, "explain", "nothing", code=EXIT_DIFFERENT) == ""


def test_explain_of_a_rollout_whose_events_retention_removed_prints_its_outcomes(store: Store) -> None:
    store.append([*whole_group("group-1"), *whole_group("group-2")])
    assert assemble(store.url).finish() == 0
    store.cut("events", 0, 4)
    printed = run(store, "explain", "group-1-r0")
    assert "its events are gone" in printed
    assert "final, it belongs to the rollout and reaches call group-1-r0-c" in printed


# Batches as they come


def test_follow_prints_what_is_there_and_what_comes_and_exits_0_on_sigterm(store: Store) -> None:
    store.append(whole_group("a"))
    assert assemble(store.url).finish() == 0
    command = Command("batches", "rollouts", "--log", store.url, "--follow")
    wait_until(lambda: len(command.printed) == 1, "the batch that was there")
    store.append([*whole_group("b", partition=2), *whole_group("c", partition=1)])
    assert assemble(store.url).finish() == 0
    wait_until(lambda: len(command.printed) == 3, "the new batches")
    command.terminate()
    assert command.finish() == 0, command.stderr
    groups = [json.loads(line)["group_id"] for line in command.stdout.splitlines()]
    assert groups[0] == "a"
    assert sorted(groups[1:]) == ["b", "c"]


def test_follow_ends_with_the_run(store: Store) -> None:
    store.append(whole_group("a"))
    assert assemble(store.url).finish() == 0
    command = Command("batches", "dump", "--log", store.url, "--follow", "--partitions", "0-1")
    wait_until(lambda: len(command.printed) == 1, "the batch that was there")
    event = RunEnded(rollout_id="", attempt=0, source="publisher.00000000000000ee", sequence=0, time_ns=0, run_id="run")
    store.append([NewRecord(BATCHES, partition, b"run/run", encode_event(event)) for partition in (0, 1)])
    assert command.finish() == 0, command.stderr
    assert len(command.stdout.splitlines()) == 1


@pytest.mark.kafka
@pytest.mark.slow
def test_follow_survives_a_broker_that_goes_away_and_comes_back(own_broker: Broker) -> None:
    with Store(f"kafka://{own_broker.bootstrap}/test-{uuid.uuid4().hex[:12]}") as store:
        live = assemble(store.url, until_end=False, status_interval_s=STATUS_S)
        follow = Command("batches", "rollouts", "--log", store.url, "--follow")
        store.append(whole_group("a"))
        wait_until(lambda: len(follow.printed) == 1, "the first batch")
        own_broker.kill()
        follow.wait_for_text("trying again in", OUTAGE_S)
        own_broker.restart()
        wait_until(lambda: _appended(store, "b"), "the broker back", OUTAGE_S)
        wait_until(lambda: len(follow.printed) == 2, "the batch after the outage", OUTAGE_S)
        for command in (follow, live):
            command.terminate()
            assert command.finish() == 0, command.stderr
        assert [json.loads(line)["group_id"] for line in follow.stdout.splitlines()] == ["a", "b"]


def _appended(store: Store, group_id: str) -> bool:
    try:
        store.append(whole_group(group_id))
    except LogUnavailable:
        return False
    return True
