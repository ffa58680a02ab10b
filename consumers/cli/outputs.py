"""`rolloutlog outputs`: list the outputs of replays, with their sizes; delete one."""

import json
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolloutlog.consumers.cli.configuration import load
from rolloutlog.consumers.cli.options import log_option, run
from rolloutlog.consumers.printable import printable
from rolloutlog.consumers.replaying.deleting import delete_output, find_output
from rolloutlog.consumers.replaying.outputs import Output, app_of, is_there, list_outputs
from rolloutlog.consumers.replaying.partition import GROUPS, GROUPS_AHEAD, READ, UNSCORED
from rolloutlog.consumers.replaying.selection import Selection
from rolloutlog.consumers.status import read_statuses
from rolloutlog.consumers.times import show_time
from rolloutlog.eventstore.log import Log, open_log

KIB = 1024
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
COLUMNS = ("name", "state", "groups", "failures", "selection", "scorers", "settings", "created", "size")
PIPED_WIDTH = 10_000  # a line an output, however long
WIDE, ONLY_WIDE = 110, 3  # the last columns are shown where the terminal has so many characters
FOLDED = ("selection", "scorers")  # where the terminal is narrow
HASH_CHARACTERS = 8  # of the config hash; --json has all


@click.group(invoke_without_command=True)
@log_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.pass_context
def outputs(context: click.Context, log: str | None, as_json: bool) -> None:
    """List outputs of replays: how far they are, and what made them."""
    context.obj = log
    if context.invoked_subcommand is not None:
        return
    found = run(_outputs(load(None, {"log": log}).url()))
    if as_json:
        for output, counts in found:
            click.echo(json.dumps({"name": output.name, **counts, **_told(output)}, ensure_ascii=False))
        return
    if not found:
        click.echo("no outputs: `rolloutlog replay --output NAME` makes one", err=True)
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    count = len(COLUMNS) if console.width >= WIDE else len(COLUMNS) - ONLY_WIDE
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name in COLUMNS[:count]:
        table.add_column(name, overflow="fold", no_wrap=name not in FOLDED)
    for output, counts in found:
        table.add_row(*(Text(printable(each)) for each in _cells(output, counts)[:count]))
    console.print(table, highlight=False)


@outputs.command()
@click.argument("name", metavar="NAME")
@log_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def delete(context: click.Context, name: str, log: str | None, yes: bool) -> None:
    """Delete an output: its batches, and where its replays stand.

    A replay that writes it stores nothing more and ends. The name is free again; rewards that scorers recorded stay.
    """
    url = load(None, {"log": log or context.obj}).url()
    counts = run(_one(url, name))
    if not yes:
        said = ", ".join(filter(None, [_state(counts), f"{_groups(counts)} groups", _size(counts)]))
        click.confirm(printable(f"delete output {name} ({said})?"), abort=True, err=True)
    run(_delete(url, name))
    click.echo(printable(f"{name}: deleted"))


async def _outputs(url: str) -> list[tuple[Output, dict[str, Any]]]:
    log = await open_log(url)
    try:
        return [(each, await _counts(log, each)) for each in await list_outputs(log)]
    finally:
        await log.close()


async def _one(url: str, name: str) -> dict[str, Any]:
    log = await open_log(url)
    try:
        return await _counts(log, await find_output(log, name))
    finally:
        await log.close()


async def _delete(url: str, name: str) -> None:
    log = await open_log(url)
    try:
        await delete_output(log, name)
    finally:
        await log.close()


async def _counts(log: Log, output: Output) -> dict[str, Any]:
    """How far it is, by the statuses of its owners, its groups and its size; None where the log does not tell.

    groups_in_all  known once all events are read, also while scorers are asked
    failures       rollouts in it that a scorer failed for
    """
    if not await is_there(log, output):
        return {
            "complete": False, "percent": 0, "groups": 0, "groups_in_all": None, "failures": 0, "size_bytes": 0,
            "deleted": True,
        }  # fmt: skip
    statuses = await read_statuses(log, partitions=None, app=app_of(output.name))
    total = done = groups = ahead = failures = unread = 0
    for partition, (first, end) in enumerate(zip(output.first, output.ends, strict=True)):
        status = statuses.get(partition)
        total += end - first
        done += min(status.position, end) - first if status is not None else 0
        counts = {} if status is None else status.counts
        groups += counts.get(GROUPS, 0)
        ahead += counts.get(GROUPS_AHEAD, 0)
        failures += counts.get(UNSCORED, 0)
        unread += first < end and not counts.get(READ, 0)
    size = getattr(log, "size_bytes", None)  # of the embedded log; brokers would have to be asked one by one
    return {
        "complete": done >= total,
        "percent": 100 * done // total if total else 100,
        "groups": groups,
        "groups_in_all": None if unread else groups + ahead,
        "failures": failures,
        "size_bytes": None if size is None else await size(output.topic),
        "deleted": False,
    }


def _state(counts: dict[str, Any]) -> str:
    state = "complete" if counts["complete"] else f"at {counts['percent']} %"
    return "its topic is gone" if counts["deleted"] else state


def _groups(counts: dict[str, Any]) -> str:
    known = counts["groups_in_all"]
    return f"{counts['groups']} of {known}" if known is not None and not counts["complete"] else str(counts["groups"])


def _cells(output: Output, counts: dict[str, Any]) -> list[str]:
    return [
        output.name,
        _state(counts),
        _groups(counts),
        str(counts["failures"]),
        _selection(output.selection),
        _scorers(output),
        output.config_hash[:HASH_CHARACTERS],
        show_time(output.time_ns),
        _size(counts),
    ]


def _selection(selection: Selection) -> str:
    words = [
        f"{name} {show_time(time_ns)}"
        for name, time_ns in (("from", selection.from_ns), ("to", selection.to_ns))
        if time_ns is not None
    ]
    words += [
        f"{len(ids)} {name}{'' if len(ids) == 1 else 's'}"
        for name, ids in (("group", selection.groups), ("rollout", selection.rollouts))
        if ids
    ]
    return ", ".join(words) or "all"


def _scorers(output: Output) -> str:
    """Whose rewards count beside those in the events."""
    asked = ", ".join(f"{each.name} {each.version}" for each in output.scorers)
    recorded = ", ".join(map(str, output.rewards_of))
    recorded = f"recorded rewards of {recorded}" if recorded else ""
    return "; ".join(filter(None, [f"{asked}, recorded" if asked and output.record else asked, recorded])) or "none"


def _size(counts: dict[str, Any]) -> str:
    """In words; empty where it is not known."""
    size_bytes = counts["size_bytes"]
    if size_bytes is None:
        return ""
    size, unit = float(size_bytes), 0
    while size >= KIB and unit < len(UNITS) - 1:
        size, unit = size / KIB, unit + 1
    return f"{size_bytes} bytes" if unit == 0 else f"{size:.1f} {UNITS[unit]}"


def _told(output: Output) -> dict[str, Any]:
    told = asdict(output)
    told["settings"] = json.loads(output.settings)
    return told
