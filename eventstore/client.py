"""An event loop in a thread of its own, for a log client that must go on while its user's code does something else."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from threading import Event, RLock, Thread
from typing import Any, TypeVar

from rolloutlog.eventstore.reentry import refuse_reentry
from rolloutlog.eventstore.scope import NotOpen

T = TypeVar("T")


class ClientThread:
    """Runs coroutines. Its thread starts with the first one; a daemon, it never keeps a process from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._starting = RLock()
        self._thread: Thread | None = None
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop

    @property
    def started(self) -> bool:
        return self._thread is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run `work` in the loop. Cancelling the future cancels it."""
        try:
            self._start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise NotOpen("the log client of this publisher has stopped") from error

    def call_soon(self, work: Callable[[], None]) -> None:
        """Call `work` in the loop; nothing happens once it has ended."""
        with suppress(RuntimeError):
            self._start()
            self._loop.call_soon_threadsafe(work)

    def stop(self, timeout_s: float) -> None:
        """Cancel what runs, and end the thread. Safe to call twice."""
        self._stopped = True
        if self._thread is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout_s)

    def _start(self) -> None:
        if self._thread is not None:
            return
        refuse_reentry(self._starting, "use of the log client")
        with self._starting:
            if self._stopped:
                raise RuntimeError("stopped before it started")
            if self._thread is None:
                self._loop = asyncio.new_event_loop()
                running = Event()
                thread = Thread(target=self._run, args=(running,), name=self._name, daemon=True)
                thread.start()
                running.wait()
                self._thread = thread

    def _run(self, running: Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(running.set)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
