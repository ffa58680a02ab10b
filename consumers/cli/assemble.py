"""`rolloutlog assemble`: run the assembler."""

import asyncio
import logging
import signal
from pathlib import Path
from typing import Any

import click

from rolloutlog.consumers.assembler import WAITING_SHOWN, Assembler, Summary
from rolloutlog.consumers.attribution import OUTCOMES
from rolloutlog.consumers.cli.configuration import Configuration, load, parse_partitions
from rolloutlog.consumers.cli.options import attribution_options, log_option, run, settings_option
from rolloutlog.consumers.cli.progress import Bars, bars
from rolloutlog.consumers.limits import check_retention
from rolloutlog.consumers.printable import printable
from rolloutlog.eventstore.log import EVENTS, open_log
from rolloutlog.eventstore.meta import read_run
from rolloutlog.eventstore.topics import check_partitions

# Counts of events that left the state as it was: docs/log.md says what each means.
WITHOUT_EFFECT = ("duplicate", "conflict", "late", "superseded", "orphan", "surplus_events", "group_reused",
                  "stale_resend", "stale_decision", "after_end", "closed_before")  # fmt: skip

TELL_S = 0.25

logger = logging.getLogger("rolloutlog.assembler")


@click.command()
@log_option
@settings_option
@click.option("--partitions", metavar="WHICH", help="all (default), 0-3, or i/n: the i-th of n equal shares.")
@click.option("--until-end", is_flag=True, help="Read to the ends seen at start, commit, exit 0.")
@click.option(
    "--until-settled", is_flag=True, help="Stop each partition once no group of it is open, exit 0: before an upgrade."
)
@click.option("--merge", help="Calls of a sample: none (default) = one, trajectory = one line of conversation.")
@click.option("--min-group", type=int, help="Completed rollouts a group needs to be trained. Default: 2.")
@click.option("--splits", help="Splits that yield samples, with commas. Default: train.")
@click.option("--on-incomplete", help="Rollouts with a refused event: drop (default) or keep.")
@click.option("--on-history-lost", help="When retention removed needed events: fail (default) or skip.")
@attribution_options
def assemble(settings: Path | None, until_end: bool, until_settled: bool, **flags: Any) -> None:
    """Fold events, attribute rewards, publish training batches.

    All exactly once. Runs until it is stopped (SIGINT or SIGTERM: commits, exits 0). Exit code 4: another assembler
    took over.
    """
    if until_end and until_settled:
        raise click.UsageError("expected --until-end or --until-settled, got both: they stop at different places")
    configuration = load(settings, flags)
    summary = run(_assemble(configuration, until_end, until_settled))
    _print(summary)


async def _assemble(configuration: Configuration, until_end: bool, until_settled: bool) -> Summary:
    log = await open_log(configuration.url())
    try:
        count = await log.partitions(EVENTS)
        this_run = await read_run(log)
        if this_run is not None:
            check_partitions(this_run, count, configuration.url())
        await check_retention(log, configuration.limits())
        partitions = parse_partitions(configuration.partitions, count)
        if not partitions:
            click.echo(f"no partition falls to the share {configuration.partitions}: nothing to do", err=True)
        assembler = Assembler(log, configuration.assembler(), on_step=_trace)
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, assembler.stop.set)
        if not until_end:
            return await assembler.run(partitions, until_settled=until_settled)
        with bars() as shown:
            teller = asyncio.create_task(_tell(assembler, shown))
            try:
                return await assembler.run(partitions, until_end=True)
            finally:
                teller.cancel()
    finally:
        await log.close()


async def _tell(assembler: Assembler, shown: Bars) -> None:
    while shown.shown:
        shown.tell("assembling", *assembler.progress())
        await asyncio.sleep(TELL_S)


def _trace(partition: int, step: str) -> None:
    logger.debug("partition %d: step %s", partition, step)


def _print(summary: Summary) -> None:
    counts = summary.counts
    ends = ", ".join(f"{value} {name[9:]}" for name, value in sorted(counts.items()) if name.startswith("rollouts_"))
    rewards = ", ".join(f"{summary.rewards[name]} {name}" for name in OUTCOMES if summary.rewards[name])
    click.echo(
        f"{counts['batches']} batches, {counts['samples']} samples ({counts['samples_without_reward']} without "
        f"reward), {counts['dead_letters']} dead letters; rollouts: {ends or 'none closed'}, "
        f"{summary.open_rollouts} still open in {summary.open_groups} groups; rewards: {rewards or 'none'}"
    )
    if counts["run_ended"] or counts["run_ended_passed_on"]:
        passed_on, read = counts["run_ended_passed_on"], counts["run_ended"]
        click.echo(f"the run ended: {read} RunEnded read, {passed_on} passed on to the batches", err=True)
    if summary.decisions:
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(summary.decisions.items()))
        click.echo(f"ended because they waited for too long: {told}", err=True)
    for reason, count in sorted(summary.without_samples.items()):
        click.echo(f"{count} batches without samples: {reason}", err=True)
    for line in summary.waiting[:WAITING_SHOWN]:
        click.echo(printable(f"open: {line}"), err=True)
    if summary.open_groups > WAITING_SHOWN:
        click.echo(f"open: and {summary.open_groups - WAITING_SHOWN} more groups", err=True)
    others = ", ".join(f"{counts[name]} {name}" for name in WITHOUT_EFFECT if counts[name])
    if others:
        click.echo(f"events that changed nothing: {others}", err=True)
