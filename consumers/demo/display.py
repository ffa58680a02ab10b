"""What the demo shows: a table that grows while it runs on a terminal, else a line now and then."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rolloutlog.consumers.demo.progress import Progress
from rolloutlog.consumers.demo.settings import SOLVED

POINTS_MAX = 12  # rows of the table
BAR_CELLS = 32  # with the other columns, 80 in all
LINES_S = 3.0  # between two lines where there is no terminal
FRAMES_A_SECOND = 4
EIGHTHS = " ▏▎▍▌▋▊▉"


class Display:
    """Shows progress. As a context manager it leaves the last state behind."""

    def __init__(self, console: Console, began_s: float) -> None:
        self._console = console
        self._began_s = began_s
        self._line_s = began_s
        live = console.is_terminal
        self._live = Live(console=console, refresh_per_second=FRAMES_A_SECOND) if live else None

    def show(self, progress: Progress) -> None:
        """Called often; shows as much as is good to read."""
        now_s = time.monotonic()
        if self._live is not None:
            self._live.update(Group(_line(progress, now_s - self._began_s), curve(progress)))
        elif now_s - self._line_s >= LINES_S:
            self._line_s = now_s
            self._console.print(_line(progress, now_s - self._began_s), soft_wrap=True)

    def finish(self, progress: Progress) -> None:
        """Show the last state."""
        if self._live is None:
            self._console.print(curve(progress))
        else:
            self.show(progress)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


def curve(progress: Progress) -> Table:
    """Mean final reward by policy version."""
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("policy version", justify="right")
    table.add_column("rollouts", justify="right")
    table.add_column("mean final reward", justify="right")
    table.add_column("", min_width=BAR_CELLS)
    for point in progress.curve(POINTS_MAX):
        versions = f"{point.first}" if point.first == point.last else f"{point.first}-{point.last}"
        style = "green" if point.mean >= SOLVED else ""
        table.add_row(versions, f"{point.rollouts:,}", f"{point.mean:.2f}", Text(bar(point.mean), style=style))
    return table


def bar(share: float) -> str:
    """A bar of BAR_CELLS cells for 1.0."""
    eighths = round(max(0.0, min(1.0, share)) * BAR_CELLS * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def _line(progress: Progress, seconds: float) -> Text:
    """One line of 80 columns. The mean reward is that of the last rollouts."""
    recent = f"{progress.recent:.2f}" if progress.recent is not None else "-"
    return Text(
        f"{seconds:5.1f} s  step {progress.steps}, staleness {progress.staleness} (max {progress.staleness_max}), "
        f"{progress.rollouts:,} rollouts ({progress.rollouts / max(seconds, 0.1):.0f}/s), mean reward {recent}"
    )
