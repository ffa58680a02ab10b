"""The import itself: what it looks for in the log."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from support.building import started
from support.memory_log import MemoryLog

from rolloutlog.consumers.importing.contents import Entry, Survey, event_entry
from rolloutlog.consumers.importing.loading import Loaded, load
from rolloutlog.eventstore.log import NewRecord, Owner, Range
from rolloutlog.eventstore.log.port import Position
from rolloutlog.eventstore.meta import Run


class Committing:
    """An owner that is never fenced."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    async def positions(self) -> Mapping[int, Position]:
        return {}

    async def commit(self, records: Sequence[NewRecord], positions: Mapping[int, Position]) -> None:
        await self._log.append(records)

    async def close(self) -> None:
        pass


class HeldBackLog(MemoryLog):
    """As a log is seen while a transaction that another process began stands open before everything that came since."""

    held_back = False

    async def own(self, app: str, topic: str, partition: int | None) -> Owner:
        return Committing(self)

    async def ranges(self, topic: str, partitions: Iterable[int]) -> Mapping[int, Range]:
        found = await super().ranges(topic, partitions)
        return {p: Range(0, 0, span.written) for p, span in found.items()} if self.held_back else found


class Three:
    """Three starts of a file."""

    digest = "ab" * 16
    prefix: str | None = None
    verbatim = False

    def survey(self) -> Survey:
        return Survey(items=3, events=3, rollouts=3)

    def entries(self, survey: Survey, *, run_id: str, time_ns: int) -> Iterator[Entry]:
        for name in "abc":
            yield event_entry(started(name), b"g")


def imported(log: MemoryLog, content: Any) -> Loaded:
    run = Run("run", log.count, 0)
    return asyncio.run(load(log, run, content, content.survey(), name="x", on_progress=lambda *_: None))


def test_events_behind_an_open_transaction_of_another_process_are_found_and_not_stored_again():
    log = HeldBackLog()
    imported(log, Three())
    log.held_back = True
    other = Three()
    other.digest = "cd" * 16
    found = imported(log, other)
    assert (found.added, found.present) == (0, 3)
    assert len(log.events) == 3


def test_import_that_finished_behind_an_open_transaction_is_known():
    log = HeldBackLog()
    imported(log, Three())
    log.held_back = True
    assert imported(log, Three()).before == 3
