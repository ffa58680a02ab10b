"""`rolloutlog doctor`: does the log work from here, and what to do where it does not. One line a finding."""

from contextlib import aclosing
from pathlib import Path

import click

from rolloutlog.consumers.cli.configuration import load
from rolloutlog.consumers.cli.main import EXIT_DIFFERENT, EXIT_LOG
from rolloutlog.consumers.cli.options import log_option, run, settings_option
from rolloutlog.consumers.doctor import FAILED, OK, SKIPPED, WARNING, Finding, examine
from rolloutlog.consumers.limits import Limits
from rolloutlog.consumers.printable import printable

LINES = "\n\t"  # an error's text may end with lines of another program
COLOURS = {OK: "green", WARNING: "yellow", FAILED: "red", SKIPPED: None}


@click.command(short_help="Check a log from this host, and say what to do.")
@log_option
@settings_option
@click.option("--alive", is_flag=True, help="Only: has every partition a living assembler? For health checks.")
def doctor(settings: Path | None, log: str | None, alive: bool) -> None:
    """Check a log from this host: reach, topics, rights, disk, clocks, an event there and back, who runs.

    Safe beside a running system: it adds one event, which changes nothing; with --alive not even that. Exit code 1:
    something failed; 3: the log can't be reached.
    """
    configuration = load(settings, {"log": log})
    failed = run(_examine(configuration.url(), alive, configuration.limits()))
    if "reach" in failed:
        raise click.exceptions.Exit(EXIT_LOG)
    if failed:
        raise click.exceptions.Exit(EXIT_DIFFERENT)


async def _examine(url: str, alive: bool, limits: Limits) -> list[str]:
    """Print findings as they come; returns the names of those that failed."""
    failed = []
    async with aclosing(examine(url, only_alive=alive, limits=limits)) as findings:
        async for finding in findings:
            _print(finding)
            if finding.outcome == FAILED:
                failed.append(finding.name)
    return failed


def _print(finding: Finding) -> None:
    outcome = click.style(f"{finding.outcome:<8}", fg=COLOURS[finding.outcome], bold=finding.outcome == FAILED)
    click.echo(f"{outcome} {finding.name:<10} {printable(finding.text, keep=LINES)}")
    if finding.fix:
        click.echo(f"{'':19} → {printable(finding.fix, keep=LINES)}")
