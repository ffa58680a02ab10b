"""Assemble training batches from events, exactly once.

One worker a partition, each with the partition's fenced owner. At start a worker takes these steps:

  1 fence     become the owner; an older one can store nothing from here on
  2 claim     write host, pid and time to meta, for the one that was fenced
  3 position  read L and P, only now: an older owner's last transaction is in them
  4 seek      read from L; what is triggered below P is folded again, but is out already

and then cycles:

  1 receive   fetch committed records
  2 fold      each record in offset order; outputs wait with their triggers
  3 pack      make records of the outputs: batches, dead letters, and GroupClosed for the events themselves
  4 commit    one transaction: those records, offset L and metadata P
  5 confirm   only now is anything counted as published
  6 decide    once a second at most: when something waits for too long, read to the end, look again, and append the
              decisions in a transaction of their own

A position of another fold version is gone on from where no group was open: consumers.crossing. A run `until_settled` is
what takes a partition there.

A commit is due 200 ms after the first waiting output, at 2,000 events or 8 MiB, and every 10 s in any case, so that a
fenced owner learns of it. Nothing is committed before P is reached again.

Not here   what a record causes: consumers.fold; what is decided, and when: consumers.deciding; which log it is:
           eventstore.log
"""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rolloutlog.consumers.crossing import cross
from rolloutlog.consumers.deciding import Deciding
from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.limits import Limits
from rolloutlog.consumers.outputs import BatchReady, DeadLetter, Output
from rolloutlog.consumers.owners import Claim, Claims, FencedOut, write_claim
from rolloutlog.consumers.packing import Packer
from rolloutlog.consumers.position import Progress, to_position
from rolloutlog.consumers.recovery import starting_point
from rolloutlog.consumers.refusals import Refusals
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.consumers.status_writer import StatusWriter
from rolloutlog.consumers.waiting import describe_open
from rolloutlog.eventstore.errors import Fenced, LogUnavailable, OffsetOutOfRange, StoreError
from rolloutlog.eventstore.log import EVENTS, Log, Owner, Position, Reader, Record

APP = "assembler"
STOP_S = 6.0  # to commit after a stop: service managers kill after 10
FETCH_WAIT_S = 0.1
WAITING_SHOWN = 5  # open groups a partition tells of at its end
DUE_EVERY = 16  # records between two looks at the clock
FOLD_SLICE = 200  # records folded before other partitions get a turn
RETRY_S = (0.5, 30.0)  # first and longest wait after the log was unavailable
HEALTHY_S = 60.0  # a worker that ran so long begins again with the first wait
HELD_BACK_S = 60.0  # above the transaction timeout of our own programs
UNTIL_END_RETRIES = 7  # about a minute of waiting; a run that is to end does not wait for ever

logger = logging.getLogger("rolloutlog.assembler")


class HeldBack(StoreError):
    """A run that is to end cannot: another program's open transaction stands before the end."""

    retriable = True


@dataclass(frozen=True)
class AssemblerSettings:
    """How an assembler runs. Only `fold` changes what it puts out of the same log.

    limits            how long anything waits: they end it by decisions, which are events in the log
    dead_letters_in_row, dead_letters_share   stop at so many refused events in a row, or share of 10,000
    on_history_lost   `fail`, or `skip` what retention removed
    status_interval_s  between two records that say where it is, for people who look on
    """

    fold: FoldSettings = field(default_factory=FoldSettings)
    limits: Limits = field(default_factory=Limits)
    commit_interval_s: float = 0.2
    commit_events: int = 2_000
    commit_bytes: int = 8 * 2**20
    position_interval_s: float = 10.0
    dead_letters_in_row: int = 1_000
    dead_letters_share: float = 0.05
    on_history_lost: str = "fail"
    status_interval_s: float = 5.0


@dataclass
class Summary:
    """What a run did, counted after commits. `open_*`, `waiting`: still open at its end, and what for.

    counts           events and outputs by name
    rewards          rewards of published rollouts by outcome
    without_samples  batches without samples by reason
    decisions        by reason: what was ended because it waited for too long
    """

    counts: Counter[str] = field(default_factory=Counter)
    rewards: Counter[str] = field(default_factory=Counter)
    without_samples: Counter[str] = field(default_factory=Counter)
    decisions: Counter[str] = field(default_factory=Counter)
    open_rollouts: int = 0
    open_groups: int = 0
    waiting: list[str] = field(default_factory=list)


@dataclass
class Assembler:
    """Runs the workers of some partitions of one log.

    clock    UTC nanoseconds, for claims and appended events: never for what is put out
    on_step  told (partition, step) as each step of a cycle begins, for tests and debugging
    """

    log: Log
    settings: AssemblerSettings
    clock: Callable[[], int] = time.time_ns
    on_step: Callable[[int, str], None] | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    summary: Summary = field(default_factory=Summary)

    def __post_init__(self) -> None:
        self.claims = Claims(self.log)
        self.claiming = asyncio.Lock()
        self.first_claim: Claim | None = None
        self.statuses = StatusWriter(self.log, self.clock, self.settings.status_interval_s, self.settings.fold)
        self.workers: dict[int, Worker] = {}
        self.until_settled = False

    def progress(self) -> tuple[int, int]:
        """Offsets read and to be read in all, of a run `until_end`, as far as its workers have begun."""
        begun = [worker for worker in self.workers.values() if worker.end is not None and worker.begin is not None]
        done = sum(min(each.state.position, each.end or 0) - (each.begin or 0) for each in begun)
        return done, sum((each.end or 0) - (each.begin or 0) for each in begun)

    async def run(self, partitions: Sequence[int], *, until_end: bool = False, until_settled: bool = False) -> Summary:
        """Assemble until `stop` is set.

        until_end      or up to the ends seen at start
        until_settled  or, each partition for itself, until no group of it is open, wherever that is
        Raises         FencedOut, HistoryLost, TooManyDeadLetters, PositionRefused; the other workers then end as well
        """
        self.until_settled = until_settled
        workers = [asyncio.create_task(self._keep(partition, until_end)) for partition in partitions]
        ender = asyncio.create_task(self._end(workers))
        teller = asyncio.create_task(self.statuses.run())
        try:
            await asyncio.gather(*workers)
        except asyncio.CancelledError:
            if not ender.done():
                raise  # we are cancelled, not the workers
            raise LogUnavailable(
                f"the log gave no answer within {STOP_S:.0f} s of the stop; what was not committed is folded again by "
                "the next assembler"
            ) from None
        finally:
            self.stop.set()
            await asyncio.gather(*workers, return_exceptions=True)
            ender.cancel()
            teller.cancel()
            await asyncio.gather(teller, return_exceptions=True)
            await self.claims.close()
        await self.statuses.finish()
        self._warn_of_missing_rewards()
        return self.summary

    async def _end(self, workers: Sequence["asyncio.Task[None]"]) -> None:
        """After `stop`, let workers commit and end; cancel those that wait for a log that does not answer."""
        await self.stop.wait()
        _, waiting = await asyncio.wait(workers, timeout=STOP_S)
        for worker in waiting:
            worker.cancel()

    async def _keep(self, partition: int, until_end: bool) -> None:
        """Run one partition's worker again after the log was unavailable, unless someone else has taken it over."""
        wait_s, claim, retries, end = RETRY_S[0], None, 0, None
        loop = asyncio.get_running_loop()
        while True:
            worker, began = Worker(self, partition, until_end, end), loop.time()
            self.workers[partition] = worker
            try:
                if claim is not None and await self.claims.follower(claim) is not None:
                    raise Fenced(f"partition {partition} has a newer owner")
                await worker.run()
            except Fenced as error:
                await self._fenced_out(worker.claim or claim, partition, error)
            except OffsetOutOfRange as error:
                # Cut off while it was read: the position says what is lost, and the settings what to do.
                logger.warning("partition %d: %s", partition, error)
                claim, end = worker.claim or claim, worker.end
            except LogUnavailable as error:
                if loop.time() - began > HEALTHY_S:
                    wait_s, retries = RETRY_S[0], 0
                retries += 1
                if self.stop.is_set() or (until_end and retries > UNTIL_END_RETRIES):
                    raise
                logger.warning("partition %d: %s; again in %.1f s", partition, error, wait_s)
                claim, end = worker.claim or claim, worker.end
                await _sleep(self.stop, wait_s)
                wait_s = min(wait_s * 2, RETRY_S[1])
            else:
                self.summary.open_rollouts += worker.state.open_rollouts
                self.summary.open_groups += len(worker.state.groups)
                self.summary.waiting += describe_open(worker.state, groups_max=WAITING_SHOWN)
                return

    async def _fenced_out(self, claim: Claim | None, partition: int, error: Fenced) -> None:
        claim = claim or self.first_claim
        successor = await self.claims.successor_named(claim, logger)
        partition = partition if claim is None else claim.partition
        raise FencedOut(
            f"partition {partition} of {EVENTS} was taken over by {successor}; this assembler stored nothing after "
            "that and stops"
        ) from error

    def _warn_of_missing_rewards(self) -> None:
        counts = self.summary.counts
        if counts["samples"] and counts["samples_without_reward"] * 2 > counts["samples"]:
            logger.warning(
                "%d of %d samples carry no reward: see `rolloutlog batches dump`, field outcomes",
                counts["samples_without_reward"],
                counts["samples"],
            )


class Worker:
    """One partition's steps. Dropped whole when anything fails: a new one starts from what is committed."""

    def __init__(self, assembler: Assembler, partition: int, until_end: bool, end: int | None = None) -> None:
        self.assembler = assembler
        self.log = assembler.log
        self.settings = assembler.settings
        self.clock = assembler.clock
        self.stop = assembler.stop
        self.summary = assembler.summary
        self.on_step = assembler.on_step or (lambda partition, step: None)
        self.partition = partition
        self.until_end, self.end = until_end, end
        self.begin: int | None = None
        self.claim: Claim | None = None
        self.crossing: int | None = None
        self.crosses = False  # still to pass the crossing
        self.state = PartitionState(partition, self.settings.fold)
        self.outputs: list[Output] = []
        self.outputs_bytes = 0
        self.events_since = 0
        self.due_at: float | None = None
        self.refusals = Refusals(self.settings.dead_letters_in_row, self.settings.dead_letters_share)
        source = f"{APP}.{secrets.token_hex(8)}"
        self.packer = Packer(partition, self.settings.fold.config_hash, source)
        self.deciding = Deciding(self.log, partition, self.settings.limits, asyncio.get_running_loop().time)

    async def run(self) -> None:
        owner, reader = await self._own(), None
        try:
            self.on_step(self.partition, "position")
            # After fencing, for a dead owner's transaction is over then; with all that is written, also by others.
            span = (await self.log.ranges(EVENTS, [self.partition]))[self.partition]
            if self.until_end and self.end is None:
                self.end = span.written
            progress = await starting_point(
                self.log, owner, self.partition, span, skip_lost=self.settings.on_history_lost == "skip"
            )
            self.on_step(self.partition, "seek")
            self.state = PartitionState(
                self.partition, self.settings.fold, position=progress.watermark, emit_from=progress.position
            )
            self.begin, self.crossing = progress.watermark, progress.crossing
            self.crosses = self.crossing is not None and self.crossing > progress.watermark
            reader = await self.log.reader(EVENTS, {self.partition: progress.watermark})
            self.assembler.statuses.begin(self)
            await self._cycle(owner, reader)
            self.assembler.statuses.end(self)
        finally:
            self.assembler.statuses.leave(self)
            if reader is not None:
                await reader.close()
            await owner.close()

    async def _own(self) -> Owner:
        """Fence and claim. One partition after the other: of two assemblers that start at once, one is to stay.

        The one that finds its first partition taken stops before it takes another one from its successor.
        """
        assembler = self.assembler
        async with assembler.claiming:
            first = assembler.first_claim
            if first is not None and await assembler.claims.follower(first) is not None:
                raise Fenced(f"partition {first.partition} has a newer owner")
            self.on_step(self.partition, "fence")
            owner = await self.log.own(APP, EVENTS, self.partition)
            try:
                self.on_step(self.partition, "claim")
                claim = Claim(APP, EVENTS, self.partition, socket.gethostname(), os.getpid(), self.clock())
                self.claim = claim  # before it is written: an unanswered one may be stored
                await write_claim(owner, claim)
            except BaseException:
                await owner.close()
                raise
            if assembler.first_claim is None or assembler.first_claim.partition == self.partition:
                assembler.first_claim = claim
        return owner

    async def _cycle(self, owner: Owner, reader: Reader) -> None:
        committed_at = moved_at = asyncio.get_running_loop().time()
        settling = self.assembler.until_settled
        while True:
            self.on_step(self.partition, "receive")
            records = await reader.fetch(wait_s=self._wait_s(), records_max=self.settings.commit_events)
            self.on_step(self.partition, "fold")
            for index, record in enumerate(records):
                if settling and self._is_settled():
                    break
                self._fold(record)
                if index % FOLD_SLICE == FOLD_SLICE - 1:
                    await asyncio.sleep(0)
                if (index % DUE_EVERY == 0 or self.outputs_bytes >= self.settings.commit_bytes) and self._due():
                    await self._commit(owner)
                    committed_at = asyncio.get_running_loop().time()
                    self.on_step(self.partition, "fold")  # the rest of what was received
            else:
                # Past markers too: nothing between the last record and here can cause anything.
                self.state.position = max(self.state.position, reader.position(self.partition))
            self._cross(self.state.position)
            ended = self.stop.is_set() or (self.end is not None and self.state.position >= self.end)
            ended = ended or (settling and self._is_settled())
            now = asyncio.get_running_loop().time()
            if records:
                moved_at = now
            elif self.end is not None and not ended and now - moved_at > HELD_BACK_S:
                raise HeldBack(
                    f"partition {self.partition} of {EVENTS}: expected to read to {self.end}, got nothing above "
                    f"{self.state.position} for {HELD_BACK_S:.0f} s: a transaction of another program is open there. "
                    "What was read is published; run again when it is over"
                )
            if ended or self._due() or now - committed_at >= self.settings.position_interval_s:
                await self._commit(owner)
                committed_at = now
            if ended:
                return
            if self.end is None:  # a run to the end waits for nothing
                await self._decide(owner)

    async def _decide(self, owner: Owner) -> None:
        decisions = await self.deciding.due(self.state)
        if not decisions:
            return
        if self.outputs:
            await self._commit(owner)
        self.on_step(self.partition, "decide")
        records = self.packer.pack_decisions(decisions, time_ns=self.clock())
        await owner.commit(records, {self.partition: self._progress()})
        reasons = Counter(each.reason for each in decisions)
        self.summary.decisions.update(reasons)
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        logger.info("partition %d: ended what waited for too long: %s", self.partition, told)

    def hear_log_time(self, log_time_ns: int) -> None:
        """The log has just said what time it is."""
        self.deciding.hear_log_time(log_time_ns)

    def _progress(self) -> Position:
        settled = not self.state.groups
        return to_position(Progress(self.state.watermark(), self.state.position, False, settled, self.crossing))

    def _is_settled(self) -> bool:
        """No group is open here, and everything below is out."""
        return not self.state.groups and not self.crosses and self.state.position >= self.state.emit_from

    def _cross(self, offset: int) -> None:
        """The rules of another fold version end at the crossing, before `offset` is folded."""
        if self.crosses and offset >= (self.crossing or 0):
            self.crosses = False
            if left := cross(self.state):
                logger.info("partition %d: %d groups were closed by the fold version before", self.partition, left)

    def _wait_s(self) -> float:
        if self.due_at is None:
            return FETCH_WAIT_S
        return min(FETCH_WAIT_S, max(0.0, self.due_at - asyncio.get_running_loop().time()))

    def _fold(self, record: Record) -> None:
        if self.crosses:
            self._cross(record.offset)
        outputs = fold(self.state, record)
        self.deciding.read(record)
        self.events_since += 1
        self.refusals.add([each for each in outputs if isinstance(each, DeadLetter)])
        if outputs:
            self.outputs += outputs
            self.outputs_bytes += sum(_output_bytes(each) for each in outputs)
            if self.due_at is None:
                self.due_at = asyncio.get_running_loop().time() + self.settings.commit_interval_s

    def _due(self) -> bool:
        if self.due_at is None:
            return False
        return (
            self.events_since >= self.settings.commit_events
            or self.outputs_bytes >= self.settings.commit_bytes
            or asyncio.get_running_loop().time() >= self.due_at
        )

    async def _commit(self, owner: Owner) -> None:
        state = self.state
        if state.position < state.emit_from:
            return  # still on the way back to P
        self.on_step(self.partition, "pack")
        records = self.packer.pack(self.outputs, time_ns=self.clock())
        self.on_step(self.partition, "commit")
        await owner.commit(records, {self.partition: self._progress()})
        self.on_step(self.partition, "confirm")
        self._confirm()

    def _confirm(self) -> None:
        counts: Counter[str] = Counter()
        for output in self.outputs:
            if isinstance(output, BatchReady):
                counts["batches"] += 1
                counts["samples"] += len(output.batch.samples)
                counts["samples_without_reward"] += sum(each.total is None for each in output.batch.samples)
                if output.batch.reason is not None:
                    self.summary.without_samples[output.batch.reason] += 1
                for result in output.batch.rollouts:
                    counts[f"rollouts_{result.status}"] += 1
                    self.summary.rewards.update(each.outcome for each in result.outcomes)
            elif isinstance(output, DeadLetter):
                counts["dead_letters"] += 1
                counts[f"dead_letters_{output.reason}"] += 1
        counts.update(self.state.counts)
        self.state.counts.clear()
        self.summary.counts.update(counts)
        self.assembler.statuses.counts.setdefault(self.partition, Counter()).update(counts)
        self.outputs, self.outputs_bytes, self.events_since, self.due_at = [], 0, 0, None


def _output_bytes(output: Output) -> int:
    if isinstance(output, BatchReady):
        return sum(sample.size_bytes for sample in output.batch.samples) + 500 * len(output.batch.rollouts)
    if isinstance(output, DeadLetter):
        return len(output.record.value or b"")
    return 0


async def _sleep(stop: asyncio.Event, seconds: float) -> None:
    """Wait, but not after `stop`."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
