"""Send what waits in the outbox to the log, in order.

One cycle: 1. wait for events, a moment longer for more of them; 2. take a batch; 3. append it; 4. on no answer, append
it again after a pause, for ever, marked `resend` where it may be stored; 5. tell the outbox, and who waits in `flush`.

Order     one batch at a time, so that each partition keeps the order of the outbox
Refusal   a batch with a record that is too large is halved until that record is alone; what the log will never take is
          logged, counted as refused and told by the next `flush` or `close`
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from rolloutlog.eventstore.clock import HostClock
from rolloutlog.eventstore.errors import LogUnavailable, NotStored, RecordTooLarge, StoreError
from rolloutlog.eventstore.log.port import Log
from rolloutlog.eventstore.outbox import Entry, Outbox
from rolloutlog.eventstore.settings import PublisherSettings

_WAKE_S = 1.0  # an interrupt can lose the signal of a put; this finds the event all the same

_logger = logging.getLogger(__name__)


class Sender:
    """Sends one outbox's events. All methods but the constructor and `wake` belong to the client's event loop."""

    def __init__(self, log: Log, outbox: Outbox, clock: HostClock, settings: PublisherSettings) -> None:
        self._log = log
        self._outbox = outbox
        self._clock = clock
        self._settings = settings
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._hurried_count = 0
        self._progress = asyncio.Event()

    def wake(self) -> None:
        """There are events. Called in the client's loop."""
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled. What is taken and not stored then stays counted as not stored."""
        settings = self._settings
        while True:
            await _wait(self._wake, _WAKE_S)
            self._wake.clear()
            while self._outbox.put_count > self._outbox.done_count:
                if self._outbox.size_bytes < settings.append_bytes_max:
                    await _wait(self._hurry, settings.linger_s)
                batch = self._outbox.take(bytes_max=settings.append_bytes_max, events_max=settings.append_events_max)
                await self._store(batch)

    async def flush(self, put_count: int, timeout_s: float) -> None:
        """Wait until the first `put_count` events are stored. Raises NotStored after `timeout_s` or a refusal."""
        await self._hurry_until(lambda: self._outbox.done_count >= put_count, timeout_s)
        if missing := self._outbox.not_stored(put_count):
            raise NotStored(f"log {self._log.url}: within {timeout_s:g} s {missing}")

    async def wait_stored(self, entry: Entry, timeout_s: float) -> None:
        """Wait until the log has this one. Raises NotStored after `timeout_s` or its refusal."""
        await self._hurry_until(lambda: entry.stored or entry.refusal is not None, timeout_s)
        if entry.refusal is not None:
            raise NotStored(f"log {self._log.url}: {entry} was refused and is lost: {entry.refusal}")
        if not entry.stored:
            trouble = f"; {self._outbox.trouble}" if self._outbox.trouble else ""
            raise NotStored(f"log {self._log.url}: within {timeout_s:g} s {entry} is not stored{trouble}")

    async def _hurry_until(self, met: Callable[[], bool], timeout_s: float) -> None:
        """Send without lingering until `met()`, or for `timeout_s`."""
        self._hurried_count += 1
        self._hurry.set()
        self._wake.set()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while not met():
                        self._progress.clear()
                        await self._progress.wait()
        finally:
            self._hurried_count -= 1
            if not self._hurried_count:
                self._hurry.clear()

    async def _store(self, batch: Sequence[Entry]) -> None:
        pause_s = self._settings.retry_s_min
        while not await self._append(batch):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._settings.retry_s_max)

    async def _append(self, batch: Sequence[Entry]) -> bool:
        """Append once. False when it is to be appended again; it is then marked, unless the log says that it has none
        of it: a mark on what was never stored would make the fold refuse a start whose host's clock is behind."""
        sent_ns = self._clock.time_ns()
        try:
            stored = await self._log.append([entry.record for entry in batch])
        except RecordTooLarge as error:
            if len(batch) == 1:
                self._refuse(batch, error)
            else:
                half = len(batch) // 2
                await self._store(batch[:half])
                await self._store(batch[half:])
        except Exception as error:
            if isinstance(error, StoreError) and not error.retriable:
                self._refuse(batch, error)
            else:
                self._note_trouble(batch, error)
                if not isinstance(error, LogUnavailable) or error.maybe_stored:
                    for entry in batch:
                        entry.mark_resend()
                return False
        else:
            if stored:
                self._clock.acknowledge(sent_ns, self._clock.time_ns(), stored[0].log_time_ns)
            if self._outbox.trouble:
                _logger.info("log %s stores again", self._log.url)
                self._outbox.trouble = ""
            self._outbox.stored(batch)
        self._progress.set()
        return True

    def _refuse(self, batch: Sequence[Entry], error: StoreError) -> None:
        self._outbox.refused(batch, error)
        first = batch[0].header
        _logger.error(
            "log %s refused %d events for good, the first %s %s:%d of rollout %s: %s",
            self._log.url, len(batch), first.kind, first.source, first.sequence, first.rollout_id or "-", error,
        )  # fmt: skip

    def _note_trouble(self, batch: Sequence[Entry], error: Exception) -> None:
        if not self._outbox.trouble:
            expected = isinstance(error, StoreError)
            _logger.warning(
                "log %s: %d events not stored, trying again until it answers: %s: %s",
                self._log.url, len(batch), type(error).__name__, error, exc_info=not expected,
            )  # fmt: skip
        self._outbox.trouble = f"the log's last answer was {type(error).__name__}: {error}"


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
