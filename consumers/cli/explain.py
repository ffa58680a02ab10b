"""`rolloutlog explain`: one rollout, its spans and calls, and where each of its rewards went."""

import json
from pathlib import Path

import click
from rich.console import Console

from rolloutlog.consumers.cli.configuration import Configuration, load
from rolloutlog.consumers.cli.main import EXIT_DIFFERENT
from rolloutlog.consumers.cli.options import log_option, run, settings_option
from rolloutlog.consumers.cli.progress import bars
from rolloutlog.consumers.explain import Found, as_json, find_rollout, render
from rolloutlog.consumers.finding import RolloutUnknown
from rolloutlog.eventstore.log import open_log


@click.command()
@click.argument("rollout_id")
@log_option
@settings_option
@click.option("--json", "plain_json", is_flag=True, help="Print one JSON object instead.")
def explain(rollout_id: str, settings: Path | None, log: str | None, plain_json: bool) -> None:
    """Show one rollout: how it ended, its spans and calls, and where each reward went and why.

    ROLLOUT_ID may be cut to its first characters, 4 or more. Looks through the batches, then the events.
    Exit code 1: there is no such rollout, or there are several.
    """
    try:
        found = run(_find(load(settings, {"log": log}), rollout_id))
    except RolloutUnknown as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(EXIT_DIFFERENT) from None
    if plain_json:
        click.echo(json.dumps(as_json(found)))
    else:
        # Lines as they are: a pipe, or the terminal itself, breaks them where it likes.
        Console().print(render(found), soft_wrap=True, highlight=False)


async def _find(configuration: Configuration, rollout_id: str) -> Found:
    log = await open_log(configuration.url())
    try:
        with bars() as shown:
            return await find_rollout(log, rollout_id, settings=configuration.assembler().fold, on_progress=shown.tell)
    finally:
        await log.close()
