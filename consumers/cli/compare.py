"""`rolloutlog compare`: two outputs side by side."""

import json
from pathlib import Path
from typing import Any

import click

from rolloutlog.consumers.cli.batches import say_refused
from rolloutlog.consumers.cli.configuration import Configuration, load, parse_partitions
from rolloutlog.consumers.cli.main import EXIT_DIFFERENT
from rolloutlog.consumers.cli.options import log_option, run, settings_option
from rolloutlog.consumers.cli.printing import print_lines
from rolloutlog.consumers.cli.progress import bars
from rolloutlog.consumers.comparing.as_json import comparison_json
from rolloutlog.consumers.comparing.comparison import EXAMPLES, Compared
from rolloutlog.consumers.comparing.lines import comparison_lines
from rolloutlog.consumers.comparing.reading import compare_outputs
from rolloutlog.consumers.comparing.sides import Sides
from rolloutlog.consumers.printable import printable
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import open_log

NAMES_SHOWN = 20


@click.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@log_option
@settings_option
@click.option("--partitions", metavar="WHICH", help="all (default), 0-3, or i/n: the i-th of n equal shares.")
@click.option("--reward", "names", metavar="NAME", multiple=True, help="Only rewards of this name; may be repeated.")
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=EXAMPLES,
    show_default=True,
    metavar="N",
    help="How many of each kind of change to show.",
)
@click.option("--json", "plain_json", is_flag=True, help="Print one JSON object instead.")
def compare(
    before: str,
    after: str,
    settings: Path | None,
    names: tuple[str, ...],
    top: int,
    plain_json: bool,
    **flags: Any,
) -> None:
    """Compare two outputs, rollout by rollout.

    A and B are names of outputs that replays made, or `live`: what was assembled. By reward: how values are spread, by
    policy version and task, and which rollouts changed most. Then whose advantages change their sign, which samples are
    in one alone and why, how rollouts ended, and what became of rewards.

    Exit code 1: no rollout is in both.
    """
    if before == after:
        raise InvalidSettings(f"compare: expected two different outputs, got {before!r} twice")
    found, sides = run(_compare(load(settings, flags), before, after, names, top))
    if found.unknown and found.both:
        known = ", ".join(found.names[:NAMES_SHOWN]) + (" and more" if len(found.names) > NAMES_SHOWN else "")
        raise InvalidSettings(
            printable(
                f"--reward {', '.join(found.unknown)}: expected names of rewards in {before} or {after}, which are "
                f"{known or 'none'}; got none of that name"
            )
        )
    if plain_json:
        click.echo(json.dumps(comparison_json(found, sides), allow_nan=False))
    else:
        print_lines(comparison_lines(found, sides, top=top))
    if not found.both:
        click.echo("nothing to compare: no rollout is in both", err=True)
        raise click.exceptions.Exit(EXIT_DIFFERENT)
    missing = sorted(set(names) - {each.name for each in found.rewards})
    if missing:
        click.echo(printable(f"no value of reward {', '.join(missing)} in either"), err=True)


async def _compare(
    configuration: Configuration, before: str, after: str, names: tuple[str, ...], top: int
) -> tuple[Compared, Sides]:
    log = await open_log(configuration.url())
    try:
        with bars() as shown:
            return await compare_outputs(
                log,
                before,
                after,
                which=lambda count: parse_partitions(configuration.partitions, count),
                names=names,
                top=top,
                candidates=(configuration.assembler().fold, FoldSettings()),
                on_refused=say_refused,
                on_progress=shown.tell,
            )
    finally:
        await log.close()
