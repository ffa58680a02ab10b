"""`rolloutlog doctor`: does the log work from here, and what to do where it does not. One line a finding."""

from contextlib import aclosing
from pathlib import Path

import click

from rolloutlog.consumers.cli.configuration import load
from rolloutlog.consumers.cli.main import EXIT_DIFFERENT, EXIT_LOG
from rolloutlog.consumers.cli.options import log_option, run, settings_option
from rolloutlog.consumers.doctor import FAILED, OK, SKIPPED, WARNING, Finding, examine

COLOURS = {OK: "green", WARNING: "yellow", FAILED: "red", SKIPPED: None}


@click.command()
@log_option
@settings_option
@click.option("--alive", is_flag=True, help="Only: has every partition a living assembler? For health checks.")
def doctor(settings: Path | None, log: str | None, alive: bool) -> None:
    """Check a log from this host: reach, topics, rights, disk, clocks, an event there and back, who runs.

    Safe beside a running system: it adds one event, which changes nothing; with --alive not even that. Exit code 1:
    something failed; 3: the log can't be reached.
    """
    url = load(settings, {"log": log}).url()
    failed = run(_examine(url, alive))
    if "reach" in failed:
        raise click.exceptions.Exit(EXIT_LOG)
    if failed:
        raise click.exceptions.Exit(EXIT_DIFFERENT)


async def _examine(url: str, alive: bool) -> list[str]:
    """Print findings as they come; returns the names of those that failed."""
    failed = []
    async with aclosing(examine(url, only_alive=alive)) as findings:
        async for finding in findings:
            _print(finding)
            if finding.outcome == FAILED:
                failed.append(finding.name)
    return failed


def _print(finding: Finding) -> None:
    outcome = click.style(f"{finding.outcome:<8}", fg=COLOURS[finding.outcome], bold=finding.outcome == FAILED)
    click.echo(f"{outcome} {finding.name:<10} {finding.text}")
    if finding.fix:
        click.echo(f"{'':19} → {finding.fix}")
