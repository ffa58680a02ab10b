"""`rolloutlog batches`: look at what was published."""

import json
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import click
import numpy as np

from rolloutlog.consumers.batches import Batch, RolloutResult
from rolloutlog.consumers.cli.configuration import Configuration, load, parse_partitions
from rolloutlog.consumers.cli.options import (
    Command,
    log_option,
    output_option,
    run,
    settings_option,
    stop_on_signals,
)
from rolloutlog.consumers.cli.progress import Bars, bars
from rolloutlog.consumers.following import Follower
from rolloutlog.consumers.named_topic import topic_named
from rolloutlog.consumers.printable import printable
from rolloutlog.consumers.published import read_published
from rolloutlog.consumers.samples import Sample
from rolloutlog.consumers.stream.output_end import OutputEnd
from rolloutlog.consumers.stream.sample_checks import sample_fault
from rolloutlog.consumers.times import exact_time
from rolloutlog.eventstore.errors import InvalidEvent, LogUnavailable
from rolloutlog.eventstore.log import BATCHES, Log, Record, open_log


@click.group()
def batches() -> None:
    """Look at published batches."""


def _printing_options(command: Command) -> Command:
    partitions = click.option(
        "--partitions", metavar="WHICH", help="all (default), 0-3, or i/n: the i-th of n equal shares."
    )
    follow = click.option(
        "--follow",
        is_flag=True,
        help="Go on as batches come, until Ctrl-C, the end of the run, or all of an output is there.",
    )
    return log_option(settings_option(partitions(output_option(follow(command)))))


@batches.command()
@_printing_options
def dump(settings: Path | None, follow: bool, output: str | None, **flags: Any) -> None:
    """Print every sample as one JSON line, in the order partition, offset, rollout, turn."""
    run(_print(load(settings, flags), sample_lines, follow, output))


@batches.command()
@_printing_options
def rollouts(settings: Path | None, follow: bool, output: str | None, **flags: Any) -> None:
    """Print every rollout of the batches as one JSON line: how it ended and why, and all of its rewards."""
    run(_print(load(settings, flags), rollout_lines, follow, output))


@batches.command()
@log_option
@settings_option
@click.option("--partitions", metavar="WHICH", help="all (default), 0-3, or i/n: the i-th of n equal shares.")
@output_option
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def export(file: Path, settings: Path | None, output: str | None, **flags: Any) -> None:
    """Write every sample as one row of a Parquet FILE. Needs the extra `parquet`."""
    from rolloutlog.consumers.cli import exporting

    run(exporting.export(load(settings, flags), file, output))


Lines = Callable[[Batch], Iterator[dict[str, Any]]]


async def _print(configuration: Configuration, lines: Lines, follow: bool, output: str | None) -> None:
    log = await open_log(configuration.url())
    try:
        topic = await topic_named(log, output)
        partitions = parse_partitions(configuration.partitions, await log.partitions(topic))
        if follow:
            end = None if output is None else await OutputEnd.find(log, output)
            follower = Follower(
                log,
                partitions,
                topic=topic,
                is_whole=None if end is None else end.is_whole,
                on_refused=say_refused,
                on_unavailable=_say_unavailable,
            )
            await follower.run(lambda batch: _print_batch(batch, lines), stop_on_signals())
            return
        with bars(prints=True) as shown:
            await _print_all(log, topic, partitions, lines, shown)
    finally:
        await log.close()


async def _print_all(log: Log, topic: str, partitions: list[int], lines: Lines, shown: Bars) -> None:
    async with aclosing(each_batch(log, partitions, shown, topic=topic)) as found:
        async for batch in found:
            _print_batch(batch, lines)


def _print_batch(batch: Batch, lines: Lines) -> None:
    """Flushed with each batch: whoever reads the other end of a pipe sees it whole."""
    for line in lines(batch):
        try:
            text = json.dumps(line, allow_nan=False)
        except ValueError:  # of another writer: ours has finite numbers alone
            text = json.dumps(_finite(line))
        sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _say_unavailable(error: LogUnavailable, wait_s: float) -> None:
    click.echo(f"{error}; trying again in {wait_s:.1f} s", err=True)


async def each_batch(
    log: Log, partitions: Sequence[int], shown: Bars, *, topic: str = BATCHES
) -> AsyncGenerator[Batch, None]:
    """All batches of these partitions up to their ends as of now, by partition and offset.

    Records that are none are reported and passed over. Leaving early: as `eventstore.log.reading` says.
    """
    spans = await log.ranges(topic, partitions)
    total, done = sum(span.end - span.first for span in spans.values()), 0
    for partition in partitions:
        span = spans[partition]
        async with aclosing(read_published(log, partition, topic=topic, on_refused=say_refused)) as found:
            async for published in found:
                if published.batch is not None:
                    yield published.batch
                shown.tell("batches", min(total, done + published.end - span.first), total)
        done += span.end - span.first


def say_refused(record: Record, error: InvalidEvent) -> None:
    click.echo(printable(f"offset {record.partition}:{record.offset}: {error}"), err=True)


def sample_lines(batch: Batch) -> Iterator[dict[str, Any]]:
    """One mapping a sample: what it is, its tokens, its rewards, and what became of all rewards of its rollout.

    A sample that trainers reject is told and passed over: what it holds cannot be relied on, or not even be read.
    """
    for sample in batch.samples:
        if (fault := sample_fault(sample, batch.rollouts)) is not None:
            click.echo(printable(f"sample {sample.sample_id} of group {batch.group_id} is bad: {fault}"), err=True)
            continue
        rollout = batch.rollouts[sample.rollout_index]
        yield {
            "sample_id": sample.sample_id,
            "batch_id": batch.batch_id,
            "group_id": batch.group_id,
            "rollout_id": rollout.rollout_id,
            "attempt": rollout.attempt,
            "split": rollout.split,
            "turn_index": sample.turn_index,
            "turn_count": rollout.turn_count,
            "prompt_ids": np.frombuffer(sample.prompt_ids, "<i4").tolist(),
            "response_ids": np.frombuffer(sample.response_ids, "<i4").tolist(),
            "response_mask": list(sample.response_mask),
            "logprobs": None if sample.logprobs is None else np.frombuffer(sample.logprobs, "<f4").tolist(),
            "policy_version": _policy_version(sample, rollout.policy_version),
            "total": sample.total,
            "step": dict(sample.step),
            "final": dict(sample.final),
            "rollout_final": rollout.final,
            "reward_token_index": np.frombuffer(sample.reward_token_index, "<i4").tolist(),
            "reward_token_value": np.frombuffer(sample.reward_token_value, "<f8").tolist(),
            "extra_info": _mapping(sample.extra_info),
            "outcomes": _outcomes(rollout),
        }


def rollout_lines(batch: Batch) -> Iterator[dict[str, Any]]:
    """One mapping a rollout, samples or not: its final state and reason, and what became of its rewards."""
    sample_counts = Counter(sample.rollout_index for sample in batch.samples)
    for index, rollout in enumerate(batch.rollouts):
        yield {
            "rollout_id": rollout.rollout_id,
            "attempt": rollout.attempt,
            "batch_id": batch.batch_id,
            "group_id": batch.group_id,
            "closed": exact_time(batch.closed_ns),
            "task_id": rollout.task_id,
            "split": rollout.split,
            "status": rollout.status,
            "reason": rollout.reason,
            "error": rollout.error,
            "policy_version": rollout.policy_version,
            "turn_count": rollout.turn_count,
            "sample_count": sample_counts[index],
            "final": rollout.final,
            "metadata": _mapping(rollout.metadata),
            "extra_info_refused": list(rollout.extra_info_refused),
            "outcomes": _outcomes(rollout),
        }


def _mapping(packed: bytes) -> Any:
    """JSON as it was recorded; None where another writer's is none."""
    try:
        return json.loads(packed or b"{}")
    except (ValueError, RecursionError):
        return None


def _finite(value: Any) -> Any:
    """The same with what JSON lacks written as in extra info."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if not isinstance(value, float) or isfinite(value):
        return value
    return {"$nan": True} if isnan(value) else {"$inf": 1 if value > 0 else -1}


def _outcomes(rollout: RolloutResult) -> dict[str, Any]:
    return {
        each.reward_id: {
            "name": each.name,
            "value": each.value,
            "outcome": each.outcome,
            "rule": each.rule,
            "calls": list(each.calls),
            "found": list(each.found),
        }
        for each in rollout.outcomes
    }


def _policy_version(sample: Sample, start: int | None) -> int | None:
    """The oldest of its runs, else the version its rollout started with."""
    known = [run.policy_version for run in sample.policy_version_runs if run.policy_version is not None]
    return min(known, default=start)
