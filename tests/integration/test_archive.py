"""`rolloutlog archive` on both logs: killed, stopped, on a full disk; and replayed when the log is gone."""

import asyncio
import subprocess
import uuid
from pathlib import Path

import pytest
from support.archive import archived, records_of
from support.processes import COMMAND, Command, assemble, wait_until
from support.store import Store, batches_of
from support.workload import make_workload

from rolloutlog.consumers.archiving import open_archive
from rolloutlog.eventstore.log import EVENTS, REWARDS, NewRecord, Record, open_log

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow_on_kafka]


def archive(url: str, to: Path, *arguments: str) -> Command:
    return Command("archive", "--log", url, "--to", str(to), *arguments)


def archive_all(url: str, to: Path, *arguments: str) -> Command:
    command = archive(url, to, "--until-end", *arguments)
    assert command.finish() == 0, command.stderr
    return command


def verify(to: Path) -> Command:
    command = Command("archive", "verify", str(to))
    command.code = command.finish()  # type: ignore[attr-defined]
    return command


def entries(to: Path) -> int:
    return len(list(to.glob("manifest/events/*/*.json")))


def kept(to: Path, topic: str = EVENTS) -> list[Record]:
    return asyncio.run(archived(to, topic))


def stored(store: Store, topic: str = EVENTS) -> list[Record]:
    return store.run(records_of(store.log, topic))


def run_of_training(store: Store) -> None:
    """Events of many rollouts, assembled: the assembler's own events stand between them, in transactions."""
    store.append(make_workload(5, groups=40).records)
    assert assemble(store.url, commit_events=40).finish() == 0


def test_archive_command_keeps_all_and_verify_tells_what_there_is(store: Store, tmp_path: Path):
    run_of_training(store)
    store.append([NewRecord(REWARDS, 1, b"g", b"a re-score", (("e", b"x"),))])
    printed = archive_all(store.url, tmp_path / "a").stdout
    assert printed.startswith(f"{tmp_path}/a: {len(stored(store)) + 1} records, ")
    assert kept(tmp_path / "a") == stored(store)
    assert kept(tmp_path / "a", REWARDS) == stored(store, REWARDS)
    checked = verify(tmp_path / "a")
    assert (checked.code, checked.printed[-1]) == (0, "no faults\n")
    assert checked.printed[0] == "run run, 4 partitions\n"
    assert sum(line.startswith("events/") for line in checked.printed) == 4


def test_archive_ends_where_the_log_ends_so_that_retention_of_markers_is_no_loss(store: Store, tmp_path: Path):
    run_of_training(store)
    archive_all(store.url, tmp_path / "a")

    async def ends() -> list[dict[int, int]]:
        opened = await open_archive(tmp_path / "a")
        return [
            {partition: span.end for partition, span in (await log.ranges(EVENTS, range(4))).items()}
            for log in (opened, store.log)
        ]

    found, expected = store.run(ends())
    assert found == expected
    for partition, end in expected.items():
        store.cut(EVENTS, partition, end)
    store.append(make_workload(6, groups=5).records)
    archive_all(store.url, tmp_path / "a")


def test_archiver_killed_many_times_keeps_each_record_once(store: Store, tmp_path: Path):
    run_of_training(store)
    for _ in range(6):
        before = entries(tmp_path / "a")
        command = archive(store.url, tmp_path / "a", "--chunk-bytes", "2000")
        wait_until(lambda before=before: entries(tmp_path / "a") > before, "another chunk")  # type: ignore[misc]
        command.kill()
        assert command.finish() == -9
    archive_all(store.url, tmp_path / "a")
    assert kept(tmp_path / "a") == stored(store)
    checked = verify(tmp_path / "a")
    assert (checked.code, checked.printed[-1]) == (0, "no faults\n"), checked.stdout


def test_running_archiver_stores_what_is_old_and_when_it_is_stopped_the_rest(store: Store, tmp_path: Path):
    store.append(make_workload(5, groups=5).records)
    command = archive(store.url, tmp_path / "a", "--chunk-s", "0.5")
    wait_until(lambda: entries(tmp_path / "a") >= 3, "chunks by age")
    store.append(make_workload(6, groups=5).records)
    command.terminate()
    assert command.finish() == 0, command.stderr
    archive_all(store.url, tmp_path / "a")
    assert kept(tmp_path / "a") == stored(store)


def test_full_disk_is_named_and_the_next_run_goes_on(embedded: Store, tmp_path: Path):
    """By the limit of a process's files, for a disk of one's own takes rights that not every machine gives."""
    embedded.append(make_workload(5, groups=200).records)
    limited = f"ulimit -f 64; exec {COMMAND} archive --log {embedded.url} --to {tmp_path}/a --until-end"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=100)
    assert done.returncode == 3, done.stderr
    assert "could not be written: File too large; nothing of it counts" in done.stderr
    archive_all(embedded.url, tmp_path / "a")
    assert kept(tmp_path / "a") == stored(embedded)
    assert list((tmp_path / "a/tmp").iterdir()) == []


def test_log_of_another_run_is_refused(embedded: Store, tmp_path: Path):
    archive_all(embedded.url, tmp_path / "a")
    other = f"sqlite:///{tmp_path}/other.db"
    assert Command("topics", "create", "--log", other).finish() == 0
    command = archive(other, tmp_path / "a", "--until-end")
    assert command.finish() == 2
    assert "expected run" in command.stderr


def test_settings_of_archive_are_refused_by_name(embedded: Store, tmp_path: Path):
    command = archive(embedded.url, tmp_path / "a", "--chunk-s", "0")
    assert (command.finish(), "chunk_s: expected seconds above 0" in command.stderr) == (2, True)
    command = Command("archive", "--log", embedded.url)
    assert (command.finish(), "no archive given: use --to FOLDER" in command.stderr) == (2, True)
    command = verify(tmp_path / "none")
    assert (command.code, "expected an archive, got no manifest/run.json" in command.stderr) == (3, True)


@pytest.mark.parametrize("given", ["argument", "--to", "before", "environment"])
def test_archive_is_named_in_the_same_ways_to_archive_and_to_verify(embedded: Store, tmp_path: Path, given: str):
    embedded.append([NewRecord(EVENTS, 0, b"g", b"x")])
    to, log = str(tmp_path / "a"), ("--log", embedded.url, "--until-end")
    environment = {"archive": to} if given == "environment" else {}
    kept = {"argument": (to, *log), "--to": (*log, "--to", to), "before": ("--to", to, *log), "environment": log}[given]
    archiving = Command("archive", *kept, **environment)
    assert archiving.finish() == 0, archiving.stderr
    checked = {"argument": ("verify", to), "--to": ("verify", "--to", to), "before": (to, "verify")}
    verifying = Command("archive", *checked.get(given, ("verify",)), **environment)
    assert verifying.finish() == 0, verifying.stderr
    assert verifying.printed[-1] == "no faults\n"


def test_archive_that_is_named_before_verify_goes_before_the_environment(embedded: Store, tmp_path: Path):
    archive_all(embedded.url, tmp_path / "a")
    command = Command("archive", "verify", str(tmp_path / "a"), archive=str(tmp_path / "none"))
    assert command.finish() == 0, command.stderr
    command = Command("archive", "verify", str(tmp_path / "a"), "--to", str(tmp_path / "b"))
    assert (command.finish(), "give one archive, got" in command.stderr) == (2, True)
    command = Command("archive", "verify")
    assert (command.finish(), "no archive given: use --to FOLDER" in command.stderr) == (2, True)
    command = Command("archive", "--until-end", str(tmp_path / "a"))
    assert (command.finish(), "give an archive first, or with --to" in command.stderr) == (2, True)


def test_verify_of_a_damaged_archive_names_the_fault_and_exits_1(embedded: Store, tmp_path: Path):
    embedded.append(make_workload(5, groups=5).records)
    archive_all(embedded.url, tmp_path / "a")
    file = next((tmp_path / "a").glob("events/*/*.avro"))
    data = bytearray(file.read_bytes())
    data[-40] ^= 1
    file.write_bytes(data)
    checked = verify(tmp_path / "a")
    assert (checked.code, checked.printed[-1]) == (1, "1 faults\n")
    assert f"fault: {file.relative_to(tmp_path / 'a')}: expected BLAKE2b-256" in checked.stdout


def test_replay_from_the_archive_of_a_log_that_is_gone_gives_the_same_samples(new_url, tmp_path: Path):
    with Store(new_url()) as store:
        run_of_training(store)
        live = store.batches()
        archive_all(store.url, tmp_path / "a", "--chunk-bytes", "20000")
        if store.url.startswith("sqlite:"):
            path = Path(store.url.removeprefix("sqlite:///"))
            for file in path.parent.glob(f"{path.name}*"):
                file.unlink()
    new = f"sqlite:///{tmp_path}/{uuid.uuid4().hex}.db"
    replayed = Command("replay", "--archive", str(tmp_path / "a"), "--log", new, "--output", "again")
    assert replayed.finish() == 0, replayed.stderr

    async def read() -> list[Record]:
        log = await open_log(new)
        try:
            return await records_of(log, "output.again")
        finally:
            await log.close()

    again = batches_of(asyncio.run(read()))
    assert len(live) > 20
    assert [(each.batch_id, each.samples) for each in again] == [(each.batch_id, each.samples) for each in live]


def test_log_made_for_a_replay_of_an_archive_has_a_run_of_its_own_and_its_events_are_never_taken_for_archived_ones(
    embedded: Store, tmp_path: Path
):
    run_of_training(embedded)
    archive_all(embedded.url, tmp_path / "a")
    new = f"sqlite:///{tmp_path}/new.db"
    arguments = ("replay", "--archive", str(tmp_path / "a"), "--log", new, "--output", "again")
    made = Command(*arguments)
    assert made.finish() == 0, made.stderr
    resumed = Command(*arguments)
    assert resumed.finish() == 0, resumed.stderr
    with Store(new) as store:
        store.append([NewRecord(EVENTS, 0, b"g", b"%d" % number) for number in range(2_000)])
    command = archive(new, tmp_path / "a", "--until-end")
    assert command.finish() == 2
    assert "expected run run, got run" in command.stderr
    archive_all(new, tmp_path / "b")
    assert len(kept(tmp_path / "b")) == 2_000


def test_recording_rewards_in_a_log_of_another_run_is_refused(embedded: Store, tmp_path: Path):
    """No replay of the archive would read them."""
    archive_all(embedded.url, tmp_path / "a")
    (tmp_path / "judge.py").write_text("def judge(rollout):\n    return None\n")
    done = subprocess.run(
        [COMMAND, "replay", "--archive", "a", "--log", "sqlite:///new.db", "--output", "x", "--scorer", "judge:judge",
         "--record"], cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--record: expected the log of run run, which archive" in done.stderr
