"""The log in a forked process, here without a fork."""

import asyncio

import pytest
from support.memory_log import MemoryLog

from rolloutlog.eventstore.errors import LogMissing, LogUnavailable
from rolloutlog.eventstore.log.port import EVENTS, NewRecord
from rolloutlog.eventstore.reopened_log import ReopenedLog
from rolloutlog.eventstore.topics import create_topics

RECORD = NewRecord(EVENTS, 0, b"g", b"", ())


def reopened(log: MemoryLog, run_id: str, *, deadline_s: float = 5.0) -> tuple[ReopenedLog, list[str]]:
    opened: list[str] = []

    async def opener(url: str, create: bool) -> MemoryLog:
        opened.append(f"{url} {create}")
        if deadline_s < 1:
            await asyncio.sleep(60)
        return log

    return ReopenedLog("sqlite:///memory.db", run_id, opener, deadline_s), opened


async def test_reopened_log_opens_once_at_its_first_use():
    log = MemoryLog()
    await create_topics(log, run_id="run")
    again, opened = reopened(log, "run")
    assert opened == []
    await asyncio.gather(again.append([RECORD]), again.append([RECORD]))
    assert opened == ["sqlite:///memory.db False"]
    assert len(log.events) == 2
    await again.close()
    assert log.closed


async def test_reopened_log_of_another_run_is_refused_by_name():
    log = MemoryLog()
    await create_topics(log, run_id="other")
    again, _ = reopened(log, "run")
    with pytest.raises(LogMissing, match="expected run run, as before the fork, got run other"):
        await again.append([RECORD])
    assert log.closed
    assert len(log.events) == 0


async def test_reopened_log_that_does_not_answer_says_that_nothing_is_stored():
    again, _ = reopened(MemoryLog(), "run", deadline_s=0.05)
    with pytest.raises(LogUnavailable, match=r"after a fork: expected an answer within 0\.05 s, got none") as caught:
        await again.append([RECORD])
    assert not caught.value.maybe_stored


async def test_reopened_log_that_was_never_used_closes_without_opening():
    again, opened = reopened(MemoryLog(), "run")
    await again.close()
    assert opened == []
