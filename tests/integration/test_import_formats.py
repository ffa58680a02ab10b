"""`rolloutlog import swe-agent`, `import otlp` and `--tokenizer`, assembled and dumped; events through Kafka."""

import asyncio
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from integration.test_import import Commands, line, records, written
from support.building import call, completed, record, started
from support.store import Store

from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import EVENTS, NewRecord, open_log
from rolloutlog.eventstore.topics import create_topics

pytestmark = pytest.mark.slow_on_kafka


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


# SWE-agent


def step(response: str, *shown: str) -> dict[str, Any]:
    query = [{"role": "user" if n % 2 == 0 else "assistant", "content": text} for n, text in enumerate(shown)]
    return {"response": response, "action": "ls", "observation": "x", "thought": response, "query": query}


def trajectory(path: Path, *responses: str, status: str = "submitted") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    said = ["Fix it."]
    steps = []
    for response in responses:
        steps.append(step(response, *said))
        said += [response, "observed"]
    path.write_text(json.dumps({"trajectory": steps, "history": [], "info": {"exit_status": status}}))
    return path


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs over two instances."""
    for run, answers in (("run1", ("a", "b")), ("run2", ("c", "d", "e"))):
        for instance in ("astropy-1", "django-2"):
            trajectory(tmp_path / run / instance / f"{instance}.traj", *answers)
    return tmp_path / "run1", tmp_path / "run2"


def test_runs_of_swe_agent_are_groups_by_instance_with_the_verdicts_of_each_run(
    commands: Commands, runs: tuple[Path, Path], tmp_path: Path
):
    for name, resolved in (("one.json", ["astropy-1"]), ("two.json", [])):
        unresolved = [each for each in ("astropy-1", "django-2") if each not in resolved]
        (tmp_path / name).write_text(json.dumps({"resolved_ids": resolved, "unresolved_ids": unresolved}))
    results = ["--results", str(tmp_path / "one.json"), "--results", str(tmp_path / "two.json")]
    done = commands.run("import", "swe-agent", *map(str, runs), *results)
    assert done.exit_code == 0
    assert done.stdout.startswith("4 rollouts in 2 groups, 10 calls, ")
    finals = {(each["group_id"][20:], each["rollout_final"]["resolved"]) for each in commands.dump_all()}
    assert finals == {("astropy-1", 1.0), ("astropy-1", 0.0), ("django-2", 0.0)}


def test_swe_agent_again_adds_nothing_and_another_evaluation_is_another_import(
    commands: Commands, runs: tuple[Path, Path], tmp_path: Path
):
    commands.run("import", "swe-agent", *map(str, runs))
    before = len(records(commands.url, EVENTS))
    assert "was imported before: 4 rollouts" in commands.run("import", "swe-agent", *map(str, runs)).stdout
    assert len(records(commands.url, EVENTS)) == before
    (tmp_path / "r.json").write_text('{"resolved_ids": ["django-2"]}')
    commands.run("import", "swe-agent", *map(str, runs), "--results", str(tmp_path / "r.json"))
    assert len(records(commands.url, EVENTS)) > before


def test_swe_agent_file_that_is_refused_is_named_and_the_rest_imported(commands: Commands, runs: tuple[Path, Path]):
    bad = runs[0] / "django-2" / "django-2.traj"
    bad.write_text('{"trajectory": [{"response": 7}]}')
    done = commands.run("import", "swe-agent", *map(str, runs))
    assert done.exit_code == 1
    assert done.stderr == f"{bad} refused: expected text, got 7 at $.trajectory[0].response\n"
    assert done.stdout.startswith("3 rollouts in 2 groups")


def test_swe_agent_takes_compressed_files_and_refuses_a_folder_without_any(commands: Commands, tmp_path: Path):
    plain = trajectory(tmp_path / "x" / "a.traj", "a")
    (tmp_path / "x" / "b.traj.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert commands.run("import", "swe-agent", str(tmp_path / "x")).stdout.startswith("2 rollouts in 2 groups")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidSettings, match=r"expected \.traj files in it, got none"):
        commands.run("import", "swe-agent", str(tmp_path / "empty"))


def test_swe_agent_refuses_results_that_do_not_fit_the_paths(
    commands: Commands, runs: tuple[Path, Path], tmp_path: Path
):
    (tmp_path / "r.json").write_text("[]")
    result = ["--results", str(tmp_path / "r.json")]
    with pytest.raises(InvalidSettings, match=r"--results .*r.json: expected a JSON object of results"):
        commands.run("import", "swe-agent", str(runs[0]), *result)
    with pytest.raises(InvalidSettings, match="expected one, or one for each of 2 paths, got 3"):
        commands.run("import", "swe-agent", *map(str, runs), *result * 3)


# OTLP


def trace(trace_id: str, reward: float) -> bytes:
    def attribute(key: str, value: Any) -> dict[str, Any]:
        return {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"doubleValue": value}}

    called = {
        "traceId": trace_id * 16,
        "spanId": "00000000000000a2",
        "parentSpanId": "00000000000000a1",
        "name": "chat m",
        "startTimeUnixNano": "10",
        "endTimeUnixNano": "20",
        "attributes": [
            attribute("gen_ai.operation.name", "chat"),
            attribute("gen_ai.input.messages", '[{"role":"user","parts":[{"type":"text","content":"Hi?"}]}]'),
            attribute("gen_ai.output.messages", '[{"role":"assistant","parts":[{"type":"text","content":"Hi."}]}]'),
        ],
    }
    root = {
        "traceId": trace_id * 16,
        "spanId": "00000000000000a1",
        "name": "agent",
        "startTimeUnixNano": "0",
        "endTimeUnixNano": "30",
        "attributes": [attribute("score", reward)],
    }
    resource = {"attributes": [attribute("task", "t-1")]}
    request = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [called, root]}]}]}
    return json.dumps(request).encode()


def test_traces_are_grouped_rewarded_and_assembled(commands: Commands, tmp_path: Path):
    file = written(tmp_path / "t.jsonl", trace("aa", 1.0), trace("bb", 0.0))
    done = commands.run("import", "otlp", str(file), "--group-attribute", "task", "--reward-attribute", "score")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0].startswith("2 rollouts in 1 groups, 2 calls, ")
    assert done.stdout.splitlines()[1].startswith("UTF-8 bytes as token ids")
    assert sorted((each["group_id"][20:], each["total"]) for each in commands.dump_all()) == [
        ("t-1", 0.0),
        ("t-1", 1.0),
    ]


def test_traces_again_add_nothing_and_other_options_are_another_import(commands: Commands, tmp_path: Path):
    file = str(written(tmp_path / "t.jsonl", trace("aa", 1.0), b"nonsense"))
    done = commands.run("import", "otlp", file)
    assert (done.exit_code, done.stdout[:9]) == (1, "1 rollout")
    before = len(records(commands.url, EVENTS))
    again = commands.run("import", "otlp", file)
    assert (again.exit_code, "was imported before" in again.stdout) == (0, True)
    commands.run("import", "otlp", file, "--reward-attribute", "score")
    assert len(records(commands.url, EVENTS)) == 2 * before + 1


# Tokenizer


def test_messages_with_a_tokenizer_are_another_import_with_its_ids(commands: Commands, tmp_path: Path):
    tokenizers = pytest.importorskip("tokenizers", reason="extra `tokenizer`")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"Rain": 0, ".": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made.save(str(tmp_path / "tokenizer.json"))
    file = str(written(tmp_path / "m.jsonl", line("a", 0), line("a", 1)))
    commands.run("import", "messages", file)
    done = commands.run("import", "messages", file, "--tokenizer", str(tmp_path / "tokenizer.json"))
    assert done.stdout.splitlines()[1] == ("token ids of tokenizer.json, 5 tokens; ChatML, markers as special tokens")
    answers = {tuple(each["response_ids"]) for each in commands.dump_all()}
    assert answers == {(0, 1, 4), tuple(b"Rain.<|im_end|>\n")}


# Through both logs


def test_events_go_from_any_log_into_any_log(store: Store, tmp_path: Path):
    events = Commands(tmp_path)
    events.load(written(tmp_path / "m.jsonl", *(line(task, trial) for task in "ab" for trial in range(2))))
    events.run("export", "jsonl", str(tmp_path / "e.jsonl"))

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "rolloutlog", *arguments, "--log", store.url]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    assert run("import", "jsonl", str(tmp_path / "e.jsonl")).startswith("20 events added")
    assert "nothing added" in run("import", "jsonl", str(tmp_path / "e.jsonl"))
    run("assemble", "--until-end")
    assert run("batches", "dump") == json_dump(events)
    run("export", "jsonl", str(tmp_path / "again.jsonl"))
    again = [json.loads(text) for text in (tmp_path / "again.jsonl").read_bytes().splitlines()]
    whole = [json.loads(text) for text in (tmp_path / "e.jsonl").read_bytes().splitlines()]
    assert [without_log(each) for each in again if each["event"] != "GroupClosed"] == [
        without_log(each) for each in whole
    ]


def json_dump(commands: Commands) -> str:
    commands.assemble()
    return commands.run("batches", "dump").stdout


def without_log(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "log"}


# getrusage would tell of the test process as well, which this one was forked from.
MEASURED = """
import sys
from pathlib import Path
from rolloutlog.consumers.cli.main import rolloutlog
rolloutlog(sys.argv[1:], standalone_mode=False)
told = Path("/proc/self/status").read_text()
print(told.partition("VmHWM:")[2].split()[0], file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_export_and_import_of_100_000_events_take_memory_of_a_few_requests(commands: Commands, tmp_path: Path):
    count = 100_000

    async def fill() -> None:
        log = await open_log(commands.url, create=True)
        await create_topics(log)
        for first in range(0, count, 1_000):
            made = [started(f"r{first}", 0, group_id=f"r{first}")]
            made += [call(f"c{n}", n, f"r{first}", attributes=b'{"x":"' + b"y" * 1_500 + b'"}') for n in range(1, 999)]
            made += [completed(999, f"r{first}")]
            await log.append([new(event, f"r{first}".encode()) for event in made])
        await log.close()

    asyncio.run(fill())
    file = tmp_path / "e.jsonl"
    other = f"sqlite:///{tmp_path / 'other.db'}"
    for arguments in (
        ["export", "jsonl", str(file), "--log", commands.url],
        ["import", "jsonl", str(file), "--log", other],
    ):
        done = subprocess.run([sys.executable, "-c", MEASURED, *arguments], capture_output=True, text=True, check=True)
        assert f"{count} events" in done.stdout
        assert int(done.stderr.splitlines()[-1]) < 200 * 1024, "KiB"  # of 170 MB of events


def new(event: Any, key: bytes) -> NewRecord:
    made = record(event, 0, key=key.decode())
    return NewRecord(EVENTS, 0, key, made.value, made.headers)
