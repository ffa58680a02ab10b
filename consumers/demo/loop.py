"""The demo's loop: starts the processes, follows the log, and ends the run when the agent has learned.

Order    create the log; write version 0; start hosts, assembler and trainer; follow batches and acknowledgements until
         the agent has learned or STEPS_MAX is reached; stop the hosts; end the run; wait until each partition's batches
         say so and the trainer has ended; stop the assembler
Failing  when a process fails, or nothing is published for STALLED_S, all end at once
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rolloutlog.consumers.demo.children import ChildFailed, Children
from rolloutlog.consumers.demo.policy import first_weights
from rolloutlog.consumers.demo.progress import Progress
from rolloutlog.consumers.demo.settings import ENOUGH, SOLVED, STEPS_MAX
from rolloutlog.consumers.demo.weights import save_weights
from rolloutlog.consumers.published import Joiner
from rolloutlog.eventstore import EventPublisher
from rolloutlog.eventstore.acks import read_ack
from rolloutlog.eventstore.errors import InvalidSettings, LogMissing
from rolloutlog.eventstore.log import ACKS, BATCHES, EVENTS, Log, Reader, open_log
from rolloutlog.eventstore.meta import read_run
from rolloutlog.eventstore.topics import PARTITIONS_EMBEDDED, create_topics

HOST_END_S = 20.0  # to finish a group and store it
RUN_END_S = 30.0  # for the last batches, and the trainer's last step
STALLED_S = 60.0  # without a batch
FETCH_WAIT_S = 0.1

Show = Callable[[Progress], None]


@dataclass(frozen=True)
class Demo:
    """What one demo is run with. `folder`: an empty one, for weights and what the processes write."""

    url: str
    folder: Path
    seed: int
    hosts: int = 2
    steps_max: int = STEPS_MAX

    @property
    def weights(self) -> Path:
        return self.folder / "weights"


@dataclass(frozen=True)
class Result:
    """How it went."""

    progress: Progress

    @property
    def solved(self) -> bool:
        """Whether the mean final reward of the last rollouts is SOLVED or more."""
        return self.progress.recent is not None and self.progress.recent >= SOLVED


async def run_demo(demo: Demo, show: Show) -> Result:
    """Run the loop to its end. Raises StoreError: a process failed, or the log is in use."""
    async with AsyncExitStack() as stack:
        log = await open_log(demo.url, create=True)
        stack.push_async_callback(log.close)
        await _create(log)
        save_weights(demo.weights, 0, first_weights())
        follower = await stack.enter_async_context(_Follower(log))
        children = stack.enter_context(Children(demo.folder))
        hosts = [f"host-{number}" for number in range(demo.hosts)]
        for number, name in enumerate(hosts):
            children.start(name, "host", demo.url, str(demo.weights), str(number), str(demo.seed))
        children.start("assembler", "assemble", demo.url)
        children.start("trainer", "train", demo.url, str(demo.weights))

        await _until_learned(demo, follower, children, show)
        children.stop(*hosts)
        await asyncio.to_thread(children.wait, *hosts, timeout_s=HOST_END_S)
        await asyncio.to_thread(_end_run, demo.url)
        await _until_ended(follower, children, show)
        await asyncio.to_thread(children.wait, "trainer", timeout_s=RUN_END_S)
        await follower.read()  # the trainer's last acknowledgement
        children.stop("assembler")
        await asyncio.to_thread(children.wait, "assembler", timeout_s=RUN_END_S)
        show(follower.progress)
        return Result(follower.progress)


async def _create(log: Log) -> None:
    """Create topics and run. A log that holds events has policy versions whose weights are not ours."""
    try:
        present = await read_run(log) is not None
    except LogMissing:
        present = False
    await create_topics(log, partitions=None if present else PARTITIONS_EMBEDDED)
    for topic in (EVENTS, BATCHES, ACKS):
        ranges = await log.ranges(topic, range(await log.partitions(topic)))
        if any(each.written > each.first or each.first > 0 for each in ranges.values()):
            raise InvalidSettings(
                f"log {log.url}: expected a new one for the demo, got one with records in {topic}; use another file or "
                "prefix"
            )


async def _until_learned(demo: Demo, follower: "_Follower", children: Children, show: Show) -> None:
    """Follow the log until the last rollouts are good enough, or `steps_max` is reached."""
    progress = follower.progress
    seen, seen_s = 0, time.monotonic()
    while True:
        await follower.read()
        show(progress)
        children.check()
        if progress.steps >= demo.steps_max or (progress.recent is not None and progress.recent >= ENOUGH):
            return
        if progress.batches > seen:
            seen, seen_s = progress.batches, time.monotonic()
        elif time.monotonic() - seen_s > STALLED_S:
            raise ChildFailed(f"no batch was published for {STALLED_S:.0f} s{children.written()}")


def _end_run(url: str) -> None:
    with EventPublisher.open(url) as events:
        events.end_run()


async def _until_ended(follower: "_Follower", children: Children, show: Show) -> None:
    """Wait until the end of the run stands in each partition of batches: no batch can follow."""
    deadline_s = time.monotonic() + RUN_END_S
    while not follower.ended:
        await follower.read()
        show(follower.progress)
        children.check()
        if time.monotonic() > deadline_s:
            raise ChildFailed(f"the end of the run was not published within {RUN_END_S:.0f} s{children.written()}")


class _Follower:
    """Reads batches and acknowledgements as they come, and counts them."""

    def __init__(self, log: Log) -> None:
        self.progress = Progress()
        self._log = log
        self._ended: set[int] = set()

    @property
    def ended(self) -> bool:
        return len(self._ended) == len(self._joiners)

    async def read(self) -> None:
        """Count what is new; waits a moment when nothing is."""
        for record in await self._batches.fetch(wait_s=FETCH_WAIT_S):
            published = self._joiners[record.partition].add(record)
            if published is None:
                continue
            if published.batch is None:
                self._ended.add(published.partition)
            else:
                self.progress.add_batch(published.batch)
        for record in await self._acks.fetch(wait_s=0.0):
            if (ack := read_ack(record)) is not None:
                self.progress.add_ack(ack)

    async def __aenter__(self) -> "_Follower":
        self._joiners = {partition: Joiner() for partition in range(await self._log.partitions(BATCHES))}
        self._batches: Reader = await self._log.reader(BATCHES, dict.fromkeys(self._joiners, 0))
        self._acks: Reader = await self._log.reader(ACKS, {0: 0})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._batches.close()
        await self._acks.close()
