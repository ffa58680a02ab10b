"""`rolloutlog demo`: the whole path on one machine, with an embedded log in a folder of its own.

Two host processes publish rollouts, an assembler turns them into batches, and the samples are printed, with where one
rollout's rewards went.
"""

import asyncio
import multiprocessing
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from rolloutlog.consumers.assembler import Assembler, AssemblerSettings, Summary
from rolloutlog.consumers.batches import Batch, RewardOutcome, RolloutResult
from rolloutlog.consumers.cli.batches import read_batches
from rolloutlog.consumers.demo_agent import run_host
from rolloutlog.eventstore.errors import StoreError
from rolloutlog.eventstore.log import BATCHES, EVENTS, open_log
from rolloutlog.eventstore.topics import create_topics

HOSTS = 2
GROUPS = 10
GROUP_SIZE = 4
SAMPLES_SHOWN = 8
HOST_DEADLINE_S = 60.0


@click.command()
@click.option("--seed", default=7, show_default=True, help="Seed of the agents' guesses.")
def demo(seed: int) -> None:
    """Publish 40 small agent rollouts from two processes, assemble them, and show samples and rewards."""
    with tempfile.TemporaryDirectory(prefix="rolloutlog-demo-") as folder:
        url = f"sqlite:///{Path(folder) / 'demo.db'}"
        run_id = asyncio.run(_create(url))
        _publish(url, seed)
        summary, batches = asyncio.run(_assemble(url))
        _show(Console(), run_id, summary, batches)


async def _create(url: str) -> str:
    log = await open_log(url, create=True)
    try:
        return (await create_topics(log)).run_id
    finally:
        await log.close()


def _publish(url: str, seed: int) -> None:
    """Run the hosts, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    hosts = [
        context.Process(target=run_host, args=(url, list(range(number, GROUPS, HOSTS)), GROUP_SIZE, seed + number))
        for number in range(HOSTS)
    ]
    for host in hosts:
        host.start()
    for number, host in enumerate(hosts):
        host.join(HOST_DEADLINE_S)
        if host.exitcode != 0:
            raise StoreError(f"host {number} ended with {host.exitcode}: see its error above")


async def _assemble(url: str) -> tuple[Summary, list[Batch]]:
    log = await open_log(url)
    try:
        partitions = range(await log.partitions(EVENTS))
        summary = await Assembler(log, AssemblerSettings()).run(partitions, until_end=True)
        batches = [
            batch for partition in range(await log.partitions(BATCHES)) async for batch in read_batches(log, partition)
        ]
        return summary, batches
    finally:
        await log.close()


def _show(console: Console, run_id: str, summary: Summary, batches: list[Batch]) -> None:
    counts = summary.counts
    console.print(
        f"run {run_id}: {HOSTS} hosts published {counts['started']} rollouts; assembled {counts['batches']} batches "
        f"with {counts['samples']} samples, {counts['dead_letters']} dead letters; {summary.open_rollouts} still open",
        soft_wrap=True,
    )
    table = Table("task", "rollout", "turn", "prompt", "response", "step", "final", "total", title="first samples")
    for batch in batches:
        for sample in batch.samples:
            if table.row_count < SAMPLES_SHOWN:
                rollout = batch.rollouts[sample.rollout_index]
                table.add_row(
                    rollout.task_id,
                    rollout.rollout_id[:8],
                    f"{sample.turn_index + 1}/{rollout.turn_count}",
                    _tokens(sample.prompt_ids),
                    _tokens(sample.response_ids),
                    _values(dict(sample.step)),
                    _values(dict(sample.final)),
                    "none" if sample.total is None else f"{sample.total:g}",
                )
    console.print(table)
    solved = [each for batch in batches for each in batch.rollouts if each.turn_count > 1 and each.final["reward"]]
    if solved:
        _show_rewards(console, solved[0])


def _show_rewards(console: Console, rollout: RolloutResult) -> None:
    console.print(f"rewards of rollout {rollout.rollout_id[:8]} ({rollout.task_id}), {rollout.turn_count} calls:")
    for outcome in rollout.outcomes:
        value = "no verdict" if outcome.value is None else f"{outcome.value:g}"
        console.print(f"  {outcome.name} {value} ({outcome.scope}) → {_where(outcome)}", soft_wrap=True)


def _where(outcome: RewardOutcome) -> str:
    if outcome.outcome == "attributed":
        return f"call {', '.join(call[:8] for call in outcome.calls)}, rule {outcome.rule}"
    if outcome.outcome == "final":
        return "the rollout; reaches its last call"
    return outcome.outcome


def _tokens(packed: bytes) -> str:
    return " ".join(str(int.from_bytes(packed[at : at + 4], "little")) for at in range(0, len(packed), 4))


def _values(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items()) or "-"
