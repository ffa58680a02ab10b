"""A store, and streams on it that are closed at the end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.store import Store
from unit.consumers.streams import Open

from rolloutlog.consumers.trainer import BatchStream


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path}/log.db", partitions=2) as opened:
        yield opened


@pytest.fixture
def stream_of(store: Store) -> Iterator[Open]:
    """Open a stream on the store; all are closed at the end."""
    opened: list[BatchStream] = []

    def open_(**given: Any) -> BatchStream:
        settings = {"groups_per_step": 2, "max_staleness": None, "missing_reward": "exclude", "wait_s": 10.0, **given}
        opened.append(BatchStream.open(store.url, **settings))
        return opened[-1]

    yield open_
    for stream in opened:
        stream.close()
