"""Options that several commands have."""

import asyncio
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
