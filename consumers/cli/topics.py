"""`rolloutlog topics`: make the topics of a log, say where they differ from what is needed, remove what is too old."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from rolloutlog.consumers.cli.configuration import load
from rolloutlog.consumers.cli.main import EXIT_DIFFERENT
from rolloutlog.consumers.cli.options import log_option, run, settings_option
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import EVENTS, Difference, open_log, parse_url
from rolloutlog.eventstore.log.sqlite_retention import ASSEMBLER, Cut, Retention
from rolloutlog.eventstore.meta import Run, read_run
from rolloutlog.eventstore.topics import create_topics, topic_settings


@click.group()
def topics() -> None:
    """Make, check and trim the topics of a log."""


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


@topics.command()
@log_option
@settings_option
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--without", metavar="NAME", multiple=True, help="A reader that will not come back: it holds nothing.")
@click.option("--shrink", is_flag=True, help="Give free space back: rewrites the file, writers wait meanwhile.")
def trim(settings: Path | None, log: str | None, dry_run: bool, without: tuple[str, ...], shrink: bool) -> None:
    """Remove what is older than its topic keeps, from an embedded log. Kafka's brokers do it by themselves.

    Events that the assembler still needs and batches that a reader has not acknowledged stay, however old.
    """
    url = load(settings, {"log": log}).url()
    if parse_url(url).scheme != "sqlite":
        raise InvalidSettings(
            f"log {url}: expected an embedded log, sqlite:///...; on Kafka the brokers remove what is older than each "
            "topic's retention.ms"
        )
    if ASSEMBLER in without:
        raise InvalidSettings(
            f"--without {ASSEMBLER}: what open groups need is never removed; expected a reader's name"
        )
    if dry_run and shrink:
        raise InvalidSettings("--dry-run and --shrink: expected one of them; --shrink rewrites the file")
    run(_trim(url, without, dry_run, shrink))


async def _trim(url: str, without: tuple[str, ...], dry_run: bool, shrink: bool) -> None:
    retention = await Retention.open(url, without=without)
    try:
        cuts = await retention.plan()
        removed = {cut: cut.records for cut in cuts} if dry_run else await _remove(retention, cuts)
        _print_removed(removed, "would be removed" if dry_run else "removed")
        if dry_run:
            return
        if shrink:
            before = (await retention.space()).file_bytes
            await retention.shrink()
            after = (await retention.space()).file_bytes
            click.echo(f"the file has {_megabytes(after)}, {_megabytes(max(before - after, 0))} less")
            return
        space = await retention.space()
        click.echo(
            f"{_megabytes(space.free_bytes)} of the file's {_megabytes(space.file_bytes)} are free for new records"
            + ("; --shrink gives them back" if space.free_bytes else "")
        )
    finally:
        await retention.close()


async def _remove(retention: Retention, cuts: list[Cut]) -> dict[Cut, int]:
    """Remove piece by piece; a bar shows how far, on a terminal."""
    console = Console(stderr=True)
    removed = dict.fromkeys(cuts, 0)
    columns = (TextColumn("removing"), BarColumn(), MofNCompleteColumn(), TextColumn("records"))
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=sum(cut.records for cut in cuts))
        for cut in cuts:
            while removed[cut] < cut.records and (count := await retention.remove(cut)):
                removed[cut] += count
                progress.advance(task, count)
    return removed


def _print_removed(removed: dict[Cut, int], done: str) -> None:
    for cut, count in removed.items():
        if count:
            # Of a piece that others held meanwhile, the share; it is seldom.
            size_bytes = cut.size_bytes * count // cut.records
            click.echo(f"{cut.topic}/{cut.partition}: {count} records {done}, {_megabytes(size_bytes)}")
        if cut.kept:
            click.echo(f"{cut.topic}/{cut.partition}: older records stay: {cut.kept}")
    total = sum(removed.values())
    if not total:
        click.echo("nothing is older than its topic keeps, or all of it is still needed")


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


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
