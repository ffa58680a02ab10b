"""An embedded log whose times a test sets, with its run."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest_asyncio
from support.workload import make_workload

from rolloutlog.eventstore.log import EVENTS, NewRecord
from rolloutlog.eventstore.log.sqlite import SqliteLog
from rolloutlog.eventstore.topics import create_topics

DAY_NS = 24 * 3600 * 10**9
START_NS = 1_772_323_200 * 10**9  # 2026-03-01, 00:00 UTC


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_ns = START_NS

    def __call__(self) -> int:
        return self.now_ns


MakeLog = Callable[..., object]


@pytest_asyncio.fixture
async def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture
async def log(tmp_path: Path, clock: Clock) -> AsyncIterator[SqliteLog]:
    opened = await SqliteLog.open(f"sqlite:///{tmp_path}/log.db", create=True, clock=clock)
    await create_topics(opened, partitions=4, run_id="run")
    yield opened
    await opened.close()


async def fill(log: SqliteLog, clock: Clock, *, seed: int = 1, groups: int = 12, step_ns: int = 10**9) -> None:
    """Append a workload, bad events among them, one record a second."""
    for record in make_workload(seed, groups=groups).records:
        await log.append([record])
        clock.now_ns += step_ns


def plain(partition: int, value: bytes | None, key: bytes | None = b"g") -> NewRecord:
    """A record that is no event, which an archive keeps all the same."""
    return NewRecord(EVENTS, partition, key, value)
