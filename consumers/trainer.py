"""Read training batches as optimizer steps, and acknowledge each once it is done.

    with BatchStream.open(groups_per_step=64, max_staleness=4, missing_reward="exclude") as stream:
        stream.set_policy_version(version)
        for step in stream:
            rows = step.padded(prompt_tokens=2048, response_tokens=2048, pad_id=0)
            ...
            version += 1
            stream.ack(step, policy_version=version)
            stream.set_policy_version(version)

The log's client runs in a thread of its own and reads ahead, so that a step of any length disturbs nothing. A step that
is not acknowledged is handed out again after a restart. An acknowledgement is one transaction: the ends of the step's
samples, and where reading goes on in each partition. `state_dict()` goes with a checkpoint, `load_state_dict()` rewinds
to it. With `output` it reads what a replay made instead, and ends where that is complete.

Not here  in consumers.stream: what makes a step: collector; arrays: padding; the client's thread: work
"""

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.owners import FencedOut
from rolloutlog.consumers.recovery import HistoryLost
from rolloutlog.consumers.stream.acked import COUNT_END, to_state
from rolloutlog.consumers.stream.advantages import group_advantages, rollout_weights
from rolloutlog.consumers.stream.collector import StepSettings
from rolloutlog.consumers.stream.padding import Padded, SampleTooLong
from rolloutlog.consumers.stream.parts import StreamParts, StreamSettings, checked_seconds
from rolloutlog.consumers.stream.step import Step, shard, shard_rows
from rolloutlog.consumers.stream.work import AckRefused, StreamWork, WaitedTooLong
from rolloutlog.eventstore.checks import plain_integer
from rolloutlog.eventstore.client import ClientThread
from rolloutlog.eventstore.connection import Opener, url_of
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.exits import close_at_exit, closed
from rolloutlog.eventstore.scope import NotOpen

__all__ = [
    "AckRefused",
    "BatchStream",
    "FencedOut",
    "HistoryLost",
    "Padded",
    "SampleTooLong",
    "Step",
    "WaitedTooLong",
    "group_advantages",
    "rollout_weights",
    "shard",
    "shard_rows",
]

READER = "trainer"
PREFETCH_BYTES = 256 * 2**20
WAIT_S = 1800.0
WARN_S = 60.0
ACK_S = 120.0  # a broker that restarts, or a leader that moves, is back by then
STOP_S = 15.0

T = TypeVar("T")


class BatchStream:
    """Steps of one reader. Any thread may use it.

    run_id              of the log
    reader, partitions  as opened
    output              name of the replay's output that it reads; None = live batches
    """

    def __init__(self, client: ClientThread, work: StreamWork) -> None:
        """Use `open`."""
        self.url = work.parts.log.url
        self.run_id = work.parts.run.run_id
        self.reader = work.reader
        self.output = work.parts.output
        self.partitions = tuple(work.acked.offsets)
        self._client = client
        self._work = work
        self._closing: Future[None] | None = None
        self._closing_lock = threading.Lock()
        self._pid = os.getpid()
        self._forgotten = _Forgotten(self)
        close_at_exit(self._forgotten)

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        reader: str = READER,
        groups_per_step: int,
        max_staleness: int | None,
        missing_reward: str | float,
        partitions: Sequence[int] | None = None,
        prompt_tokens_max: int | None = None,
        response_tokens_max: int | None = None,
        drop_last: bool = False,
        prompt_overlong: str = "drop",
        response_overlong: str = "drop",
        zero_variance: str = "keep",
        prefetch_bytes: int = PREFETCH_BYTES,
        wait_s: float = WAIT_S,
        warn_s: float = WARN_S,
        ack_s: float = ACK_S,
        on_history_lost: str = "fail",
        output: str | None = None,
        clock: Callable[[], int] = time.time_ns,
        opener: Opener | None = None,
    ) -> "BatchStream":
        """Take over the reader's name and go on after what it acknowledged; blocks until that is done.

        url             None = environment ROLLOUTLOG_LOG
        reader          another stream of the same name is fenced, on the same output
        output          what `rolloutlog replay --output` made under this name; None or `live` = live batches
        clock, opener   UTC nanoseconds; makes the log of (url, create) instead of `open_log`
        Others          as StepSettings and StreamSettings say
        Raises          InvalidSettings, LogMissing, LogUnavailable, PositionRefused, HistoryLost
        """
        url = url_of(url)
        steps = StepSettings(
            groups_per_step=groups_per_step,
            max_staleness=max_staleness,
            missing_reward=missing_reward,
            prompt_tokens_max=prompt_tokens_max,
            response_tokens_max=response_tokens_max,
            drop_last=drop_last,
            prompt_overlong=prompt_overlong,
            response_overlong=response_overlong,
            zero_variance=zero_variance,
        )
        settings = StreamSettings(reader, partitions, prefetch_bytes, wait_s, warn_s, ack_s, on_history_lost, output)
        client = ClientThread("rolloutlog-trainer")
        try:
            return cls(client, client.submit(_make(url, settings, steps, clock, opener)).result())
        except BaseException:
            client.stop(STOP_S)
            raise

    def set_policy_version(self, version: int) -> None:
        """The version of the weights that are trained now: staleness is measured against it from the next step on."""
        self._work.policy_version = _version(version)

    @property
    def policy_version(self) -> int | None:
        """As set; None = not yet."""
        return self._work.policy_version

    @property
    def counts(self) -> Counter[str]:
        """Batches, evaluations, refused records; samples by end, once acknowledged, and by reason. Of this stream."""
        return self._work.counts

    @property
    def evaluations(self) -> tuple[Batch, ...]:
        """Groups without samples that came after the last step, once the run has ended."""
        return self._work.evaluations

    def next_step(self, timeout_s: float | None = None) -> Step | None:
        """The next step; blocks until there is one. None when the run has ended and nothing is left; of an output,
        when its replay is complete and nothing is left.

        timeout_s  instead of the stream's wait_s
        Raises     WaitedTooLong, FencedOut, HistoryLost; InvalidSettings when `max_staleness` lacks a policy version
        """
        while True:
            ended = not _waited(self._submit(self._work.gather(_seconds(timeout_s))))
            step = self._work.form(ended)
            if step is not None:
                return step
            if ended:
                self._submit(self._work.finish()).result()
                return None

    async def anext_step(self, timeout_s: float | None = None) -> Step | None:
        """As `next_step`, without blocking the event loop."""
        while True:
            ended = not await asyncio.wrap_future(self._submit(self._work.gather(_seconds(timeout_s))))
            step = self._work.form(ended)
            if step is not None:
                return step
            if ended:
                await _shielded(self._submit(self._work.finish()))
                return None

    def ack(self, step: Step, *, policy_version: int | None) -> None:
        """The optimizer step is done: store how its samples ended, and where reading goes on. Returns once stored.

        Steps are acknowledged in the order in which they were handed out, each once. A share of a step stands for it.

        policy_version  of the weights after the step; None = unknown
        Raises          AckRefused; FencedOut; InvalidSettings naming the argument; LogUnavailable: the same call again
                        is safe
        """
        self._submit(self._work.ack(_step(step), _version_or_none(policy_version))).result()

    async def aack(self, step: Step, *, policy_version: int | None) -> None:
        """As `ack`. Cancelled, it stops waiting and nothing else."""
        work = self._work.ack(_step(step), _version_or_none(policy_version))
        await _shielded(self._submit(work))

    def state_dict(self) -> dict[str, Any]:
        """All that is acknowledged, as plain JSON values: what goes with a checkpoint."""
        with self._work.lock:
            output_id = self._work.parts.output_id
            return to_state(self._work.acked, reader=self.reader, run_id=self.run_id, output_id=output_id)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a checkpoint. Steps that are handed out, and batches read ahead, are dropped.

        What was acknowledged after it does not count any more. A reader that has acknowledged nothing begins there.
        Raises  InvalidSettings for a state of another run or output, or ahead of what the reader acknowledged;
                HistoryLost; FencedOut; LogUnavailable. Nothing is changed then, or by the last one maybe: load it again
        """
        self._submit(self._work.load(state)).result()

    async def aload_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `load_state_dict`. Cancelled, it stops waiting and nothing else."""
        await _shielded(self._submit(self._work.load(state)))

    def close(self) -> None:
        """Stop reading. Steps that are not acknowledged are handed out again to the next stream. Safe to call twice."""
        if self._pid == os.getpid():
            self._close().result()
            self._client.stop(STOP_S)
            closed(self._forgotten)

    async def aclose(self) -> None:
        """As `close`, without blocking the event loop."""
        if self._pid == os.getpid():
            await _shielded(self._close())
            await asyncio.to_thread(self._client.stop, STOP_S)
            closed(self._forgotten)

    def __iter__(self) -> Iterator[Step]:
        while (step := self.next_step()) is not None:
            yield step

    async def __aiter__(self) -> AsyncIterator[Step]:
        while (step := await self.anext_step()) is not None:
            yield step

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        if self._pid != os.getpid():
            work.close()
            raise NotOpen(f"stream of reader {self.reader}: opened by pid {self._pid} before a fork; open one here")
        if self._closing is not None:
            work.close()
            raise NotOpen(f"stream of reader {self.reader}: it is closed")
        return self._client.submit(self._work.call(work))

    def _close(self) -> "Future[None]":
        with self._closing_lock:
            if self._closing is None:
                self._closing = self._client.submit(self._work.close())
            return self._closing


def _waited(waiting: "Future[T]") -> T:
    try:
        return waiting.result()
    except BaseException:
        waiting.cancel()  # interrupted, such as by Ctrl-C: nobody waits any more, and hosts must not be told so
        raise


async def _shielded(work: "Future[T]") -> T:
    """Cancelled, the caller stops waiting and nothing else; what becomes of the work then is nobody's to hear."""
    waiting = asyncio.wrap_future(work)
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(waiting)


async def _make(
    url: str, settings: StreamSettings, steps: StepSettings, clock: Callable[[], int], opener: Opener | None
) -> StreamWork:
    parts = await StreamParts.open(url, settings, batches_max=steps.groups_per_step, clock=clock, opener=opener)
    return StreamWork(parts, steps)


def _step(step: Any) -> Step:
    if not isinstance(step, Step):
        raise InvalidSettings(
            f"step: expected a Step, as `next_step` gives and as the stream iterates over, got {step!r}"
            + ("; None says that the run has ended: nothing is left to acknowledge" if step is None else "")
        )
    return step


def _version(version: Any) -> int:
    version = plain_integer(version)
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version < COUNT_END:
        raise InvalidSettings(f"policy version: expected an integer from 0, of 63 bits at most, got {version!r}")
    return version


def _version_or_none(version: Any) -> int | None:
    return None if version is None else _version(version)


def _seconds(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else checked_seconds("timeout_s", timeout_s)


class _Forgotten:
    """A stream that nobody closed, for the end of the process: its thread would be stopped in the middle of something,
    and Python complain. Nothing is lost then: what is not acknowledged is handed out again."""

    pending_count = 0

    def __init__(self, stream: BatchStream) -> None:
        self.url = stream.url
        self.is_forked = False  # closing it is nothing in a forked process
        self._stream = stream

    def close(self) -> None:
        self._stream.close()
