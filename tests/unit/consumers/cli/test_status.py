"""`rolloutlog status`: its lines and exit codes, on an embedded log."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.store import Store
from support.workload import whole_group
from unit.consumers.test_ledger import ack, batch_of, ledger_of

from rolloutlog.consumers.batches import encode_parts
from rolloutlog.consumers.cli import main as entry
from rolloutlog.consumers.cli.status import ledger_lines
from rolloutlog.consumers.ledger import Cut
from rolloutlog.consumers.packing import WHY
from rolloutlog.consumers.status import Status, status_record
from rolloutlog.eventstore.acks import Rewound, SampleEnd, StepAcknowledged, StepAwaited, ack_records
from rolloutlog.eventstore.log import BATCHES, DEAD_LETTERS, NewRecord

NOW_NS = 2_000_000_000_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path}/log.db", partitions=2) as opened:
        yield opened


class Ran:
    """The command, run in this process."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: Store, *arguments: str
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["rolloutlog", "status", "--log", store.url, *arguments])
        monkeypatch.setattr(time, "time_ns", lambda: NOW_NS)
        with pytest.raises(SystemExit) as caught:
            entry()
        self.code = int(caught.value.code or 0)
        self.out, self.err = capsys.readouterr()

    @property
    def lines(self) -> list[str]:
        return [" ".join(line.split()) for line in self.out.splitlines()]

    @property
    def json(self) -> dict[str, Any]:
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: Store):
    return lambda *arguments: Ran(monkeypatch, capsys, store, *arguments)


def status_of(partition: int = 0, *, age_s: float = 2.0, **fields: Any) -> Status:
    given = {
        "app": "assembler",
        "host": "host-1",
        "pid": 71,
        "time_ns": NOW_NS - int(age_s * 1e9),
        "position": 2,
        "watermark": 0,
        "end": 4,
        "open_rollouts": 2,
        "open_groups": 1,
        "oldest_open_ns": NOW_NS - 90 * 10**9,
        "counts": {"batches": 7, "dead_letters": 1},
        "waiting": ("group g: rollout r is not completed",),
        **fields,
    }
    return Status(partition=partition, **given)


def test_status_of_a_log_without_an_assembler_says_so(store, ran):
    store.append(whole_group("g"))
    found = ran()
    assert found.code == 0
    assert found.lines[2:5] == ["0 -/4 4 - - - - - -", "1 -/0 0 - - - - - -", "all 4 0 0 0 0"]
    assert "assembler of partitions 0-1: none has told of itself" in found.lines
    assert found.lines[-1] == "no trainer has acknowledged anything"


def test_status_shows_a_partition_in_one_line(store, ran):
    store.append([*whole_group("g"), status_record(status_of())])
    found = ran()
    cells = found.lines[2].split()
    assert cells[:5] == ["0", "2/4", "2", "2", "1"]
    assert found.lines[2].endswith("7 1")
    assert "assembler of partition 0: host host-1, pid 71, at work" in found.lines
    assert "assembler of partition 1: none has told of itself" in found.lines
    assert " 90 s " in found.lines[2]
    assert "open: group g: rollout r is not completed" in found.lines


def test_status_shows_ids_that_would_drive_a_terminal_as_text(store, ran):
    store.append([status_record(status_of(waiting=("group \x1b]0;x\x07: rollout \x1b[2J\nlog", "group [red]g")))])
    found = ran()
    assert "open: group \ufffd]0;x\ufffd: rollout \ufffd[2J\ufffdlog" in found.lines
    assert "open: group [red]g" in found.lines


def test_status_measures_the_lag_to_the_end_as_of_now(store, ran):
    store.append([status_record(status_of(end=2)), *whole_group("g", rollouts=3)])
    assert ran("--json").json["lag"] == 10


def test_status_of_an_assembler_that_is_silent_says_for_how_long(store, ran):
    store.append([status_record(status_of(age_s=300))])
    assert "assembler of partition 0: host host-1, pid 71, no status for 5 min" in ran().lines
    assert [each["alive"] for each in ran("--json").json["partitions"]] == [False, False]


def test_status_of_an_assembler_that_ended_does_not_say_that_it_is_at_work(store, ran):
    store.append([status_record(status_of(age_s=3, ended=True))])
    assert "assembler of partition 0: host host-1, pid 71, ended 3 s ago" in ran().lines
    assert [each["alive"] for each in ran("--json").json["partitions"]] == [False, False]


def test_status_counts_dead_letters_of_the_topic_by_reason(store, ran):
    def letter(reason: str) -> NewRecord:
        return NewRecord(DEAD_LETTERS, 0, b"g", b"", ((WHY, json.dumps({"reason": reason}).encode()),))

    store.append([letter("bad_header"), letter("undecodable"), letter("bad_header"),
                  NewRecord(DEAD_LETTERS, 1, b"g", b"")])  # fmt: skip
    assert "dead letters in the topic: 4: 2 bad_header, 1 undecodable, 1 unknown" in ran().lines


def test_status_of_very_many_dead_letters_counts_the_newest_and_says_so(store, ran, monkeypatch):
    monkeypatch.setattr("rolloutlog.consumers.overview.DEAD_LETTERS_MAX", 4)
    store.append([NewRecord(DEAD_LETTERS, 0, b"g", b"")] * 5)
    assert "dead letters in the topic: the newest 2, 3 older ones not looked at: 2 unknown" in ran().lines


def test_status_shows_where_each_trainer_is(store, ran):
    store.append([NewRecord(BATCHES, 0, b"g", value) for value in encode_parts(batch_of("g", "r"))] * 3)
    for acked in (ack(4, offset=1), ack(5, offset=2), Rewound("other", 3, {0: 0}, 8, NOW_NS - 5 * 10**9)):
        store.append(ack_records(acked))
    found = ran()
    assert (
        "trainer other: next step 3, policy version 8, 3 records unacknowledged, last acknowledgement 5 s ago"
        in found.lines
    )
    assert any(
        line.startswith("trainer trainer: next step 6, policy version unknown, 1 records") for line in found.lines
    )


def test_status_and_ledger_leave_trainers_of_outputs_out(store, ran):
    store.append([NewRecord(BATCHES, 0, b"g", value) for value in encode_parts(batch_of("g", "r"))] * 3)
    lines = ran().lines
    ends = (SampleEnd("never published live", "trained"),)
    for said in (
        StepAcknowledged("trainer", 4, 5, (), ends, {0: 9}, NOW_NS, "output.judged"),
        StepAwaited("trainer", 5, 24, NOW_NS, "output.judged"),
    ):
        store.append(ack_records(said))
    assert ran().lines == lines
    assert not any("never published" in line for line in ran("--ledger").lines)


def test_status_of_a_trainer_that_waits_says_for_how_many_groups_until_it_goes_on(store, ran):
    store.append(ack_records(StepAwaited("trainer", 3, 24, NOW_NS)))
    assert (
        "trainer trainer: next step 3, policy version unknown, 0 records unacknowledged, last acknowledgement none; "
        "waits for 24 groups"
    ) in ran().lines
    assert ran("--ledger").code == 0
    store.append(ack_records(ack(3, offset=0)))
    assert not any("waits for" in line for line in ran().lines)


def test_status_for_programs_has_every_partition_and_trainer(store, ran):
    store.append([*whole_group("g"), status_record(status_of()), *ack_records(ack(4, offset=0))])
    found = ran("--json").json
    assert found["partitions"][0]["waiting"] == ["group g: rollout r is not completed"]
    assert (found["open_rollouts"], found["open_groups"], found["batches"]) == (2, 1, 7)
    assert found["partitions"][1] == {"partition": 1, "end": 0, "lag": 0, "alive": False}
    assert found["readers"] == [
        {"reader": "trainer", "next_step": 5, "policy_version": None, "unacknowledged": 0, "time_ns": 0, "awaits": None}
    ]


def test_status_with_ledger_adds_up_and_exits_0(store, ran):
    store.append(whole_group("g", rollouts=2))
    found = ran("--ledger")
    assert found.code == 0
    assert found.lines[-2:] == [
        "rollouts: 2 started = 0 emitted + 0 failed + 0 expired + 0 incomplete + 0 group_dropped + 0 surplus + "
        "0 refused + 2 open",
        "samples: 0 published, none acknowledged",
    ]


def test_status_with_ledger_that_does_not_add_up_exits_1_and_says_what(store, ran):
    store.append(whole_group("other", rollouts=2))
    store.append([NewRecord(BATCHES, 0, b"g", value) for value in encode_parts(batch_of("g", "r"))])
    found = ran("--ledger")
    assert found.code == 1
    assert found.lines[-1] == "does not add up: 1 rollouts are published, but never started: r (group g)"
    found = ran("--ledger", "--json")
    assert found.code == 1
    assert found.json["ledger"]["problems"] == ["1 rollouts are published, but never started: r (group g)"]


def test_status_with_ledger_of_a_record_that_is_no_batch_exits_1(store, ran):
    store.append([NewRecord(BATCHES, 0, b"g", b"nothing")])
    found = ran("--ledger")
    assert (found.code, found.lines[-1]) == (1, "does not add up: 1 records of batches cannot be read")


def test_status_with_ledger_cannot_be_watched(ran):
    found = ran("--ledger", "--watch")
    assert found.code == 2
    assert "expected --ledger or --watch, got both" in found.err


def test_ledger_lines_name_what_is_refused_superseded_cut_and_acknowledged():
    ledger = ledger_of(
        (20, "g", "r1"), (0, "old", "gone"), (30, "h", "bad"), batches=[batch_of("g", "r1", start=20)],
        cut=Cut(0, 90, 7),
    )  # fmt: skip
    ledger.add_closing("old", 5)
    ledger.add_refused(0, 30, "dead_letter")
    ledger.add_start(0, 40, "open", "r2", 0)
    ledger.add_start(0, 41, "open", "r2", 1)
    ledger.add_ack(ack(0, ("r1/0/r1-c", "trained"), ("other", "stale")))
    assert list(ledger_lines(ledger)) == [
        "rollouts: 4 started = 1 emitted + 0 failed + 0 expired + 0 incomplete + 0 group_dropped + 0 surplus + "
        "1 refused + 1 open + 1 cut off",
        "  refused: 1 dead_letter",
        "  attempts superseded: 1",
        "samples, reader trainer: 1 published = 1 trained + 0 stale + 0 filtered + 0 rejected + 0 in flight",
        "  and 1 ends of samples that retention removed",
        "history cut: batches: the oldest are gone in partitions 0; what they held is not counted",
    ]
