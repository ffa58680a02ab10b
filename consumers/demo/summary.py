"""What the demo says at its end: counts, the ledger, and where the rewards of one rollout with two calls went."""

from typing import NamedTuple

from rich.console import Console

from rolloutlog.consumers.cli.status import ledger_lines
from rolloutlog.consumers.demo.progress import Progress
from rolloutlog.consumers.demo.settings import READER, RECENT
from rolloutlog.consumers.explaining.explain import Found, find_rollout, render
from rolloutlog.consumers.ledger import Ledger
from rolloutlog.consumers.ledger_reading import read_ledger
from rolloutlog.eventstore.log import open_log


class End(NamedTuple):
    """What stands in the log at the end. `example`: the rollout that the progress names."""

    ledger: Ledger
    example: Found | None


async def read_end(url: str, progress: Progress) -> End:
    """Read it, as `rolloutlog status --ledger` and `rolloutlog explain` do."""
    log = await open_log(url)
    try:
        ledger = await read_ledger(log, reader=READER)
        example = None if progress.example is None else await find_rollout(log, progress.example)
        return End(ledger, example)
    finally:
        await log.close()


def show_end(console: Console, progress: Progress, end: End, seconds: float) -> None:
    console.print(
        f"\n{seconds:.1f} s: {progress.rollouts:,} rollouts, {progress.samples:,} samples, {progress.steps} steps, "
        f"greatest staleness {progress.staleness_max}\n"
        f"mean final reward {_number(progress.mean(0))} at policy version 0, {_number(progress.recent)} over the last "
        f"{RECENT} rollouts",
        soft_wrap=True,
        highlight=False,
    )
    for line in ledger_lines(end.ledger):
        console.print(line, soft_wrap=True, highlight=False)
    if end.example is not None:
        console.print()
        console.print(render(end.example), soft_wrap=True, highlight=False)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
