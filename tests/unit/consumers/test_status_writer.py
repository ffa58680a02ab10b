"""Writing statuses: all at once, again after a failure, and never for those that do not own their partition."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from support.building import record, started
from support.memory_log import MemoryLog

from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.outputs import GroupClosing, Output
from rolloutlog.consumers.owners import Claim
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.consumers.status import Status, read_statuses
from rolloutlog.consumers.status_writer import StatusWriter
from rolloutlog.eventstore.errors import LogUnavailable
from rolloutlog.eventstore.log import NewRecord

INTERVAL_S = 0.01
DEADLINE_S = 10.0


@dataclass
class Worker:
    partition: int
    outputs: list[Output] = field(default_factory=list)
    claim: Claim | None = None

    def __post_init__(self) -> None:
        self.state = PartitionState(self.partition, FoldSettings())
        fold(self.state, record(started("r"), 0))
        self.claim = Claim("assembler", "events", self.partition, "host", 7, 1)


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not met():  # noqa: ASYNC110 a log in memory has no event to wait for
            await asyncio.sleep(0.001)


def written(
    *workers: Worker, fault: Callable[[Sequence[NewRecord]], None] | None = None, appends: int = 1
) -> MemoryLog:
    """Let statuses be written until the log was asked to append so many times."""

    async def work() -> MemoryLog:
        log = MemoryLog()
        log.before = fault or log.before
        writer = StatusWriter(log, lambda: 9, INTERVAL_S, FoldSettings())
        for worker in workers:
            writer.begin(worker)
        writer.counts[0] = Counter(batches=3)
        task = asyncio.create_task(writer.run())
        await until(lambda: len(log.appends) >= appends)
        task.cancel()
        return log

    return asyncio.run(work())


def statuses(log: MemoryLog) -> dict[int, Status]:
    return asyncio.run(read_statuses(log))


def test_statuses_of_all_partitions_are_one_append():
    log = written(Worker(0), Worker(2))
    assert [each.key for each in log.appends[0][1:]] == [b"status/assembler/0", b"status/assembler/2"]


def test_settings_are_written_with_the_first_statuses_alone():
    log = written(Worker(0), appends=2)
    key = b"settings/" + FoldSettings().config_hash.encode()
    assert [[each.key for each in records] for records in log.appends[:2]] == [
        [key, b"status/assembler/0"],
        [b"status/assembler/0"],
    ]


def test_settings_after_a_failed_append_are_written_again():
    refused = []

    def once(records: Sequence[NewRecord]) -> None:
        if not refused:
            refused.append(records)
            raise LogUnavailable("no answer")

    log = written(Worker(0), fault=once, appends=2)
    assert [(each[0].key or b"").partition(b"/")[0] for each in log.appends[:2]] == [b"settings", b"settings"]


def test_status_has_what_was_counted_since_the_process_began():
    assert statuses(written(Worker(0)))[0].counts == {"batches": 3}


def test_status_has_the_position_up_to_which_all_outputs_are_out():
    worker = Worker(0)
    assert statuses(written(worker))[0].position == 1
    worker.outputs = [GroupClosing(0, "g")]
    assert statuses(written(worker))[0].position == 0


def test_status_on_the_way_back_has_the_position_that_was_committed():
    worker = Worker(0)
    worker.state.emit_from = 40
    assert statuses(written(worker))[0].position == 40


def test_statuses_after_a_failed_append_are_written_again():
    refused = []

    def once(records: Sequence[NewRecord]) -> None:
        if not refused:
            refused.append(records)
            raise LogUnavailable("no answer")

    assert set(statuses(written(Worker(0), fault=once, appends=2))) == {0}


def test_statuses_after_an_unexpected_error_are_written_again():
    refused = []

    def once(records: Sequence[NewRecord]) -> None:
        if not refused:
            refused.append(records)
            raise ZeroDivisionError

    assert set(statuses(written(Worker(0), fault=once, appends=2))) == {0}


def test_status_of_a_worker_that_left_is_not_written():
    async def work() -> MemoryLog:
        log = MemoryLog()
        writer = StatusWriter(log, lambda: 9, INTERVAL_S, FoldSettings())
        left, stays = Worker(0), Worker(1)
        writer.begin(left)
        writer.begin(stays)
        writer.leave(left)
        task = asyncio.create_task(writer.run())
        await until(lambda: len(log.appends) == 1)
        task.cancel()
        await writer.finish()
        return log

    assert set(statuses(asyncio.run(work()))) == {1}


def test_status_of_a_worker_that_ended_is_written_once_more_at_the_end():
    async def work() -> MemoryLog:
        log = MemoryLog()
        writer = StatusWriter(log, lambda: 9, INTERVAL_S, FoldSettings())
        worker = Worker(0)
        writer.begin(worker)
        writer.end(worker)
        writer.leave(worker)
        await writer.finish()
        return log

    status = statuses(asyncio.run(work()))[0]
    assert (status.open_rollouts, status.ended) == (1, True)


def test_last_statuses_of_a_log_that_does_not_answer_are_left_out(monkeypatch):
    monkeypatch.setattr("rolloutlog.consumers.status_writer.FINAL_S", 0.05)

    async def work() -> MemoryLog:
        log = MemoryLog()
        log.gate.clear()
        writer = StatusWriter(log, lambda: 9, INTERVAL_S, FoldSettings())
        writer.end(Worker(0))
        await writer.finish()
        return log

    assert asyncio.run(work()).records == {}
