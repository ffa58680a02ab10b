"""`rolloutlog import messages`, assembled and dumped on the embedded log, through the command line."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rolloutlog.consumers.cli.main import rolloutlog
from rolloutlog.consumers.importing import loading
from rolloutlog.consumers.importing.contents import Survey
from rolloutlog.consumers.importing.rollouts import Rollouts
from rolloutlog.eventstore.codec import decode_record
from rolloutlog.eventstore.errors import Fenced, InvalidSettings, LogUnavailable, StoreError
from rolloutlog.eventstore.log import EVENTS, META, Record, open_log

Line = dict[str, Any]

TAU_BENCH = "tau_bench_airline_40.jsonl"
USER = {"role": "user", "content": "What is the weather like in the town that I named before? " * 3}
ANSWER = {"role": "assistant", "content": "Rain."}


def shared_data() -> Path:
    """`ROLLOUTLOG_SHARED`, else the nearest `shared/data` beside or above the repository."""
    given = os.environ.get("ROLLOUTLOG_SHARED")
    places = [Path(given), Path(given) / "data"] if given else []
    places += [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]
    for place in places:
        if (place / TAU_BENCH).is_file():
            return place / TAU_BENCH
    pytest.skip(f"{TAU_BENCH}: set ROLLOUTLOG_SHARED to the folder that holds it")


def line(task: Any = "t", trial: Any = 0, reward: Any = 1.0, turns: int = 2, **fields: Any) -> bytes:
    messages = [USER, ANSWER] * turns
    return json.dumps({"task_id": task, "trial": trial, "reward": reward, "messages": messages, **fields}).encode()


def records(url: str, topic: str) -> list[Record]:
    """All records of a topic, by partition and offset."""

    async def read() -> list[Record]:
        log = await open_log(url)
        try:
            ranges = await log.ranges(topic, range(await log.partitions(topic)))
            reader = await log.reader(topic, {partition: span.first for partition, span in ranges.items()})
            found = []
            while any(reader.position(partition) < span.end for partition, span in ranges.items()):
                found += await reader.fetch(wait_s=0.1)
            await reader.close()
            return sorted(found, key=lambda record: (record.partition, record.offset))
        finally:
            await log.close()

    return asyncio.run(read())


class Commands:
    """Runs commands on a log of its own."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'run.db'}"

    def run(self, *arguments: str) -> Result:
        runner = CliRunner(catch_exceptions=False)
        return runner.invoke(rolloutlog, [*arguments, "--log", self.url])

    def load(self, file: Path) -> Result:
        return self.run("import", "messages", str(file))

    def assemble(self) -> Result:
        return self.run("assemble", "--until-end")

    def dump(self) -> list[Line]:
        return [json.loads(text) for text in self.run("batches", "dump").stdout.splitlines()]

    def dump_all(self) -> list[Line]:
        """Assemble what is there and dump it."""
        assert self.assemble().exit_code == 0
        return self.dump()

    def imports(self) -> list[Line]:
        return [
            decode_record(record.value)[1]
            for record in records(self.url, META)
            if (record.key or b"")[:7] == b"import/"
        ]


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file.jsonl"


def written(file: Path, *lines: bytes, end: bytes = b"\n") -> Path:
    file.write_bytes(b"".join(each + end for each in lines))
    return file


@pytest.fixture(scope="module")
def tau(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """The tau-bench file, imported and assembled once."""
    commands = Commands(tmp_path_factory.mktemp("tau"))
    assert commands.load(shared_data()).exit_code == 0
    assert commands.assemble().exit_code == 0
    return commands


@pytest.fixture(scope="module")
def tau_samples(tau: Commands) -> list[Line]:
    return tau.dump()


@pytest.fixture(scope="module")
def tau_lines() -> list[Line]:
    return [json.loads(text) for text in shared_data().read_text(encoding="utf-8").splitlines()]


# A whole file


def test_import_of_a_file_gives_one_rollout_a_line_and_one_group_a_task(commands: Commands, file: Path):
    written(file, line("a", 0), line("a", 1), line("b", 0), line("b", 1))
    assert commands.load(file).exit_code == 0
    samples = commands.dump_all()
    assert Counter(sample["group_id"][-1] for sample in samples) == {"a": 4, "b": 4}
    assert len({sample["rollout_id"] for sample in samples}) == 4


def test_import_gives_each_call_all_messages_before_it(commands: Commands, file: Path):
    commands.load(written(file, line(turns=3)))
    samples = commands.dump_all()
    assert [sample["turn_index"] for sample in samples] == [0, 1, 2]
    for before, after in pairwise(samples):
        held = before["prompt_ids"] + before["response_ids"]
        assert after["prompt_ids"][: len(held)] == held


def test_import_says_what_it_did(commands: Commands, file: Path):
    said = commands.load(written(file, line("a", 0), line("a", 1))).stdout
    assert said.startswith("2 rollouts in 1 groups, 4 calls, 10 events of ")
    assert said.endswith("; 0 lines refused\n")


def test_import_records_its_beginning_and_its_end(commands: Commands, file: Path):
    commands.load(written(file, line("a", 0), b"bad"))
    found = [(each["status"], each["lines"], each["rollouts"], each["refused"]) for each in commands.imports()]
    assert found == [("started", 2, 1, 1), ("finished", 2, 1, 1)]


def test_import_of_a_file_again_says_so_and_adds_nothing(commands: Commands, file: Path):
    commands.load(written(file, line("a", 0), line("a", 1)))
    before = records(commands.url, EVENTS)
    again = commands.load(file)
    assert (again.exit_code, again.stdout) == (0, "file.jsonl was imported before: 2 rollouts; nothing added\n")
    assert records(commands.url, EVENTS) == before


def test_import_of_the_same_bytes_under_another_name_adds_nothing(commands: Commands, file: Path, tmp_path: Path):
    commands.load(written(file, line("a", 0)))
    before = records(commands.url, EVENTS)
    commands.load(written(tmp_path / "other.jsonl", line("a", 0)))
    assert records(commands.url, EVENTS) == before


def test_import_of_another_file_adds_groups_of_its_own(commands: Commands, file: Path, tmp_path: Path):
    commands.load(written(file, line("a", 0)))
    commands.load(written(tmp_path / "other.jsonl", line("a", 1)))
    assert len({sample["group_id"] for sample in commands.dump_all()}) == 2


def test_import_of_duplicate_lines_gives_a_rollout_each(commands: Commands, file: Path):
    commands.load(written(file, line("a", 0), line("a", 0)))
    assert len({sample["rollout_id"] for sample in commands.dump_all()}) == 2


def test_import_of_a_file_with_byte_order_mark_and_crlf_reads_every_line(commands: Commands, file: Path):
    written(file, b"\xef\xbb\xbf" + line("a", 0), line("a", 1), end=b"\r\n")
    assert commands.load(file).exit_code == 0
    assert len({sample["rollout_id"] for sample in commands.dump_all()}) == 2


def test_import_of_a_file_without_last_line_end_reads_that_line(commands: Commands, file: Path):
    written(file, line("a", 0) + b"\n" + line("a", 1), end=b"")
    commands.load(file)
    assert len({sample["rollout_id"] for sample in commands.dump_all()}) == 2


def test_import_passes_over_blank_lines_and_counts_them(commands: Commands, file: Path):
    written(file, b"", b"  ", b"bad")
    assert "line 3 refused" in commands.load(file).stderr


def test_import_of_an_empty_file_adds_no_rollout_and_exits_0(commands: Commands, file: Path):
    done = commands.load(written(file))
    assert (done.exit_code, records(commands.url, EVENTS)) == (0, [])


def test_import_without_reward_trains_nothing_as_zero(commands: Commands, file: Path):
    commands.load(written(file, line("a", 0, reward=None)))
    assert [(sample["total"], sample["rollout_final"]) for sample in commands.dump_all()] == [(None, {}), (None, {})]


# Bad lines


def test_import_reports_a_bad_line_with_number_and_field(commands: Commands, file: Path):
    bad = json.dumps({"task_id": "a", "messages": [USER, {"role": "robot"}]}).encode()
    done = commands.load(written(file, line("a", 0), bad))
    assert done.stderr.splitlines() == [
        "line 2 refused: expected one of system, developer, user, assistant, tool, function, got 'robot' "
        "at $.messages[1].role"
    ]


def test_import_with_a_bad_line_exits_1_and_imports_the_rest(commands: Commands, file: Path):
    done = commands.load(written(file, b"bad", line("a", 0), line("a", 1)))
    assert done.exit_code == 1
    assert len({sample["rollout_id"] for sample in commands.dump_all()}) == 2


def test_import_counts_group_sizes_over_good_lines_only(commands: Commands, file: Path):
    """Else the group would wait for ever for the rollout of the bad line."""
    commands.load(written(file, line("a", 0), line("a", 1), line("a", 2, reward="x")))
    assert len({sample["rollout_id"] for sample in commands.dump_all()}) == 2


def test_import_of_bad_lines_only_exits_1_and_adds_no_rollout(commands: Commands, file: Path):
    done = commands.load(written(file, b"bad", b"{}", b"[]"))
    assert (done.exit_code, records(commands.url, EVENTS)) == (1, [])
    assert [text.split(" refused")[0] for text in done.stderr.splitlines()] == ["line 1", "line 2", "line 3"]


def test_import_of_very_many_bad_lines_reports_the_first_and_counts_the_others(commands: Commands, file: Path):
    done = commands.load(written(file, *[b"bad"] * 25))
    assert len(done.stderr.splitlines()) == 21
    assert done.stderr.splitlines()[-1] == "and 5 more lines refused"


@pytest.mark.parametrize(
    "bad",
    [
        json.dumps({"task_id": "a", "messages": [{"role": "user", "name": "\ud800"}, ANSWER]}).encode(),
        json.dumps({"task_id": "a", "messages": [{"role": "tool", "tool_call_id": [1]}, ANSWER]}).encode(),
        b'{"task_id":"a","messages":[{"role":"assistant","x":' + b"[" * 950 + b"]" * 950 + b"}]}",
        b"\x00" * 100,
        b"\xff\xfe\x00",
        b"9" * 5_000,
    ],
    ids=["surrogate", "list as id", "deep", "zeros", "no utf8", "long number"],
)
def test_import_of_a_line_that_cannot_be_written_refuses_that_line_alone(commands: Commands, file: Path, bad: bytes):
    done = commands.load(written(file, bad, line("a", 0)))
    assert (done.exit_code, "line 1 refused" in done.stderr) == (1, True)
    assert len({sample["rollout_id"] for sample in commands.dump_all()}) == 1


def test_import_of_a_huge_line_refuses_it_by_size_and_message(commands: Commands, file: Path):
    huge = json.dumps({"task_id": "a", "messages": [{"role": "user", "content": "x" * 3_000_000}, ANSWER]}).encode()
    done = commands.load(written(file, huge, line("a", 0)))
    assert done.exit_code == 1
    assert done.stderr.startswith("line 1 refused: expected events of at most 8388608 bytes, got ")
    assert done.stderr.rstrip().endswith("bytes of call-1 at $.messages")


def test_import_of_a_large_line_below_the_limit_is_taken(commands: Commands, file: Path):
    large = json.dumps(
        {"task_id": "a", "messages": [{"role": "user", "content": "x" * 1_000_000}, ANSWER] * 2}
    ).encode()
    assert commands.load(written(file, large)).exit_code == 0
    assert [len(sample["prompt_ids"]) > 1_000_000 for sample in commands.dump_all()] == [True, True]


# Cut off


def events_of(commands: Commands) -> list[tuple[Any, ...]]:
    """Identity, place and bytes of all events, without their times."""
    return [(record.partition, record.key, record.headers) for record in records(commands.url, EVENTS)]


class Cut:
    """Lets an append to the events fail, the n-th of the import."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
        monkeypatch.setattr(loading, "APPEND_RECORDS", 4)
        flush, self.left = loading.Writer.flush, nth

        async def cut(writer: loading.Writer) -> None:
            if self.left == 0:
                raise LogUnavailable("cut off")
            self.left -= 1
            await flush(writer)

        monkeypatch.setattr(loading.Writer, "flush", cut)


@pytest.mark.parametrize("nth", [0, 1, 2, 4])
def test_import_cut_off_goes_on_where_it_was(
    commands: Commands, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
):
    written(file, *(line(task, trial) for task in "ab" for trial in range(3)))
    whole = Commands(tmp_path / "whole")
    (tmp_path / "whole").mkdir()
    whole.load(file)
    with monkeypatch.context() as patched:
        Cut(patched, nth)
        with pytest.raises(LogUnavailable):
            commands.load(file)
    done = commands.load(file)
    assert done.exit_code == 0
    assert done.stderr.endswith("events of an import that was cut off\n")
    assert events_of(commands) == events_of(whole)
    assert commands.dump_all() == whole.dump_all()


def test_import_cut_off_and_finished_says_so_the_third_time(
    commands: Commands, file: Path, monkeypatch: pytest.MonkeyPatch
):
    written(file, line("a", 0), line("a", 1))
    with monkeypatch.context() as patched:
        Cut(patched, 1)
        with pytest.raises(LogUnavailable):
            commands.load(file)
    commands.load(file)
    assert "was imported before" in commands.load(file).stdout


def test_import_that_goes_on_records_the_same_times(commands: Commands, file: Path, monkeypatch: pytest.MonkeyPatch):
    """One rollout's calls stay in turn order when a clock is set back between the two tries."""
    written(file, line("a", 0), line("a", 1), line("a", 2))
    with monkeypatch.context() as patched:
        Cut(patched, 1)
        with pytest.raises(LogUnavailable):
            commands.load(file)
    with monkeypatch.context() as patched:
        patched.setattr(loading.time, "time_ns", lambda: 5)
        commands.load(file)
    times = {decode_record(record.value)[1]["time_ns"] for record in records(commands.url, EVENTS)}
    assert len(times) == 1


KILLED = """
import os, signal, sys
from rolloutlog.consumers.cli import main
from rolloutlog.consumers.importing import loading
loading.APPEND_RECORDS, left, flush = 30, int(sys.argv.pop(1)), loading.Writer.flush
async def killed(writer):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    await flush(writer)
loading.Writer.flush = killed
main()
"""


@pytest.mark.parametrize("nth", [0, 3, 12])
def test_import_killed_half_way_and_finished_gives_the_same_dump(tau_samples: list[Line], commands: Commands, nth: int):
    arguments = [str(nth), "import", "messages", str(shared_data()), "--log", commands.url]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert len(records(commands.url, EVENTS)) < 973
    assert commands.load(shared_data()).exit_code == 0
    assert commands.dump_all() == tau_samples


# The published trajectories


def test_import_of_tau_bench_gives_10_groups_of_4(tau_samples: list[Line]):
    groups: dict[str, set[str]] = {}
    for sample in tau_samples:
        groups.setdefault(sample["group_id"], set()).add(sample["rollout_id"])
    assert sorted(map(len, groups.values())) == [4] * 10


def test_import_of_tau_bench_gives_579_samples(tau_samples: list[Line]):
    assert len(tau_samples) == 579


def test_import_of_tau_bench_gives_every_rollout_its_reward(tau_samples: list[Line], tau_lines: list[Line]):
    wanted = {(str(each["task_id"]), str(each["trial"])): each["reward"] for each in tau_lines}
    found = {}
    for sample in tau_samples:
        _, _, task, trial, _ = sample["rollout_id"].split("-")
        found[task, trial] = sample["rollout_final"]["reward"]
    assert found == wanted


def test_import_of_tau_bench_gives_the_reward_to_the_last_call_alone(tau_samples: list[Line]):
    for sample in tau_samples:
        last = sample["turn_index"] == sample["turn_count"] - 1
        assert sample["final"] == (sample["rollout_final"] if last else {})


def test_import_of_tau_bench_gives_each_message_of_the_assistant_one_sample(
    tau_samples: list[Line], tau_lines: list[Line]
):
    wanted = Counter(
        {n: sum(message["role"] == "assistant" for message in each["traj"]) for n, each in enumerate(tau_lines, 1)}
    )
    assert Counter(int(sample["rollout_id"].rpartition("-")[2]) for sample in tau_samples) == wanted


def test_import_of_tau_bench_takes_a_fifth_of_the_bytes_of_repeated_prompts(tau: Commands, tau_samples: list[Line]):
    stored = sum(len(record.value or b"") for record in records(tau.url, EVENTS))
    repeated = sum(4 * (len(sample["prompt_ids"]) + len(sample["response_ids"])) for sample in tau_samples)
    assert stored <= repeated / 5


def test_import_of_tau_bench_again_adds_nothing_and_exits_0(tau: Commands):
    before = len(records(tau.url, EVENTS))
    assert tau.load(shared_data()).exit_code == 0
    assert len(records(tau.url, EVENTS)) == before


def test_dump_is_in_the_order_partition_offset_rollout_turn(tau_samples: list[Line]):
    turns: dict[str, list[int]] = {}
    for sample in tau_samples:
        turns.setdefault(sample["rollout_id"], []).append(sample["turn_index"])
    assert all(found == sorted(found) for found in turns.values())


def test_dump_of_all_shares_is_the_whole_dump(tau: Commands):
    shares = [tau.run("batches", "dump", "--partitions", f"{share}").stdout for share in range(4)]
    assert "".join(shares) == tau.run("batches", "dump").stdout


def test_import_from_a_pipe_is_refused_and_adds_nothing(commands: Commands, tmp_path: Path):
    """It cannot be read twice, and the digest of what is left of it would be that of an empty file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidSettings, match="expected a file that can be read twice"):
        commands.load(pipe)


@pytest.mark.parametrize("changed", [[line("a", 0), line("b", 1)], [line("a", 0), line("b", 0), line("b", 1)], []])
def test_import_of_a_file_that_changes_meanwhile_stores_nothing_of_what_is_new(
    commands: Commands, file: Path, monkeypatch: pytest.MonkeyPatch, changed: list[bytes]
):
    written(file, line("a", 0), line("b", 0))
    survey = Rollouts.survey

    def change(content: Rollouts) -> Survey:
        found = survey(content)
        written(file, *changed)
        return found

    monkeypatch.setattr(Rollouts, "survey", change)
    with pytest.raises(StoreError, match="changed while it was imported"):
        commands.load(file)
    assert [each["status"] for each in commands.imports()] == ["started"]
    assert records(commands.url, EVENTS) == []


def test_file_that_another_format_refused_can_still_be_imported(commands: Commands, file: Path):
    written(file, line("a", 0))
    assert commands.run("import", "jsonl", str(file)).exit_code == 1
    assert commands.load(file).stdout.startswith("1 rollouts in 1 groups")


def test_import_of_a_file_whose_name_is_no_utf8_is_recorded(commands: Commands, tmp_path: Path):
    file = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    written(file, line("a", 0))
    assert commands.load(file).exit_code == 0
    assert [each["file"] for each in commands.imports()] == ["caf\\udce9.jsonl"] * 2
    assert "was imported before" in commands.load(file).stdout


# Two at once


def test_import_that_another_one_of_the_same_file_took_over_stops_and_nothing_is_doubled(
    commands: Commands, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The other one begins when this one has stored some, and ends before this one goes on."""
    written(file, *(line(task, trial) for task in "ab" for trial in range(3)))
    whole = Commands(tmp_path / "whole")
    (tmp_path / "whole").mkdir()
    whole.load(file)
    monkeypatch.setattr(loading, "APPEND_RECORDS", 4)
    flush, flushes = loading.Writer.flush, iter(range(100))

    def import_beside() -> Any:
        command = [sys.executable, "-m", "rolloutlog", "import", "messages", str(file), "--log", commands.url]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    async def overtaken(writer: loading.Writer) -> None:
        if next(flushes) == 2:
            other = await asyncio.to_thread(import_beside)
            assert "going on after 8 events of an import that was cut off" in other.stderr
        await flush(writer)

    monkeypatch.setattr(loading.Writer, "flush", overtaken)
    with pytest.raises(Fenced, match=r"file.jsonl: another process began to import the same and goes on with it"):
        commands.load(file)
    assert events_of(commands) == events_of(whole)
    assert [each["status"] for each in commands.imports()] == ["started", "finished"]


def test_imports_do_not_hold_back_what_is_trimmed(commands: Commands, file: Path):
    """An owner of a whole topic without positions would count as one who has yet to read all batches."""
    commands.load(written(file, line("a", 0)))
    database = sqlite3.connect(commands.url.removeprefix("sqlite:///"))
    owned = database.execute(
        "SELECT p.topic FROM owners o LEFT JOIN partitions p ON p.id = o.partition_id WHERE o.app LIKE 'import.%'"
    ).fetchall()
    database.close()
    assert owned == [("meta",)]
