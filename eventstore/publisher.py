"""Publish events: what a rollout host opens once and makes its rollouts from.

    with EventPublisher.open("kafka://broker:9092/run7") as events:
        group = events.group(task_id="airline-3", size=4)
        with events.rollout(group=group) as rollout:
            with rollout.agent("planner"):
                with rollout.call(model="policy") as call:
                    call.record(prompt_ids=..., response_ids=..., logprobs=...)
            rollout.finish(reward=1.0)

Recording only queues. The log's client runs in a thread of its own, with its own event loop, so a dead broker does not
slow the host down until the buffer is full. `flush` and `close` block until the log has everything, or raise NotStored;
`aflush` and `aclose` await the same. Until then an event may be lost with its process.

Forks: in a forked process a publisher begins anew, with an empty buffer and, from its first use on, a connection of its
own. What was queued before the fork is its parent's, and so is the parent's connection, which is never touched.

Not here  the buffer: eventstore.outbox; sending: eventstore.sender; recording: eventstore.recorder; the end of a
          process: eventstore.exits
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rolloutlog.eventstore import exits, forks
from rolloutlog.eventstore.attachment import Attachment
from rolloutlog.eventstore.checks import check_id, plain_integer, refused, say_where
from rolloutlog.eventstore.clock import HostClock, TimeNs
from rolloutlog.eventstore.connection import Opener, connect, partitions_of, settings_of, url_of
from rolloutlog.eventstore.errors import (
    InvalidEvent,
    InvalidSettings,
    LogUnavailable,
    NotStored,
    StoreError,
)
from rolloutlog.eventstore.events import REQUESTED, GroupClosed, RolloutStarted, RunEnded
from rolloutlog.eventstore.following import Following
from rolloutlog.eventstore.group import Group
from rolloutlog.eventstore.host import Host
from rolloutlog.eventstore.json_text import json_object
from rolloutlog.eventstore.log import Log, parse_url
from rolloutlog.eventstore.meta import Run
from rolloutlog.eventstore.outbox import Entry, Outbox
from rolloutlog.eventstore.partitioner import partition_of
from rolloutlog.eventstore.reentry import refuse_reentry
from rolloutlog.eventstore.ref import RolloutRef, ref_of
from rolloutlog.eventstore.rollout import Rollout
from rolloutlog.eventstore.settings import PublisherSettings
from rolloutlog.eventstore.source import new_id

if TYPE_CHECKING:
    # They load asyncio, which an import of the package need not wait for.
    from rolloutlog.eventstore.client import ClientThread

STOP_S = 5.0  # for closing the log's client, after everything is stored or given up

_logger = logging.getLogger(__name__)


class EventPublisher(Following):
    """A publisher of one log. Any thread may use it. `run_id`, `partitions`: of the run the log belongs to.

    `is_forked`: it was opened before this process was forked
    """

    def __init__(
        self,
        client: "ClientThread",
        log: Log,
        run: Run,
        settings: PublisherSettings,
        clock: HostClock,
        opener: Opener | None = None,
    ) -> None:
        """Use `open`."""
        self.url = log.url
        self.run_id = run.run_id
        self.partitions = run.partitions
        self.settings = settings
        self._clock = clock
        self._opener = opener
        self._outbox = Outbox(memory_bytes_max=settings.memory_bytes_max, on_put=self._wake)
        self._host = Host(
            self._outbox,
            partitions=run.partitions,
            event_bytes_max=settings.event_bytes_max,
            heartbeat_s=settings.heartbeat_s,
            wait_stored=self._wait_stored,
        )
        self.is_forked = False
        self._begin(client, log)
        self._send()
        exits.close_at_exit(self)
        forks.renew_after_forks(self)

    def _begin(self, client: "ClientThread", log: Log) -> None:
        """Make what belongs to one process."""
        from rolloutlog.eventstore.sender import Sender

        self._client = client
        self._log = log
        self._sender = Sender(log, self._outbox, self._clock, self.settings)
        self._sending: Future[None] | None = None
        self._starting = threading.RLock()
        self._lock = threading.RLock()
        self._own = self._host.source("publisher")
        self._closing: Future[StoreError | None] | None = None
        self._told = False
        self._progress = None

    def renew(self) -> None:
        """Called in a forked process, before its code runs. It connects at its first use."""
        from rolloutlog.eventstore.client import ClientThread
        from rolloutlog.eventstore.reopened_log import ReopenedLog

        forks.leave_to_parent((self._client, self._log, self._sender, self._sending, self._closing, self._progress))
        self.is_forked = True
        self._outbox.renew()
        self._host.renew()
        log = ReopenedLog(self.url, self.run_id, self._opener, self.settings.open_deadline_s)
        self._begin(ClientThread("rolloutlog-publisher"), log)

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        create: bool = False,
        partitions: int | None = None,
        settings: PublisherSettings | None = None,
        clock: HostClock | None = None,
        opener: Opener | None = None,
    ) -> "EventPublisher":
        """Connect to a log and read its run; blocks until that is done.

        url         None = environment ROLLOUTLOG_LOG
        create      make file, topics and run of an embedded log where they are missing, with this many `partitions`
                    (None = 4 in a new log); of Kafka, whose topics `rolloutlog topics create` makes, it asks nothing
        opener      makes the log of (url, create) instead of `open_log`; called in the client's event loop
        Raises      LogMissing, LogUnavailable, PartitionCountChanged, InvalidSettings
        """
        from rolloutlog.eventstore import reopened_log  # noqa: F401 a forked process must not have to import it
        from rolloutlog.eventstore.client import ClientThread

        url = url_of(url)
        create = create and parse_url(url).scheme == "sqlite"  # so that a program goes from one log to the other
        partitions = partitions_of(partitions)
        settings = settings_of(settings)
        client = ClientThread("rolloutlog-publisher")
        try:
            connecting = client.submit(connect(url, create=create, partitions=partitions, opener=opener))
            try:
                log, run = connecting.result(settings.open_deadline_s)
            except FutureTimeout as error:
                connecting.cancel()
                raise LogUnavailable(
                    f"log {url}: expected an answer within {settings.open_deadline_s:g} s, got none; try again"
                ) from error
            return cls(client, log, run, settings, clock or HostClock(), opener)
        except BaseException:
            client.stop(STOP_S)
            raise

    @property
    def pending_count(self) -> int:
        """Events that the log does not have yet."""
        return self._outbox.put_count - self._outbox.done_count

    @property
    def pending_bytes(self) -> int:
        """What they take of the buffer."""
        return self._outbox.size_bytes

    def group(self, task_id: str, size: int | None = None) -> Group:
        """A fresh group for rollouts of one task; `size` None = open until `close_group`.

        Raises InvalidEvent naming the argument. Nothing is published: the first rollout's start announces the group.
        """
        return Group(new_id(), task_id, size)

    def close_group(self, group: Group) -> None:
        """Close a group: rollouts that are still open then end as expired, and later ones are refused.

        Needed for open groups, and for groups whose rollouts will not all come, such as after a host died: without it
        they stay open. A group that has its announced size closes by itself.
        """
        if not isinstance(group, Group):
            error = refused("a Group, as `events.group(...)` gives", group, "group")
            error.args = (f"close_group refused: {error}",)
            raise error
        self._outbox.refuse_fork(f"close_group of {group.group_id} refused")
        refuse_reentry(self._lock, f"close_group of {group.group_id}")
        with self._lock:
            fields = {"group_id": group.group_id, "reason": REQUESTED, "as_of": None}
            event = self._own.make(GroupClosed, self._clock.now_ns(), fields)
            key = group.group_id.encode()
            self._own.publish(event, partition=partition_of(key, self.partitions), key=key)

    def end_run(self) -> None:
        """Say that no more rollouts will start in this run: trainers end once what was started is trained on.

        Call it once a run, from whoever knows, after every host that starts rollouts has flushed or closed. Rollouts
        that are still open go on, and may be recorded in; a trainer's iteration ends only when their groups are closed.
        Queued as events are, one for each partition. Called again, it says so again, which changes nothing.

        Raises  BufferFull, when only some partitions were told: call it again
        """
        self._outbox.refuse_fork("end_run refused")
        refuse_reentry(self._lock, "end_run")
        key = f"run/{self.run_id}".encode()
        with self._lock:
            for partition in range(self.partitions):
                event = self._own.make(RunEnded, self._clock.now_ns(), {"run_id": self.run_id})
                self._own.publish(event, partition=partition, key=key)

    def rollout(
        self,
        task_id: str | None = None,
        group: Group | None = None,
        rollout_id: str | None = None,
        attempt: int = 0,
        attempts_max: int = 1,
        split: str = "train",
        policy_version: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        awaited_rewards: Sequence[str] = (),
        *,
        source: str | None = None,
        clock: TimeNs | None = None,
    ) -> Rollout:
        """One attempt at a task. Use it as a block, which publishes its start when it is entered, and its end when it
        is left. Used without, its start is published by the first use, and its end by `finish` alone.

        task_id          None = the group's; give it or `group`
        group            None = a group of one, named after the rollout
        rollout_id       None = random; give it again for a further attempt
        split            "train", "val" or "test"
        policy_version   of the weights it starts with; None = unknown
        awaited_rewards  names of rewards that must be recorded before the rollout closes
        source, clock    for imports, which repeat identities and times: `main.{16 hex digits}`, and UTC nanoseconds as
                         they are to stand in the events
        Raises           InvalidEvent naming the argument
        """
        self._outbox.refuse_fork("rollout refused")
        attempt = plain_integer(attempt)
        is_named = rollout_id is not None
        if rollout_id is None:
            rollout_id = new_id()
        try:
            group = _group_of(rollout_id, task_id, group)
            fields = json_object(metadata, "metadata")
        except InvalidEvent as error:
            say_where(error, RolloutStarted.record, rollout_id, attempt)
            raise
        start = {
            "run_id": self.run_id,
            "task_id": group.task_id,
            "group_id": group.group_id,
            "group_size": group.size,
            "split": split,
            "attempts_max": plain_integer(attempts_max),
            "policy_version": plain_integer(policy_version),
            "metadata": fields,
        }
        rollout = Rollout(
            self._host,
            self._host.source("main", rollout_id, attempt, source=source),
            group=group,
            clock=clock or self._clock.for_rollout(),
            start=start,
            awaited_rewards=awaited_rewards,
        )
        if attempt and not is_named:
            unnamed = refused("the rollout_id of the attempts before", "none", "rollout_id", quote=False)
            say_where(unnamed, RolloutStarted.record, rollout_id, attempt)
            raise unnamed
        return rollout

    def attach(self, ref: RolloutRef | str | None = None) -> Attachment:
        """Work for a rollout of another process, or thread: a block with the same blocks and rewards as a Rollout.

        Nothing is sent or awaited; one publisher may serve any number at once.

        ref      as `Rollout.ref` gives it, or its text; None = the environment's ROLLOUTLOG_REF
        Raises   InvalidSettings when there is none, it was cut or changed, or is of another run than this log's
        """
        self._outbox.refuse_fork("attach refused")
        ref = ref_of(ref)
        if ref.run_id != self.run_id:
            raise InvalidSettings(
                f"attach to rollout {ref.rollout_id} refused: expected a ref of run {self.run_id}, which log "
                f"{self.url} holds, got one of run {ref.run_id}; open the log that the rollout's host has open"
            )
        return Attachment(self._host, ref, self._clock.for_rollout())

    def flush(self, timeout_s: float | None = None) -> None:
        """Block until every event recorded so far is stored. Raises NotStored after `timeout_s` (close_deadline_s)."""
        self._flush(timeout_s).result()

    async def aflush(self, timeout_s: float | None = None) -> None:
        """As `flush`, without blocking the event loop."""
        import asyncio

        await asyncio.wrap_future(self._flush(timeout_s))

    def close(self, timeout_s: float | None = None) -> None:
        """Take no more events, store what is queued, and end the client. Closing again does nothing.

        Raises NotStored, naming what is lost, when not all is stored after `timeout_s` (default: close_deadline_s).
        """
        lost = self._close(timeout_s).result()
        self._end_client()
        self._tell_once(lost)

    async def aclose(self, timeout_s: float | None = None) -> None:
        """As `close`, without blocking the event loop."""
        import asyncio

        # Cancelled, this stops waiting and nothing else: a later close, or the end of the process, waits for the rest.
        lost = await asyncio.shield(asyncio.wrap_future(self._close(timeout_s)))
        await asyncio.to_thread(self._end_client)
        self._tell_once(lost)

    def _flush(self, timeout_s: float | None) -> "Future[None]":
        seconds = self._seconds(timeout_s)
        self._outbox.refuse_fork("flush refused")
        self._outbox.refuse_reentry("flush")
        self._send()
        return self._client.submit(self._sender.flush(self._outbox.put_count, seconds))

    def _wait_stored(self, entry: Entry, timeout_s: float | None) -> "Future[None]":
        seconds = self._seconds(timeout_s)
        self._outbox.refuse_reentry("waiting")
        self._send()
        return self._client.submit(self._sender.wait_stored(entry, seconds))

    def _close(self, timeout_s: float | None) -> "Future[StoreError | None]":
        seconds = self._seconds(timeout_s)
        self._outbox.refuse_reentry("close")
        refuse_reentry(self._lock, "close")
        # Before the lock is taken: ending takes those of recorders, held by threads that may wait for this one.
        for recorder in list(self._host.forked):
            try:
                recorder.end_forked()
            except StoreError as error:
                _logger.error("%s", error)
        used = self._client.started
        if used:
            self._send()
        with self._lock:
            if self._closing is None:
                self._outbox.close("the publisher is closed")
                if used:
                    self._closing = self._client.submit(self._shut(seconds))
                else:  # forked, and never used
                    self._closing = Future()
                    self._closing.set_result(None)
            return self._closing

    def _send(self) -> None:
        """Begin to send, unless that has begun."""
        if self._sending is None:
            refuse_reentry(self._starting, "recording")
            with self._starting:
                if self._sending is None:
                    self._sending = self._client.submit(self._sender.run())
                    self._sending.add_done_callback(_log_crash)

    async def _shut(self, timeout_s: float) -> StoreError | None:
        import asyncio

        lost = None
        await self._stop_following()
        try:
            await self._sender.flush(self._outbox.put_count, timeout_s)
        except NotStored as error:
            lost = NotStored(f"{error}; the publisher is closed: what is not stored is lost")
        if self._sending is not None:
            self._sending.cancel()
        try:
            async with asyncio.timeout(STOP_S):
                await self._log.close()
        except Exception as error:
            _logger.warning("log %s: closing its client failed: %s: %s", self.url, type(error).__name__, error)
        return lost

    def _end_client(self) -> None:
        self._client.stop(STOP_S)
        exits.closed(self)

    def _tell_once(self, lost: StoreError | None) -> None:
        told, self._told = self._told, True
        if lost is not None and not told:
            raise lost

    def _seconds(self, timeout_s: float | None) -> float:
        if timeout_s is None:
            return self.settings.close_deadline_s
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s >= 0:
            raise InvalidSettings(f"timeout_s: expected seconds from 0 on, got {timeout_s!r}")
        return timeout_s

    def _wake(self) -> None:
        if self._sending is None:
            self._send()
        self._client.call_soon(self._sender.wake)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except NotStored as lost:
            _raise_or_note(lost, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except NotStored as lost:
            _raise_or_note(lost, error)


def _group_of(rollout_id: str, task_id: str | None, group: Group | None) -> Group:
    """The group of a rollout, by the arguments of `EventPublisher.rollout`. Raises InvalidEvent naming one of them."""
    check_id(rollout_id, "rollout_id")
    if group is None:
        if task_id is None:
            raise refused("a task_id or a group", "neither", "task_id", quote=False)
        check_id(task_id, "task_id")
        return Group(rollout_id, task_id, 1)
    if not isinstance(group, Group):
        raise refused("a Group, as `events.group(...)` gives, or none", group, "group")
    if task_id not in (None, group.task_id):
        raise refused(f"the group's task {group.task_id!r}", repr(task_id), "task_id", quote=False)
    return group


def _log_crash(sending: "Future[None]") -> None:
    if not sending.cancelled() and (error := sending.exception()) is not None:
        _logger.critical("the sender stopped: nothing more will be stored", exc_info=error)


def _raise_or_note(lost: NotStored, error: BaseException | None) -> None:
    if error is None:
        raise lost
    error.add_note(f"rolloutlog: {lost}")  # the exception on its way must not be hidden
    _logger.error("%s", lost)
