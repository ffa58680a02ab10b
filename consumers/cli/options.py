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


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a command's asynchronous part."""
    return asyncio.run(work)
