"""Sending: order, retries, refusals and deadlines, on a log in memory."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest
from support.memory_log import MemoryLog

from rolloutlog.eventstore.clock import HostClock
from rolloutlog.eventstore.codec import Header, parse_header
from rolloutlog.eventstore.errors import LogMissing, LogUnavailable, NotStored, RecordTooLarge
from rolloutlog.eventstore.outbox import Entry, Outbox
from rolloutlog.eventstore.sender import Sender
from rolloutlog.eventstore.settings import PublisherSettings

SETTINGS = PublisherSettings(linger_s=0.0, retry_s_min=0.001, retry_s_max=0.002)


class Bench:
    """A sender with its outbox and log; `put` numbers events from 0, each to the partition of its number mod 2."""

    def __init__(self, log: MemoryLog, settings: PublisherSettings) -> None:
        self.log = log
        self.outbox = Outbox(memory_bytes_max=1_000_000, on_put=lambda: self.sender.wake())
        self.clock = HostClock()
        self.sender = Sender(log, self.outbox, self.clock, settings)
        self.count = 0

    def put(self, count: int = 1) -> None:
        for _ in range(count):
            header = Header("Span", "-", 0, self.count, "main.00112233445566aa", f"r-{self.count % 2}")
            self.outbox.put(Entry(header, self.count % 2, b"g", str(self.count).encode()))
            self.count += 1

    async def flush(self, timeout_s: float = 5.0) -> None:
        await self.sender.flush(self.outbox.put_count, timeout_s)

    def values(self) -> list[bytes]:
        return [record.value for record in self.log.events]

    def flags(self) -> list[str]:
        return [parse_header(dict(record.headers)["e"]).flags for record in self.log.events]


@asynccontextmanager
async def sending(log: MemoryLog | None = None, settings: PublisherSettings = SETTINGS):
    bench = Bench(log or MemoryLog(), settings)
    task = asyncio.create_task(bench.sender.run())
    try:
        yield bench
    finally:
        task.cancel()


def failing(times: int, error: Exception):
    """Raise `error` the first `times` times."""
    left = [times]

    def fault(records) -> None:
        if left[0]:
            left[0] -= 1
            raise error

    return fault


async def test_sender_keeps_the_order_of_each_partition():
    async with sending() as bench:
        bench.put(5)
        await bench.flush()
        bench.put(5)
        await bench.flush()
        assert bench.values() == [b"0", b"2", b"4", b"6", b"8", b"1", b"3", b"5", b"7", b"9"]
        assert set(bench.flags()) == {"-"}


async def test_sender_without_answer_appends_the_same_events_again_marked_resend():
    async with sending() as bench:
        bench.log.after = failing(1, LogUnavailable("no answer"))  # stored, and the answer got lost
        bench.put(1)
        await bench.flush()
        bench.put(1)
        await bench.flush()
        assert bench.values() == [b"0", b"0", b"1"]
        assert bench.flags() == ["-", "r", "-"]


async def test_sender_marks_nothing_resend_while_the_log_knows_that_nothing_was_stored():
    """The fold refuses a start marked so whose host's clock is behind: the rollout would be lost."""
    async with sending() as bench:
        bench.log.before = failing(2, LogUnavailable("locked", maybe_stored=False))
        bench.put(2)
        await bench.flush()
        assert bench.flags() == ["-", "-"]


async def test_sender_keeps_the_mark_when_a_later_try_stores_nothing():
    async with sending() as bench:
        bench.log.after = failing(1, LogUnavailable("no answer"))
        bench.put(1)
        await asyncio.sleep(0)
        bench.log.before = failing(2, LogUnavailable("locked", maybe_stored=False))
        await bench.flush()
        assert bench.flags() == ["-", "r"]


async def test_sender_keeps_later_events_behind_those_that_are_tried_again():
    async with sending() as bench:
        bench.log.before = failing(3, LogUnavailable("no answer"))
        bench.put(2)
        await asyncio.sleep(0.002)
        bench.put(4)
        await bench.flush()
        assert bench.values() == [b"0", b"2", b"4", b"1", b"3", b"5"]


async def test_sender_with_unknown_error_tries_again():
    """A driver's error that is none of ours says nothing of what is stored."""
    async with sending() as bench:
        bench.log.before = failing(2, OSError("driver"))
        bench.put(1)
        await bench.flush()
        assert (bench.values(), bench.flags()) == ([b"0"], ["r"])


async def test_sender_with_one_record_too_large_refuses_only_that_one(caplog):
    def too_large(records) -> None:
        if any(record.value == b"5" for record in records):
            raise RecordTooLarge("record 5 is above 4 bytes")

    async with sending() as bench:
        bench.log.before = too_large
        bench.put(9)
        with pytest.raises(NotStored) as caught:
            await bench.flush()
        assert bench.values() == [b"0", b"2", b"4", b"6", b"8", b"1", b"3", b"7"]
        assert "1 events of rollout r-1 (1) were refused by the log and are lost: record 5 is above" in str(
            caught.value
        )
        assert "refused 1 events for good, the first Span main.00112233445566aa:5 of rollout r-1" in caplog.text
        await bench.flush()  # told once


async def test_sender_with_final_error_refuses_the_batch_and_goes_on():
    async with sending() as bench:
        bench.log.before = failing(1, LogMissing("no topic events"))
        bench.put(2)
        with pytest.raises(NotStored, match="were refused by the log and are lost: no topic events"):
            await bench.flush()
        bench.put(1)
        await bench.flush()
        assert bench.values() == [b"2"]


async def test_flush_at_its_deadline_raises_naming_events_rollouts_and_the_logs_answer():
    async with sending() as bench:
        bench.log.before = failing(10**9, LogUnavailable("no answer in 5 s"))
        bench.put(3)
        with pytest.raises(NotStored) as caught:
            await bench.flush(0.05)
        assert str(caught.value) == (
            "log sqlite:///memory.db: within 0.05 s 3 events of rollout r-0 (2), rollout r-1 (1) are not stored; "
            "the log's last answer was LogUnavailable: no answer in 5 s"
        )
        bench.log.before = lambda records: None
        await bench.flush()  # they stayed queued
        assert bench.values() == [b"0", b"2", b"1"]


async def test_flush_does_not_wait_for_events_recorded_after_it():
    async with sending() as bench:
        bench.put(1)
        flush = asyncio.create_task(bench.flush())
        await asyncio.sleep(0)
        bench.put(1)
        await flush
        assert b"0" in bench.values()


async def test_flush_of_nothing_returns_at_once():
    async with sending() as bench:
        await bench.flush(0.0)


async def test_flush_does_not_wait_for_the_linger():
    async with sending(settings=PublisherSettings(linger_s=60.0)) as bench:
        bench.put(1)
        await asyncio.sleep(0.01)
        assert bench.values() == []
        await bench.flush()
        assert bench.values() == [b"0"]


async def test_sender_lingers_to_store_events_together():
    async with sending(settings=PublisherSettings(linger_s=0.05)) as bench:
        for _ in range(5):
            bench.put(1)
            await asyncio.sleep(0.001)
        await bench.flush()
        assert [len(records) for records in bench.log.appends] == [5]


async def test_sender_that_lost_a_signal_finds_the_event_all_the_same():
    async with sending() as bench:
        await asyncio.sleep(0.01)
        bench.outbox._on_put = lambda: None
        bench.put(1)
        await asyncio.sleep(1.2)
        assert bench.values() == [b"0"]


async def test_sender_says_once_that_the_log_is_in_trouble_and_once_that_it_is_not(caplog):
    caplog.set_level(logging.INFO)
    async with sending() as bench:
        bench.log.before = failing(4, LogUnavailable("no answer"))
        bench.put(1)
        await bench.flush()
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_sender_corrects_the_clock_by_the_first_acknowledgement():
    async with sending(MemoryLog(log_time_ns=lambda: 5)) as bench:
        bench.put(1)
        await bench.flush()
        assert bench.clock.now_ns() < 10 * 1_000_000_000
