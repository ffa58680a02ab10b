"""One process's part of a replay: some partitions, a few of them at once.

A partition that the log did not answer for begins again from what is committed; one that was taken over ends them all.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rolloutlog.consumers.owners import Claim, Claims, FencedOut, write_claim
from rolloutlog.consumers.replaying.outputs import Output, OutputGone, read_output
from rolloutlog.consumers.replaying.partition import PartitionReplay
from rolloutlog.consumers.replaying.summary import Summary
from rolloutlog.consumers.scoring import Scoring
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.errors import Fenced, LogUnavailable, OffsetOutOfRange
from rolloutlog.eventstore.log import EVENTS, Log, Owner

COMMIT_BYTES = 8 * 2**20
AT_ONCE = 4  # partitions: each has a reader, and memory of its own
RETRY_S = (0.5, 30.0)  # first and longest wait after the log was unavailable
RETRIES = 7  # about a minute of waiting

logger = logging.getLogger("rolloutlog.replay")


@dataclass
class Share:
    """Replays partitions of `output`.

    log, source  where the output is written, and where events and recorded rewards are read
    scoring      asks scorers and gives recorded rewards; None = neither counts
    record       rewards of scorers are appended to the rewards topic too
    skip_lost    go on without events that retention removed meanwhile
    commit_bytes  of outputs in one transaction, about
    clock        UTC nanoseconds, for claims and statuses: never for what is put out
    step         told (partition, step) as each step begins, for tests and debugging
    """

    log: Log
    source: Log
    output: Output
    fold: FoldSettings
    scoring: Scoring | None = None
    record: bool = False
    dry_run: bool = False
    skip_lost: bool = False
    commit_bytes: int = COMMIT_BYTES
    clock: Callable[[], int] = time.time_ns
    step: Callable[[int, str], None] = lambda partition, step: None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    summary: Summary = field(default_factory=Summary)

    def __post_init__(self) -> None:
        self.topic = "" if self.dry_run else self.output.topic  # a dry run needs no name
        self._claims = Claims(self.log)
        self._claiming = asyncio.Lock()
        self._first_claim: Claim | None = None
        self._parts: dict[int, PartitionReplay] = {}
        self._partitions: Sequence[int] = ()

    def progress(self) -> tuple[int, int]:
        """Offsets below which all groups are out, and how many there are: those that were out before do not count."""
        begins = {p: part.begin for p, part in self._parts.items()}
        total = sum(self.output.ends[p] - begins.get(p, self.output.first[p]) for p in self._partitions)
        return sum(part.done for part in self._parts.values()), total

    async def run(self, partitions: Sequence[int]) -> Summary:
        """Replay partitions up to the output's ends, or until `stop` is set: what is done by then is committed.

        Raises  FencedOut, PositionRefused; the other partitions then end as well
        """
        turns, self._partitions = asyncio.Semaphore(AT_ONCE), partitions
        tasks = [asyncio.create_task(self._keep(partition, turns)) for partition in partitions]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._claims.close()
        return self.summary

    async def own(self, partition: int) -> tuple[Owner, Claim]:
        """Fence and claim. One partition after the other: of two replays that start at once, one is to stay."""
        async with self._claiming:
            first = self._first_claim
            if first is not None and await self._claims.follower(first) is not None:
                raise Fenced(f"partition {first.partition} has a newer owner")
            self.step(partition, "fence")
            owner = await self.log.own(self.output.app, EVENTS, partition)
            claim = Claim(self.output.app, EVENTS, partition, socket.gethostname(), os.getpid(), self.clock())
            self._first_claim = self._first_claim or claim
            try:
                self.step(partition, "claim")
                await write_claim(owner, claim)
                if first is None and await read_output(self.log, self.output.name) != self.output:
                    raise OutputGone(
                        f"output {self.output.name}: it was deleted after this replay was planned; nothing was stored. "
                        "Run it again to make it anew"
                    )
            except BaseException:
                await owner.close()
                raise
        return owner, claim

    async def _keep(self, partition: int, turns: asyncio.Semaphore) -> None:
        if self.output.first[partition] >= self.output.ends[partition]:
            return
        async with turns:
            wait_s, retries, claim = RETRY_S[0], 0, None
            while not self.stop.is_set():
                part = self._parts[partition] = PartitionReplay(self, partition)
                try:
                    if claim is not None and await self._claims.follower(claim) is not None:
                        raise Fenced(f"partition {partition} has a newer owner")
                    await part.run()
                    return
                except Fenced as error:
                    await self._fenced_out(part.claim or claim or self._first_claim, partition, error)
                except (LogUnavailable, OffsetOutOfRange) as error:
                    # Of a partition that was cut off while it was read, the one that begins again says what is lost.
                    retries += 1
                    if retries > RETRIES:
                        raise
                    logger.warning("partition %d: %s; again in %.1f s", partition, error, wait_s)
                    claim = part.claim or claim
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 2, RETRY_S[1])
            self.summary.stopped = True

    async def _fenced_out(self, claim: Claim | None, partition: int, error: Fenced) -> None:
        successor = await self._claims.successor_named(claim, logger)
        partition = partition if claim is None else claim.partition
        raise FencedOut(
            f"partition {partition} of output {self.output.name} was taken over by {successor}; this replay stored "
            "nothing after that and stops"
        ) from error
