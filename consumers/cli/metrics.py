"""`rolloutlog metrics`: what became of all rewards that were published, and what they come to."""

import json
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolloutlog.consumers.attribution import OUTCOMES
from rolloutlog.consumers.cli.batches import each_batch
from rolloutlog.consumers.cli.configuration import Configuration, load, parse_partitions
from rolloutlog.consumers.cli.options import log_option, run, settings_option
from rolloutlog.consumers.cli.progress import bars
from rolloutlog.consumers.explaining.columns import many
from rolloutlog.consumers.metrics import GROUPINGS, Grouped, Key, Mean, NameMetrics, RewardMetrics
from rolloutlog.eventstore.log import BATCHES, open_log

PIPED_WIDTH = 200


@click.command()
@log_option
@settings_option
@click.option("--partitions", metavar="WHICH", help="all (default), 0-3, or i/n: the i-th of n equal shares.")
@click.option("--by", type=click.Choice(list(GROUPINGS)), help="A table for each of these.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def metrics(settings: Path | None, by: str | None, as_json: bool, **flags: Any) -> None:
    """Count published rewards by outcome, with their means.

    By name: how many had which outcome by which rule, and the means of final, step and total (docs/rewards.md,
    "Metrics"). A mean leaves out rollouts and samples that have no value; it says how many those are (null).
    """
    found, url = run(_read(load(settings, flags), by))
    if as_json:
        groups = [{by or "all": key, **_as_json(each)} for key, each in found.items()]
        click.echo(json.dumps({"log": url, "by": by, "groups": groups}, allow_nan=False))
    else:
        _print(found, by)


async def _read(configuration: Configuration, by: str | None) -> tuple[dict[Key, RewardMetrics], str]:
    log = await open_log(configuration.url())
    try:
        partitions = parse_partitions(configuration.partitions, await log.partitions(BATCHES))
        grouped = Grouped(by)
        with bars() as shown:
            async with aclosing(each_batch(log, partitions, shown)) as found:
                async for batch in found:
                    grouped.add(batch)
        return grouped.metrics(), log.url
    finally:
        await log.close()


def _print(found: dict[Key, RewardMetrics], by: str | None) -> None:
    if not found:
        click.echo("no batches")
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    if by is not None:
        table.add_column(by)
    for name in ("reward", "final", "step", "total", "counts, by outcome (rule)"):
        table.add_column(name)
    for key, each in found.items():
        first = [] if by is None else [Text("unknown" if key is None else str(key))]
        size = f"{many(each.rollout_count, 'rollout')}, {many(each.sample_count, 'sample')}"
        table.add_row(*first, "all", "", "", _cell(each.total, each.sample_count), size)
        for name, of_name in each.names.items():
            means = (
                _cell(of_name.final, each.rollout_count),
                _cell(of_name.step, each.sample_count),
                _cell(of_name.total, each.sample_count),
            )
            # as text: a reward's name may hold brackets, which would be markup
            table.add_row(*([""] * len(first)), Text(name), *means, Text(_outcomes(of_name.outcomes)))
    with console.capture() as printed:
        console.print(table, highlight=False)
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))


def _cell(mean: Mean, whole: int) -> str:
    """Such as `0.75 of 8, 2 null`."""
    if mean.value is None:
        return "-"
    null = whole - mean.count
    return f"{mean.value:.4g} of {mean.count:,}" + (f", {null:,} null" if null else "")


def _outcomes(outcomes: Counter[tuple[str, str | None]]) -> str:
    """Such as `attributed 6 (enclosing 4, linked 2), final 8`."""
    shown = []
    for outcome in OUTCOMES:
        rules = {rule: count for (each, rule), count in sorted(outcomes.items(), key=str) if each == outcome}
        if rules:
            named = ", ".join(f"{rule} {count:,}" for rule, count in rules.items() if rule not in (None, outcome))
            shown.append(f"{outcome} {sum(rules.values()):,}" + (f" ({named})" if named else ""))
    return ", ".join(shown)


def _as_json(found: RewardMetrics) -> dict[str, Any]:
    return {
        "rollouts": found.rollout_count,
        "samples": found.sample_count,
        "total": _mean_json(found.total, found.sample_count),
        "names": {name: _name_json(each, found) for name, each in found.names.items()},
    }


def _name_json(each: NameMetrics, found: RewardMetrics) -> dict[str, Any]:
    return {
        "outcomes": [
            {"outcome": outcome, "rule": rule, "count": count} for (outcome, rule), count in each.outcomes.items()
        ],
        "final": _mean_json(each.final, found.rollout_count),
        "step": _mean_json(each.step, found.sample_count),
        "total": _mean_json(each.total, found.sample_count),
    }


def _mean_json(mean: Mean, whole: int) -> dict[str, Any]:
    return {"mean": mean.value, "count": mean.count, "null": whole - mean.count}
