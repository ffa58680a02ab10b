"""Entry of the command line: finds the command, sets logging up, turns errors into exit codes.

Exit codes   0 done · 1 done, but something was refused or differs · 2 wrong usage or settings · 3 the log is missing or
             does not answer · 4 fenced: another process took over · 5 stopped on bad data or lost history
"""

import importlib
import logging
import os
import sys
from contextlib import suppress
from typing import Any

import click

from rolloutlog import __version__
from rolloutlog.eventstore.errors import (
    InvalidSettings,
    LogMissing,
    LogUnavailable,
    PartitionCountChanged,
    StoreError,
)

EXIT_DIFFERENT, EXIT_USAGE, EXIT_LOG, EXIT_FENCED, EXIT_STOPPED = 1, 2, 3, 4, 5

# Command → module and function. Loaded late, so that `--help` and each command pay only for what they use.
COMMANDS = {
    "assemble": "assemble:assemble",
    "attribute": "attribute:attribute",
    "batches": "batches:batches",
    "demo": "demo:demo",
    "import": "importing:import_group",
    "topics": "topics:topics",
}


class Commands(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(f"rolloutlog.consumers.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A closed pipe ends it: the reader, e.g. `head`, has what it wanted."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Here, because click would exit 1. What is still buffered goes nowhere, or the last flush would fail.
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
        return result


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="rolloutlog")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="Least severe log lines to print to standard error.",
)
def rolloutlog(log_level: str) -> None:
    """Event-sourced trace store for training LLM agents: events in, training batches out, exactly once."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )


def main() -> None:
    """Run the command line and exit."""
    try:
        code = rolloutlog(prog_name="rolloutlog", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt):
        click.echo("aborted", err=True)
        sys.exit(130)
    except StoreError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(exit_code(error))
    # Not standalone, click returns the code of an Exit; commands themselves return None.
    sys.exit(code if isinstance(code, int) else 0)


def exit_code(error: StoreError) -> int:
    """The exit code that stands for an error."""
    name = type(error).__name__
    if name in ("Fenced", "FencedOut"):
        return EXIT_FENCED
    if isinstance(error, InvalidSettings | PartitionCountChanged):
        return EXIT_USAGE
    if isinstance(error, LogMissing | LogUnavailable):
        return EXIT_LOG
    return EXIT_STOPPED
