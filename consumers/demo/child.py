"""One process of the demo: `python -m rolloutlog.consumers.demo.child ROLE URL …`.

    host URL WEIGHTS HOST SEED   work on tasks until it is told to stop
    assemble URL                 `rolloutlog assemble`, until it is told to stop
    train URL WEIGHTS            train until the run has ended

Each is told to stop by SIGTERM, and by the end of its standard input: whoever started it wants that, or is gone.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path


def main(role: str, *arguments: str) -> None:
    stop = threading.Event()
    if role == "host":  # the others have their own way, or none
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    if role == "assemble":
        _assemble(*arguments)
        return
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # The driver tells of every retry, also of those that belong to a healthy cluster; we say what comes of them.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    if role == "host":
        _host(arguments, stop)
    elif role == "train":
        _train(*arguments)
    else:
        raise SystemExit(f"role: expected host, assemble or train, got {role!r}")


def _host(arguments: Sequence[str], stop: threading.Event) -> None:
    from rolloutlog.consumers.demo.host import run_host

    url, weights, host, seed = arguments
    run_host(url, Path(weights), host=int(host), seed=int(seed), stopped=stop.is_set)


def _assemble(url: str) -> None:
    from rolloutlog.consumers.cli.main import main as command

    sys.argv = ["rolloutlog", "assemble", "--log", url]
    command()


def _train(url: str, weights: str) -> None:
    from rolloutlog.consumers.demo.training import train

    train(url, Path(weights))


def _stop_with_parent() -> None:
    """Wait for the end of standard input. By its descriptor: `sys.stdin` would hold a lock that Python's end needs."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
