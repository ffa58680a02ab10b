"""A fresh, empty log for each test, once for every kind of log."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from support import store

from rolloutlog.eventstore.log import Log, open_log

MakeLog = Callable[[], Awaitable[Log]]
CutHead = Callable[[str, int, int], Awaitable[None]]


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def log_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a log that nobody has used: a new file, or a new prefix."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/log.db"
    return f"kafka://{request.getfixturevalue('kafka_bootstrap')}/test-{uuid.uuid4().hex[:12]}"


@pytest_asyncio.fixture
async def make_log(log_url: str) -> AsyncIterator[MakeLog]:
    """Open one more log object on the test's log, as another process would. All are closed at the end."""
    opened: list[Log] = []

    async def make() -> Log:
        opened.append(await open_log(log_url, create=True))
        return opened[-1]

    yield make
    for log in opened:
        await log.close()


@pytest_asyncio.fixture
async def log(make_log: MakeLog) -> Log:
    return await make_log()


@pytest.fixture
def cut_head(log: Log, log_url: str) -> CutHead:
    """Remove a partition's records below an offset, as retention does."""

    async def cut(topic: str, partition: int, before_offset: int) -> None:
        await store.cut_head(log, log_url, topic, partition, before_offset)

    return cut
