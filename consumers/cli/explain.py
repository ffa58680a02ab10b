"""`rolloutlog explain`: one rollout and where each of its rewards went; or what other settings would make of it, or of
many rollouts."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from rolloutlog.consumers.attribution import AttributionSettings, attribute
from rolloutlog.consumers.cli.configuration import Configuration, load
from rolloutlog.consumers.cli.main import EXIT_DIFFERENT
from rolloutlog.consumers.cli.options import attribution_options, log_option, run, settings_option
from rolloutlog.consumers.cli.progress import bars
from rolloutlog.consumers.explaining.account import Account, account_of
from rolloutlog.consumers.explaining.comparison import Comparison, compare, recorded_side, settings_words, side_of
from rolloutlog.consumers.explaining.explain import Found, find_rollout, lines
from rolloutlog.consumers.explaining.explain_json import as_json, survey_json
from rolloutlog.consumers.explaining.explain_tables import survey_lines
from rolloutlog.consumers.explaining.finding import RolloutUnknown
from rolloutlog.consumers.explaining.survey import Which, survey
from rolloutlog.consumers.explaining.tally import Tally
from rolloutlog.consumers.printable import printable
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import open_log

Named = tuple[str, AttributionSettings]


@click.command()
@click.argument("rollout_id", required=False)
@log_option
@settings_option
@attribution_options
@click.option("--diff", nargs=2, metavar="A B", help="Compare two policies, or two TOML settings files.")
@click.option("--task", "task_id", metavar="TASK_ID", help="With --diff: only rollouts of this task.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="With --diff: only the newest N published.")
@click.option(
    "--rollouts",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="With --diff: only the rollouts of this file, one id a line.",
)
@click.option("--json", "plain_json", is_flag=True, help="Print one JSON object instead.")
def explain(
    rollout_id: str | None,
    settings: Path | None,
    log: str | None,
    diff: tuple[str, str] | None,
    task_id: str | None,
    last: int | None,
    rollouts: Path | None,
    plain_json: bool,
    **flags: Any,
) -> None:
    """Show one rollout, and where each reward went and why.

    ROLLOUT_ID may be cut to its first characters, 4 or more. Looks through the batches, then the events. With settings
    of attribution, such as --policy nearest, also what they would make of it, beside what is recorded.

    --diff A B compares two settings: of one rollout, or of all published ones when no ROLLOUT_ID is given. A and B are
    policies or TOML files; other options hold for both.

    Exit code 1: there is no such rollout, or there are several; or nothing can be compared, as when its events are
    gone.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    narrowed = any(each is not None for each in (task_id, last, rollouts))
    if rollout_id is None and diff is None:
        raise click.UsageError("give a ROLLOUT_ID, or --diff A B to compare settings over all published rollouts")
    if narrowed and (rollout_id is not None or diff is None):
        raise click.UsageError("--task, --last and --rollouts say over which rollouts --diff A B goes")
    if diff is not None and "attribution_policy" in given:
        raise click.UsageError("--policy says what --diff already does; leave one of them out")
    asked = load(settings, {"log": log, **given})
    sides = None if diff is None else (_side(diff[0], settings, given), _side(diff[1], settings, given))
    if rollout_id is None:
        assert sides is not None
        which = Which(task_id, None if rollouts is None else _ids(rollouts), last)
        _show_survey(run(_survey(asked, sides, which)), which, plain_json)
        return
    base = load(settings, {"log": log})
    compared = sides is not None or settings is not None or bool(given)
    _explain(rollout_id, base, asked, sides, compared, plain_json)


def _explain(
    rollout_id: str, base: Configuration, asked: Configuration, sides: tuple[Named, Named] | None, compared: bool,
    plain_json: bool,
) -> None:  # fmt: skip
    candidates = tuple({each.config_hash: each for each in (_fold(base), _fold(asked), FoldSettings())}.values())
    try:
        found = run(_find(base, rollout_id))
    except RolloutUnknown as error:
        click.echo(printable(str(error)), err=True)
        raise click.exceptions.Exit(EXIT_DIFFERENT) from None
    account = account_of(found, candidates)
    attribution = _fold(asked).attribution
    if sides is None and account.exact and account.settings == attribution:
        compared = False  # they are those of the record
    comparison = _compare(account, sides, attribution) if compared else None
    if plain_json:
        click.echo(json.dumps(as_json(account, comparison)))
    else:
        _print(lines(account, comparison))
    if compared and comparison is None:
        why = "its events are gone" if found.cut else "none of its events count"
        click.echo(f"nothing can be compared: {why}", err=True)
        raise click.exceptions.Exit(EXIT_DIFFERENT)


def _compare(account: Account, sides: tuple[Named, Named] | None, asked: AttributionSettings) -> Comparison | None:
    entries = account.found.entries
    if account.reasons is None or entries is None:
        return None
    facts = account.reasons.facts
    if sides is None:
        other = side_of(settings_words(asked), attribute(entries, asked), facts)
        return compare(facts, recorded_side(account, facts), other)
    before, after = (side_of(name, attribute(entries, settings), facts) for name, settings in sides)
    return compare(facts, before, after)


def _side(given: str, settings: Path | None, flags: dict[str, Any]) -> Named:
    """A policy by its name, on top of all other settings; or a file's settings, with the flags on top."""
    if given.endswith(".toml"):
        return given, _fold(load(Path(given), flags, environment={})).attribution
    try:
        return given, _fold(load(settings, {**flags, "attribution_policy": given})).attribution
    except InvalidSettings as error:
        raise InvalidSettings(f"--diff {given}: {error}, or a settings file that ends in .toml") from error


def _fold(configuration: Configuration) -> FoldSettings:
    return configuration.assembler().fold


def _ids(file: Path) -> list[str]:
    return list(dict.fromkeys(filter(None, map(str.strip, file.read_text(encoding="utf-8").splitlines()))))


def _show_survey(found: Tally, which: Which, plain_json: bool) -> None:
    seen = bool(found.rollouts or found.gone or found.not_completed or found.missing)
    if plain_json:
        click.echo(json.dumps(survey_json(found)))
    elif seen:
        _print(survey_lines(found))
    if not seen:
        of_task = "" if which.task_id is None else f" of task {which.task_id!r}"
        click.echo(printable(f"nothing to compare: no rollout{of_task} is published"), err=True)
    if found.missing or not seen:
        raise click.exceptions.Exit(EXIT_DIFFERENT)


def _print(texts: Iterable[Text]) -> None:
    """Print line by line, as long as they are: a pipe, or the terminal itself, breaks them where it likes."""
    console = Console()
    for text in texts:
        if console.is_terminal:
            console.print(text, soft_wrap=True, highlight=False)
        else:
            sys.stdout.write(f"{text.plain}\n")


async def _find(configuration: Configuration, rollout_id: str) -> Found:
    log = await open_log(configuration.url())
    try:
        with bars() as shown:
            return await find_rollout(log, rollout_id, settings=_fold(configuration), on_progress=shown.tell)
    finally:
        await log.close()


async def _survey(configuration: Configuration, sides: tuple[Named, Named], which: Which) -> Tally:
    log = await open_log(configuration.url())
    try:
        with bars() as shown:
            return await survey(log, *sides, which, settings=_fold(configuration), on_progress=shown.tell)
    finally:
        await log.close()
