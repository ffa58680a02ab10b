"""What the recorders of one publisher share in this process: its buffer, and the way to wait for the log.

Not here  what a recorder records: eventstore.recorder; sending: eventstore.sender
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from rolloutlog.eventstore.group import GroupCount
from rolloutlog.eventstore.outbox import Entry, Outbox
from rolloutlog.eventstore.source import Source, new_source


class Forked(Protocol):
    """A recorder that was made before the fork and is used after it."""

    def end_forked(self) -> None: ...


class Host:
    """One for each publisher.

    wait_stored  waits until the log has an event, or for seconds (None = close_deadline_s); raises NotStored
    heartbeat_s  between two heartbeats of a rollout that records nothing else
    forked       recorders whose sources in this process end with the publisher
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        partitions: int,
        event_bytes_max: int,
        heartbeat_s: float,
        wait_stored: Callable[[Entry, float | None], "Future[None]"],
    ) -> None:
        self.outbox = outbox
        self.partitions = partitions
        self.wait_stored = wait_stored
        self.heartbeat_s = heartbeat_s
        self._event_bytes_max = event_bytes_max
        self.renew()

    def renew(self) -> None:
        """Begin anew in a forked process."""
        self.group_count = GroupCount()
        self.forked: set[Forked] = set()

    def source(self, name: str, rollout_id: str = "", attempt: int = 0, *, source: str | None = None) -> Source:
        """A new source of this name, or with this id."""
        return Source(
            self.outbox,
            rollout_id=rollout_id,
            attempt=attempt,
            source=source or new_source(name),
            event_bytes_max=self._event_bytes_max,
        )
