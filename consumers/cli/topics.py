"""`rolloutlog topics`: make the topics of a log, or say where they differ from what is needed."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rolloutlog.consumers.cli.configuration import load
from rolloutlog.consumers.cli.main import EXIT_DIFFERENT
from rolloutlog.consumers.cli.options import log_option, run, settings_option
from rolloutlog.eventstore.log import EVENTS, Difference, open_log
from rolloutlog.eventstore.meta import Run, read_run
from rolloutlog.eventstore.topics import create_topics, topic_settings


@click.group()
def topics() -> None:
    """Make and check the topics of a log."""


@topics.command()
@log_option
@settings_option
@click.option(
    "--partitions", type=click.IntRange(1, 10_000), help="Of events, fixed for ever. Default: 32, embedded 4."
)
def create(settings: Path | None, log: str | None, partitions: int | None) -> None:
    """Create the topics that are missing, and the run. Existing topics stay as they are."""
    url = load(settings, {"log": log}).url()
    this_run = run(_create(url, partitions))
    click.echo(f"run {this_run.run_id}: {this_run.partitions} partitions of {EVENTS}")


@topics.command()
@log_option
@settings_option
def check(settings: Path | None, log: str | None) -> None:
    """Compare partitions, retention, limits, log time and cleanup with what is needed. Exit code 1: they differ."""
    url = load(settings, {"log": log}).url()
    differences, this_run = run(_check(url))
    if this_run is None:
        differences.append(Difference("meta", "run", "a run", "none"))
    if not differences:
        click.echo("all topics are as wanted")
        return
    table = Table("topic", "setting", "expected", "found")
    for each in differences:
        table.add_row(each.topic, each.setting, each.expected, each.found or "missing")
    Console().print(table)
    raise click.exceptions.Exit(EXIT_DIFFERENT)


async def _create(url: str, partitions: int | None) -> Run:
    log = await open_log(url, create=True)
    try:
        return await create_topics(log, partitions=partitions)
    finally:
        await log.close()


async def _check(url: str) -> tuple[list[Difference], Run | None]:
    log = await open_log(url)
    try:
        # The partition count is the log's own choice, made when it was created: all topics must agree with it.
        this_run = await read_run(log)
        count = this_run.partitions if this_run is not None else await log.partitions(EVENTS)
        differences: list[Any] = await log.differences(topic_settings(partitions=count))
        return differences, this_run
    finally:
        await log.close()
