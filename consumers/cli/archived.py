"""The log that a command looks at, or an archive in front of it."""

from collections.abc import Callable
from typing import Any

import click

from rolloutlog.consumers.cli.configuration import Configuration
from rolloutlog.consumers.printable import printable
from rolloutlog.consumers.replaying.outputs import Output
from rolloutlog.eventstore.errors import InvalidSettings, LogMissing
from rolloutlog.eventstore.log import Log, open_log
from rolloutlog.eventstore.meta import read_run


def archive_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("--archive", metavar="URL", help=text)


async def open_looking_on(configuration: Configuration, archive_url: str | None) -> Log:
    """Open the log; with an archive, its events, and of the log, which may be missing, what it has beside them."""
    if archive_url is None:
        return await open_log(configuration.url())
    from rolloutlog.consumers.archiving import open_archive
    from rolloutlog.consumers.archiving.beside import beside

    archive = await open_archive(archive_url)
    log = None
    try:
        if configuration.log is not None:
            try:
                log = await open_log(configuration.log)
            except LogMissing as error:
                click.echo(printable(f"{error}; looking at the archive alone"), err=True)
        return await beside(archive, log)
    except BaseException:
        await archive.close()
        if log is not None:
            await log.close()
        raise


async def check_source(log: Log, output: Output, archive_url: str | None) -> None:
    """Raise InvalidSettings when the events at hand are not those that the output was made of."""
    found = getattr(log, "run_id", None)  # of an archive, beside which there may be a log of another run
    if found is None:
        run = await read_run(log)
        found = None if run is None else run.run_id
    if found in (None, output.run_id):
        return
    if archive_url is None:
        raise InvalidSettings(
            f"output {output.name}: expected events of run {output.run_id}, of which it was made, got log {log.url} of "
            f"run {found}: give the archive with --archive; the output was made from {output.source}"
        )
    raise InvalidSettings(
        f"output {output.name}: expected an archive of run {output.run_id}, of which it was made, got archive "
        f"{log.url} of run {found}"
    )
