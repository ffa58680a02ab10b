"""Progress of long commands: a bar with rate and time left, on a terminal's standard error alone."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID

TELL_S = 0.05


class Bars:
    """Bars by name, each made when it is first told of. `shown` False: they do nothing."""

    def __init__(self, progress: "Progress | None") -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._next = 0.0

    @property
    def shown(self) -> bool:
        return self._progress is not None

    def tell(self, name: str, done: int, total: int | None) -> None:
        """So much of it is done; `total` None = not known."""
        now = monotonic()
        if self._progress is None or (now < self._next and done != total):
            return
        self._next = now + TELL_S  # drawing takes longer than most of what is counted
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total)
        self._progress.update(self._tasks[name], completed=done, total=total)


@contextmanager
def bars(*, prints: bool = False, speed_s: float = 30.0) -> Iterator[Bars]:
    """Show bars while the block runs.

    prints   the block writes to standard output: bars are shown only when that is not the same terminal
    speed_s  rate and time left are of the last so many seconds
    """
    if not sys.stderr.isatty() or (prints and sys.stdout.isatty()):
        yield Bars(None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: "Task") -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f}/s")

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), Rate(), TimeRemainingColumn())
    # Standard output stays as it is: lines that go into a file or a pipe are not the bar's affair.
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=False, speed_estimate_period=speed_s
    ) as progress:
        yield Bars(progress)
