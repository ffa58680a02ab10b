"""`rolloutlog demo-host` and `demo-trainer`: the demo's processes one by one, as deploy/compose.yaml starts them.

They share a folder for weights. `rolloutlog demo` starts the same loop as a whole; these go on until they are stopped.
"""

import signal
import threading
from pathlib import Path

import click

from rolloutlog.consumers.cli.configuration import load
from rolloutlog.consumers.cli.options import log_option, run, settings_option
from rolloutlog.consumers.demo.host import run_host
from rolloutlog.consumers.demo.policy import first_weights
from rolloutlog.consumers.demo.training import train
from rolloutlog.consumers.demo.weights import load_weights, save_weights
from rolloutlog.eventstore.errors import InvalidSettings, StoreError
from rolloutlog.eventstore.log import ACKS, open_log

LOOK_S = 0.5  # between two looks whether the trainer has written version 0

weights_option = click.option(
    "--weights",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder of the policy's weights, the same for hosts and trainer.",
)


@click.command("demo-host", hidden=True)
@log_option
@settings_option
@weights_option
@click.option("--host", type=click.IntRange(0), default=0, show_default=True, help="This host's number.")
@click.option("--seed", default=7, show_default=True, help="Seed of all that the policy draws.")
def demo_host(settings: Path | None, log: str | None, weights: Path, host: int, seed: int) -> None:
    """Work on the demo's tasks until SIGTERM or Ctrl-C, with the newest weights that the trainer acknowledged."""
    url = load(settings, {"log": log}).url()
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    while not stop.is_set() and not _is_there(weights):
        stop.wait(LOOK_S)
    run_host(url, weights, host=host, seed=seed, stopped=stop.is_set)


@click.command("demo-trainer", hidden=True)
@log_option
@settings_option
@weights_option
def demo_trainer(settings: Path | None, log: str | None, weights: Path) -> None:
    """Train the demo's policy from the beginning, until the run has ended, SIGTERM or Ctrl-C."""
    url = load(settings, {"log": log}).url()
    for name in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a shell has it ignored in the background
        signal.signal(name, signal.default_int_handler)
    run(_check_is_new(url))
    save_weights(weights, 0, first_weights())
    try:
        train(url, weights)
    except KeyboardInterrupt:
        click.echo("stopped; a trainer of the demo starts with a new prefix or file", err=True)


def _is_there(weights: Path) -> bool:
    try:
        load_weights(weights, 0)
    except StoreError:
        return False
    return True


async def _check_is_new(url: str) -> None:
    """The demo keeps no checkpoint: a second trainer would go back to version 0, and hosts with it."""
    log = await open_log(url)
    try:
        acks = (await log.ranges(ACKS, [0]))[0]
    finally:
        await log.close()
    if acks.written > 0:
        raise InvalidSettings(
            f"log {url}: expected one that no trainer has acknowledged a step in, got one with {ACKS}; the demo keeps "
            "no checkpoint: use another prefix or file"
        )
