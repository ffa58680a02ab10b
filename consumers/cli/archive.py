"""`rolloutlog archive`: keep a log's events and re-scores as files, beyond its retention; check what is kept."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rolloutlog.consumers.cli.configuration import Configuration, load, parse_partitions
from rolloutlog.consumers.cli.main import EXIT_DIFFERENT
from rolloutlog.consumers.cli.options import log_option, run, settings_option, stop_on_signals
from rolloutlog.consumers.cli.progress import Bars, bars
from rolloutlog.consumers.printable import printable
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import EVENTS, open_log

if TYPE_CHECKING:
    from rolloutlog.consumers.archiving.archiver import Archiver
    from rolloutlog.consumers.archiving.lanes import Archived, ArchiverSettings
    from rolloutlog.consumers.archiving.verifying import Report, Span

ENVIRONMENT = "ROLLOUTLOG_ARCHIVE"
TELL_S = 0.25
UNNAMED_SHOWN = 10


class ArchiveGroup(click.Group):
    """Its first argument may be the archive's URL, as that of `verify` is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["--to", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            ctx.fail(f"expected {' or '.join(self.commands)}, got {args[0]!r}; give an archive first, or with --to")
        return super().resolve_command(ctx, args)


def _to_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--to",
        metavar="URL",
        envvar=ENVIRONMENT,
        help=f"The archive: a folder, or a URL that fsspec opens, such as s3://bucket/archive. Default: {ENVIRONMENT}.",
    )(command)


@click.group(
    cls=ArchiveGroup,
    invoke_without_command=True,
    subcommand_metavar="[URL] [OPTIONS] | verify [URL]",
    options_metavar="",
)
@log_option
@settings_option
@_to_option
@click.option("--until-end", is_flag=True, help="Read to the ends seen at start, store, exit 0.")
@click.option("--partitions", metavar="WHICH", help="all (default), 0-3, or i/n: the i-th of n equal shares.")
@click.option("--chunk-s", type=float, help="Store what is this old, however little it is. Default: 300 seconds.")
@click.option("--chunk-bytes", type=int, help="Store what is this large, in bytes of values. Default: 64 MiB.")
@click.option("--on-history-lost", help="What retention removed before: fail (default), or skip and say so.")
@click.pass_context
def archive(
    context: click.Context,
    /,
    settings: Path | None,
    to: str | None,
    until_end: bool,
    chunk_s: float | None,
    chunk_bytes: int | None,
    **flags: Any,
) -> None:
    """Archive events and re-scores as Parquet and Avro files.

    Each record once, whatever stops it: it goes on where the archive ends. Runs until it is stopped (SIGINT or SIGTERM:
    stores what it has, exits 0).
    """
    if context.invoked_subcommand is not None:
        return
    configuration = load(settings, flags)
    to = _given(to)
    try:
        from rolloutlog.consumers.archiving.lanes import ArchiverSettings
    except ModuleNotFoundError as error:
        raise InvalidSettings(str(error)) from error
    given = {"chunk_s": chunk_s, "chunk_bytes": chunk_bytes, "on_history_lost": configuration.on_history_lost}
    how = ArchiverSettings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    _print_archived(to, run(_archive(configuration, to, how, until_end)))


@archive.command()
@click.argument("url", metavar="URL", required=False)
@_to_option
@click.pass_context
def verify(context: click.Context, url: str | None, to: str | None) -> None:
    """Check every file and record of an archive. Exit code 1: something is wrong, and what."""
    named = {url, None if _from_environment(context) else to, _named_before(context)} - {None}
    if len(named) > 1:
        raise click.UsageError(f"give one archive, got {' and '.join(sorted(map(repr, named)))}")
    url = _given(named.pop() if named else to)
    try:
        from rolloutlog.consumers.archiving.verifying import verify as check
    except ModuleNotFoundError as error:
        raise InvalidSettings(str(error)) from error
    from rolloutlog.consumers.archiving.storage import open_storage

    storage = open_storage(url)
    try:
        with bars() as shown:
            report = check(storage, on_progress=lambda done, total: shown.tell("verifying", done, total))
    finally:
        storage.close()
    _print_report(report)
    if report.faults:
        raise click.exceptions.Exit(EXIT_DIFFERENT)


def _given(url: str | None) -> str:
    if not url:
        raise InvalidSettings(f"no archive given: use --to FOLDER or --to s3://bucket/archive, or set {ENVIRONMENT}")
    return url


def _from_environment(context: click.Context) -> bool:
    return context.get_parameter_source("to") is ParameterSource.ENVIRONMENT


def _named_before(context: click.Context) -> str | None:
    """The archive that was given before the subcommand's name."""
    before = context.parent
    return None if before is None or _from_environment(before) else before.params.get("to")


async def _archive(configuration: Configuration, to: str, how: "ArchiverSettings", until_end: bool) -> "Archived":
    from rolloutlog.consumers.archiving.archiver import Archiver
    from rolloutlog.consumers.archiving.storage import open_storage

    storage = open_storage(to)
    log = await open_log(configuration.url())
    try:
        archiver = Archiver(log, storage, how)
        archiver.stop = stop_on_signals()
        partitions = parse_partitions(configuration.partitions, await log.partitions(EVENTS))
        if not until_end:
            return await archiver.run(partitions)
        with bars() as shown:
            teller = asyncio.create_task(_tell(archiver, shown))
            try:
                return await archiver.run(partitions, until_end=True)
            finally:
                teller.cancel()
    finally:
        await log.close()
        storage.close()


async def _tell(archiver: "Archiver", shown: Bars) -> None:
    while shown.shown:
        shown.tell("archiving", *archiver.progress())
        await asyncio.sleep(TELL_S)


def _print_archived(to: str, archived: "Archived") -> None:
    from rolloutlog.consumers.archiving.storage import shown

    refused = f", {archived.refused} of them no events" if archived.refused else ""
    click.echo(f"{printable(shown(to))}: {archived.records} records{refused}, in {archived.chunks} chunks")
    for entry in archived.lost:
        click.echo(f"lost: {entry.topic}/{entry.partition}: offsets {entry.first} to {entry.end - 1}", err=True)
    if archived.orphans_removed:
        click.echo(f"removed {archived.orphans_removed} files that an earlier archiver left behind", err=True)


def _print_report(report: "Report") -> None:
    click.echo(f"run {printable(report.run.run_id)}, {report.run.partitions} partitions")
    for span in report.spans:
        click.echo(_line(span))
        for first, last in span.lost:
            click.echo(f"{span.topic}/{span.partition}: lost before it was archived: offsets {first} to {last}")
    if report.unnamed:
        click.echo(f"{len(report.unnamed)} files that no manifest entry names, and no reader reads:")
    for name in report.unnamed[:UNNAMED_SHOWN]:
        click.echo(f"  {printable(name)}")
    for fault in report.faults:
        click.echo(printable(f"fault: {fault}"))
    click.echo(f"{len(report.faults)} faults" if report.faults else "no faults")


def _line(span: "Span") -> str:
    if span.first_log_time_ns is None or span.last_log_time_ns is None:
        return f"{span.topic}/{span.partition}: offsets below {span.end}, no records"
    times = f"{_time(span.first_log_time_ns)} to {_time(span.last_log_time_ns)}"
    refused = f" ({span.refused} no events)" if span.refused else ""
    return (
        f"{span.topic}/{span.partition}: offsets below {span.end}, {span.count} records{refused} in {span.chunks} "
        f"chunks, {times}, {span.size_bytes} bytes"
    )


def _time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
