"""Several processes for one replay, each with the partitions of its share.

A process tells how far it is twice a second, and at its end what it did or why it failed. One that fails, or is gone
without a word, ends the others: they commit what is done. A process whose parent is gone stops as if told to.
"""

import asyncio
import logging
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic
from types import FrameType
from typing import Any

from rolloutlog.consumers.owners import FencedOut
from rolloutlog.consumers.replaying.job import Job, run_share
from rolloutlog.consumers.replaying.share import Share
from rolloutlog.consumers.replaying.summary import Summary
from rolloutlog.eventstore.errors import Fenced, InvalidSettings, LogMissing, LogUnavailable, StoreError

TELL_S = 0.5
STOP_S = 20.0  # from SIGTERM to SIGKILL: a worker commits before it ends
POLL_S = 0.2

OnProgress = Callable[[int, int, int], None]  # offsets below which all is out, of how many; groups put out

_KINDS: tuple[type[StoreError], ...] = (FencedOut, Fenced, InvalidSettings, LogMissing, LogUnavailable)


class WorkerDied(StoreError):
    """A worker ended without a word; the text names it. What it had committed is kept."""


class WorkerFailed(StoreError):
    """A worker ended with an error of a kind that has no meaning for the others."""


@dataclass
class _Worker:
    number: int
    partitions: list[int]
    process: BaseProcess
    connection: Connection
    progress: tuple[int, int, int] = (0, 0, 0)
    summary: Summary | None = None
    error: tuple[str, str] | None = None
    stopped: bool = False  # by us: it ends by the signal where it was only starting


def run_workers(job: Job, count: int, on_progress: OnProgress) -> Summary:
    """Replay in `count` processes, the i-th with every count-th partition. SIGINT and SIGTERM stop them all.

    Raises  what a worker raised; WorkerDied
    """
    partitions = job.partitions
    shares = [share for share in (partitions[index::count] for index in range(count)) if share]
    context = multiprocessing.get_context("spawn")
    workers: list[_Worker] = []
    with _told_to_stop() as stopping:
        try:
            for number, share in enumerate(shares, 1):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_run_worker,
                    args=(theirs, job, share, logging.getLogger().level),
                    name=f"rolloutlog replay {number}/{len(shares)}",
                    daemon=True,
                )
                process.start()
                theirs.close()
                total = sum(job.output.ends[p] - job.output.first[p] for p in share)
                workers.append(_Worker(number, share, process, ours, (0, total, 0)))
            while any(not worker.connection.closed for worker in workers):
                _listen(workers, POLL_S)
                done, total, groups = (sum(each.progress[index] for each in workers) for index in range(3))
                on_progress(done, total, groups)
                failed = [each for each in workers if _has_failed(each)]
                if failed or stopping():
                    break
        finally:
            _end(workers)
    return _outcome(workers)


def _listen(workers: Sequence[_Worker], within_s: float) -> None:
    """Take what workers say."""
    by_connection = {each.connection: each for each in workers if not each.connection.closed}
    for ready in wait(list(by_connection), within_s) if by_connection else ():
        assert isinstance(ready, Connection)
        worker = by_connection[ready]
        try:
            kind, *said = ready.recv()
        except (EOFError, OSError):
            worker.connection.close()
            worker.process.join(STOP_S)
            continue
        if kind == "progress":
            worker.progress = (said[0], said[1], said[2])
        elif kind == "done":
            worker.summary = said[0]
        else:
            worker.error = (said[0], said[1])


def _has_failed(worker: _Worker) -> bool:
    if worker.error is not None:
        return True
    return worker.summary is None and worker.connection.closed


def _end(workers: Sequence[_Worker]) -> None:
    """Stop those that still run, and hear what they say until their end."""
    for worker in workers:
        if worker.process.is_alive() and worker.summary is None:
            worker.stopped = not _has_failed(worker)
            worker.process.terminate()
    deadline = monotonic() + STOP_S
    while monotonic() < deadline and any(not each.connection.closed for each in workers):
        _listen(workers, POLL_S)
    for worker in workers:
        if worker.process.is_alive():
            worker.process.kill()
        worker.process.join()
        worker.connection.close()


def _outcome(workers: Sequence[_Worker]) -> Summary:
    count = len(workers)
    for worker in workers:
        if worker.error is not None:
            kind, text = worker.error
            raise next((each for each in _KINDS if each.__name__ == kind), WorkerFailed)(text)
    for worker in workers:
        if worker.summary is None and worker.stopped and worker.process.exitcode == -signal.SIGTERM:
            worker.summary = Summary(stopped=True)
        elif worker.summary is None:
            code = worker.process.exitcode or 0
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            shown = ", ".join(map(str, worker.partitions[:8])) + (", ..." if len(worker.partitions) > 8 else "")
            raise WorkerDied(
                f"worker {worker.number} of {count} (pid {worker.process.pid}, partitions {shown}) {how} before its "
                "end; the others were stopped and what was committed is kept: run the same command again to go on"
            )
    summary = Summary()
    for worker in workers:
        assert worker.summary is not None
        summary.add(worker.summary)
    return summary


@contextmanager
def _told_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM has come while the block runs."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before: dict[signal.Signals, Any] = {}
    for name in (signal.SIGINT, signal.SIGTERM):
        with suppress(ValueError):  # not the main thread: whoever runs us there stops us in another way
            before[name] = signal.signal(name, note)
    try:
        yield lambda: bool(came)
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _run_worker(connection: Connection, job: Job, partitions: Sequence[int], level: int) -> None:
    """A worker process."""
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if level > logging.DEBUG:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        summary = asyncio.run(_work(connection, job, partitions))
    except StoreError as error:
        said: tuple[object, ...] = ("failed", type(error).__name__, str(error))
    else:
        said = ("done", summary)
    with suppress(OSError):
        connection.send(said)
    connection.close()


async def _work(connection: Connection, job: Job, partitions: Sequence[int]) -> Summary:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    shares: list[Share] = []
    teller = asyncio.create_task(_tell(connection, shares, stop))
    try:
        return await run_share(job, partitions, stop=stop, step=trace, on_share=shares.append)
    finally:
        teller.cancel()
        await asyncio.gather(teller, return_exceptions=True)
        for share in shares:
            with suppress(OSError):
                connection.send(("progress", *share.progress(), share.summary.counts["groups"]))


async def _tell(connection: Connection, shares: Sequence[Share], stop: asyncio.Event) -> None:
    while True:
        try:
            for share in shares:
                connection.send(("progress", *share.progress(), share.summary.counts["groups"]))
            gone = connection.poll()  # nothing is ever said to us but by the end of the pipe
        except OSError:
            gone = True
        if gone:
            stop.set()
            return
        await asyncio.sleep(TELL_S)


def trace(partition: int, step: str) -> None:
    """Tell of a step at level debug."""
    logging.getLogger("rolloutlog.replay").debug("partition %d: step %s", partition, step)
