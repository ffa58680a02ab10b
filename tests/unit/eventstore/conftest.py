"""A publisher on a log in memory."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.memory_log import MemoryLog

from rolloutlog.eventstore.clock import HostClock
from rolloutlog.eventstore.codec import decode_event, parse_header
from rolloutlog.eventstore.errors import NotStored
from rolloutlog.eventstore.events import Event
from rolloutlog.eventstore.publisher import EventPublisher
from rolloutlog.eventstore.settings import PublisherSettings


class Published:
    """A publisher, its log, and the events it stored; its time is set by hand."""

    def __init__(self, **settings: Any) -> None:
        self.log = MemoryLog(log_time_ns=lambda: self.now_ns)
        self.now_ns = 1_000_000_000_000
        clock = HostClock(lambda: self.now_ns, lambda: self.now_ns)

        async def opener(url: str, create: bool) -> MemoryLog:
            return self.log

        self.publisher = EventPublisher.open(
            "sqlite:///memory.db",
            create=True,
            settings=PublisherSettings(**{"linger_s": 0.0, "retry_s_min": 0.001, "retry_s_max": 0.002} | settings),
            clock=clock,
            opener=opener,
        )

    def events(self) -> list[Event]:
        """All events stored, flushed first, checked for gaps: each source's numbers in log order are 0, 1, 2 ..."""
        self.publisher.flush()
        events = []
        expected: dict[tuple[str, int, str], int] = {}
        for record in self.log.events:
            header = parse_header(dict(record.headers)["e"])
            event = decode_event(header.kind, record.value)
            source = (event.rollout_id, event.attempt, event.source)
            assert event.sequence == expected.setdefault(source, 0), f"{source}: a gap"
            expected[source] += 1
            events.append(event)
        return events

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events() if type(event) is kind]


@pytest.fixture
def make_published() -> Iterator[Callable[..., Published]]:
    made: list[Published] = []

    def make(**settings: Any) -> Published:
        made.append(Published(**settings))
        return made[-1]

    yield make
    for published in made:
        with suppress(NotStored):
            published.publisher.close(1.0)


@pytest.fixture
def published(make_published: Callable[..., Published]) -> Published:
    return make_published()
