"""Entry of the command line: finds the command, sets logging up, turns errors into exit codes.

Exit codes   0 done · 1 done, but something was refused or differs, or could not be read or printed · 2 wrong usage or
             settings · 3 the log is missing or does not answer · 4 fenced: another process took over · 5 stopped on bad
             data or lost history · 130 Ctrl-C
"""

import codecs
import errno
import importlib
import io
import logging
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from rolloutlog import __version__
from rolloutlog.consumers.printable import PrintableFormatter, printable

if TYPE_CHECKING:
    # The store takes a moment to load; Ctrl-C then must find `main` running.
    from rolloutlog.eventstore.errors import StoreError

EXIT_DIFFERENT, EXIT_USAGE, EXIT_LOG, EXIT_FENCED, EXIT_STOPPED, EXIT_ABORTED = 1, 2, 3, 4, 5, 130
EXIT_IO = EXIT_DIFFERENT

WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF)  # a full disk, a limit, a stream that is closed

logger = logging.getLogger(__name__)

# Command → module and function. Loaded late, so that `--help` and each command pay only for what they use.
COMMANDS = {
    "archive": "archive:archive",
    "assemble": "assemble:assemble",
    "attribute": "attribute:attribute",
    "batches": "batches:batches",
    "compare": "compare:compare",
    "demo": "demo:demo",
    "demo-host": "demo_roles:demo_host",
    "demo-trainer": "demo_roles:demo_trainer",
    "dev-broker": "dev_broker:dev_broker",
    "doctor": "doctor:doctor",
    "explain": "explain:explain",
    "export": "export:export_group",
    "import": "importing:import_group",
    "metrics": "metrics:metrics",
    "outputs": "outputs:outputs",
    "replay": "replay:replay",
    "status": "status:status",
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
            _drop_output()  # here, because click would exit 1
            return None
        except SystemExit as stop:
            if isinstance(stop.__context__, BrokenPipeError):  # so rich's console ends a program
                return None
            raise
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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    if log_level != "debug":
        # The driver tells of every retry, also of those that belong to a healthy cluster; we say what comes of them.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def main() -> None:
    """Run the command line and exit."""
    _prepare_streams()
    with suppress(OSError):  # the folder may be gone
        # For policies and scorers that lie where the command is run; last, so that it never hides what is installed.
        sys.path.append(os.getcwd())
    try:
        code = _run()
    except (click.Abort, KeyboardInterrupt):
        _say("aborted")
        code = EXIT_ABORTED
    sys.exit(code)


def _run() -> int:
    """Run the command line; returns its exit code."""
    from rolloutlog.eventstore.errors import StoreError

    try:
        code = rolloutlog(prog_name="rolloutlog", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except StoreError as error:
        _say(f"error: {error}")
        return exit_code(error)
    except OSError as error:
        logger.debug("", exc_info=True)
        _say(f"error: {_where(error)}: {error.strerror or error}")
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        return EXIT_IO
    # Not standalone, click returns the code of an Exit; commands themselves return None.
    return code if isinstance(code, int) else 0


def exit_code(error: "StoreError") -> int:
    """The exit code that stands for an error."""
    from rolloutlog.eventstore.errors import InvalidSettings, LogMissing, LogUnavailable, PartitionCountChanged

    name = type(error).__name__
    if name in ("Fenced", "FencedOut"):
        return EXIT_FENCED
    if isinstance(error, InvalidSettings | PartitionCountChanged):
        return EXIT_USAGE
    if isinstance(error, LogMissing | LogUnavailable) or error.retriable:
        return EXIT_LOG
    return EXIT_STOPPED


def _where(error: OSError) -> str:
    """What could not be read or written. The system names a file that is opened, but not one that is open."""
    if error.filename is not None:
        return str(error.filename)
    # Standard output is all that a command writes beside the log, whose errors are ours.
    return "standard output could not be written" if error.errno in WRITE_ERRORS else "reading or writing failed"


def _drop_output() -> None:
    """Let what still waits for standard output go nowhere, or Python's last flush would fail."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _prepare_streams() -> None:
    """Python has None for a stream that was closed by who started us, such as with `>&-`: nobody wants to see it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 for as long as the process lasts
        elif isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            # Where the locale is not UTF-8, an arrow or a name must not end the command. ASCII means that none is set.
            encoding = "utf-8" if codecs.lookup(stream.encoding).name == "ascii" else None
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def _say(text: str) -> None:
    with suppress(OSError):  # the exit code tells all the same
        click.echo(printable(text, keep="\n\t"), err=True)
