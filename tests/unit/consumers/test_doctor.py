"""What the doctor finds on an embedded log, and what it says to do. Kafka: tests/integration/test_doctor.py."""

import asyncio
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rolloutlog.consumers import doctor
from rolloutlog.consumers.assembler import Assembler, AssemblerSettings
from rolloutlog.consumers.doctor import FAILED, OK, SKIPPED, WARNING, Finding, examine
from rolloutlog.consumers.status import Status, status_record
from rolloutlog.eventstore.acks import StepAcknowledged, ack_records
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import Difference, NewRecord, open_log, sqlite_health
from rolloutlog.eventstore.log.sqlite import SqliteLog
from rolloutlog.eventstore.topics import create_topics, topic_settings

NOW_NS = 1_800_000_000_000_000_000
S = 1_000_000_000
STATUS = Status("assembler", 0, "h", 4711, NOW_NS - 5 * S, 10, 10, 12, 2, 1, None, {}, ())


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/log.db"


def clock() -> int:
    return NOW_NS


async def make(url: str, *records: NewRecord, partitions: int = 1) -> None:
    log = await SqliteLog.open(url, create=True, clock=clock)
    await create_topics(log, partitions=partitions, run_id="r")
    await log.append(records)
    await log.close()


async def findings(url: str) -> dict[str, Finding]:
    return {finding.name: finding async for finding in examine(url, clock=clock)}


async def test_doctor_of_a_wrong_url_says_what_is_expected():
    with pytest.raises(InvalidSettings, match=r"expected sqlite:///relative.db, .* or kafka://host:port"):
        await findings("run.db")


async def test_doctor_of_a_missing_file_says_how_to_make_a_log(url: str):
    (found,) = (await findings(url)).values()
    assert (found.name, found.outcome, found.fix) == ("reach", FAILED, f"rolloutlog topics create --log {url}")
    assert "log.db: there is no such file" in found.text


async def test_doctor_of_a_file_on_a_network_file_system_names_it(url: str, monkeypatch: pytest.MonkeyPatch):
    await make(url)
    monkeypatch.setattr("rolloutlog.eventstore.log.sqlite_file.read_mounts", lambda: "server:/x / nfs4 rw 0 0\n")
    (found,) = (await findings(url)).values()
    assert (found.outcome, "expected a local file system, got nfs4" in found.text) == (FAILED, True)


async def test_doctor_of_a_log_without_topics_says_how_to_create_them(url: str):
    await (await open_log(url, create=True)).close()
    found = await findings(url)
    assert found["topics"] == Finding(
        "topics", FAILED, "the log has no topic events", f"rolloutlog topics create --log {url}"
    )
    assert found["others"].outcome == SKIPPED


async def test_doctor_of_a_log_without_one_topic_names_it(url: str):
    log = await open_log(url, create=True)
    await log.create([each for each in topic_settings(partitions=4) if each.name != "acks"])
    await log.close()
    found = await findings(url)
    assert (found["topics"].outcome, found["topics"].text) == (FAILED, "acks is missing")
    assert found["others"].text == "they need the missing acks"


async def test_doctor_of_a_fresh_log_fails_nothing_and_says_what_to_run_next(url: str):
    await make(url)
    found = await findings(url)
    assert {name: each.outcome for name, each in found.items()} == {
        "reach": OK,
        "topics": OK,
        "retention": OK,
        "run": OK,
        "rights": OK,
        "broker": SKIPPED,
        "disk": OK,
        "event": OK,
        "clock": WARNING,  # of this test's clock
        "assembler": WARNING,
        "trainer": WARNING,
    }
    assert found["assembler"].text == "none has written a status yet"
    assert found["assembler"].fix == f"rolloutlog assemble --log {url}"
    assert found["trainer"].text == "none has acknowledged a step yet"


async def test_doctor_with_a_log_that_has_no_run_says_how_to_create_it(url: str):
    log = await open_log(url, create=True)
    await log.create(topic_settings(partitions=4))
    await log.close()
    found = (await findings(url))["run"]
    assert (found.outcome, found.text, found.fix) == (
        FAILED,
        "meta names no run",
        f"rolloutlog topics create --log {url}",
    )


async def test_doctor_with_another_partition_count_than_the_runs_fails(url: str, tmp_path: Path):
    await make(url, partitions=2)
    other = f"sqlite:///{tmp_path}/other.db"
    log = await open_log(other, create=True)
    await log.create(topic_settings(partitions=3))
    source = await open_log(url)
    reader = await source.reader("meta", {0: 0})
    run = (await reader.fetch(wait_s=1))[0]
    await source.close()
    await log.append([NewRecord("meta", 0, run.key, run.value)])
    await log.close()
    found = (await findings(other))["run"]
    assert (found.outcome, "expected 2 partitions of events" in found.text) == (FAILED, True)


@pytest.mark.parametrize(
    ("kept", "outcome", "text"),
    [
        ("94500", FAILED, "events are kept for 94500 s, expected more than 94500 s"),
        ("94501", WARNING, "not the default: events 94501 s, not 604800 s"),
        ("None", WARNING, "not the default: events None s, not 604800 s"),
    ],
)
def test_doctor_compares_retention_with_the_longest_rollout_and_group(kept: str, outcome: str, text: str):
    """2 h and 15 min, and a day to repair what stopped the assembler."""
    case = doctor._Case(None, "sqlite:///a.db", clock, [Difference("events", "retention_s", "604800", kept)], 1)
    found = doctor._retention(case)
    assert (found.outcome, found.text.startswith(text)) == (outcome, True)


async def test_doctors_event_is_an_orphan_that_leaves_no_state(url: str):
    await make(url)
    assert (await findings(url))["event"].outcome == OK
    log = await open_log(url)
    summary = await Assembler(log, AssemblerSettings()).run([0], until_end=True)
    ends = await log.ranges("dead-letters", [0])
    await log.close()
    counts = {name: count for name, count in summary.counts.items() if count}
    assert (counts["orphan"], summary.open_rollouts, summary.open_groups, ends[0].end) == (1, 0, 0, 0)


@pytest.mark.parametrize(
    ("before_s", "took_s", "log_s", "expected"),
    [
        (0, 0, 0.9, (OK, "this host's differs from the log's by less than 1 s")),
        (0, 0, 1.5, (WARNING, "the log's time is 1.5 s ahead of this host's")),
        (10, 0, 7, (WARNING, "the log's time is 3.0 s behind this host's")),
        (0, 4, 3.9, (OK, "this host's differs from the log's by less than 1 s")),  # a slow answer tells no more
    ],
)
def test_doctor_compares_clocks_as_well_as_the_answers_time_allows(before_s, took_s, log_s, expected):
    found = doctor._clock(doctor.Stored(0, int(log_s * S)), before_s * S, took_s * S)
    assert (found.outcome, found.text) == expected


async def test_doctor_with_living_assemblers_counts_what_is_open(url: str):
    await make(url, *map(status_record, (STATUS, replace(STATUS, partition=1))), partitions=2)
    found = (await findings(url))["assembler"]
    assert (found.outcome, found.text) == (OK, "all partitions have one; 4 rollouts open, 4 offsets behind")


async def test_doctor_with_an_assembler_gone_silent_names_its_partition_host_and_pid(url: str):
    silent = replace(STATUS, partition=1, time_ns=NOW_NS - 90 * S)
    await make(url, *map(status_record, (STATUS, silent)), partitions=2)
    found = (await findings(url))["assembler"]
    expected = "no status of partitions 1 for 60 s; the last one seen there was host h, pid 4711, 90 s ago"
    assert (found.outcome, found.text) == (WARNING, expected)


@pytest.mark.parametrize(("age_s", "outcome"), [(5, OK), (90, FAILED)])
async def test_doctor_that_only_looks_for_life_fails_without_an_assembler_and_writes_nothing(
    url: str, age_s: int, outcome: str
):
    await make(url, status_record(replace(STATUS, time_ns=NOW_NS - age_s * S)))
    found = [each async for each in examine(url, only_alive=True, clock=clock)]
    assert [(each.name, each.outcome) for each in found] == [("reach", OK), ("assembler", outcome)]
    log = await open_log(url)
    ends = await log.ranges("events", [0])
    await log.close()
    assert ends[0].end == 0


async def test_doctor_names_each_readers_newest_acknowledgement(url: str):
    acks = [
        StepAcknowledged("trainer", step, step + 1, (), (), {0: 1}, NOW_NS - age_s * S)
        for step, age_s in ((6, 20), (7, 10))
    ]
    acks.append(StepAcknowledged("trainer", 70, 71, (), (), {0: 1}, NOW_NS, "output.judged"))
    await make(url, *(record for ack in acks for record in ack_records(ack)))
    found = (await findings(url))["trainer"]
    assert (found.outcome, found.text) == (OK, "trainer: next step 8, policy version 8, 10 s ago")


@pytest.mark.parametrize(
    ("changed", "outcome", "text"),
    [
        ({"disk_free": 200_000_000}, FAILED, "1,000 MB, 200 MB free on ext4: less than 268 MB"),
        (
            {"wal_bytes": 900_000_000},
            WARNING,
            "1,000 MB, 50,000 MB free on ext4; its write-ahead file has 900 MB",
        ),
        (
            {"pace": 1e9},
            WARNING,
            "1,000 MB, 50,000 MB free on ext4; at 1,000 MB an hour so far the disk is full in 50 h, before the oldest "
            "events may go (168 h)",
        ),
        ({"pace": 1e8}, OK, "1,000 MB, 50,000 MB free on ext4"),
    ],
)
async def test_doctor_judges_the_disk_by_free_space_write_ahead_file_and_pace(
    changed, outcome: str, text: str, monkeypatch: pytest.MonkeyPatch
):
    health = sqlite_health.FileHealth("a.db", 1_000_000_000, 0, 50_000_000_000, "ext4", None)

    async def file_health(url: str, **options) -> sqlite_health.FileHealth:
        return replace(health, **changed)

    monkeypatch.setattr(sqlite_health, "file_health", file_health)
    (found,) = await doctor._disk(doctor._Case(None, "sqlite:///a.db", clock, (), 1))
    assert (found.outcome, found.text) == (outcome, text)


@pytest.fixture
def read_only() -> Iterator[str]:
    """A log that this user can read but not write; a user who may all becomes another for as long."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.db")
        asyncio.run(make(f"sqlite:///{path}"))
        os.chmod(path, 0o444)
        os.chmod(folder, 0o555)
        privileged = os.geteuid() == 0
        if privileged:
            os.seteuid(65534)
        try:
            yield f"sqlite:///{path}"
        finally:
            if privileged:
                os.seteuid(0)
            os.chmod(folder, 0o755)


async def test_doctor_of_a_read_only_file_says_that_it_can_not_be_written(read_only: str):
    failed = [each for each in (await findings(read_only)).values() if each.outcome == FAILED]
    assert failed
    assert all(re.search("not writable; expected a file and a directory this user can write", e.text) for e in failed)


async def test_file_health_takes_the_pace_from_the_oldest_record(url: str):
    await make(url, NewRecord("dead-letters", 0, b"", bytes(5_000_000)))
    young = await sqlite_health.file_health(url, clock=lambda: NOW_NS + 599 * S)
    old = await sqlite_health.file_health(url, clock=lambda: NOW_NS + 7200 * S)
    assert young.pace is None
    assert old.pace == pytest.approx(2_600_000, rel=0.1)
