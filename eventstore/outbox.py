"""Events that wait for the log: a buffer bounded in bytes, first in, first out.

Any thread puts; one sender takes a batch, and says of each batch whether it was stored or refused. Nothing here waits
or does I/O. An entry counts against the limit until the log has it.

Not here  sending: eventstore.sender; numbering: eventstore.source
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import chain, islice
from threading import RLock

from rolloutlog.eventstore.codec import HEADER, RESEND, Header
from rolloutlog.eventstore.errors import BufferFull, StoreError
from rolloutlog.eventstore.log.port import EVENTS, NewRecord
from rolloutlog.eventstore.reentry import refuse_reentry
from rolloutlog.eventstore.scope import NotOpen

ENTRY_OVERHEAD_BYTES = 512  # of an entry beside its value: header, key, objects

_ROLLOUTS_NAMED_MAX = 3


class Entry:
    """One event on its way.

    queued   from the moment it is in the buffer
    stored   from the moment the log has it
    refusal  why the log will never take it
    """

    __slots__ = ("header", "queued", "record", "refusal", "size_bytes", "stored")

    def __init__(self, header: Header, partition: int, key: bytes, value: bytes) -> None:
        # Made here and not by the sender, whose work on a whole batch would hold up the threads that record.
        self.record = NewRecord(EVENTS, partition, key, value, ((HEADER, header.text()),))
        self.header = header
        self.size_bytes = len(value) + ENTRY_OVERHEAD_BYTES
        self.queued = self.stored = False
        self.refusal: StoreError | None = None

    def __str__(self) -> str:
        return f"{self.header.kind} of {_rollout(self)}, attempt {self.header.attempt},"

    def again(self) -> "Entry":
        """The same event, to be sent by another process: it may already be stored."""
        assert self.record.key is not None
        assert self.record.value is not None
        copy = Entry(self.header, self.record.partition, self.record.key, self.record.value)
        copy.mark_resend()
        return copy

    def mark_resend(self) -> None:
        """From now on it says that it may already be stored."""
        if not self.header.resend:
            self.header = self.header._replace(flags=RESEND)
            self.record = self.record._replace(headers=((HEADER, self.header.text()),))


class Outbox:
    """The buffer of one publisher.

    on_put   called, in the putting thread, when the sender may be waiting
    trouble  what the log last answered instead of storing; empty while it stores
    """

    def __init__(self, *, memory_bytes_max: int, on_put: Callable[[], None]) -> None:
        self._memory_bytes_max = memory_bytes_max
        self._on_put = on_put
        self._closed = ""
        self.renew()

    def renew(self) -> None:
        """Begin empty, with a lock that nobody holds: in a forked process, what waits is its parent's."""
        self.trouble = ""
        self._lock = RLock()
        self._queue: deque[Entry] = deque()
        self._in_flight: list[Entry] = []
        self._size_bytes = 0
        self._put_count = 0
        self._done_count = 0
        self._signalled = False
        self._refused: list[tuple[str, int, StoreError]] = []
        self._pid = os.getpid()

    @property
    def put_count(self) -> int:
        """How many events were ever put."""
        return self._put_count

    @property
    def done_count(self) -> int:
        """How many of them, the first ones, are stored or refused."""
        return self._done_count

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def put(self, entry: Entry) -> None:
        """Queue an event. Raises BufferFull or NotOpen; the event is then not queued."""
        self.refuse_fork(f"{entry} not recorded")
        refuse_reentry(self._lock, entry)
        with self._lock:
            if self._closed:
                raise NotOpen(f"{entry} not recorded: {self._closed}")
            if self._size_bytes + entry.size_bytes > self._memory_bytes_max:
                raise BufferFull(
                    f"{entry} not recorded: expected at most {self._memory_bytes_max} bytes of events that wait "
                    f"for the log, got {self._size_bytes} bytes in {self._put_count - self._done_count} events and "
                    f"{entry.size_bytes} more; {self.trouble or 'the log is slower than this host'}"
                )
            self._size_bytes += entry.size_bytes
            self._put_count += 1
            # An interrupt can come after the append but not between these two lines; the source asks `queued`.
            entry.queued = True
            self._queue.append(entry)
            signal, self._signalled = not self._signalled, True
        if signal:
            self._on_put()

    def take(self, *, bytes_max: int, events_max: int) -> list[Entry]:
        """The next events, oldest first, at least one when there are any. They stay counted until done."""
        with self._lock:
            self._signalled = False
            batch: list[Entry] = []
            size_bytes = 0
            while self._queue and len(batch) < events_max:
                size_bytes += self._queue[0].size_bytes
                if batch and size_bytes > bytes_max:
                    break
                batch.append(self._queue.popleft())
            self._in_flight += batch
            return batch

    def stored(self, batch: Sequence[Entry]) -> None:
        """The log has these, the oldest in flight."""
        with self._lock:
            self._done(batch)
            for entry in batch:
                entry.stored = True

    def refused(self, batch: Sequence[Entry], error: StoreError) -> None:
        """The log will never take these, the oldest in flight. `not_stored` tells of them once."""
        with self._lock:
            self._done(batch)
            for entry in batch:
                entry.refusal = error
            for rollout, count in Counter(map(_rollout, batch)).items():
                self._refused.append((rollout, count, error))

    def refuse_reentry(self, what: str) -> None:
        """Raise NotOpen when the code that runs now interrupted a `put` in this thread: the sender waits for it."""
        refuse_reentry(self._lock, what)

    def refuse_fork(self, what: str) -> None:
        """Raise NotOpen in a forked process that was not renewed: locks may have been held when it was forked."""
        if os.getpid() != self._pid:
            raise NotOpen(
                f"{what}: this process was forked from the one that opened the publisher (process {self._pid}), which "
                "was closed by then, or not by Python; open a publisher after the fork"
            )

    def close(self, why: str) -> None:
        """Refuse what is put from now on."""
        with self._lock:
            self._closed = self._closed or why

    def not_stored(self, put_count: int) -> str:
        """What of the first `put_count` events is not stored, as text, else empty. Refused ones are told once."""
        with self._lock:
            count = max(0, put_count - self._done_count)
            waiting = Counter(map(_rollout, islice(chain(self._in_flight, self._queue), count)))
            refused, self._refused = self._refused, []
        parts = []
        if waiting:
            trouble = f"; {self.trouble}" if self.trouble else ""
            parts.append(f"{_counted(waiting)} are not stored{trouble}")
        if refused:
            counts: Counter[str] = Counter()
            for rollout, count, _ in refused:
                counts[rollout] += count
            parts.append(f"{_counted(counts)} were refused by the log and are lost: {refused[-1][2]}")
        return "; ".join(parts)

    def _done(self, batch: Sequence[Entry]) -> None:
        del self._in_flight[: len(batch)]
        self._done_count += len(batch)
        self._size_bytes -= sum(entry.size_bytes for entry in batch)


def _rollout(entry: Entry) -> str:
    return f"rollout {entry.header.rollout_id}" if entry.header.rollout_id else entry.header.kind


def _counted(counts: Counter[str]) -> str:
    named = ", ".join(f"{rollout} ({count})" for rollout, count in list(counts.items())[:_ROLLOUTS_NAMED_MAX])
    more = len(counts) - _ROLLOUTS_NAMED_MAX
    return f"{counts.total()} events of {named}" + (f" and {more} more" if more > 0 else "")
