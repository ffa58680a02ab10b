"""The command line's entry: which command, which exit code."""

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from rolloutlog.consumers.cli import main as entry
from rolloutlog.consumers.cli.main import COMMANDS, exit_code, rolloutlog
from rolloutlog.consumers.owners import FencedOut
from rolloutlog.consumers.position import PositionRefused
from rolloutlog.consumers.recovery import HistoryLost
from rolloutlog.consumers.refusals import TooManyDeadLetters
from rolloutlog.eventstore.errors import Fenced, InvalidSettings, LogMissing, LogUnavailable, StoreError


def code_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["rolloutlog", *arguments])
    with pytest.raises(SystemExit) as caught:
        entry()
    return int(caught.value.code or 0)


def command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let `rolloutlog topics` raise this error."""

    def fail() -> None:
        raise error

    monkeypatch.setattr(rolloutlog, "get_command", lambda ctx, name: click.Command(name, callback=fail))


def test_help_shows_the_summary_of_every_command_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert code_of(monkeypatch, "--help") == 0
    shown = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert {"assemble", "attribute", "explain", "metrics"} <= {line.split()[0] for line in shown}
    assert [line for line in shown if line.endswith("...")] == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidSettings("x"), 2),
        (LogMissing("x"), 3),
        (LogUnavailable("x"), 3),
        (Fenced("x"), 4),
        (FencedOut("x"), 4),
        (PositionRefused("x"), 5),
        (HistoryLost("x"), 5),
        (TooManyDeadLetters("x"), 5),
        (StoreError("x"), 5),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_exit_code_stands_for_the_error(error: StoreError, code: int):
    assert exit_code(error) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Fenced("x"), 4),
        (click.exceptions.Exit(1), 1),
        (click.UsageError("x"), 2),
        (click.ClickException("x"), 2),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(errno.EPIPE, "broken pipe"), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_main_exits_with_the_code_of_what_a_command_raised(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
):
    command(monkeypatch, error)
    assert code_of(monkeypatch, "topics") == code


def test_main_prints_an_error_as_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    command(monkeypatch, LogMissing("no such log"))
    code_of(monkeypatch, "topics")
    assert capsys.readouterr().err == "error: no such log\n"


def test_main_prints_an_error_with_its_lines_and_nothing_that_drives_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    command(monkeypatch, LogMissing("rollout \x1b[2J\r\nsecond line"))
    assert code_of(monkeypatch, "topics") == 3
    assert capsys.readouterr().err == "error: rollout \ufffd[2J\ufffd\nsecond line\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["assemble", "--help"], ["batches", "dump", "-h"]])
def test_main_exits_0_after_help(monkeypatch: pytest.MonkeyPatch, arguments: list[str]):
    assert code_of(monkeypatch, *arguments) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["assemble", "--nonsense"],
        ["--log-level", "loud", "assemble"],
        ["assemble"],
        ["assemble", "--log", "mysql://x"],
        ["import", "messages"],
        ["import", "messages", "no-such-file.jsonl"],
    ],
)
def test_main_exits_2_on_wrong_usage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLOUTLOG_LOG", raising=False)
    assert code_of(monkeypatch, *arguments) == 2


@pytest.mark.parametrize("arguments", [["assemble"], ["batches", "dump"], ["topics", "check"]])
def test_main_exits_3_when_the_log_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]):
    monkeypatch.chdir(tmp_path)
    assert code_of(monkeypatch, *arguments, "--log", "sqlite:///missing.db") == 3


def test_main_leaves_no_file_behind_when_the_log_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    code_of(monkeypatch, "assemble", "--log", "sqlite:///missing.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"demo"}))
def test_main_finds_every_command(name: str):
    assert rolloutlog.get_command(click.Context(rolloutlog), name) is not None


def test_package_runs_as_the_command():
    done = subprocess.run([sys.executable, "-m", "rolloutlog", "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("rolloutlog, version ")


# streams and interrupts of the whole process

COMMAND = [sys.executable, "-c", "from rolloutlog.consumers.cli import main; main()"]


def run_shell(redirection: str, *arguments: str, program: list[str] = COMMAND) -> "subprocess.CompletedProcess[str]":
    line = f"{shlex.join([*program, *arguments])} {redirection}"
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)


def test_main_with_closed_output_prints_nothing_and_exits_0(tmp_path: Path):
    done = run_shell(">&-", "topics", "create", "--log", f"sqlite:///{tmp_path}/log.db")
    assert (done.returncode, done.stderr) == (0, "")


def test_main_with_closed_error_output_exits_with_its_code(tmp_path: Path):
    done = run_shell("2>&-", "topics", "check", "--log", f"sqlite:///{tmp_path}/log.db")
    assert (done.returncode, done.stdout) == (3, "")


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "日"), ("latin-1", r"\u65e5")])
def test_main_where_the_locale_is_not_utf_8_prints_all_the_same(encoding: str, shown: str, tmp_path: Path):
    log = ["--log", f"sqlite:///{tmp_path}/日.db"]
    program = ["env", f"PYTHONIOENCODING={encoding}", *COMMAND]
    done = [run_shell("2>&1", *command, *log, program=program) for command in (["topics", "create"], ["status"])]
    assert [each.returncode for each in done] == [0, 0]
    assert f"/{shown}.db: 4 partitions" in done[1].stdout


@pytest.mark.parametrize("arguments", [["status"], ["doctor"], ["topics", "check"]], ids=lambda value: value[0])
def test_main_whose_reader_is_gone_ends_in_silence_and_exits_0(tmp_path: Path, arguments: list[str]):
    """Such as `head`. What prints tables has a way of its own to end a program then."""
    log = ["--log", f"sqlite:///{tmp_path}/log.db"]
    subprocess.run([*COMMAND, "topics", "create", *log], check=True, capture_output=True, timeout=60)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, *arguments, *log], stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["topics", "create"], ["--help"], ["--version"]], ids=lambda value: value[0])
def test_main_that_cannot_print_says_so_in_one_line_and_exits_1(tmp_path: Path, arguments: list[str]):
    log = [] if "--" in arguments[0] else ["--log", f"sqlite:///{tmp_path}/log.db"]
    done = run_shell(">/dev/full", *arguments, *log)
    assert done.stderr == "error: standard output could not be written: No space left on device\n"
    assert done.returncode == 1


def test_main_that_cannot_read_a_file_names_it_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    command(monkeypatch, PermissionError(errno.EACCES, "Permission denied", "runs.jsonl"))
    assert code_of(monkeypatch, "topics") == 1
    assert capsys.readouterr().err == "error: runs.jsonl: Permission denied\n"


def test_main_with_a_log_path_that_is_too_long_exits_2_naming_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert code_of(monkeypatch, "topics", "check", "--log", f"sqlite:////{'a' * 300}.db") == 2
    assert "aaa.db: expected a path" in capsys.readouterr().err.replace("'", "")


INTERRUPT_IMPORTS = """
import os, signal, sys
from importlib.abc import MetaPathFinder

module = sys.argv[1]

class Interrupt(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from rolloutlog.consumers.cli import main
sys.argv[1:] = ["topics", "check", "--log", "sqlite:////missing.db"]
main()
"""


@pytest.mark.parametrize(
    "module", ["numpy", "rolloutlog.eventstore.errors", "rolloutlog.consumers.cli.topics", "sqlite3"]
)
def test_main_interrupted_while_modules_load_says_aborted_and_exits_130(module: str):
    done = run_shell("", module, program=[sys.executable, "-c", INTERRUPT_IMPORTS])
    assert (done.returncode, done.stderr.strip()) == (130, "aborted")
