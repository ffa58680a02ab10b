"""A source: one publisher in one attempt, which numbers its events from 0 without gaps.

A number is taken only by an event that passed its checks and is in the buffer, so a refused event leaves no gap. The
buffer's order is the order of the numbers.
"""

import os
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from rolloutlog.eventstore.checks import check_event
from rolloutlog.eventstore.codec import encode_event, header_of
from rolloutlog.eventstore.errors import RecordTooLarge
from rolloutlog.eventstore.events import KINDS, Event
from rolloutlog.eventstore.outbox import Entry, Outbox

_DEFAULTS: dict[type[Event], dict[str, Any]] = {
    kind: {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    for kind in KINDS.values()
}


def new_source(name: str) -> str:
    """A source id for `name` that no one else has."""
    return f"{name}.{new_id(8)}"


def new_id(size_bytes: int = 16) -> str:
    """Random hex digits, two for each byte."""
    return os.urandom(size_bytes).hex()


class Source:
    """One source. Its user holds a lock of its own around `publish`.

    rollout_id   empty for events that belong to no rollout
    first, last  its first event, as it is on its way, and the kind of its last one
    """

    def __init__(self, outbox: Outbox, *, rollout_id: str, attempt: int, source: str, event_bytes_max: int) -> None:
        self.rollout_id = rollout_id
        self.attempt = attempt
        self.source = source
        self.event_count = 0
        self.last: type[Event] | None = None
        self.first: Entry | None = None
        self._outbox = outbox
        self._event_bytes_max = event_bytes_max

    def make(self, kind: type[Event], time_ns: int, values: Mapping[str, Any]) -> Event:
        """The event as it would be published next, checked. Raises InvalidEvent."""
        event = object.__new__(kind)
        # Past the frozen __init__, which sets each field by a call: it would be a quarter of the time of publishing.
        event.__dict__.update(
            _DEFAULTS[kind],
            rollout_id=self.rollout_id,
            attempt=self.attempt,
            source=self.source,
            sequence=self.event_count,
            time_ns=time_ns,
            **values,
        )
        check_event(event)
        return event

    def publish(self, event: Event, *, partition: int, key: bytes) -> None:
        """Queue an event of `make`. Raises RecordTooLarge, BufferFull or NotOpen; nothing is then queued."""
        value = encode_event(event)
        if len(value) > self._event_bytes_max:
            name = getattr(event, "name", "")
            raise RecordTooLarge(
                f"{event.record}{f' {name!r}' if name else ''} not recorded: expected at most {self._event_bytes_max} "
                f"bytes, got {len(value)} (rollout {event.rollout_id}, attempt {event.attempt})"
            )
        entry = Entry(header_of(event), partition, key, value)
        if not event.sequence:
            self.first = entry
        try:
            self._outbox.put(entry)
            self._count(event)
        except BaseException:
            # An interrupt such as Ctrl-C can come when the event is already queued: its number is then taken.
            if entry.queued:
                self._count(event)
            raise

    def _count(self, event: Event) -> None:
        self.event_count = event.sequence + 1
        self.last = type(event)
