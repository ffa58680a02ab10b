"""`rolloutlog explain`: one rollout and where each of its rewards went; or what other settings would make of it, or of
many rollouts."""

import json
import time
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from rolloutlog.consumers.attribution import AttributionSettings, attribute, settings_from
from rolloutlog.consumers.cli.archived import archive_option, check_source, open_looking_on
from rolloutlog.consumers.cli.configuration import Configuration, load
from rolloutlog.consumers.cli.main import EXIT_DIFFERENT
from rolloutlog.consumers.cli.options import attribution_options, log_option, output_option, run, settings_option
from rolloutlog.consumers.cli.printing import print_lines
from rolloutlog.consumers.cli.progress import bars
from rolloutlog.consumers.explaining.account import Account, account_of
from rolloutlog.consumers.explaining.columns import many
from rolloutlog.consumers.explaining.comparison import Comparison, compare, recorded_side, settings_words, side_of
from rolloutlog.consumers.explaining.explain import Found, find_rollout, lines
from rolloutlog.consumers.explaining.explain_json import as_json, survey_json
from rolloutlog.consumers.explaining.explain_tables import comparison_lines, survey_lines
from rolloutlog.consumers.explaining.rescored import rescored_of
from rolloutlog.consumers.explaining.rescored_lines import rescored_json, rescored_lines
from rolloutlog.consumers.explaining.survey import Which, survey
from rolloutlog.consumers.explaining.tally import Tally
from rolloutlog.consumers.explaining.wanted import RolloutUnknown
from rolloutlog.consumers.named_topic import settings_of, topic_named
from rolloutlog.consumers.printable import printable
from rolloutlog.consumers.replaying.outputs import LIVE, read_output
from rolloutlog.consumers.scoring.recorded import Recorded
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.times import parse_time
from rolloutlog.consumers.used_settings import read_used
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import open_log

Named = tuple[str, AttributionSettings]


@click.command()
@click.argument("rollout_id", required=False)
@log_option
@settings_option
@attribution_options
@output_option
@archive_option("Read events and recorded rewards from an archive; batches of the log where it is of the same run.")
@click.option("--diff", nargs=2, metavar="A B", help="Compare two policies, or two TOML settings files.")
@click.option("--task", "task_id", metavar="TASK_ID", help="With --diff: only rollouts of this task.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="With --diff: only the newest N published.")
@click.option(
    "--rollouts",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="With --diff: only the rollouts of this file, one id a line.",
)
@click.option(
    "--rewards-as-of", metavar="TIME", help="Recorded rewards as known then, e.g. 2026-03-01T12:00:00Z or -2h; none."
)
@click.option("--json", "plain_json", is_flag=True, help="Print one JSON object instead.")
def explain(
    rollout_id: str | None,
    settings: Path | None,
    log: str | None,
    output: str | None,
    archive: str | None,
    diff: tuple[str, str] | None,
    task_id: str | None,
    last: int | None,
    rollouts: Path | None,
    rewards_as_of: str | None,
    plain_json: bool,
    **flags: Any,
) -> None:
    """Show one rollout, and where each reward went and why.

    What scorers recorded for it since is shown below: it counts in replays and not in live assembly.

    ROLLOUT_ID may be cut to its first or last characters, 4 or more. Looks through the batches, then the events. With
    settings of attribution, such as --policy nearest, also what they would make of it, beside what is recorded.

    --diff A B compares two settings: of one rollout, or of all published ones, of an --output its own, when no
    ROLLOUT_ID is given. A and B are policies or TOML files; other options hold for both.

    Exit code 1: there is no such rollout, or there are several; or nothing can be compared, as when its events are
    gone.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    narrowed = any(each is not None for each in (task_id, last, rollouts))
    if rollout_id is None and diff is None:
        raise click.UsageError("give a ROLLOUT_ID, or --diff A B to compare settings over all published rollouts")
    if narrowed and (rollout_id is not None or diff is None):
        raise click.UsageError("--task, --last and --rollouts say over which rollouts --diff A B goes")
    if rollout_id is None and archive is not None:
        raise click.UsageError("--archive says where the events of a ROLLOUT_ID are read; a log is compared as a whole")
    if rollout_id is None and rewards_as_of is not None:
        raise click.UsageError("--rewards-as-of says which recorded rewards of a ROLLOUT_ID are shown")
    if diff is not None and "attribution_policy" in given:
        raise click.UsageError("--policy says what --diff already does; leave one of them out")
    asked = load(settings, {"log": log, **given})
    sides = None if diff is None else (_side(diff[0], settings, given), _side(diff[1], settings, given))
    if rollout_id is None:
        assert sides is not None
        which = Which(task_id, None if rollouts is None else _ids(rollouts), last)
        _show_survey(run(_survey(asked, sides, which, output)), which, plain_json)
        return
    base = load(settings, {"log": log})
    compared = sides is not None or settings is not None or bool(given)
    before_ns = 0 if rewards_as_of == "none" else None
    if before_ns is None and rewards_as_of is not None:
        before_ns = parse_time(rewards_as_of, time.time_ns())
    _explain(rollout_id, output, archive, base, asked, sides, compared, before_ns, plain_json)


def _explain(
    rollout_id: str, output: str | None, archive: str | None, base: Configuration, asked: Configuration,
    sides: tuple[Named, Named] | None, compared: bool, before_ns: int | None, plain_json: bool,
) -> None:  # fmt: skip
    at_hand = _fold(base), _fold(asked), FoldSettings()
    try:
        found, made, recorded, everything = run(_find(base, rollout_id, output, archive, before_ns))
    except RolloutUnknown as error:
        click.echo(printable(str(error)), err=True)
        raise click.exceptions.Exit(EXIT_DIFFERENT) from None
    candidates = tuple({each.config_hash: each for each in (*made, *at_hand)}.values())
    rewards = (reward for each in everything.sets(found.rollout_id, found.attempt) for _, reward in each.rewards)
    account = account_of(found, candidates, rewards)
    attribution = _changed(account, base, asked)
    rescored = rescored_of(account, recorded, attribution, before_ns)
    if sides is None and account.exact and account.settings == attribution:
        compared = False  # they are those of the record
    comparison = _compare(account, sides, attribution) if compared else None
    if plain_json:
        click.echo(json.dumps({**as_json(account, comparison), "recorded": rescored_json(rescored)}))
    else:
        print_lines(lines(account))
        print_lines(rescored_lines(rescored))
        print_lines(() if comparison is None else (Text(), *comparison_lines(comparison)))
    unrecorded = len(account.outcomes.keys() - account.rewards.keys())
    if comparison is not None and unrecorded:
        click.echo(
            f"left out of this comparison: {many(unrecorded, 'reward')} that scorers gave to this output alone; "
            "`replay --record` keeps them",
            err=True,
        )
    if compared and comparison is None:
        why = "its events are gone" if found.cut else "none of its events count"
        click.echo(f"nothing can be compared: {why}", err=True)
        raise click.exceptions.Exit(EXIT_DIFFERENT)


def _compare(account: Account, sides: tuple[Named, Named] | None, asked: AttributionSettings) -> Comparison | None:
    entries = account.entries
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
        print_lines(survey_lines(found))
    if not seen:
        of_task = "" if which.task_id is None else f" of task {which.task_id!r}"
        click.echo(printable(f"nothing to compare: no rollout{of_task} is published"), err=True)
    if found.missing or not seen:
        raise click.exceptions.Exit(EXIT_DIFFERENT)


def _changed(account: Account, base: Configuration, asked: Configuration) -> AttributionSettings:
    """The settings asked for. Flags alone, of a record whose settings are known, are changes of those."""
    if account.settings is None or not account.exact or base.attribution:
        return _fold(asked).attribution
    recorded = {name: value for name, value in account.settings.canonical().items() if name != "policy_source"}
    return settings_from({**recorded, **asked.attribution})


async def _find(
    configuration: Configuration, rollout_id: str, output: str | None, archive: str | None, before_ns: int | None
) -> tuple[Found, tuple[FoldSettings, ...], Recorded, Recorded]:
    """The rollout, the settings with which the output was made where it has a record, and what scorers recorded: before
    a time, and ever."""
    log = await open_looking_on(configuration, archive)
    try:
        topic = await topic_named(log, output)
        made = None if output is None or output == LIVE else await read_output(log, output)
        if made is not None:
            await check_source(log, made, archive)
        used = reversed(await read_used(log))  # of the newest assembler first
        settings = tuple(used) if made is None else tuple(filter(None, [settings_of(made)]))
        base = settings[0] if made is not None and settings else _fold(configuration)
        with bars() as shown:
            found = await find_rollout(log, rollout_id, topic=topic, settings=base, on_progress=shown.tell)
        ids = (found.rollout_id,)
        everything = await Recorded.read(log, found.partition, None, rollouts=ids)
        if before_ns is None:
            return found, settings, everything, everything
        asked = await Recorded.read(log, found.partition, None, rollouts=ids, before_ns=before_ns)
        return found, settings, asked, everything
    finally:
        await log.close()


async def _survey(configuration: Configuration, sides: tuple[Named, Named], which: Which, output: str | None) -> Tally:
    log = await open_log(configuration.url())
    try:
        await topic_named(log, output)
        made = None if output in (None, LIVE) else await read_output(log, output)
        settings = _fold(configuration)
        if made is None and output not in (None, LIVE):
            raise InvalidSettings(f"output {output}: expected a record of what made it, got none: run its replay again")
        if made is not None:
            await check_source(log, made, None)
            settings = settings_of(made) or settings
        with bars() as shown:
            return await survey(log, *sides, which, output=made, settings=settings, on_progress=shown.tell)
    finally:
        await log.close()
