"""Writes the statuses of an assembler's partitions while it runs: one append for all of them, every few seconds. With
the first ones go its settings.

What can't be written is left out, and the next time comes: assembly never waits for a status and never stops for one.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from rolloutlog.consumers.outputs import Output
from rolloutlog.consumers.owners import Claim
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.consumers.status import Status, status_of, status_record
from rolloutlog.consumers.used_settings import settings_record
from rolloutlog.eventstore.errors import StoreError
from rolloutlog.eventstore.log import EVENTS, Log

FIRST_S = 0.5  # after the start, so that whoever looks then finds something
FINAL_S = 2.0  # for the last ones: a log that does not answer is not waited for

logger = logging.getLogger("rolloutlog.assembler")


class Working(Protocol):
    """A worker, as far as its status tells of it."""

    partition: int
    state: PartitionState
    outputs: list[Output]
    claim: Claim | None

    def hear_log_time(self, log_time_ns: int) -> None:
        """Told the log time of what was just written."""


class StatusWriter:
    """Statuses of the workers that own their partitions at the moment, and the last ones of those that ended.

    counts  by partition, since the process began; workers add to it what they have committed
    """

    def __init__(self, log: Log, clock: Callable[[], int], interval_s: float, settings: FoldSettings) -> None:
        self._log, self._clock, self._interval_s = log, clock, interval_s
        self._settings: FoldSettings | None = settings  # None: written
        self._workers: dict[int, Working] = {}
        self._ended: dict[int, Working] = {}
        self.counts: dict[int, Counter[str]] = {}

    def begin(self, worker: Working) -> None:
        """The worker owns its partition from here on."""
        self._workers[worker.partition] = worker

    def leave(self, worker: Working) -> None:
        """It does not any more, or may not: nothing is said of it."""
        if self._workers.get(worker.partition) is worker:
            del self._workers[worker.partition]

    def end(self, worker: Working) -> None:
        """It has done what it was to do; `finish` writes its last status."""
        self.leave(worker)
        self._ended[worker.partition] = worker

    async def run(self) -> None:
        """Write until cancelled."""
        await asyncio.sleep(min(FIRST_S, self._interval_s))
        while True:
            await self._write(self._workers)
            await asyncio.sleep(self._interval_s)

    async def finish(self) -> None:
        """Write the last statuses of those that ended."""
        try:
            async with asyncio.timeout(FINAL_S):
                await self._write(self._ended, ended=True)
        except TimeoutError:
            logger.info("the last statuses were not written: no answer within %.0f s", FINAL_S)

    async def _write(self, workers: dict[int, Working], *, ended: bool = False) -> None:
        if not workers:
            return
        try:
            spans = await self._log.ranges(EVENTS, sorted(workers))
            ends = {partition: span.end for partition, span in spans.items()}
            # Made after the answer: a worker that was fenced while it was awaited is not among them any more.
            statuses = list(self._statuses(workers.values(), ends))
            if statuses:
                records = [status_record(replace(each, ended=ended)) for each in statuses]
                if self._settings is not None:
                    records.insert(0, settings_record(self._settings, self._clock()))
                stored = await self._log.append(records)
                self._settings = None
                for worker in workers.values():
                    worker.hear_log_time(stored[-1].log_time_ns)
        except StoreError as error:
            logger.info("statuses were not written: %s", error)
        except Exception:
            logger.exception("statuses were not written")

    def _statuses(self, workers: Iterable[Working], ends: dict[int, int]) -> Iterable[Status]:
        for worker in workers:
            if worker.claim is not None and worker.partition in ends:
                yield status_of(
                    worker.state,
                    worker.claim,
                    position=_position(worker),
                    end=ends[worker.partition],
                    counts=self.counts.get(worker.partition, {}),
                    time_ns=self._clock(),
                )


def _position(worker: Working) -> int:
    """Outputs leave in the order of their triggers: all below the first that waits are out."""
    if worker.outputs:
        return worker.outputs[0].trigger
    return max(worker.state.position, worker.state.emit_from)
