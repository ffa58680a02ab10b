"""`rolloutlog replay`: fold history again into an output of its own."""

import asyncio
import json
import time
from collections.abc import Coroutine
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from rolloutlog.consumers import used_settings
from rolloutlog.consumers.cli.configuration import Configuration, load
from rolloutlog.consumers.cli.main import EXIT_ABORTED, EXIT_DIFFERENT
from rolloutlog.consumers.cli.options import (
    attribution_options,
    log_option,
    run,
    settings_option,
    stop_on_signals,
    unless_stopped,
)
from rolloutlog.consumers.cli.progress import bars
from rolloutlog.consumers.cli.replay_told import announce, missing, say, tell
from rolloutlog.consumers.replaying.ids import read_ids
from rolloutlog.consumers.replaying.job import NO_REWARDS, Job, Wish, plan, run_share
from rolloutlog.consumers.replaying.outputs import read_output
from rolloutlog.consumers.replaying.selection import Selection
from rolloutlog.consumers.replaying.share import Share
from rolloutlog.consumers.replaying.summary import Summary
from rolloutlog.consumers.replaying.workers import OnProgress, run_workers, trace
from rolloutlog.consumers.scoring import ScoringLimits
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.times import parse_time
from rolloutlog.consumers.used_settings import newest_used
from rolloutlog.eventstore.errors import InvalidSettings, LogMissing
from rolloutlog.eventstore.log import open_log

TELL_S = 0.25
Result = TypeVar("Result")
SPEED_S = 300.0  # the bar's rate is of so long: slow scorers settle a group now and then


@click.command()
@log_option
@settings_option
@click.option("--output", "name", metavar="NAME", help="Where batches go. Run again with the same name to go on.")
@click.option("--from", "from_", metavar="TIME", help="Groups closed since: 2026-03-01T12:00:00Z, 2026-03-01 or -2h.")
@click.option("--to", metavar="TIME", help="Groups closed before.")
@click.option("--group", "groups", multiple=True, metavar="ID", help="This group alone; @FILE: one a line. Repeatable.")
@click.option(
    "--rollout", "rollouts", multiple=True, metavar="ID", help="The group of this rollout; @FILE, also of failures."
)
@click.option(
    "--scorer", "scorers", multiple=True, metavar="PACKAGE.MODULE:FUNCTION",
    help="Ask it for rewards. The module may lie in the current folder. Repeatable.",
)  # fmt: skip
@click.option(
    "--record", is_flag=True, help="Keep scorers' rewards in the rewards topic, for other replays and explain."
)
@click.option(
    "--rewards-as-of", metavar="TIME",
    help="Recorded rewards up to then count; none: none do. Default: all, or as the output was made.",
)  # fmt: skip
@click.option("--concurrency", type=int, help="Calls of each scorer at a time.")
@click.option("--rate-per-s", type=float, help="Calls of each scorer that begin in a second.")
@click.option("--timeout-s", type=float, help="Of one call of a scorer. Default: 300.")
@click.option("--retries", type=int, help="Further tries after a scorer's error. Default: 2.")
@click.option("--no-cache", is_flag=True, help="Ask scorers again what they were asked before.")
@click.option(
    "--failures", type=click.Path(path_type=Path, dir_okay=False), help="All failures, as JSON lines; going on adds."
)
@click.option("--archive", metavar="URL", help="Read events and recorded rewards from an archive.")
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes.")
@click.option("--dry-run", is_flag=True, help="Ask no scorer, write nothing; say what would be.")
@click.option("--merge", help="Calls of a sample: none = one, trajectory = one line of conversation.")
@click.option("--min-group", type=int, help="Completed rollouts a group needs to be trained.")
@click.option("--splits", help="Splits that yield samples, with commas.")
@click.option("--on-incomplete", help="Rollouts with a refused event: drop or keep.")
@click.option("--on-history-lost", help="When retention removed events of wanted groups: fail (default) or skip.")
@attribution_options
def replay(settings: Path | None, workers: int, failures: Path | None, **given: Any) -> int:
    """Fold history again, with other settings or scorers.

    What comes out goes to an output of its own. The assembler's settings count where nothing else is said; with them
    the batches are those that it published, where no rewards were recorded, or with --rewards-as-of none. Stops and
    resumes exactly once: run the same command again. Exit code 1: a scorer failed for some rollouts in the output, or
    some ids were not found; they are named.
    """
    wish = _wish(settings, given)
    if failures is not None:
        failures.open("a", encoding="utf-8").close()  # before anything is asked: what is found then would go nowhere
    job = _unless_stopped(plan(wish))
    announce(job)
    with bars(speed_s=SPEED_S) as shown:
        summary = _replay(job, workers, lambda done, total, groups: shown.tell("replaying", done, total))
    tell(job, summary)
    if failures is not None:
        lines = [json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in summary.failures]
        # Going on adds to it: those of before are still in the output, and not found again.
        with failures.open("a" if job.resumed else "w", encoding="utf-8") as file:
            file.writelines(lines)
    if summary.stopped:
        return EXIT_ABORTED
    return EXIT_DIFFERENT if summary.unscored_out or missing(job, summary) else 0


def _wish(settings: Path | None, given: dict[str, Any]) -> Wish:
    """What was asked for, of flags, environment and settings file."""
    now_ns = time.time_ns()
    own = {name: given.pop(name) for name in (
        "name", "from_", "to", "groups", "rollouts", "scorers", "record", "rewards_as_of", "concurrency", "rate_per_s",
        "timeout_s", "retries", "no_cache", "archive", "dry_run",
    )}  # fmt: skip
    says = settings is not None or given["attribution_policy"] is not None
    base = _unless_stopped(_base(load(settings, given), own["name"], says=says))
    configuration = load(settings, given, base=base)
    if own["name"] is None and not own["dry_run"]:
        raise InvalidSettings("no output given: use --output NAME, or --dry-run to see what would be")
    if own["record"] and not own["scorers"]:
        raise InvalidSettings("--record: expected a --scorer whose rewards are to be recorded, got none")
    limits = {name: own[name] for name in ("concurrency", "rate_per_s", "timeout_s", "retries")}
    as_of = own["rewards_as_of"]
    return Wish(
        url=configuration.url(),
        name=own["name"],
        fold=configuration.assembler().fold,
        selection=Selection(
            _moment(own["from_"], now_ns), _moment(own["to"], now_ns), read_ids("--group", own["groups"]),
            read_ids("--rollout", own["rollouts"]),
        ),
        archive=own["archive"],
        scorers=own["scorers"],
        limits=ScoringLimits(**limits),
        rewards_as_of=NO_REWARDS if as_of == "none" else _moment(as_of, now_ns),
        cache=not own["no_cache"],
        record=own["record"],
        dry_run=own["dry_run"],
        skip_lost=configuration.on_history_lost == "skip",
        commit_bytes=configuration.commit_bytes,
    )  # fmt: skip


async def _base(configuration: Configuration, name: str | None, *, says: bool) -> FoldSettings | None:
    """Settings where nothing else is said: of the output that is gone on with, else of live assembly.

    says  it is said which policy decides: one that no record can tell is then not missed
    """
    try:
        log = await open_log(configuration.url())
    except LogMissing:
        return None
    try:
        output = None if name is None else await read_output(log, name)
        return await newest_used(log) if output is None else used_settings.settings_of(output.settings)
    except InvalidSettings:
        if says:
            return None
        raise
    finally:
        await log.close()


def _moment(text: str | None, now_ns: int) -> int | None:
    """Whole microseconds, so that it can be given again in full."""
    return None if text is None else parse_time(text, now_ns) // 1_000 * 1_000


def _unless_stopped(work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` returns; a signal ends the command."""

    async def boxed() -> tuple[Result]:
        return (await work,)

    async def stoppable() -> tuple[Result] | None:
        return await unless_stopped(stop_on_signals(), boxed())

    found = run(stoppable())
    if found is None:
        say("stopped before anything was done")
        raise click.exceptions.Exit(EXIT_ABORTED)
    return found[0]


def _replay(job: Job, workers: int, on_progress: OnProgress) -> Summary:
    workers = max(1, min(workers, len(job.partitions)))
    job = replace(job, wish=replace(job.wish, limits=replace(job.wish.limits, workers=workers)))
    if workers > 1:
        return run_workers(job, workers, on_progress)
    return run(_replay_here(job, on_progress))


async def _replay_here(job: Job, on_progress: OnProgress) -> Summary:
    stop = stop_on_signals()
    tellers: list[asyncio.Task[None]] = []

    def begin(share: Share) -> None:
        tellers.append(asyncio.create_task(_tell(share, on_progress)))

    try:
        return await run_share(job, job.partitions, stop=stop, step=trace, on_share=begin)
    finally:
        for teller in tellers:
            teller.cancel()


async def _tell(share: Share, on_progress: OnProgress) -> None:
    while True:
        on_progress(*share.progress(), share.summary.counts["groups"])
        await asyncio.sleep(TELL_S)
