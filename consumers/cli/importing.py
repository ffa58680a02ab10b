"""`rolloutlog import`: bring events and trajectories of other programs into the log.

Not here  the formats, and how an import that was cut off goes on: consumers.importing
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import click

from rolloutlog.consumers.cli.configuration import load
from rolloutlog.consumers.cli.main import EXIT_DIFFERENT
from rolloutlog.consumers.cli.options import Command, log_option, run, settings_option
from rolloutlog.consumers.cli.progress import bars
from rolloutlog.consumers.importing import loading
from rolloutlog.consumers.importing.contents import REPORTED_MAX, Content, Survey
from rolloutlog.consumers.importing.inputs import Input, check_readable, joined_digest, open_input
from rolloutlog.consumers.importing.jsonl import JsonLines
from rolloutlog.consumers.importing.loading import Loaded
from rolloutlog.consumers.importing.messages import parse_messages
from rolloutlog.consumers.importing.otlp import Options, parse_traces
from rolloutlog.consumers.importing.rendering import Bytes, Rendering
from rolloutlog.consumers.importing.rollouts import Parsed, Rollouts
from rolloutlog.consumers.importing.swe_agent import SweFile, find_files, instance_of, parse_files
from rolloutlog.consumers.importing.swe_results import parse_results
from rolloutlog.consumers.printable import printable
from rolloutlog.eventstore.errors import InvalidEvent, InvalidSettings
from rolloutlog.eventstore.log import EVENTS, Log, open_log
from rolloutlog.eventstore.meta import Run, read_run
from rolloutlog.eventstore.topics import check_partitions, create_topics

NAMED_MAX = 3  # paths that are named together
UNREADABLE = "unreadable"

FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.group(name="import")
def import_group() -> None:
    """Bring events and trajectories of other programs into the log.

    A file is imported once: again, it adds nothing; an import that was cut off goes on where it was. What is refused is
    reported by line and field, and the rest is imported. An embedded log is created when it is missing.
    """


def _tokenizer_option(command: Command) -> Command:
    return click.option(
        "--tokenizer",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A model's tokenizer.json, for its token ids. Without: UTF-8 bytes. Needs the extra `tokenizer`.",
    )(command)


@import_group.command()
@click.argument("file", type=FILE)
@_tokenizer_option
@log_option
@settings_option
def messages(file: Path, tokenizer: Path | None, settings: Path | None, log: str | None) -> None:
    """Import chat trajectories in OpenAI message form, one JSON object a line.

    Each line has task_id, messages or traj, and may have trial and reward. One line is one rollout, lines of one task
    one group. Token ids are the UTF-8 bytes of the text, in ChatML form: for looking at rewards and batches, not for
    training a model; with --tokenizer those of a vocabulary.
    An embedded log is created when it is missing. Exit code 1: some lines were refused, the rest is imported.
    """
    rendering = _rendering(tokenizer)
    with open_input(file) as opened:
        content = _rollouts([opened], lambda: parse_messages(opened, rendering), [rendering.name], field="messages")
        survey = content.survey()
        _report(survey)
        loaded = run(_load(load(settings, {"log": log}).url(), content, survey, opened.name))
    _say_rollouts(loaded, survey, opened.name, "lines", rendering if tokenizer else None)
    _exit(survey, loaded)


@import_group.command()
@click.argument("file", type=FILE)
@click.option(
    "--everything",
    is_flag=True,
    help="Every record as it was stored: to look at. Not for assembling: decisions name offsets of the other log.",
)
@log_option
@settings_option
def jsonl(file: Path, everything: bool, settings: Path | None, log: str | None) -> None:
    """Import events as JSON lines: what `export jsonl` wrote, or lines written by hand.

    Events get the same bytes again, and the new log's assembler makes the same samples of them. Left out is what only
    held in the log that they come from. Events that are stored already are not stored again. - is standard input.
    """
    with open_input(file) as opened:
        content = JsonLines(opened, verbatim=everything)
        survey = content.survey()
        _report(survey)
        loaded = run(_load(load(settings, {"log": log}).url(), content, survey, opened.name))
    if loaded.before is not None:
        click.echo(printable(f"{opened.name} was imported before: {loaded.before} rollouts; nothing added"))
    else:
        left_out = "".join(f"; left out: {count} {why}" for why, count in loaded.left_out.items())
        click.echo(
            f"{loaded.added} events added, {loaded.present} were there, of {survey.rollouts} rollouts in "
            f"{len(survey.groups)} groups{left_out}; {survey.refused} lines refused"
        )
    _exit(survey, loaded)


@import_group.command("swe-agent")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--results",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An evaluation's report: rewards 1.0 and 0.0 by instance. Once, or once for each PATH, in their order.",
)
@_tokenizer_option
@log_option
@settings_option
def swe_agent(
    paths: tuple[Path, ...],
    results: tuple[Path, ...],
    tokenizer: Path | None,
    settings: Path | None,
    log: str | None,
) -> None:
    """Import SWE-agent trajectories: .traj files, and those in folders.

    One file is one rollout; files of one instance, such as those of several runs' folders, are one group. What is
    imported together is one import: give all runs at once.
    """
    if len(results) not in (0, 1, len(paths)):
        raise InvalidSettings(f"--results: expected one, or one for each of {len(paths)} paths, got {len(results)}")
    rendering = _rendering(tokenizer)
    rewards = [_results(each) for each in results] or [{}]
    found = find_files(paths)
    if not found:
        raise InvalidSettings(f"{paths[0]}: expected .traj files in it, got none")
    for path in paths:
        if not path.is_dir():
            check_readable(path)
    files = [SweFile(Input(path, str(path)), rewards[min(index, len(rewards) - 1)]) for index, path in found]
    options = ["swe-agent", *(instance_of(path) for _, path in found), *(Input(each).digest() for each in results)]
    content = _rollouts(
        [each.file for each in files],
        lambda: parse_files(files, rendering),
        [*options, rendering.name],
        field="query",
    )
    survey = content.survey()
    _report(survey, "files")
    name = ", ".join(map(str, paths[:NAMED_MAX])) + (f" and {len(paths) - NAMED_MAX} more" if paths[NAMED_MAX:] else "")
    loaded = run(_load(load(settings, {"log": log}).url(), content, survey, name))
    _say_rollouts(loaded, survey, name, "files", rendering)
    _exit(survey, loaded)


def _results(path: Path) -> dict[str, float]:
    try:
        return parse_results(Input(path).read())
    except InvalidEvent as error:
        raise InvalidSettings(f"--results {path}: {error}") from error


@import_group.command()
@click.argument("file", type=FILE)
@click.option("--rollout-attribute", metavar="NAME", help="Whose value names the rollout. Default: one trace is one.")
@click.option("--group-attribute", metavar="NAME", help="Whose value names the group and task. Default: groups of one.")
@click.option("--reward-attribute", metavar="NAME", help="A number that is a reward, of the span that carries it.")
@_tokenizer_option
@log_option
@settings_option
def otlp(
    file: Path,
    rollout_attribute: str | None,
    group_attribute: str | None,
    reward_attribute: str | None,
    tokenizer: Path | None,
    settings: Path | None,
    log: str | None,
) -> None:
    """Import OpenTelemetry traces in OTLP JSON: a request a line, or one document.

    Attributes are those of a span or of its resource. Model calls are found by the GenAI conventions, old and new, and
    OpenInference's; rewards are agent-lightning's, and evaluation events. - is standard input.
    """
    rendering = _rendering(tokenizer)
    options = Options(rollout_attribute, group_attribute, reward_attribute)
    named = [f"{name}={value}" for name, value in asdict(options).items() if value is not None]
    with open_input(file) as opened:
        content = _rollouts(
            [opened], lambda: parse_traces(opened, options, rendering), ["otlp", *named, rendering.name], field="span"
        )
        survey = content.survey()
        _report(survey, "spans or rollouts")
        loaded = run(_load(load(settings, {"log": log}).url(), content, survey, opened.name))
    _say_rollouts(loaded, survey, opened.name, "spans or rollouts", rendering)
    _exit(survey, loaded)


def _rendering(tokenizer: Path | None) -> Rendering:
    if tokenizer is None:
        return Bytes()
    try:
        from rolloutlog.consumers.importing.tokenizer import Vocabulary
    except ModuleNotFoundError as error:
        raise InvalidSettings(str(error)) from error
    return Vocabulary(tokenizer)


def _rollouts(files: list[Input], parse: Callable[[], Iterator[Parsed]], options: list[str], *, field: str) -> Rollouts:
    """The content of files of a format, under these options: those that decide what becomes of it."""
    found = [_digest(file) for file in files]
    given = [option for option in options if option]
    return Rollouts(parse, found[0] if len(found) == 1 and not given else joined_digest([*found, *given]), field=field)


def _digest(file: Input) -> str:
    try:
        return file.digest()
    except OSError:
        return UNREADABLE  # one of many, which is refused by its name


async def _load(url: str, content: Content, survey: Survey, name: str) -> Loaded:
    log = await open_log(url, create=True)
    try:
        with bars() as shown:
            return await loading.load(
                log,
                await _run_of(log, url),
                content,
                survey,
                name=name,
                on_progress=shown.tell,
                on_resume=lambda stored: click.echo(
                    f"going on after {stored} events of an import that was cut off", err=True
                ),
            )
    finally:
        await log.close()


async def _run_of(log: Log, url: str) -> Run:
    """The log's run; the topics of an embedded log are made when they are missing."""
    if url.startswith("sqlite:"):
        return await create_topics(log)
    found = await read_run(log)
    if found is None:
        raise InvalidSettings(f"log {url}: no run: `rolloutlog topics create --log {url}` makes it")
    check_partitions(found, await log.partitions(EVENTS), url)
    return found


def _report(survey: Survey, what: str = "lines") -> None:
    for place, text in survey.reported:
        click.echo(printable(f"{place} refused: {text}"), err=True)
    if survey.refused > REPORTED_MAX:
        click.echo(f"and {survey.refused - REPORTED_MAX} more {what} refused", err=True)


def _say_rollouts(loaded: Loaded, survey: Survey, name: str, what: str, rendering: Rendering | None) -> None:
    if loaded.before is not None:
        click.echo(printable(f"{name} was imported before: {loaded.before} rollouts; nothing added"))
        return
    click.echo(
        f"{survey.rollouts} rollouts in {len(survey.groups)} groups, {loaded.calls} calls, {loaded.events} events "
        f"of {loaded.size_bytes} bytes (with prompts repeated: {loaded.repeated_bytes}); "
        f"{survey.refused} {what} refused"
    )
    if rendering is not None:
        click.echo(rendering.said)


def _exit(survey: Survey, loaded: Loaded) -> None:
    if survey.refused and loaded.before is None:
        raise click.exceptions.Exit(EXIT_DIFFERENT)
