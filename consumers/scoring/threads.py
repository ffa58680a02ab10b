"""Where scorers run: apart from the loop that waits for them, so that nothing they do stops it.

`Threads` run plain functions, one call each at a time. What was raised is handed back as a value, so that SystemExit
ends nothing. Python can't stop a thread: a call that does not return is left behind and counted (`stuck`); its thread
is a daemon, so that the process can end.

Not here  coroutines: scoring.loops
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to. `error`: what it raised, None = it returned `value`."""

    value: Any = None
    error: BaseException | None = None


class Stuck:
    """How many calls were given up and still go on."""

    def __init__(self) -> None:
        self.count = 0


class Threads:
    """Threads that are used again and again; as many as calls go on at once."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []
        self._closed = False

    async def run(self, work: Callable[[], Any], stuck: Stuck) -> Outcome:
        """What the work came to. Cancelled: it is given up, and counted in `stuck` until it ends by itself."""
        worker = self._idle.pop() if self._idle else _Worker()
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        job = Job(work, future)
        worker.queue.put(job)
        try:
            outcome = await future
        except asyncio.CancelledError:
            job.give_up(stuck)
            worker.queue.put(None)  # it ends when the call does
            raise
        if self._closed:
            worker.queue.put(None)
        else:
            self._idle.append(worker)
        return outcome

    def close(self) -> None:
        self._closed = True
        for worker in self._idle:
            worker.queue.put(None)
        self._idle.clear()


class Job:
    """A call, and the future of another loop that waits for it. `done` is set in that loop."""

    def __init__(self, work: Callable[[], Any], waiting: "asyncio.Future[Outcome]") -> None:
        self._work, self._waiting = work, waiting
        self._loop = waiting.get_loop()
        self.task: asyncio.Task[None] | None = None
        self._outcome = Outcome(error=asyncio.CancelledError())
        self.done = False
        self.on_done: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Called in a thread."""
        process = os.getpid()
        try:
            self._outcome = Outcome(self._work())
        except BaseException as error:
            self._outcome = Outcome(error=error)
        if os.getpid() != process:
            os._exit(0)  # a process that the call forked, which has nothing but this thread, has come back from it
        self._tell()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called in the scorers' loop."""
        self.task = loop.create_task(self._run())
        self.task.add_done_callback(lambda task: self._tell())  # also when it is cancelled before it begins

    def cancel(self) -> None:
        """Called in the scorers' loop, after `begin`."""
        if self.task is not None:
            self.task.cancel()

    async def _run(self) -> None:
        try:
            self._outcome = Outcome(await self._work())
        except BaseException as error:  # SystemExit would end the loop; CancelledError may be the scorer's own
            self._outcome = Outcome(error=error)

    def hand_back(self, outcome: Outcome) -> None:
        """Called in the loop that waits: what the call comes to is of no interest any more."""
        if not self._waiting.done():
            self._waiting.set_result(outcome)

    def give_up(self, stuck: "Stuck") -> None:
        """Called in the loop that waits, which does so no more: count it until it ends by itself."""
        if self.done:
            return
        stuck.count += 1

        def ended() -> None:
            stuck.count -= 1

        self.on_done = ended

    def forget(self) -> None:
        """It was given up, and will never end: its loop is gone. It counts no more."""
        self.on_done()
        self.on_done = lambda: None

    def _tell(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self.done = True
        self.hand_back(self._outcome)
        self.on_done()


class _Worker:
    def __init__(self) -> None:
        self.queue: SimpleQueue[Job | None] = SimpleQueue()
        Thread(target=self._serve, name="rolloutlog-scorer", daemon=True).start()

    def _serve(self) -> None:
        while (job := self.queue.get()) is not None:
            job.run()
            del job  # while waiting for the next, hold nothing of this
