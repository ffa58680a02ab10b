"""`rolloutlog status`: where assemblers and trainers are, and whether the ledger's sums hold."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rolloutlog.consumers.cli.configuration import Configuration, load
from rolloutlog.consumers.cli.main import EXIT_DIFFERENT
from rolloutlog.consumers.cli.options import log_option, run, settings_option, stop_on_signals, unless_stopped
from rolloutlog.consumers.cli.progress import bars
from rolloutlog.consumers.ledger import ENDS, Ledger
from rolloutlog.consumers.ledger_reading import read_ledger
from rolloutlog.consumers.overview import Onlooker, Overview, PartitionView
from rolloutlog.consumers.printable import printable
from rolloutlog.eventstore.acks import ENDS as SAMPLE_ENDS
from rolloutlog.eventstore.errors import InvalidSettings, LogUnavailable
from rolloutlog.eventstore.log import Log, open_log

WATCH_S = 2.0
SILENT_S = 15.0  # three statuses left out: the assembler is gone, or cut off
PIPED_WIDTH = 200
WAITING_SHOWN = 10


@click.command(short_help="Show where everything is, and what open groups wait for.")
@log_option
@settings_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--ledger", is_flag=True, help="Also add up all rollouts and samples; reads whole topics.")
@click.option("--watch", is_flag=True, help="Look again every 2 s, until Ctrl-C.")
def status(settings: Path | None, log: str | None, as_json: bool, ledger: bool, watch: bool) -> None:
    """Show where assemblers and trainers are, what is still open and what it waits for.

    Exit code 1: with --ledger, something does not add up.
    """
    if ledger and watch:
        raise InvalidSettings("status: expected --ledger or --watch, got both: the ledger reads whole topics each time")
    if run(_status(load(settings, {"log": log}), as_json, ledger, watch)):
        raise click.exceptions.Exit(EXIT_DIFFERENT)


async def _status(configuration: Configuration, as_json: bool, with_ledger: bool, watch: bool) -> bool:
    """Returns whether something does not add up."""
    log = await open_log(configuration.url())
    try:
        if watch:
            await _watch(log, as_json)
            return False
        ledger = None
        with bars() as shown:
            overview = await Onlooker(log, shown.tell).look()
            if with_ledger:
                ledger = await read_ledger(log, late_window_s=configuration.late_window_s, on_progress=shown.tell)
        if as_json:
            click.echo(json.dumps(_as_json(log.url, overview, ledger, time.time_ns())))
        else:
            _print(log.url, overview, time.time_ns())
            if ledger is not None:
                for line in ledger_lines(ledger):
                    click.echo(printable(line))
        return ledger is not None and bool(ledger.problems())
    finally:
        await log.close()


async def _watch(log: Log, as_json: bool) -> None:
    stop = stop_on_signals()
    onlooker = Onlooker(log)
    while not stop.is_set():
        try:
            overview = await unless_stopped(stop, onlooker.look())
        except LogUnavailable as error:
            click.echo(f"{error}; looking again", err=True)
        else:
            if overview is None:
                return
            if as_json:
                click.echo(json.dumps(_as_json(log.url, overview, None, time.time_ns())))
            else:
                click.clear()
                _print(log.url, overview, time.time_ns())
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), WATCH_S)


def _print(url: str, overview: Overview, now_ns: int) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    views = overview.partitions
    table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False, header_style="bold")  # fits 80 columns
    for name in ("partition", "position / end", "lag", "open rollouts", "groups", "oldest open", "watermark", "batches",
                 "dead letters"):  # fmt: skip
        table.add_column(name, justify="right")
    for view in views:
        table.add_row(str(view.partition), *_cells(view, now_ns))
    sums = _sums(overview)
    if len(views) > 1:
        table.add_row("all", "", *(str(sums[name]) for name in ("lag", "open_rollouts", "open_groups")), "", "",
                      str(sums["batches"]), str(sums["dead_letters"]))  # fmt: skip
    console.print(f"log {url}: {len(views)} partitions", highlight=False, soft_wrap=True, markup=False)
    console.print(table, highlight=False)
    console.print("batches and dead letters here: since each assembler began", style="dim", highlight=False)
    for line in _lines(overview, now_ns):
        console.print(printable(line), highlight=False, soft_wrap=True, markup=False)


def _cells(view: PartitionView, now_ns: int) -> list[str]:
    status = view.status
    if status is None:
        return [f"-/{view.events.end}", str(view.lag), *["-"] * 6]
    return [
        f"{status.position}/{view.events.end}",
        str(view.lag),
        str(status.open_rollouts),
        str(status.open_groups),
        _age(status.oldest_open_ns, now_ns),
        _age(view.watermark_ns, now_ns),
        str(status.counts.get("batches", 0)),
        str(status.counts.get("dead_letters", 0)),
    ]


def _assemblers(overview: Overview, now_ns: int) -> Iterator[str]:
    """A line for each assembler and the partitions that it told of last."""
    told: dict[str, list[int]] = {}
    newest: dict[str, int] = {}
    ended: dict[str, bool] = {}
    silent = [view.partition for view in overview.partitions if view.status is None]
    for view in overview.partitions:
        if view.status is not None:
            who = f"host {view.status.host}, pid {view.status.pid}"
            told.setdefault(who, []).append(view.partition)
            newest[who] = max(newest.get(who, 0), view.status.time_ns)
            ended[who] = view.status.ended and ended.get(who, True)
    for who, partitions in told.items():
        silent_s = (now_ns - newest[who]) / 1e9
        late = f"no status for {_seconds(silent_s)}" if silent_s > SILENT_S else "at work"
        if ended[who]:
            late = f"ended {_seconds(silent_s)} ago"
        yield f"assembler of {_partitions(partitions)}: {who}, {late}"
    if silent:
        yield f"assembler of {_partitions(silent)}: none has told of itself"


def _partitions(partitions: list[int]) -> str:
    """Such as `partitions 0-3, 7`."""
    runs: list[list[int]] = []
    for partition in partitions:
        if runs and partition == runs[-1][-1] + 1:
            runs[-1].append(partition)
        else:
            runs.append([partition])
    named = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"partition{'s' if len(partitions) > 1 else ''} {named}"


def _lines(overview: Overview, now_ns: int) -> Iterator[str]:
    yield from _assemblers(overview, now_ns)
    letters = overview.dead_letters
    if letters:
        reasons = ", ".join(f"{count} {reason}" for reason, count in letters.most_common())
        passed = overview.dead_letters_passed
        newest = f"the newest {letters.total()}, {passed} older ones not looked at" if passed else str(letters.total())
        yield f"dead letters in the topic: {newest}: {reasons}"
    for reader in overview.readers:
        version = "unknown" if reader.policy_version is None else reader.policy_version
        yield (
            f"trainer {reader.reader}: next step {reader.next_step}, policy version {version}, "
            f"{reader.unacknowledged} records unacknowledged, last acknowledgement "
            + ("none" if reader.time_ns is None else f"{_age(reader.time_ns, now_ns)} ago")
            + ("" if reader.awaits is None else f"; waits for {reader.awaits} groups")
        )
    if not overview.readers:
        yield "no trainer has acknowledged anything"
    waiting = [line for view in overview.partitions if view.status is not None for line in view.status.waiting]
    for line in waiting[:WAITING_SHOWN]:
        yield f"open: {line}"
    groups = _sums(overview)["open_groups"]
    shown = min(WAITING_SHOWN, len(waiting))
    if groups > shown and shown:
        yield f"open: and {groups - shown} more groups"


def ledger_lines(ledger: Ledger) -> Iterator[str]:
    """The ledger for people, one sum a line."""
    rollouts = ledger.rollouts()
    terms = [f"{rollouts.ends[name]} {name}" for name in ENDS]
    terms += [f"{rollouts.refused.total()} refused", f"{rollouts.open} open"]
    terms += [f"{count} {name}" for name, count in (("missing", rollouts.missing), ("cut off", rollouts.cut)) if count]
    yield f"rollouts: {rollouts.started} started = {' + '.join(terms)}"
    if rollouts.refused:
        yield f"  refused: {', '.join(f'{count} {name}' for name, count in sorted(rollouts.refused.items()))}"
    if rollouts.superseded:
        yield f"  attempts superseded: {rollouts.superseded}"
    for reader in ledger.readers:
        samples = ledger.samples(reader)
        terms = [f"{samples.ends[name]} {name}" for name in SAMPLE_ENDS]
        terms += [f"{samples.skipped} skipped"] if samples.skipped else []
        yield (
            f"samples, reader {reader}: {samples.published} published = {' + '.join(terms)} + "
            f"{samples.in_flight} in flight"
        )
        if samples.cut:
            yield f"  and {samples.cut} ends of samples that retention removed"
    if not ledger.readers:
        yield f"samples: {ledger.samples('').published} published, none acknowledged"
    for line in ledger.history_cut:
        yield f"history cut: {line}"
    for line in ledger.problems():
        yield f"does not add up: {line}"


def _sums(overview: Overview) -> dict[str, int]:
    statuses = [view.status for view in overview.partitions if view.status is not None]
    return {
        "lag": sum(view.lag for view in overview.partitions),
        "open_rollouts": sum(each.open_rollouts for each in statuses),
        "open_groups": sum(each.open_groups for each in statuses),
        "batches": sum(each.counts.get("batches", 0) for each in statuses),
        "dead_letters": sum(each.counts.get("dead_letters", 0) for each in statuses),
    }


def _as_json(url: str, overview: Overview, ledger: Ledger | None, now_ns: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "log": url,
        "time_ns": now_ns,
        **_sums(overview),
        "partitions": [_partition_json(view, now_ns) for view in overview.partitions],
        "dead_letters_by_reason": dict(overview.dead_letters),
        "dead_letters_not_looked_at": overview.dead_letters_passed,
        "readers": [
            {
                "reader": each.reader,
                "next_step": each.next_step,
                "policy_version": each.policy_version,
                "unacknowledged": each.unacknowledged,
                "time_ns": each.time_ns,
                "awaits": each.awaits,
            }
            for each in overview.readers
        ],
    }
    if ledger is not None:
        rollouts = ledger.rollouts()
        found["ledger"] = {
            "rollouts": {
                "started": rollouts.started,
                **{name: rollouts.ends[name] for name in ENDS},
                "refused": dict(rollouts.refused),
                "open": rollouts.open,
                "missing": rollouts.missing,
                "cut": rollouts.cut,
                "attempts_superseded": rollouts.superseded,
            },
            "samples": {reader: _samples_json(ledger, reader) for reader in ledger.readers},
            "history_cut": ledger.history_cut,
            "problems": ledger.problems(),
        }
    return found


def _partition_json(view: PartitionView, now_ns: int) -> dict[str, Any]:
    status = view.status
    found: dict[str, Any] = {"partition": view.partition, "end": view.events.end, "lag": view.lag}
    if status is None:
        return {**found, "alive": False}
    return {
        **found,
        "alive": not status.ended and now_ns - status.time_ns <= SILENT_S * 1e9,
        "host": status.host,
        "pid": status.pid,
        "time_ns": status.time_ns,
        "position": status.position,
        "watermark": status.watermark,
        "watermark_ns": view.watermark_ns,
        "open_rollouts": status.open_rollouts,
        "open_groups": status.open_groups,
        "oldest_open_ns": status.oldest_open_ns,
        "counts": dict(status.counts),
        "waiting": list(status.waiting),
    }


def _samples_json(ledger: Ledger, reader: str) -> dict[str, int]:
    samples = ledger.samples(reader)
    ends = {name: samples.ends[name] for name in SAMPLE_ENDS}
    found = {"published": samples.published, **ends, "skipped": samples.skipped}
    return {**found, "in_flight": samples.in_flight, "cut": samples.cut}


def _age(time_ns: int | None, now_ns: int) -> str:
    return "-" if time_ns is None else _seconds(max(0.0, (now_ns - time_ns) / 1e9))


_UNITS: tuple[tuple[float, str], ...] = ((86_400, "d"), (3_600, "h"), (60, "min"))


def _seconds(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
