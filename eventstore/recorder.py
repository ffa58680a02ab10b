"""What records the work of a rollout: its own blocks' code, and whatever is attached to it.

Recording checks, encodes and queues an event in the calling thread; any thread and task may record. A recorder's events
come from one source, numbered from 0 without gaps. Parents and the last call seen are found by context variables
(eventstore.scope).

interrupts  what a signal handler or a finalizer records in the middle of recording is refused (eventstore.reentry)
forks       a recorder that was made before a fork goes on after it with a source of its own, which ends when its block
            is left or the publisher closes. Blocks entered before the fork are recorded by the process they were
            entered in
Not here    blocks: eventstore.spans; a rollout's start and end: eventstore.rollout; attaching: eventstore.attachment
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import RLock
from types import TracebackType
from typing import Any, Self, Unpack, cast

import numpy as np

from rolloutlog.eventstore import forks
from rolloutlog.eventstore import scope as _scope
from rolloutlog.eventstore.checks import say_where
from rolloutlog.eventstore.conversation import Conversation
from rolloutlog.eventstore.errors import InvalidEvent, StoreError
from rolloutlog.eventstore.events import (
    STEP,
    Event,
    RewardRecorded,
    RolloutCompleted,
    RolloutHeartbeat,
    SourceEnded,
    Span,
    Target,
)
from rolloutlog.eventstore.extra_info import encode_extra_info, reserved_collisions
from rolloutlog.eventstore.heartbeat import Beats, Pulse, begin_beats
from rolloutlog.eventstore.host import Host
from rolloutlog.eventstore.partitioner import partition_of
from rolloutlog.eventstore.recording import PolicyVersion, Recording
from rolloutlog.eventstore.reentry import refuse_reentry
from rolloutlog.eventstore.rewards import REWARD_NAME, check_reward
from rolloutlog.eventstore.scope import NotOpen
from rolloutlog.eventstore.source import Source
from rolloutlog.eventstore.spans import CallBlock, SpanBlock, SpanOptions

_logger = logging.getLogger(__name__)

RewardValue = float | int | np.floating[Any] | np.integer[Any] | None

_LAST_KINDS = (RolloutCompleted, SourceEnded)


class Recorder:
    """Blocks and rewards of one rollout, from one source.

    parent_id, after_call  where its work stands in the rollout, outside of any block of its own
    """

    def __init__(
        self,
        host: Host,
        source: Source,
        *,
        group_id: str,
        clock: Callable[[], int],
        parent_id: str | None = None,
        after_call: str | None = None,
    ) -> None:
        self.rollout_id = source.rollout_id
        self.attempt = source.attempt
        self._host = host
        self._source = source
        self._clock = clock
        self._key = group_id.encode()
        self._partition = partition_of(self._key, host.partitions)
        self._parent_id = parent_id
        self._after_call = after_call
        self._lock = RLock()
        self._conversation = Conversation()
        self._blocks: dict[str, SpanBlock] = {}
        self._given_ids: set[str] = set()
        self._entered = False
        self._pulse = Pulse(host.heartbeat_s)
        self._beats: Beats | None = None
        self._home = self._forks = forks.count

    @property
    def source(self) -> str:
        """The source of its events, as in them."""
        return self._source.source

    @property
    def finished(self) -> bool:
        """Whether its end is published; nothing can follow."""
        return self._source.last in _LAST_KINDS

    def agent(self, name: str, **span: Unpack[SpanOptions]) -> SpanBlock:
        """A block in which the agent `name` works. Keywords: SpanOptions."""
        return SpanBlock(self, name, kind="agent", **span)

    def operation(self, name: str, **span: Unpack[SpanOptions]) -> SpanBlock:
        """A block for a named step of an agent, such as `check_query`. Keywords: SpanOptions."""
        return SpanBlock(self, name, kind="operation", **span)

    def tool(self, name: str, **span: Unpack[SpanOptions]) -> SpanBlock:
        """A block in which a tool runs. Keywords: SpanOptions."""
        return SpanBlock(self, name, kind="tool", **span)

    def evaluator(self, name: str, **span: Unpack[SpanOptions]) -> SpanBlock:
        """A block in which work is judged: calls in it are never trained on. Keywords: SpanOptions."""
        return SpanBlock(self, name, kind="evaluator", **span)

    def call(
        self,
        model: str | None = None,
        policy_version: PolicyVersion = None,
        name: str = "chat",
        **span: Unpack[SpanOptions],
    ) -> CallBlock:
        """A block in which a model answers; `record` takes the answer. Keywords: SpanOptions."""
        return CallBlock(self, name, model=model, policy_version=policy_version, **span)

    def reward(
        self,
        value: RewardValue,
        name: str | None = None,
        target: Mapping[str, str] | None = None,
        extra_info: Mapping[str, Any] | None = None,
        reward_id: str | None = None,
        supersedes: str | None = None,
        scorer: str | None = None,
        scorer_version: str | None = None,
        scope: str = STEP,
    ) -> str:
        """Record a scorer's verdict where the code is now, and return the reward's id.

        value       a finite number, or None = the scorer gave no verdict
        name        None = `reward`, in the rollout's own block; whoever is attached names its rewards
        target      what a step reward is for: one of span_id, response_id, operation → its value; None = found by the
                    attribution policy from the enclosing span and the last call seen here, within the same agent
        extra_info  the scorer's further values; names of batch columns are reserved
        supersedes  the id of an earlier reward that this one replaces
        scope       "step", or "rollout" for an outcome of the whole rollout
        Raises      InvalidEvent naming the field; NotOpen after the rollout's end
        """
        fields = self._reward_fields(value, self._reward_name(name, scope), target, extra_info, scope)
        fields |= {
            "reward_id": reward_id,
            "supersedes": supersedes,
            "scorer": scorer,
            "scorer_version": scorer_version,
            "parent_id": self._enclosing_span(),
            "after_call": _scope.last_call(self, self._after_call),
        }
        with self._free_lock(f"reward {fields['name']!r}"):
            self._require_open("reward")
            self._publish_start()
            event = self._source.make(RewardRecorded, self._clock(), fields)
            self._publish(event)
        return cast(RewardRecorded, event).id

    def heartbeat(self) -> None:
        """Say that the work goes on. Blocking code calls it where it records nothing for minutes, in a tool's loop.

        Call it from the code that works, as often as you like: one event each `heartbeat_s` is recorded. Never from a
        thread beside it, which would go on when the work hangs. Blocks of async code do it by themselves: see
        eventstore.heartbeat.
        Raises NotOpen after the rollout's end
        """
        with self._free_lock("heartbeat"):
            self._require_open("heartbeat")
            self._publish_start()
            if self._pulse.is_due():
                self._publish(self._source.make(RolloutHeartbeat, self._clock(), {}))

    def enter_block(self, block: SpanBlock) -> None:
        """Called by a block that is entered."""
        with self._free_lock(f"block {block.name!r}"):
            self._require_open(f"block {block.name!r}")
            self._publish_start()
            if block.given_id and block.span_id in self._given_ids:
                error = InvalidEvent(
                    f"expected each span id once, got {block.span_id!r} again at $.span_id",
                    reason="span_id",
                    field="$.span_id",
                )
                say_where(error, Span.record, self.rollout_id, self.attempt)
                raise error
            block.begin(self._clock(), self._enclosing_span())
            if block.given_id:
                self._given_ids.add(block.span_id)
            self._blocks[block.span_id] = block
        _scope.enter(self, block.span_id, is_agent=block.kind == "agent")

    def leave_block(self, block: SpanBlock, failure: BaseException | None) -> None:
        """Called by a block that is left, with the exception that leaves it."""
        _scope.leave(self, block.span_id)
        try:
            with self._free_lock(f"end of block {block.name!r}"):
                if self._blocks.pop(block.span_id, None) is None:
                    return  # ended with its rollout, or left in a forked process: whoever entered it records it
                self._publish_block(block, failure)
        except Exception as error:
            if failure is None:
                raise
            add_fault(failure, error)
        else:
            if isinstance(block, CallBlock) and block.answered:
                _scope.see_call(self, block.span_id)

    def holds(self, block: SpanBlock) -> bool:
        """Whether the block is open in this process."""
        if self._forks != forks.count:
            self._renew()
        return block.span_id in self._blocks

    def check_recording(self, block: CallBlock, recording: Recording) -> None:
        """Called by a call that records: check it as it will be published."""
        with self._free_lock(f"record in {block.name!r}"):
            self._require_open(f"record in {block.name!r}")
            fields = {"span_id": block.span_id, "name": block.name, "kind": block.kind, "start_ns": 0, "end_ns": 0}
            self._source.make(Span, 0, fields | block.check_fields(recording))

    def end_forked(self) -> None:
        """Called when the publisher of a forked process closes."""
        self._end_source(None)

    # For what kinds of recorders have of their own

    def _publish_start(self) -> None:
        """Called before each event, under the lock."""

    def _require_open(self, what: str) -> None:
        """Raise NotOpen when nothing can follow."""
        raise NotImplementedError

    def _forked_source(self) -> Source:
        """The source that goes on in this process. Called once after a fork."""
        raise NotImplementedError

    def _must_name(self, scope: Any) -> bool:
        """Whether a reward of this scope needs a name here: it is not the rollout's own block that emits it."""
        raise NotImplementedError

    # For all of them

    def _free_lock(self, what: object) -> RLock:
        """The lock to record under. Raises NotOpen in the middle of recording; see refuse_reentry."""
        if self._forks != forks.count:
            self._renew()
        refuse_reentry(self._lock, what)
        return self._lock

    def _renew(self) -> None:
        """Go on in a forked process: with a lock that nobody holds, and a source of its own."""
        with forks.lock:
            if self._forks == forks.count:
                return
            self._lock = RLock()
            if not self.finished:
                self._conversation = Conversation()
                self._blocks = {}
                self._source = self._forked_source()
            self._forks = forks.count

    @property
    def _is_forked(self) -> bool:
        """Whether another process began it, and goes on with it."""
        if self._forks != forks.count:
            self._renew()
        return self._home != forks.count

    def _end_source(self, failure: str | None) -> None:
        """Publish the blocks that are open and the source's end.

        In a forked process only if it recorded anything: the end of a source that is all of its name seen so far would
        close rollouts that wait for that name.
        """
        with self._free_lock("end"):
            self._host.forked.discard(self)
            if self.finished:
                return
            self._end_blocks(failure)
            if self._source.event_count or not self._is_forked:
                self._publish(self._source.make(SourceEnded, self._clock(), {}))
            self._conversation = Conversation()
        _scope.forget(self)

    def _enclosing_span(self) -> str | None:
        span_id = _scope.enclosing_span(self)
        return self._parent_id if span_id is None else span_id

    def _publish(self, event: Event) -> None:
        self._source.publish(event, partition=self._partition, key=self._key)

    def _publish_block(self, block: SpanBlock, failure: BaseException | str | None) -> None:
        now_ns = self._clock()
        fields = block.end(now_ns, failure)
        if isinstance(block, CallBlock):
            fields |= block.call_fields(self._conversation)
        self._publish(self._source.make(Span, now_ns, fields))
        if isinstance(block, CallBlock):
            block.remember(self._conversation, fields)

    def _end_blocks(self, failure: str | None) -> None:
        """Publish the blocks that are open, innermost first."""
        while self._blocks:
            _, block = self._blocks.popitem()
            try:
                self._publish_block(block, failure)
            except StoreError as error:
                if failure is None:  # a completed rollout lacks nothing
                    raise
                _logger.error("%s", error)

    def _reward_name(self, name: Any, scope: Any) -> Any:
        """The name, or that of a reward that was given none. Raises InvalidEvent where one is needed."""
        if name is not None:
            return name
        if self._must_name(scope):
            self._require_open("reward")
            error = InvalidEvent(
                f"expected a name, since it is not the rollout's own block that emits it, got none at $.name; name it "
                f"after who judges, such as 'style': outcomes that share the default {REWARD_NAME!r} revise each other",
                reason="name",
                field="$.name",
            )
            say_where(error, RewardRecorded.record, self.rollout_id, self.attempt)
            raise error
        return REWARD_NAME

    def _reward_fields(
        self, value: Any, name: Any, target: Any, extra_info: Mapping[str, Any] | None, scope: Any
    ) -> dict[str, Any]:
        try:
            check_reward(value=value, name=name, scope=scope, target=target)
            encoded = encode_extra_info(extra_info) if extra_info is not None else b""
            if extra_info and (reserved := reserved_collisions(extra_info)):
                raise InvalidEvent(
                    f"expected keys that are no batch columns, got {', '.join(map(repr, reserved))} at $.extra_info; "
                    "give them other names",
                    reason="extra_info_reserved",
                    field="$.extra_info",
                )
        except InvalidEvent as error:
            what = f"{RewardRecorded.record} {name!r}" if isinstance(name, str) else RewardRecorded.record
            say_where(error, what, self.rollout_id, self.attempt)
            raise
        return {
            "value": None if value is None else float(value),
            "name": name,
            "scope": scope,
            "target": None if target is None else Target(*next(iter(target.items()))),
            "extra_info": encoded if extra_info else b"",
        }

    def __enter__(self) -> Self:
        with self._free_lock("entering its block"):
            self._require_open("entering its block")
            if self._entered:
                raise NotOpen(f"the block of rollout {self.rollout_id} was entered before; make another for each time")
            self._publish_start()
            self._entered = True
        _scope.enter(self, None)
        self._beats = begin_beats(self._pulse.interval_s, self._beat, lambda: self._source.event_count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _scope.leave(self, None)
        if self._beats is not None:
            self._beats.end()
        try:
            self._end_block(error)
        except Exception as fault:
            if error is None:
                with suppress(StoreError):
                    self._end_block_that_failed(fault)
                raise
            add_fault(error, fault)
        finally:
            _scope.forget(self)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _end_block(self, error: BaseException | None) -> None:
        """Its own block is left, by `error` or without one."""
        raise NotImplementedError

    def _end_block_that_failed(self, fault: Exception) -> None:
        """`_end_block` raised `fault`, which goes on."""
        raise NotImplementedError

    def _beat(self) -> None:
        if not self.finished:
            self.heartbeat()


def emit_reward(
    value: RewardValue,
    name: str | None = None,
    target: Mapping[str, str] | None = None,
    extra_info: Mapping[str, Any] | None = None,
    reward_id: str | None = None,
    supersedes: str | None = None,
    scorer: str | None = None,
    scorer_version: str | None = None,
    scope: str = STEP,
) -> str:
    """`Rollout.reward` on the rollout whose block this code runs in. Raises NotOpen outside of any."""
    recorder = _scope.current_rollout()
    if recorder is None:
        raise NotOpen(
            f"reward {name or REWARD_NAME!r} not recorded: no rollout's block is open in this context; call it within "
            "`with events.rollout(...)`, or `rollout.reward(...)` on a rollout you hold. A thread started by hand, or "
            "of a pool, has no context: use `asyncio.to_thread`, or start it with `contextvars.copy_context().run`. "
            "Another process attaches first: `with events.attach(ref)`"
        )
    return cast(Recorder, recorder).reward(
        value,
        name=name,
        target=target,
        extra_info=extra_info,
        reward_id=reward_id,
        supersedes=supersedes,
        scorer=scorer,
        scorer_version=scorer_version,
        scope=scope,
    )


def add_fault(error: BaseException, fault: Exception) -> None:
    """Say that something could not be recorded, without hiding the exception that is on its way."""
    error.add_note(f"rolloutlog: {fault}")
    _logger.error("%s", fault)
