"""What a publisher tells hosts of the trainers: their policy version and lag, and waiting for them.

Answers come from the acks topic, read in the thread of the publisher's client from the first question on.

Not here  reading it: eventstore.progress
"""

import re
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from rolloutlog.eventstore.checks import plain_integer
from rolloutlog.eventstore.clock import HostClock
from rolloutlog.eventstore.errors import InvalidSettings, StoreError
from rolloutlog.eventstore.log import Log
from rolloutlog.eventstore.outbox import Outbox
from rolloutlog.eventstore.scope import NotOpen

if TYPE_CHECKING:
    # They load asyncio, which an import of the package need not wait for.
    from rolloutlog.eventstore.client import ClientThread
    from rolloutlog.eventstore.progress import TrainerProgress

T = TypeVar("T")

TRAINER = "trainer"

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what a trainer may be opened as


class Following:
    """The part of EventPublisher that follows trainers. `reader`: the name a trainer reads batches under.

    Several threads may ask at once. Answers are at most half a second old while the log works.
    """

    partitions: int
    _client: "ClientThread"
    _log: Log
    _outbox: Outbox
    _clock: HostClock
    _closing: "Future[StoreError | None] | None"
    _progress: "TrainerProgress | None" = None  # made at the first question; of one client and its log

    def policy_version(self, reader: str = TRAINER) -> int | None:
        """The version of the weights after the trainer's newest acknowledged step; None before any, or when unknown.

        The first call blocks until the acknowledgements are read; later ones answer at once with what is known, also
        while the log does not answer. Loading a checkpoint sets it back.
        Raises  LogUnavailable, at the first call only
        """
        progress = self._progress
        if progress is not None and progress.caught_up:
            return progress.version(_reader(reader))
        return _result(self._ask("policy_version", lambda found: found.policy_version(_reader(reader))))

    async def apolicy_version(self, reader: str = TRAINER) -> int | None:
        """As `policy_version`, without blocking the event loop."""
        return await _awaited(self._ask("policy_version", lambda found: found.policy_version(_reader(reader))))

    def lag(self, reader: str = TRAINER) -> int:
        """How many records of the batches topic the trainer has not acknowledged; all that are kept, before any ack.

        A group is one record, a very large one several; the end of the run is one in each partition. On Kafka this is
        an upper bound: each transaction takes one more offset a partition, so a group counts as at most two.
        Raises  LogUnavailable
        """
        return _result(self._ask("lag", lambda found: found.lag(_reader(reader))))

    async def alag(self, reader: str = TRAINER) -> int:
        """As `lag`, without blocking the event loop."""
        return await _awaited(self._ask("lag", lambda found: found.lag(_reader(reader))))

    def hold(self, lag_max: int, timeout_s: float | None = None, *, reader: str = TRAINER) -> int:
        """Block while the trainer's lag is above `lag_max`; returns the lag it ended with. Warns every 60 s.

        A trainer that waits for groups says so within seconds; it is then not waited for, whatever its lag.

        lag_max    in records of batches, as `lag` counts them
        timeout_s  None = no limit
        Raises     StillBehind after `timeout_s`; LogUnavailable when the log does not answer at first: later it is
                   waited for; InvalidSettings; NotOpen when the publisher is closed meanwhile
        """
        return _result(self._hold(lag_max, timeout_s, reader))

    async def ahold(self, lag_max: int, timeout_s: float | None = None, *, reader: str = TRAINER) -> int:
        """As `hold`, without blocking the event loop."""
        return await _awaited(self._hold(lag_max, timeout_s, reader))

    def _hold(self, lag_max: int, timeout_s: float | None, reader: str) -> "Future[int]":
        lag_max, reader = _lag_max(lag_max), _reader(reader)
        if timeout_s is not None and (
            isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s >= 0
        ):
            raise InvalidSettings(f"timeout_s: expected seconds from 0 on, or None, got {timeout_s!r}")
        return self._ask("hold", lambda found: found.hold(reader, lag_max, timeout_s))

    def _ask(self, what: str, question: "Callable[[TrainerProgress], Coroutine[Any, Any, T]]") -> "Future[T]":
        self._outbox.refuse_reentry(what)
        return self._client.submit(self._answer(question))

    async def _answer(self, question: "Callable[[TrainerProgress], Coroutine[Any, Any, T]]") -> T:
        if self._closing is not None:
            raise NotOpen("the publisher is closed, and no longer follows trainers")
        # In the client's loop, so that threads which ask at once make one.
        if self._progress is None:
            from rolloutlog.eventstore.progress import TrainerProgress

            self._progress = TrainerProgress(self._log, self.partitions, self._clock.now_ns)
        return await question(self._progress)

    async def _stop_following(self) -> None:
        """In the client's loop, before the log is closed."""
        if self._progress is not None:
            await self._progress.close()


def _result(asked: "Future[T]") -> T:
    try:
        return asked.result()
    except BaseException:
        asked.cancel()  # interrupted, such as by Ctrl-C: nobody waits for it any more
        raise


async def _awaited(asked: "Future[T]") -> T:
    import asyncio

    return await asyncio.wrap_future(asked)


def _reader(reader: Any) -> str:
    if not isinstance(reader, str) or not _NAME.fullmatch(reader):
        raise InvalidSettings(
            f"reader: expected the name of a trainer, up to 64 letters, digits, _ and -, got {reader!r}"
        )
    return reader


def _lag_max(lag_max: Any) -> int:
    lag_max = plain_integer(lag_max)
    if type(lag_max) is not int or lag_max < 0:
        raise InvalidSettings(f"lag_max: expected an integer from 0 on, got {lag_max!r}")
    return lag_max
