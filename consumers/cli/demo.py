"""`rolloutlog demo`: a whole reinforcement learning loop on this machine, from chance to solved in less than a minute.

Two rollout hosts, an assembler and a trainer run as processes of their own; this one shows what the log says of them.
"""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from rolloutlog.consumers.cli.main import EXIT_DIFFERENT
from rolloutlog.consumers.cli.options import run
from rolloutlog.consumers.demo.display import Display
from rolloutlog.consumers.demo.loop import Demo, Result, run_demo
from rolloutlog.consumers.demo.settings import SOLVED, STEPS_MAX
from rolloutlog.consumers.demo.summary import read_end, show_end
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import parse_url

BROKER_FOLDER = "kafka"
PREFIX = "demo"


@click.command(short_help="Train a small SQL agent by reinforcement learning.")
@click.option("--seed", default=7, show_default=True, help="Seed of all that the policy draws.")
@click.option("--log", metavar="URL", help="Run on this log, a new one. Default: a file in the demo's own folder.")
@click.option("--kafka", is_flag=True, help="Run on a Kafka broker that is started for it. Needs Java 17, and Maven.")
@click.option("--hosts", type=click.IntRange(1, 16), default=2, show_default=True, help="Rollout host processes.")
@click.option(
    "--steps-max", type=click.IntRange(1), default=STEPS_MAX, show_default=True, help="Steps to give up after."
)
@click.option(
    "--keep",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the demo's files here, a new folder. Default: a temporary one, removed at the end.",
)
def demo(seed: int, log: str | None, kafka: bool, hosts: int, steps_max: int, keep: Path | None) -> None:
    """Train a small SQL agent by reinforcement learning, with two rollout hosts, an assembler and a trainer.

    Exit code 1: it does not answer 9 of 10 questions after --steps-max steps.
    """
    if kafka and log is not None:
        raise InvalidSettings("--kafka and --log: expected one of them, got both; --log runs on a broker you have")
    if log is not None:
        parse_url(log)  # a wrong one is refused before anything starts
    # Processes and folder are cleaned up by what Ctrl-C does. A terminal that closes too, unless `nohup` ignores that.
    for name in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(name) is not signal.SIG_IGN:
            signal.signal(name, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with _folder(keep) as folder, _log(log, kafka, folder) as url:
        console = Console()
        began_s = time.monotonic()
        result = _run(Demo(url, folder, seed=seed, hosts=hosts, steps_max=steps_max), console)
        seconds = time.monotonic() - began_s
        show_end(console, result.progress, run(read_end(url, result.progress)), seconds)
        if keep is not None:
            _say_what_next(url, kafka, keep, result)
    if not result.solved:
        click.echo(f"not learned: mean final reward below {SOLVED} after {result.progress.steps} steps", err=True)
        raise click.exceptions.Exit(EXIT_DIFFERENT)


def _run(demo: Demo, console: Console) -> Result:
    with Display(console, time.monotonic()) as display:
        result = run(run_demo(demo, display.show))
        display.finish(result.progress)
    return result


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="rolloutlog-demo-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        is_empty = not any(keep.iterdir())
    except OSError as error:
        raise InvalidSettings(
            f"--keep {keep}: expected a folder to write to, got: {error.strerror or error}"
        ) from error
    if not is_empty:
        raise InvalidSettings(f"--keep {keep}: expected a new or an empty folder, got one with files in it")
    yield keep.resolve()


@contextmanager
def _log(url: str | None, kafka: bool, folder: Path) -> Iterator[str]:
    if not kafka:
        yield url or f"sqlite:///{folder / 'demo.db'}"
        return
    from rolloutlog.consumers.cli.dev_broker import started

    with started(folder / BROKER_FOLDER) as broker:
        click.echo(f"Kafka on {broker.bootstrap}, ready in {broker.start_s:.1f} s")
        yield f"kafka://{broker.bootstrap}/{PREFIX}"


def _say_what_next(url: str, kafka: bool, keep: Path, result: Result) -> None:
    if kafka:
        click.echo(f"kept in {keep}; start the broker on it again, then try the others:")
        click.echo(f"  rolloutlog dev-broker --data {keep / BROKER_FOLDER}")
        url = f"kafka://127.0.0.1:9092/{PREFIX}"
    else:
        click.echo(f"kept in {keep}; try:")
    click.echo(f"  rolloutlog status --log {url}")
    if result.progress.example is not None:
        click.echo(f"  rolloutlog explain {result.progress.example} --log {url}")
    click.echo(f"  rolloutlog batches dump --log {url} | head -n 1")
