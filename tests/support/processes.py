"""Processes of the command `rolloutlog`, watched through their standard error while they run."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("rolloutlog"))
SETTINGS = "ROLLOUTLOG_"
DEADLINE_S = 60.0  # generous: a busy machine may take seconds to start a process

STEP = re.compile(r"partition (\d+): step (\w+)$")

_started: list["Command"] = []

OnStep = Callable[["Command", int, str], None]


class Command:
    """A running `rolloutlog` command. A thread reads its standard error line by line and tells `on_step` of each step.

    steps      (partition, step) in the order in which they were printed
    stderr     all lines but those of steps, and of drivers at level debug
    """

    def __init__(
        self, *arguments: str, on_step: OnStep | None = None, path: Path | None = None, **settings: object
    ) -> None:
        """Start it. `settings` become its environment: `commit_events=5` is ROLLOUTLOG_COMMIT_EVENTS=5.

        path  a folder with modules that it may import
        """
        self.steps: list[tuple[int, str]] = []
        self._lines: list[str] = []
        self._on_step = on_step
        self._changed = threading.Condition()
        self._printed: list[str] = []
        self.process = subprocess.Popen(
            [COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(settings) | ({} if path is None else {"PYTHONPATH": str(path)}),
        )
        _started.append(self)
        self._readers = [threading.Thread(target=each, daemon=True) for each in (self._read_stderr, self._read_stdout)]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        with self._changed:
            return "".join(self._lines)

    @property
    def stdout(self) -> str:
        """All of it, once the process has ended."""
        return "".join(self._printed)

    @property
    def printed(self) -> list[str]:
        """Whole lines of its standard output so far."""
        return list(self._printed)

    def finish(self, timeout_s: float = DEADLINE_S) -> int:
        """Wait for its end and for all that it wrote; returns the exit code, negative = the signal that killed it."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(
                f"still running after {timeout_s:.0f} s: {self.process.args}\n{self._tail()}"
            ) from None
        for reader in self._readers:
            reader.join(timeout_s)
        return code

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def terminate(self) -> None:
        """SIGTERM."""
        self.process.terminate()

    def wait_for_steps(self, partition: int, step: str, count: int = 1, timeout_s: float = DEADLINE_S) -> None:
        """Wait until the partition has begun `step` `count` times in all."""
        self._wait(lambda: self.steps.count((partition, step)) >= count, f"{count} x {step} of {partition}", timeout_s)

    def wait_for_text(self, text: str, timeout_s: float = DEADLINE_S) -> None:
        """Wait until its standard error holds `text`."""
        self._wait(lambda: any(text in line for line in self._lines), repr(text), timeout_s)

    def _wait(self, met: Callable[[], bool], what: str, timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: met() or self.process.poll() is not None, timeout_s) or not met():
                raise AssertionError(f"expected {what} within {timeout_s:.0f} s, got:\n{self._tail()}")

    def _tail(self) -> str:
        return f"steps … {self.steps[-10:]}\n" + "".join(self._lines[-40:])

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            found = STEP.search(line.rstrip("\n"))
            if found:
                partition, step = int(found[1]), found[2]
                if self._on_step is not None:
                    self._on_step(self, partition, step)  # first of all: a kill must fall where it was aimed at
                with self._changed:
                    self.steps.append((partition, step))
                    self._changed.notify_all()
            elif " DEBUG " not in line:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _read_stdout(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._printed.append(line)


def assemble(
    url: str, *arguments: str, until_end: bool = True, on_step: OnStep | None = None, **settings: object
) -> Command:
    """Start an assembler that prints its steps."""
    end = ["--until-end"] if until_end else []
    return Command("--log-level", "debug", "assemble", "--log", url, *end, *arguments, on_step=on_step, **settings)


def kill_started() -> None:
    """Kill all commands that still run."""
    for command in _started:
        if command.process.poll() is None:
            command.kill()
            command.finish()
    _started.clear()


def wait_until(met: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> float:
    """Wait until `met()`; returns how many seconds it took."""
    start = time.monotonic()
    while not met():
        if time.monotonic() - start > timeout_s:
            raise AssertionError(f"expected {what} within {timeout_s:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - start


def _environment(settings: Mapping[str, object]) -> dict[str, str]:
    """Ours without what could change a command's settings, and `settings`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    return kept | {f"{SETTINGS}{name.upper()}": str(value) for name, value in settings.items()}
