"""What a batch stream does in its client's thread: gather batches, acknowledge steps, rewind.

Steps are formed in the caller's thread, under the lock: a call that is broken off must not take a step with it.

Not here  what callers see: consumers.trainer
"""

import asyncio
import logging
import secrets
import threading
from collections import Counter, deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.stream.acked import Acked, acked_of, from_state
from rolloutlog.consumers.stream.awaited import describe_awaited
from rolloutlog.consumers.stream.collector import Collector, StepSettings, Taken
from rolloutlog.consumers.stream.parts import StreamParts
from rolloutlog.consumers.stream.prefetch import readable_offsets
from rolloutlog.consumers.stream.step import Step
from rolloutlog.eventstore.acks import Rewound, StepAcknowledged, StepAwaited, ack_records
from rolloutlog.eventstore.errors import InvalidSettings, LogUnavailable, StoreError
from rolloutlog.eventstore.scope import NotOpen

TELL_AFTER_S = 1.0  # of waiting hosts are told, who may hold rollouts back for this trainer
TELL_EVERY_S = 5.0  # well below the time for which they believe it
TELL_S = 2.0  # for telling them; it is only said again
WARN_S_LEAST = 1.0  # between warnings
DESCRIBE_S = 10.0  # for reading who is awaited
CHECK_S = 2.0  # for seeing a successor before a step is handed out

T = TypeVar("T")

logger = logging.getLogger("rolloutlog.trainer")


class WaitedTooLong(StoreError):
    """No step came in time; the text names who is awaited. Ask again: nothing was lost."""

    retriable = True


class AckRefused(StoreError):
    """A step cannot be acknowledged: out of order, twice, of another stream, or handed out before a rewind."""


@dataclass(slots=True)
class _HandedOut:
    number: int
    taken: Taken
    settled: bool = False  # its offsets stay as they are from here on


class StreamWork:
    """The state of a stream. Coroutines run in the client's thread; `form`, `counts` and fields in any, by `lock`."""

    def __init__(self, parts: StreamParts, settings: StepSettings) -> None:
        self.parts = parts
        self.reader = parts.settings.reader
        self.lock = threading.Lock()
        self.policy_version: int | None = None
        self.evaluations: tuple[Batch, ...] = ()
        self.acked = parts.begin
        self._settings = settings
        self._counts: Counter[str] = Counter()
        self._handed_out: deque[_HandedOut] = deque()
        self._rest: Taken | None = None  # what was passed over after the last step, until it is stored
        self._waits_since: float | None = None  # by the loop's clock, over calls that ask for the same step
        self._told_at = float("-inf")
        self._turn = asyncio.Lock()  # acknowledging and rewinding, one at a time
        self._line = self.acked.line or 0  # the newest one that is known
        self._unloaded = False  # whether a rewind to what is acknowledged may not be stored
        self._waits: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._begin()

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one of the coroutines below. Raises NotOpen when the stream is closed meanwhile."""
        try:
            return await work
        except asyncio.CancelledError:
            if self._closed:
                raise NotOpen(f"stream of reader {self.reader}: it was closed meanwhile") from None
            raise

    async def close(self) -> None:
        """Stop those who wait for a step, then close the parts."""
        self._closed = True
        for waiting in self._waits:
            waiting.cancel()
        await self.parts.close()

    @property
    def counts(self) -> Counter[str]:
        with self.lock:
            counts = Counter(self._counts)
            counts.update(self._collector.counts)
            counts.update(dict(self.parts.prefetch.counts))  # copied at once: the other thread adds to it
            return counts

    def form(self, ended: bool) -> Step | None:
        """The next step, which is then handed out; None when there are too few groups."""
        with self.lock:
            formed = self._collector.form(self.policy_version, last=ended)
            if formed is None:
                return None
            step, taken = formed
            if self._rest is not None:
                taken.samples[:0] = self._rest.samples
                self._rest = None
            self._handed_out.append(_HandedOut(step.number, taken))
            return step

    async def gather(self, timeout_s: float | None) -> bool:
        """Wait until a whole step is there; False when the run, or the output that is read, has ended before."""
        if self._settings.max_staleness is not None and self.policy_version is None:
            raise InvalidSettings(
                f"max_staleness={self._settings.max_staleness}: expected set_policy_version(version) before a step is "
                "asked for, got none"
            )
        self._check_loaded(f"reader {self.reader}: no step is given", LogUnavailable)
        self._compare_versions()
        waiting = asyncio.current_task()
        assert waiting is not None
        self._waits.add(waiting)
        check = None if self.parts.owner.has_just_stored else asyncio.create_task(self.parts.owner.check())
        try:
            return await self._gather(self.parts.settings.wait_s if timeout_s is None else timeout_s)
        finally:
            if check is not None:
                await asyncio.wait([check], timeout=CHECK_S)
                if check.done() and not check.cancelled():
                    check.result()
                check.add_done_callback(_consume)
                check.cancel()
            self._waits.discard(waiting)

    async def ack(self, step: Step, policy_version: int | None) -> None:
        async with self._turn:
            reached = self.parts.prefetch.reached()
            with self.lock:
                handed_out = self._expect(step)
                if not handed_out.settled and handed_out is self._handed_out[-1]:
                    self._collector.reach(reached)
                    handed_out.taken.reached = self._collector.settled()
                handed_out.settled = True
            await self._commit(handed_out.number, handed_out.taken, policy_version, next_step=handed_out.number + 1)
            with self.lock:
                self._handed_out.popleft()

    async def finish(self) -> None:
        """The run has ended: what was passed over after the last step ends with it.

        Steps that are handed out go first; it is then part of the last one's acknowledgement.
        """
        async with self._turn:
            with self.lock:
                rest, end = self._collector.form_rest(), None
                if rest is not None:
                    self.evaluations += rest.evaluations
                    if self._rest is not None:
                        rest.samples[:0] = self._rest.samples
                    self._rest = rest
                rest = self._rest
                if rest is None and not self._handed_out:
                    end = acked_of(
                        self.acked.step, self.acked.policy_version, self._collector.settled(), self.acked.line
                    )
                if rest is not None and self._handed_out:
                    last = self._handed_out[-1]
                    last.taken.samples += rest.samples
                    last.taken.reached = rest.reached
                    last.settled = True
                    self._rest = rest = None
            if rest is None:
                if end is not None and end != self.acked:
                    await self._commit_end(end)
                return
            # The number of the step before: a later step is another one, and a rewind to before it leaves this one in.
            await self._commit(self.acked.step - 1, rest, self.acked.policy_version, next_step=self.acked.step)
            self._rest = None

    async def load(self, state: Mapping[str, Any]) -> None:
        parts = self.parts
        async with self._turn:
            acked = from_state(
                state,
                reader=self.reader,
                run_id=parts.run.run_id,
                partitions=self.acked.offsets,
                output_id=parts.output_id,
            )
            if parts.owner.acked.offsets:
                self._check_not_ahead(acked)
            await self._check_below_end(acked)
            readable = await readable_offsets(parts.log, parts.topic, acked.offsets, skip_lost=parts.settings.skip_lost)
            if (
                self._unloaded
                or replace(acked, line=self.acked.line if acked.line is None else acked.line) != self.acked
            ):
                acked = await self._rewind(acked)
            else:
                acked = self.acked
            await parts.prefetch.restart(readable, acked.ended)
            with self.lock:
                self._counts.update(self._collector.counts)
                self.acked, self._unloaded = acked, False
                self.evaluations = ()
                self._begin()

    async def _rewind(self, acked: Acked) -> Acked:
        """Begin a line of steps at a state; returns what is acknowledged then."""
        # Above the line before, also when the clock was set back: a line's name is given once.
        self._line = max(self.parts.clock(), self._line + 1)
        rewound = Rewound(
            self.reader, acked.step, acked.offsets, acked.policy_version, self._line, acked.line, self.parts.topic
        )
        begun = replace(acked, line=self._line)
        try:
            await self.parts.owner.commit(ack_records(rewound), begun)
        except (LogUnavailable, asyncio.CancelledError):
            # It may be stored, and then nothing after it counts: to go on from after it would leave samples out.
            with self.lock:
                self.acked, self._unloaded = acked, True
            raise
        return begun

    def _check_loaded(self, what: str, refusal: type[StoreError]) -> None:
        if self._unloaded:
            raise refusal(
                f"{what}: the log gave no answer to the load of a state at step {self.acked.step}, which may be "
                "stored; load it again"
            )

    def _begin(self) -> None:
        """Steps from what is acknowledged; those handed out before are of another origin."""
        self._origin = f"{self.reader}.{secrets.token_hex(8)}"
        self._handed_out.clear()
        self._rest = None
        self._compared = False
        self._collector = Collector(self._settings, self.acked.reached, number=self.acked.step, origin=self._origin)

    def _compare_versions(self) -> None:
        """Warn once, before the first step, of weights older than those acknowledged: such as of a loop begun anew."""
        with self.lock:
            mine, acked, compared = self.policy_version, self.acked, self._compared
            self._compared = True
        if not compared and mine is not None and acked.policy_version is not None and mine < acked.policy_version:
            logger.warning(
                "reader %s: its policy version is %d, below %d, which it acknowledged with step %d: hosts would be "
                "told of older weights, and staleness be measured too low. After a restart load the checkpoint's state "
                "(load_state_dict), or go on from state_dict()['policy_version']",
                self.reader, mine, acked.policy_version, acked.step - 1,
            )  # fmt: skip

    async def _gather(self, wait_s: float) -> bool:
        parts, loop = self.parts, asyncio.get_running_loop()
        began = loop.time()
        deadline, warn_at = began + wait_s, began + parts.settings.warn_s
        while not self._add_ready():
            self._waits_since = began if self._waits_since is None else self._waits_since
            tell_at = max(self._waits_since + TELL_AFTER_S, self._told_at + TELL_EVERY_S)
            try:
                async with asyncio.timeout_at(min(deadline, warn_at, tell_at)):
                    published = await parts.prefetch.take()
            except TimeoutError:
                if loop.time() >= tell_at:
                    self._told_at = loop.time()
                    await self._tell()
                if loop.time() < min(deadline, warn_at):
                    continue
                text = await self._describe(loop.time() - began)
                if loop.time() >= deadline:
                    raise WaitedTooLong(text) from None
                logger.warning("%s", text)
                warn_at = loop.time() + max(parts.settings.warn_s, WARN_S_LEAST)
                continue
            if published is None:
                self._add_ready()
                self._waits_since = None
                return False
            with self.lock:
                self._collector.add(published, self.policy_version)
        self._waits_since = None
        return True

    async def _tell(self) -> None:
        """Say that groups are lacking. Raises FencedOut: a trainer that was fenced must not wait to the end."""
        with self.lock:
            lacks = self._settings.groups_per_step - self._collector.group_count
            awaited = StepAwaited(self.reader, self._collector.number, lacks, self.parts.clock(), self.parts.topic)
        try:
            async with asyncio.timeout(TELL_S):
                await self.parts.owner.check()
                await self.parts.log.append(ack_records(awaited))
        except (TimeoutError, LogUnavailable) as error:
            logger.debug("reader %s: that it waits could not be said: %r", self.reader, error)

    def _add_ready(self) -> bool:
        """Add what can be taken without waiting, up to a whole step. Returns whether one is there."""
        prefetch = self.parts.prefetch
        with self.lock:
            whole = self._collector.is_whole(self.policy_version)
            while not whole and (published := prefetch.take_ready()) is not None:
                self._collector.add(published, self.policy_version)
                whole = self._collector.is_whole(self.policy_version)
            self._collector.reach(prefetch.reached())
            return whole

    def _expect(self, step: Step) -> _HandedOut:
        what = f"step {step.number} refused"
        self._check_loaded(what, AckRefused)
        if step.origin != self._origin:
            raise AckRefused(
                f"{what}: expected a step of this stream since it was opened or rewound, got one of "
                f"{step.origin or 'no stream'}; its batches are handed out again, acknowledge that step"
            )
        if not self._handed_out or step.number < self._handed_out[0].number:
            raise AckRefused(f"{what}: it was acknowledged already; the next one is {self.acked.step}")
        if step.number > self._handed_out[0].number:
            raise AckRefused(
                f"{what}: expected step {self._handed_out[0].number}, which was handed out before; acknowledge steps "
                "in their order"
            )
        return self._handed_out[0]

    async def _commit(self, number: int, taken: Taken, policy_version: int | None, *, next_step: int) -> None:
        acked = acked_of(next_step, policy_version, taken.reached, self.acked.line)
        ack = StepAcknowledged(
            reader=self.reader,
            step=number,
            policy_version=policy_version,
            batch_ids=taken.batch_ids,
            samples=tuple(taken.samples),
            offsets=acked.offsets,
            time_ns=self.parts.clock(),
            topic=self.parts.topic,
        )
        await self.parts.owner.commit(ack_records(ack), acked)
        with self.lock:
            self.acked = acked
            self._counts.update(sample.end for sample in taken.samples)

    async def _commit_end(self, end: Acked) -> None:
        """Nothing is left, and nothing ends with it: only that the run has ended is kept, which retention may remove.

        Without an answer it is left: whoever reads on finds the end of the run again, as long as it is there.
        """
        try:
            await self.parts.owner.commit([], end)
        except LogUnavailable as error:
            logger.warning("reader %s: that the run has ended could not be stored: %s", self.reader, error)
            return
        with self.lock:
            self.acked = end

    def _check_not_ahead(self, acked: Acked) -> None:
        if acked.line is not None and acked.line < (self.acked.line or 0):
            return  # of a line that was left: what it acknowledged there counts again
        ahead = [p for p, offset in acked.offsets.items() if offset > self.acked.offsets[p]]
        if ahead or acked.step > self.acked.step:
            raise InvalidSettings(
                f"state refused: it is at step {acked.step}, ahead of what reader {self.reader} acknowledged, up to "
                f"step {self.acked.step}{f' (partitions {ahead})' if ahead else ''}; batches in between would be left "
                "out. Load an earlier state, or open the stream with another reader's name"
            )

    async def _check_below_end(self, acked: Acked) -> None:
        ranges = await self.parts.log.ranges(self.parts.topic, list(acked.offsets))
        for partition, offset in acked.offsets.items():
            if offset > ranges[partition].written:
                raise InvalidSettings(
                    f"state refused: expected an offset up to {ranges[partition].written} in partition {partition}, "
                    f"where the log ends, got {offset}: the topic was made anew, or lost its end"
                )

    async def _describe(self, waited_s: float) -> str:
        """What is awaited, and of whom."""
        parts = self.parts
        with self.lock:
            have, passed_over = self._collector.group_count, self._collector.passed_over
        awaited = [p for p in self.acked.offsets if p not in parts.prefetch.ended_partitions]
        if parts.output_end is not None:
            whom = parts.output_end.describe(self.acked.offsets.keys(), parts.clock)
        else:
            try:
                async with asyncio.timeout(DESCRIBE_S):
                    whom = await describe_awaited(parts.log, awaited, parts.run.partitions, parts.clock)
            except TimeoutError:
                whom = "what assemblers do could not be read in time"
        passed = "".join(f", {count} samples {end}" for end, count in sorted(passed_over.items()))
        trouble = f"; the log cannot be read: {parts.prefetch.unavailable}" if parts.prefetch.unavailable else ""
        return (
            f"reader {self.reader}: waited {waited_s:.0f} s for {self._settings.groups_per_step} groups to train on, "
            f"got {have}{passed}; {whom}{trouble}"
        )


def _consume(check: "asyncio.Task[None]") -> None:
    if not check.cancelled():
        check.exception()
