"""The demo's processes: started, watched, and ended with it, however it ends.

Each has a session of its own, so that Ctrl-C reaches the demo alone, and an input that we hold: it closes when we are
gone, and the process then stops as by SIGTERM (consumers.demo.child). What it writes goes to `{name}.log`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rolloutlog.eventstore.errors import StoreError

STOP_S = 10.0  # from SIGTERM to SIGKILL
POLL_S = 0.02
LINES_SHOWN = 20  # of what a process wrote, in the text of an error

# Arrays here are small: threads of the linear algebra would only take the cores from the other processes.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class ChildFailed(StoreError):
    """A process of the demo failed, or did not do its work in time; the text ends with what it wrote."""


class Children:
    """The processes by name. As a context manager it ends them all when its block is left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Start `python -m rolloutlog.consumers.demo.child arguments…`."""
        with self._log(name).open("wb") as output:
            self._running[name] = subprocess.Popen(
                # -P: files of the folder that it is started in are not taken for Python's own modules.
                [sys.executable, "-P", "-m", "rolloutlog.consumers.demo.child", *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=_environment(os.environ),
            )

    def check(self) -> None:
        """Raises ChildFailed when a process ended with an exit code other than 0."""
        for name, child in self._running.items():
            if child.poll():
                raise ChildFailed(f"{name} ended with exit code {child.returncode}{self.written(name)}")

    def stop(self, *names: str) -> None:
        """Tell processes to stop, by closing their input, which one that is only starting sees too."""
        for name in names:
            stdin = self._running[name].stdin
            assert stdin is not None
            stdin.close()

    def wait(self, *names: str, timeout_s: float) -> None:
        """Wait until these have ended. Raises ChildFailed when one fails, of any, or is not done in time."""
        deadline = time.monotonic() + timeout_s
        while running := [name for name in names if self._running[name].poll() is None]:
            self.check()
            if time.monotonic() > deadline:
                raise ChildFailed(f"{running[0]} did not end within {timeout_s:.0f} s{self.written(running[0])}")
            time.sleep(POLL_S)
        self.check()

    def written(self, *names: str) -> str:
        """The last lines that processes wrote, as the end of an error's text; of all when none is named."""
        texts = []
        for name in names or self._running:
            lines = self._log(name).read_text("utf-8", "replace").splitlines()[-LINES_SHOWN:]
            texts.append(f"; {name} wrote " + ("\n  ".join(["this:", *lines]) if lines else "nothing"))
        return "".join(texts)

    def kill(self) -> None:
        """End all that still run: SIGTERM, after STOP_S SIGKILL."""
        for child in self._running.values():
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + STOP_S
        for child in self._running.values():
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdin is not None:
                child.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not leave any of them behind.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.kill()
        finally:
            signal.signal(signal.SIGINT, before)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Without settings of other runs, such as another log."""
    return {name: value for name, value in environment.items() if not name.startswith("ROLLOUTLOG_")} | ENVIRONMENT
