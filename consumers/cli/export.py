"""`rolloutlog export`: write events of the log to files.

Not here  how an event is written: consumers.importing.event_json; samples of batches: `rolloutlog batches export`
"""

import gzip
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from time import time_ns
from typing import IO, Any

import click

from rolloutlog.consumers.cli.configuration import Configuration, load, parse_partitions
from rolloutlog.consumers.cli.options import log_option, run, settings_option
from rolloutlog.consumers.cli.progress import bars
from rolloutlog.consumers.importing.event_json import record_line
from rolloutlog.consumers.importing.exported import Bound, Selection, each_record
from rolloutlog.consumers.importing.inputs import STANDARD_INPUT, naming
from rolloutlog.consumers.printable import printable
from rolloutlog.consumers.times import parse_time
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import EVENTS, open_log

STANDARD_OUTPUT = STANDARD_INPUT
NAME_BYTES_MAX = 255


@click.group(name="export")
def export_group() -> None:
    """Write events of the log to files."""


@export_group.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@log_option
@settings_option
@click.option("--partitions", metavar="WHICH", help="all (default), 0-3, or i/n: the i-th of n equal shares.")
@click.option(
    "--from",
    "begin",
    metavar="WHERE",
    help="Begin at this offset of each partition, or at this log time: 2026-01-31 (UTC), 2026-01-31T12:00Z, -2h.",
)
@click.option("--to", "end", metavar="WHERE", help="End before this offset or log time.")
@click.option("--group", "groups", metavar="ID", multiple=True, help="Only this group's records. May be repeated.")
@click.option("--rollout", "rollouts", metavar="ID", multiple=True, help="Only this rollout's events; may be repeated.")
def jsonl(
    file: Path,
    settings: Path | None,
    begin: str | None,
    end: str | None,
    groups: tuple[str, ...],
    rollouts: tuple[str, ...],
    **flags: Any,
) -> None:
    """Write every record of the events topic as one JSON line, by partition and offset; `import jsonl` reads them.

    FILE is written beside, and appears once it is whole; a name that ends in .gz is compressed; - is standard output.
    """
    bounds = [None if text is None else parse_bound(text, name) for text, name in ((begin, "--from"), (end, "--to"))]
    selection = Selection(frozenset(each.encode(errors="surrogateescape") for each in groups), frozenset(rollouts))
    run(_export(load(settings, flags), file, bounds[0], bounds[1], selection))


async def _export(
    configuration: Configuration, file: Path, begin: Bound | None, end: Bound | None, selection: Selection
) -> None:
    log = await open_log(configuration.url())
    count = 0
    try:
        partitions = parse_partitions(configuration.partitions, await log.partitions(EVENTS))
        with bars(prints=str(file) == STANDARD_OUTPUT) as shown, _output(file) as out:
            found = each_record(log, partitions, begin=begin, end=end, selection=selection, on_progress=shown.tell)
            async with aclosing(found) as records:
                async for record in records:
                    out.write(record_line(record).encode() + b"\n")
                    count += 1
    finally:
        await log.close()
    if str(file) != STANDARD_OUTPUT:
        click.echo(printable(f"{file}: {count} events"))


@contextmanager
def _output(file: Path) -> Iterator[IO[bytes]]:
    """What to write to. A file takes its name when it is whole."""
    if str(file) == STANDARD_OUTPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        target = file.resolve()  # a link's own place may be on another disk, and a device that is replaced is gone
    except RuntimeError as error:  # so pathlib says that links go in a circle
        raise InvalidSettings(f"{file}: expected a file, or a name for one, got a link that leads to itself") from error
    if target.exists() and not target.is_file():
        raise InvalidSettings(f"{file}: expected a file, or a name for one; it is something else, and is left as it is")
    part = target.with_name(_part_name(target.name))
    try:
        with naming(file), part.open("wb") as plain:
            if file.name.endswith(".gz"):
                with gzip.GzipFile(filename="", mode="wb", fileobj=plain, mtime=0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield plain
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _part_name(name: str) -> str:
    """A name beside it, not longer than a file system takes."""
    end = f".{secrets.token_hex(4)}.part"
    return os.fsdecode(os.fsencode(name)[: NAME_BYTES_MAX - len(end)]) + end


def parse_bound(text: str, name: str, *, now_ns: int | None = None) -> Bound:
    """An offset, or a log time. Raises InvalidSettings naming the option."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        return Bound(offset=int(text))
    try:
        return Bound(time_ns=parse_time(text, time_ns() if now_ns is None else now_ns))
    except InvalidSettings as error:
        raise InvalidSettings(f"{name}: an offset, or a {error}") from error
