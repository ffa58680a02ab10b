"""Where async scorers run: on a loop of their own, the same one for all, since clients of LLM servers belong to a loop.

A call that blocks keeps the loop from all others, and can't be ended. So where a call was given up and the loop gives
no sign of life afterwards, another loop takes its place. Whose call keeps it is known by the task that it is in; all
others that waited on it did nothing wrong and are to be made again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

from rolloutlog.consumers.scoring.threads import Job, Outcome, Stuck

SIGN_S = 2.0  # a loop that takes turns answers within milliseconds, on a busy machine too
LOOPS_MAX = 64  # that were left; each may spin. Beyond it the last one stays, and its calls time out


class LoopLost(Exception):
    """Another call kept the loop."""


@dataclass(slots=True)
class Place:
    """Where a call runs, for who made it to ask about."""

    loop: "_Loop | None" = None
    job: Job | None = None


class LoopThread:
    """Runs coroutines in a thread, begun with the first one."""

    def __init__(self) -> None:
        self._loop: _Loop | None = None
        self._left: list[_Loop] = []

    async def run(self, work: Callable[[], Coroutine[Any, Any, Any]], stuck: Stuck, place: Place) -> Outcome:
        """What the work came to; LoopLost where another call kept the loop. Cancelled: as with Threads."""
        theirs = self._loop = self._loop or _Loop()
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        job = Job(work, future)
        place.loop, place.job = theirs, job
        theirs.begin(job)
        try:
            return await future
        except asyncio.CancelledError:
            theirs.give_up(job, stuck)
            raise
        finally:
            theirs.jobs.discard(job)

    async def ready(self) -> None:
        """Wait while the loop owes a sign of life, until it has given one or another loop has its place."""
        await self._check(self._loop)

    async def was_lost(self, place: Place) -> bool:
        """Whether a call that was given up could not go on because another one kept its loop."""
        await self._check(place.loop)
        return place.loop is not None and place.loop.keeper not in (None, place.job)

    def close(self) -> None:
        for each in (*self._left, self._loop):
            if each is not None:
                each.close()

    async def _check(self, theirs: "_Loop | None") -> None:
        if theirs is None or await theirs.lives() or theirs is not self._loop or len(self._left) >= LOOPS_MAX:
            return
        self._left.append(theirs)
        self._loop = None
        theirs.leave()


class _Loop:
    """`jobs`: those that are waited for. `keeper`: the one in which the loop was when it was left, if it was in one."""

    def __init__(self) -> None:
        self.jobs: set[Job] = set()
        self.keeper: Job | None = None
        self._given_up: list[Job] = []
        self._is_left = self._closed = False
        self._sign: asyncio.Future[None] | None = None  # owed since `_asked_s`
        self._asked_s = 0.0
        self._loop = asyncio.new_event_loop()
        Thread(target=self._serve, name="rolloutlog-scorers", daemon=True).start()

    def begin(self, job: Job) -> None:
        self.jobs.add(job)
        self._loop.call_soon_threadsafe(job.begin, self._loop)

    def give_up(self, job: Job, stuck: Stuck) -> None:
        if self._is_left and job is not self.keeper:
            return  # it never goes on
        job.give_up(stuck)
        self._given_up = [each for each in self._given_up if not each.done]
        self._given_up.append(job)
        self._loop.call_soon_threadsafe(job.cancel)
        if self._sign is None:
            ours = asyncio.get_running_loop()
            self._sign, self._asked_s = ours.create_future(), ours.time()
            self._loop.call_soon_threadsafe(self._answer, ours)

    async def lives(self) -> bool:
        if self._sign is None or self._is_left:
            return not self._is_left
        sign, left_s = self._sign, self._asked_s + SIGN_S - asyncio.get_running_loop().time()
        await asyncio.wait({sign}, timeout=max(left_s, 0.0))
        return sign.done()

    def leave(self) -> None:
        """Find out whose call keeps it, and hand the others back."""
        task = asyncio.current_task(self._loop)
        known = [*self.jobs, *self._given_up]
        self.keeper = None if task is None else next((each for each in known if each.task is task), None)
        self._is_left = True
        for job in self._given_up:
            if job is not self.keeper:
                job.forget()
        if self.keeper is None:
            return  # any of them may be the one, as by a task that it started: they time out
        for job in self.jobs - {self.keeper}:
            job.hand_back(Outcome(error=LoopLost("another call kept the loop")))
            self._loop.call_soon_threadsafe(job.cancel)  # in case it does go on some day

    def close(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _answer(self, ours: asyncio.AbstractEventLoop) -> None:
        """Called in the loop."""
        with suppress(RuntimeError):  # ours is closed: nobody asks any more
            ours.call_soon_threadsafe(self._answered)

    def _answered(self) -> None:
        if self._sign is not None:
            self._sign.set_result(None)
            self._sign = None

    def _serve(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        while not self._closed:
            try:
                loop.run_forever()
            except BaseException:  # a task that a scorer left behind raised SystemExit: the others go on
                continue
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_later(1.0, loop.stop)  # time for what they do when cancelled
        try:
            loop.run_forever()
        finally:
            loop.close()
