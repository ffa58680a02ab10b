"""Options that several commands have."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

Result = TypeVar("Result")
Command = Callable[..., Any]


def log_option(command: Command) -> Command:
    return click.option(
        "--log", metavar="URL", help="sqlite:///file.db or kafka://host:port/prefix. Default: ROLLOUTLOG_LOG."
    )(command)


def settings_option(command: Command) -> Command:
    return click.option(
        "--settings",
        type=click.Path(path_type=Path, dir_okay=False),
        help="TOML file with settings; environment and flags go before it.",
    )(command)


def output_option(command: Command) -> Command:
    return click.option(
        "--output", metavar="NAME", help="Of a replay, what it made under this name. Default: live, what was assembled."
    )(command)


ATTRIBUTION_HELP = {
    "policy": "How a reward without target finds its call. Default: enclosing.",
    "final": "Calls that final rewards reach. Default: last_call.",
    "reduce": "Several rewards of one name on one call. Default: sum.",
    "link-subtree": "What a target that is no call means. Default: last.",
    "agent": "Train only calls whose agent matches this regular expression.",
    "operation": "Train only calls within a matching operation.",
    "model": "Train only calls of matching models.",
    "exclude-agent": "Train no calls of matching agents.",
    "exclude-operation": "Train no calls within a matching operation.",
}


def attribution_options(command: Command) -> Command:
    """A flag for every attribution setting but weights, passed on as `attribution_{name}`."""
    for name, text in reversed(ATTRIBUTION_HELP.items()):
        command = click.option(f"--{name}", f"attribution_{name.replace('-', '_')}", help=text)(command)
    return command


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a command's asynchronous part."""
    return asyncio.run(work)


def stop_on_signals() -> asyncio.Event:
    """An event that is set by SIGINT or SIGTERM, which end a command that runs until it is stopped: exit code 0."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    return stop


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """What `work` returns; None when `stop` is set before, and the work is cancelled."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
