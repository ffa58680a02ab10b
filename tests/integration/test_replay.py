"""Replays of an assembled log, on every kind of log: the very batches, of the wanted groups, and nothing else."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.batches import batch, records_of
from support.processes import DEADLINE_S, Command, assemble
from support.store import Store, batches_of
from support.workload import RUN_KEY, make_workload, whole_group

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.origin import origin_of
from rolloutlog.consumers.replaying.outputs import read_output, topic_of
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.log import BATCHES, DEAD_LETTERS, EVENTS, META, REWARDS, Record

from .conftest import NewUrl

pytestmark = pytest.mark.slow_on_kafka

SEED = 5
CHUNKS = 3
SCORERS = """
import asyncio
from rolloutlog.consumers.scoring import Reward, scorer

def length(rollout):
    return Reward(float(sum(len(call.response_ids) for call in rollout.calls)), name="length")

@scorer(version="1")
async def steps(rollout):
    return [Reward(0.5, name="step", scope="step", target={"span_id": call.span_id}) for call in rollout.calls]

@scorer(version="1", concurrency=1)
async def slow(rollout):
    await asyncio.sleep(0.25)
    return Reward(1.0, name="slow")

@scorer(version="1", retries=0)
def picky(rollout):
    if rollout.rollout_id.endswith("-r1"):
        raise ValueError("no opinion")
    return 1.0 and Reward(1.0, name="picky")
"""


@dataclass
class History:
    """An assembled log."""

    store: Store

    @property
    def url(self) -> str:
        return self.store.url

    @property
    def live(self) -> list[Record]:
        return self.store.records(BATCHES)

    def output(self, name: str) -> list[Record]:
        return self.store.records(topic_of(name))

    def batches(self, name: str) -> list[Batch]:
        return batches_of(self.output(name))


@pytest.fixture(scope="module")
def history(new_url: NewUrl) -> Iterator[History]:
    """Events of 100 groups, assembled in three goes with some time between."""
    with Store(new_url()) as store:
        records = make_workload(SEED).records
        for chunk in range(CHUNKS):
            store.append(records[chunk * len(records) // CHUNKS : (chunk + 1) * len(records) // CHUNKS])
            command = assemble(store.url)
            assert command.finish() == 0, command.stderr
            time.sleep(0.02)  # another log time
        yield History(store)


def replay(history: History, *arguments: str, code: int = 0, **environment: object) -> Command:
    command = Command("replay", "--log", history.url, *arguments, **environment)
    assert command.finish() == code, command.stderr
    return command


def stored(records: Sequence[Record]) -> list[tuple[object, ...]]:
    """What has to be the same: everything but offset and log time."""
    return [(each.partition, each.key, each.value, each.headers) for each in records]


def moment(time_ns: int) -> str:
    """In whole microseconds, rounded up."""
    seconds, rest_ns = divmod(time_ns + 999, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns // 1_000:06}Z"


@pytest.mark.slow_on_kafka(False)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_replay_of_all_history_with_live_settings_gives_the_very_records(history: History, workers: int) -> None:
    command = replay(history, "--output", f"all-{workers}", "--workers", str(workers))
    assert stored(history.output(f"all-{workers}")) == stored(history.live)
    assert len(history.live) > 90
    assert f"all-{workers}: {len(batches_of(history.live))} groups" in command.stdout


def test_replay_leaves_every_topic_of_live_assembly_as_it_was(history: History) -> None:
    topics = (BATCHES, DEAD_LETTERS, EVENTS, REWARDS)
    before = {topic: history.store.records(topic) for topic in topics}
    positions = [history.store.position(partition) for partition in range(history.store.partitions)]
    replay(history, "--output", "apart")
    assert {topic: history.store.records(topic) for topic in topics} == before
    assert [history.store.position(partition) for partition in range(history.store.partitions)] == positions


def test_replay_again_of_a_finished_output_adds_nothing(history: History) -> None:
    replay(history, "--output", "twice")
    before = history.output("twice")
    command = replay(history, "--output", "twice")
    assert history.output("twice") == before
    assert "output twice exists: going on with it" in command.stderr


def test_replay_with_other_settings_has_another_hash_and_another_output(history: History) -> None:
    replay(history, "--output", "merged", "--merge", "trajectory", "--final", "every_call")
    found = {each.config_hash for each in history.batches("merged")}
    assert found.isdisjoint({each.config_hash for each in batches_of(history.live)})
    assert [each.group_id for each in history.batches("merged")] == [each.group_id for each in batches_of(history.live)]
    refused = replay(history, "--output", "merged", "--final", "last_call", code=2)
    assert "output merged was made with attribution.final every_call, got last_call" in refused.stderr
    assert "going on with it" in replay(history, "--output", "merged").stderr  # with its own settings


def test_replay_without_settings_has_those_that_the_assembler_was_started_with(new_url: NewUrl) -> None:
    with Store(new_url()) as store:
        store.append([*whole_group("a", rollouts=1), *whole_group("b", rollouts=2, partition=1)])
        assert assemble(store.url, "--final", "every_call", min_group=1).finish() == 0
        history = History(store)
        replay(history, "--output", "same")
        assert stored(history.output("same")) == stored(history.live)
        replay(history, "--output", "mean", "--reduce", "mean")  # a change of those
        made_of = store.run(read_output(store.log, "mean"))
        assert made_of is not None
        made = json.loads(made_of.settings)
        assert (made["min_group"], made["attribution"]["final"], made["attribution"]["reduce"]) == (
            1,
            "every_call",
            "mean",
        )


def test_replay_of_a_range_gives_the_live_batches_that_closed_in_it(history: History) -> None:
    closed = sorted({each.closed_ns for each in batches_of(history.live)})
    begin, end = closed[len(closed) // 4], closed[3 * len(closed) // 4]
    assert begin < end
    replay(history, "--output", "range", "--from", moment(begin), "--to", moment(end))
    low, high = -(-begin // 1_000) * 1_000, -(-end // 1_000) * 1_000
    log_times = {(each.partition, each.offset): each.log_time_ns for each in history.store.events()}
    wanted = [
        each
        for each in history.live
        if low <= log_times[each.partition, origin_of(each).trigger] < high and each.key != RUN_KEY.encode()
    ]
    assert 0 < len(wanted) < len(history.live)
    assert stored(history.output("range")) == stored(wanted)


def test_replay_of_groups_and_rollouts_by_id_gives_their_live_batches(history: History, tmp_path: Path) -> None:
    live = batches_of(history.live)
    groups = [live[3].group_id, live[40].group_id]
    listed = tmp_path / "rollouts.txt"
    listed.write_text("\n".join([live[70].rollouts[0].rollout_id, "nowhere"]))
    arguments = ["--group", groups[0], "--group", groups[1], "--rollout", f"@{listed}"]
    command = replay(history, "--output", "some", *arguments, code=1)
    wanted = {*groups, live[70].group_id}
    keys = {each.encode() for each in wanted}
    assert stored(history.output("some")) == stored([each for each in history.live if each.key in keys])
    assert "not found: rollout nowhere" in command.stderr
    assert "not found: rollout nowhere" in replay(history, "--output", "some", *arguments, code=1).stderr


def test_replay_of_ids_that_are_nowhere_makes_no_output(history: History, tmp_path: Path) -> None:
    listed = tmp_path / "groups.txt"
    listed.write_text("g1")
    refused = replay(history, "--output", "empty", "--group", str(listed), "--rollout", "nowhere", code=2)
    assert f"got group {listed} (did you mean @{listed}? There is a file of that name), rollout now" in refused.stderr
    assert history.store.run(read_output(history.store.log, "empty")) is None


def test_replay_of_published_ids_reads_no_further_than_their_closings(history: History) -> None:
    live = batches_of(history.live)[5]
    replay(history, "--output", "near", "--group", live.group_id)
    output = history.store.run(read_output(history.store.log, "near"))
    assert output is not None
    assert (output.first[live.input_partition], output.ends[live.input_partition]) == (
        live.first_event,
        live.trigger + 1,
    )
    others = [p for p in range(history.store.partitions) if p != live.input_partition]
    assert all(output.first[p] == output.ends[p] for p in others)


def test_dry_run_writes_nothing_and_tells_what_would_be(history: History) -> None:
    before = {topic: history.store.records(topic, [0]) for topic in (META, BATCHES, EVENTS)}
    command = replay(history, "--dry-run")
    assert {topic: history.store.records(topic, [0]) for topic in before} == before
    live = batches_of(history.live)
    samples = sum(len(each.samples) for each in live)
    assert command.stdout.startswith(f"would be: {len(live)} groups, {samples} samples (")


def test_outputs_lists_what_replays_made(history: History) -> None:
    replay(history, "--output", "listed")
    command = Command("outputs", "--log", history.url)
    assert command.finish() == 0, command.stderr
    (line,) = [each for each in command.printed if each.startswith("listed ")]
    groups = len(batches_of(history.live))
    assert line.split()[:7] == ["listed", "complete", str(groups), "0", "all", "none", FoldSettings().config_hash[:8]]
    as_json = Command("outputs", "--log", history.url, "--json")
    assert as_json.finish() == 0, as_json.stderr
    (told,) = [each for each in map(json.loads, as_json.printed) if each["name"] == "listed"]
    assert (told["complete"], told["groups"], told["groups_in_all"], told["source"]) == (True, groups, groups, "log")
    assert told["settings"]["min_group"] == 2


def test_replay_without_a_name_is_refused(history: History) -> None:
    assert "use --output NAME" in replay(history, code=2).stderr
    assert "1 to 80 letters, digits, _ and -" in replay(history, "--output", "a.b", code=2).stderr


# With scorers


def rolloutlog(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "judges.py").write_text(SCORERS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOUTLOG")}
    environment["PYTHONPATH"] = str(folder)
    return subprocess.run(
        [str(Path(sys.executable).parent / "rolloutlog"), *arguments],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def scored(history: History, folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = rolloutlog(folder, "replay", "--log", history.url, *arguments)
    assert done.returncode == code, done.stderr
    return done


TWO = ("--scorer", "judges:length", "--scorer", "judges:steps")


def test_replay_with_scorers_gives_the_same_records_whatever_the_number_of_workers(
    history: History, tmp_path: Path
) -> None:
    scored(history, tmp_path, "--output", "scored-1", *TWO, "--no-cache")
    scored(history, tmp_path, "--output", "scored-2", *TWO, "--no-cache", "--workers", "2")
    found = history.output("scored-1")
    assert stored(found) == stored(history.output("scored-2"))
    emitted = [result for each in batches_of(found) for result in each.rollouts if result.status == "emitted"]
    assert all(result.final["length"] > 0 for result in emitted)
    assert {each.offset for result in emitted for each in result.outcomes if each.scorer == "length"} == {-1}
    assert [each.group_id for each in batches_of(found)] == [each.group_id for each in batches_of(history.live)]


def test_scorer_that_fails_for_some_rollouts_makes_those_incomplete_and_exits_1(
    history: History, tmp_path: Path
) -> None:
    file = tmp_path / "failures.jsonl"
    done = scored(
        history, tmp_path, "--output", "picky", "--scorer", "judges:picky", "--failures", str(file), "--workers", "2",
        code=1,
    )  # fmt: skip
    failures = [json.loads(line) for line in file.read_text().splitlines()]
    assert failures
    assert all(each["rollout_id"].endswith("-r1") for each in failures)
    error = "ValueError: no opinion"
    assert f"failed: scorer picky, rollout {failures[0]['rollout_id']} (attempt 0): {error}\n" in done.stderr
    results = {result.rollout_id: result for each in history.batches("picky") for result in each.rollouts}
    for failure in failures:
        assert results[failure["rollout_id"]].status in ("incomplete", "group_dropped")
        assert "scorer picky failed" in (results[failure["rollout_id"]].reason or "")


def test_output_with_failures_exits_1_when_run_again_and_a_new_one_of_them_asks_for_those_alone(
    history: History, tmp_path: Path
) -> None:
    file = str(tmp_path / "failures.jsonl")
    arguments = ("--scorer", "judges:picky", "--failures", file)
    scored(history, tmp_path, "--output", "failed", *arguments, code=1)
    failures = (tmp_path / "failures.jsonl").read_text().splitlines()
    again = scored(history, tmp_path, "--output", "failed", *arguments, code=1)
    assert "scorers: " not in again.stderr
    assert (
        f"{len(failures)} rollouts are incomplete in failed, because a scorer failed; a new output asks" in again.stderr
    )
    assert (tmp_path / "failures.jsonl").read_text().splitlines() == failures
    mended = scored(
        history, tmp_path, "--output", "mended", "--rollout", f"@{file}", "--scorer", "judges:picky", code=1
    )
    assert re.search(rf"scorers: {len(failures)} failed, \d+ cached\nverdicts are kept in .*\.db\n", mended.stderr)
    listed = Command("outputs", "--log", history.url)
    assert listed.finish() == 0, listed.stderr
    (line,) = [each for each in listed.printed if each.startswith("failed ")]
    assert line.split()[3] == str(len(failures))


def test_scorer_with_a_version_may_be_reformatted_and_its_output_gone_on_with(history: History, tmp_path: Path) -> None:
    (tmp_path / "versioned.py").write_text(SCORERS)
    arguments = ("--output", "reformatted", "--scorer", "versioned:steps")
    scored(history, tmp_path, *arguments)
    (tmp_path / "versioned.py").write_text(SCORERS + "\n# reformatted\n")
    assert "going on with it" in scored(history, tmp_path, *arguments).stderr
    refused = scored(history, tmp_path, *arguments, "--record", code=2)
    assert "output reformatted was made without --record: none of its rewards were recorded" in refused.stderr


def test_dry_run_with_scorers_says_how_many_calls_there_would_be(history: History, tmp_path: Path) -> None:
    dry = scored(history, tmp_path, "--dry-run", "--scorer", "judges:slow", "--rate-per-s", "0.5")
    calls = re.search(
        r"^slow 1: (\d+) calls, 0 cached, 0 recorded; at rate_per_s 0.5 at least ", dry.stderr, re.MULTILINE
    )
    assert calls is not None
    assert int(calls[1]) > 100


def test_replay_of_recorded_rewards_gives_what_the_scorers_gave(new_url: NewUrl, tmp_path: Path) -> None:
    with Store(new_url()) as store:
        store.append(
            [record for index in range(8) for record in whole_group(f"g{index}", rollouts=2, partition=index % 4)]
        )
        command = assemble(store.url)
        assert command.finish() == 0, command.stderr
        history = History(store)
        scored(history, tmp_path, "--output", "asked", *TWO, "--record")
        assert len(store.records(REWARDS)) == 8 * 2 * 2
        told_by = scored(history, tmp_path, "--output", "told").stderr
        assert re.search(
            r"counting recorded rewards of length \w{16}, steps 1 \(--rewards-as-of none leaves them out\)", told_by
        )
        refused = scored(history, tmp_path, "--output", "told", "--rewards-as-of", "none", code=2).stderr
        assert "got with --rewards-as-of none: other recorded rewards would count. Leave --rewards-as-of out" in refused
        scored(history, tmp_path, "--output", "before", "--rewards-as-of", "none")
        assert stored(history.output("before")) == stored(history.live)
        asked, told = history.batches("asked"), history.batches("told")
        assert [(each.samples, each.rollouts) for each in told] == [(each.samples, each.rollouts) for each in asked]
        assert told[0].config_hash != asked[0].config_hash
        again = scored(history, tmp_path, "--output", "again", *TWO)
        assert "scorers: 32 recorded" in again.stderr


def test_replay_that_is_taken_over_stores_nothing_more_and_names_its_successor(new_url: NewUrl, tmp_path: Path) -> None:
    with Store(new_url(), partitions=1) as store:
        store.append([record for index in range(12) for record in whole_group(f"g{index}", rollouts=2)])
        (tmp_path / "judges.py").write_text(SCORERS)
        history = History(store)
        arguments = ("replay", "--log", store.url, "--output", "shared", "--scorer", "judges:slow", "--no-cache")
        first = Command("--log-level", "debug", *arguments, path=tmp_path)
        first.wait_for_steps(0, "commit")
        second = Command(*arguments, path=tmp_path)
        assert first.finish() == 4, first.stderr
        assert second.finish() == 0, second.stderr
        assert (
            f"partition 0 of output shared was taken over by host {socket.gethostname()}, pid {second.pid}"
            in first.stderr
        )
        assert [each.group_id for each in history.batches("shared")] == [f"g{index}" for index in range(12)]


def test_batch_topic_of_someone_else_is_no_hindrance(new_url: NewUrl) -> None:
    """Where groups begin is read from batches; what is no output is passed over."""
    with Store(new_url(), partitions=1) as store:
        store.append([record for index in range(3) for record in whole_group(f"g{index}", rollouts=2)])
        command = assemble(store.url)
        assert command.finish() == 0, command.stderr
        store.append([each._replace(headers=()) for each in records_of(batch("x", []))])
        history = History(store)
        replay(history, "--output", "found", "--group", "g1")
        assert [each.group_id for each in history.batches("found")] == ["g1"]


def test_replay_told_to_stop_keeps_what_is_done_and_goes_on_when_run_again(new_url: NewUrl, tmp_path: Path) -> None:
    with Store(new_url(), partitions=2) as store:
        store.append(
            [record for index in range(24) for record in whole_group(f"g{index}", rollouts=2, partition=index % 2)]
        )
        (tmp_path / "judges.py").write_text(SCORERS)
        history = History(store)
        arguments = ("replay", "--log", store.url, "--output", "stopped", "--scorer", "judges:slow", "--no-cache")
        first = Command("--log-level", "debug", *arguments, path=tmp_path)
        first.wait_for_steps(0, "confirm")
        first.terminate()
        assert first.finish() == 130, first.stderr
        assert "stopped before its end: what is done is kept; run the same command again to go on" in first.stderr
        done = len(history.output("stopped"))
        assert 0 < done < 24
        listed = Command("outputs", "--log", store.url)
        assert listed.finish() == 0
        assert re.search(rf"^stopped +at \d\d? % +{done}( of 24)? +0 ", listed.stdout, re.MULTILINE)
        assert re.match(rf"stopped: so far, {done}( of 24)? groups; this time {done} groups, ", first.stdout)
        again = Command(*arguments, "--workers", "2", "--concurrency", "8", path=tmp_path)
        assert again.finish() == 0, again.stderr
        assert f"stopped: {24 - done} groups this time, 24 in all" in again.stdout
        assert sorted(each.group_id for each in history.batches("stopped")) == sorted(
            f"g{index}" for index in range(24)
        )


def test_worker_that_is_killed_is_named_and_the_others_are_stopped(new_url: NewUrl, tmp_path: Path) -> None:
    with Store(new_url(), partitions=2) as store:
        store.append([record for index in range(2) for record in whole_group(f"g{index}", partition=index)])
        (tmp_path / "judges.py").write_text(
            "import os, signal\nfrom rolloutlog.consumers.scoring import Reward\n\n"
            "def judge(rollout):\n"
            "    if rollout.group_id == 'g1' and not os.path.exists(__file__ + '.done'):\n"
            "        open(__file__ + '.done', 'w').close()\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "    return Reward(1.0, name='judge')\n"
        )
        arguments = ("replay", "--log", store.url, "--output", "lost", "--scorer", "judges:judge", "--workers", "2")
        first = Command(*arguments, path=tmp_path)
        assert first.finish() == 5, first.stderr
        assert re.search(r"worker 2 of 2 \(pid \d+, partitions 1\) was killed by SIGKILL before its end", first.stderr)
        again = Command(*arguments, path=tmp_path)
        assert again.finish() == 0, again.stderr
        assert sorted(each.group_id for each in History(store).batches("lost")) == ["g0", "g1"]


def test_replay_that_cannot_write_its_failures_says_so_before_it_makes_an_output(history: History) -> None:
    command = replay(history, "--output", "unwritable", "--failures", "/nowhere/failures.jsonl", code=1)
    assert command.stderr == "error: /nowhere/failures.jsonl: No such file or directory\n"
    assert history.store.run(read_output(history.store.log, "unwritable")) is None


def test_replay_told_to_stop_before_it_knows_what_to_read_exits_as_one_that_was_stopped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S)
        command = Command("replay", "--log", f"kafka://127.0.0.1:{silent.getsockname()[1]}/p", "--output", "none")
        connection, _ = silent.accept()  # it asks, and hears nothing
        with connection:
            command.terminate()
            assert command.finish() == 130, command.stderr
    assert command.stderr == "stopped before anything was done\n"


def test_replay_gone_on_with_after_its_events_were_cut_says_what_is_lost_or_goes_on_without(
    new_url: NewUrl, tmp_path: Path
) -> None:
    with Store(new_url(), partitions=1) as store:
        store.append([record for index in range(24) for record in whole_group(f"g{index}", rollouts=2)])
        (tmp_path / "judges.py").write_text(SCORERS)
        history = History(store)
        arguments = ("replay", "--log", store.url, "--output", "cut", "--scorer", "judges:slow", "--no-cache")
        first = Command("--log-level", "debug", *arguments, path=tmp_path)
        first.wait_for_steps(0, "confirm")
        first.terminate()
        assert first.finish() == 130, first.stderr
        done = [each.group_id for each in history.batches("cut")]
        store.cut(EVENTS, 0, 20 * 8)
        again = Command(*arguments, path=tmp_path)
        assert again.finish() == 5, again.stderr
        assert (
            "output cut: partition 0 of events: events 0-159 are gone, and this replay goes on from 0" in again.stderr
        )
        last = Command(*arguments, "--on-history-lost", "skip", "--concurrency", "8", path=tmp_path)
        assert last.finish() == 0, last.stderr
        assert [each.group_id for each in history.batches("cut")] == [*done, "g20", "g21", "g22", "g23"]


def test_replay_of_an_archive_gives_the_very_records_when_the_log_is_gone(history: History, tmp_path: Path) -> None:
    archive = str(tmp_path / "archive")
    kept = Command("archive", "--log", history.url, "--to", archive, "--until-end")
    assert kept.finish() == 0, kept.stderr
    url = f"sqlite:///{tmp_path}/new.db"
    made = Command("replay", "--archive", archive, "--log", url, "--output", "again", "--workers", "2")
    assert made.finish() == 0, made.stderr
    with Store(url, partitions=history.store.partitions) as store:
        assert stored(store.records(topic_of("again"))) == stored(history.live)
    dry = Command("replay", "--archive", archive, "--log", f"sqlite:///{tmp_path}/none.db", "--dry-run")
    assert dry.finish() == 0, dry.stderr
    assert not (tmp_path / "none.db").exists()
