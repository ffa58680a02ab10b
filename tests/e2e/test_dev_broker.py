"""`rolloutlog dev-broker`: a broker for people, from a wheel as well, and what it says when it can't start."""

import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.test_installation import build_wheel

from rolloutlog.deploy.kafka.broker import HOST, free_port

COMMAND = str(Path(sys.executable).with_name("rolloutlog"))
DEADLINE_S = 60.0

FROM_WHEEL = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import rolloutlog
print(rolloutlog.__file__)
from rolloutlog.consumers.cli import main
main()
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes to kill at the end."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def start(started: list[subprocess.Popen[str]]):
    def start(*command: str, **environment: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, **environment},
            )
        )
        return started[-1]

    return start


def lines_until(process: subprocess.Popen[str], last: str) -> str:
    """What it prints up to a line that begins with `last`. The test's own timeout bounds the wait."""
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if line.startswith(last):
            return output
    raise AssertionError(f"expected a line {last!r}, got:\n{output}")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


@pytest.mark.kafka
def test_dev_broker_keeps_data_between_starts_and_ends_cleanly(start, tmp_path: Path):
    port = free_port()
    url, data, runs = f"kafka://{HOST}:{port}/dev", tmp_path / "data", []
    for sent in (signal.SIGTERM, signal.SIGINT):
        process = start(COMMAND, "dev-broker", "--port", str(port), "--data", str(data), "--prefix", "dev")
        output = lines_until(process, "Ctrl-C")
        assert f"log:     {url}, 4 partitions of events\n" in output
        runs.append(run("topics", "create", "--log", url).stdout)
        second = run("dev-broker", "--port", str(free_port()), "--data", str(data))
        assert (second.returncode, "another dev-broker uses it" in second.stderr) == (2, True)
        process.send_signal(sent)
        rest, _ = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, rest) == (0, f"stopping\nstopped; topics are kept in {data}\n")
        assert not listens(port)
    assert runs[0].startswith("run ")
    assert runs[0] == runs[1]


@pytest.mark.kafka
def test_dev_broker_of_an_installed_wheel_starts_says_how_to_go_on_and_leaves_no_folder(start, tmp_path: Path):
    installed, port = tmp_path / "installed", free_port()
    zipfile.ZipFile(build_wheel(tmp_path)).extractall(installed)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = start(
        sys.executable, "-c", FROM_WHEEL, str(installed), "dev-broker", "--port", str(port), TMPDIR=str(temporary)
    )
    output = lines_until(process, "Ctrl-C")
    assert output.startswith(str(installed))
    assert f"topics:  rolloutlog topics create --partitions 4 --log kafka://{HOST}:{port}/NAME\n" in output
    process.terminate()
    assert process.communicate(timeout=DEADLINE_S)[0] == "stopping\nstopped; topics are removed\n"
    assert list(temporary.glob("rolloutlog-broker-*")) == []


@pytest.mark.kafka
def test_dev_broker_whose_broker_dies_shows_its_last_lines_and_exits_3(start, tmp_path: Path):
    port = free_port()
    process = start(COMMAND, "dev-broker", "--port", str(port), "--data", str(tmp_path))
    lines_until(process, "Ctrl-C")
    children = subprocess.run(
        ["ps", "-o", "pid=,comm=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
    ).stdout
    (broker,) = [int(line.split()[0]) for line in children.splitlines() if "java" in line]
    os.kill(broker, signal.SIGKILL)
    rest, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, f"error: the broker on {HOST}:{port} ended by itself; it said:\n" in rest) == (3, True)


def test_dev_broker_on_a_taken_port_names_the_option():
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        done = run("dev-broker", "--port", str(port))
    assert (done.returncode, done.stderr) == (
        2,
        f"error: port {port}: {HOST}:{port} is not free to listen on; stop what uses it, or choose another with "
        "--port\n",
    )


def test_dev_broker_with_a_folder_that_can_not_be_made_names_the_option(tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = run("dev-broker", "--port", str(free_port()), "--data", str(tmp_path / "file" / "data"))
    assert done.returncode == 2
    assert "expected one that this user can write, got: Not a directory; choose another with --data" in done.stderr


def test_dev_broker_with_a_prefix_that_topics_can_not_have_is_refused():
    done = run("dev-broker", "--prefix", "a b")
    assert (done.returncode, "letters, digits, . _ - only" in done.stderr) == (2, True)


def test_dev_broker_without_java_says_what_to_install(start, tmp_path: Path):
    process = start(COMMAND, "dev-broker", "--port", str(free_port()), PATH=str(tmp_path), JAVA_HOME="")
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, output) == (2, "error: java not found on PATH: install a Java runtime, 17 or newer\n")


def test_dev_broker_without_maven_says_what_to_install(start, tmp_path: Path):
    tool = tmp_path / "java"
    tool.write_text("#!/bin/sh\necho 'openjdk version \"17.0.15\"' >&2\n")
    tool.chmod(0o755)
    settings = {"PATH": str(tmp_path), "JAVA_HOME": "", "ROLLOUTLOG_CACHE": str(tmp_path / "cache")}
    process = start(COMMAND, "dev-broker", "--port", str(free_port()), "--version", "4.2.2", **settings)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "mvn not found on PATH: Maven resolves the jars of Kafka 4.2.2" in output
    assert output.endswith("install Maven 3.6 or newer\n")
