"""`rolloutlog demo`: the whole loop learns, on both logs, and leaves nothing behind however it ends."""

import os
import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import COMMAND, wait_until

from rolloutlog.consumers.demo.settings import MAX_STALENESS, SOLVED

DEADLINE_S = 100.0

needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds processes in /proc")


def start(*arguments: object, output: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOUTLOG_LOG")}
    return subprocess.Popen(
        [COMMAND, "demo", *map(str, arguments)], stdout=output, stderr=output, text=True, env=environment
    )


def run(*arguments: object) -> str:
    """What a demo prints that learns."""
    process = start(*arguments)
    output, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output + errors
    assert errors == ""
    return output


def assert_learned(output: str) -> None:
    """From chance to solved, none stale, and every rollout and sample accounted for."""
    found = re.search(r"mean final reward ([\d.]+) at policy version 0, ([\d.]+) over the last", output)
    assert found, output
    assert float(found[1]) < 0.3
    assert float(found[2]) >= SOLVED
    steps = re.search(r"(\d+) steps, greatest staleness (\d+)", output)
    assert steps, output
    assert 0 <= int(steps[2]) <= MAX_STALENESS
    rollouts = re.search(r"rollouts: (\d+) started = (\d+) emitted", output)
    assert rollouts, output
    assert rollouts[1] == rollouts[2]
    samples = re.search(r"samples, reader trainer: (\d+) published = (\d+) trained .* 0 in flight", output)
    assert samples, output
    assert "does not add up" not in output
    assert "by rule enclosing" in output


def test_demo_learns_and_what_it_keeps_can_be_looked_at(tmp_path: Path):
    output = run("--keep", tmp_path / "kept")
    assert_learned(output)
    commands = re.findall(r"^  (rolloutlog .*)$", output, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        done = subprocess.run(
            command.replace("rolloutlog", COMMAND, 1), shell=True, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, command + done.stderr
        assert done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
def test_demo_with_every_seed_learns(seed: int):
    assert_learned(run("--seed", seed))


@pytest.mark.kafka
def test_demo_on_kafka_learns(kafka_bootstrap: str):
    assert_learned(run("--log", f"kafka://{kafka_bootstrap}/demo-{uuid.uuid4().hex[:12]}"))


def test_demo_that_runs_out_of_steps_exits_1_and_ends_the_run(tmp_path: Path):
    process = start("--steps-max", 2)
    output, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "not learned: mean final reward below 0.9 after" in errors
    assert " 0 open" in output
    assert " 0 in flight" in output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--kafka", "--log", "kafka://localhost:9092/x"], "--kafka and --log: expected one of them"),
        (["--log", "nonsense"], "log URL 'nonsense'"),
        (["--keep", "."], "expected a new or an empty folder"),
    ],
)
def test_demo_with_wrong_arguments_exits_2_before_it_starts(arguments: list[str], text: str):
    process = start(*arguments)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert text in errors


# Ends that are none of its own


@pytest.fixture
def demo(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A demo whose trainer has learned a step; its files are in tmp_path / "kept"."""
    process = start("--keep", tmp_path / "kept")
    try:
        wait_until(lambda: (tmp_path / "kept/weights/1.npy").exists() or process.poll() is not None, "version 1")
        yield process
    finally:
        process.kill()
        process.communicate()
        for pid in children(tmp_path):
            os.kill(pid, signal.SIGKILL)


def children(tmp_path: Path, role: str = "") -> list[int]:
    """Processes that have the demo's log among their arguments, but not the demo itself."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if f"sqlite:///{tmp_path / 'kept/demo.db'}" in arguments and role in ("", *arguments):
                found.append(int(entry.name))
    return found


@needs_proc
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGTERM, signal.SIGHUP))],
)
def test_demo_that_is_interrupted_ends_all_processes_and_exits_130(demo, tmp_path: Path, number: signal.Signals):
    assert len(children(tmp_path)) == 4
    demo.send_signal(number)
    _, errors = demo.communicate(timeout=DEADLINE_S)
    assert demo.returncode == 130
    assert errors.strip() == "aborted"
    assert children(tmp_path) == []


@needs_proc
def test_demo_that_is_killed_leaves_no_process_behind(demo, tmp_path: Path):
    assert len(children(tmp_path)) == 4
    demo.kill()
    wait_until(lambda: children(tmp_path) == [], "the end of its processes")


@needs_proc
@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("train", "trainer"),
        pytest.param("host", "host-", marks=pytest.mark.slow),
        pytest.param("assemble", "assembler", marks=pytest.mark.slow),
    ],
)
def test_demo_whose_process_is_killed_ends_at_once_and_names_it(demo, tmp_path: Path, role: str, name: str):
    os.kill(children(tmp_path, role)[0], signal.SIGKILL)
    _, errors = demo.communicate(timeout=DEADLINE_S)
    assert demo.returncode == 5
    assert re.search(rf"error: {name}\d? ended with exit code -9", errors)
    assert children(tmp_path) == []
