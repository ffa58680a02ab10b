"""A rollout: what an agent's code holds while it works on a task.

Recording checks, encodes and queues an event in the calling thread; any thread and task may record. The rollout's
events come from one source, numbered from 0 without gaps. Parents and the last call seen are found by context
variables (eventstore.scope).

start     published when the block is entered, or by the first use
end       published by `finish`, or when the block is left: then as completed, without a final reward. An exception ends
          it as failed and goes on. Spans that are still open end with it, since nothing may follow
interrupts  what a signal handler or a finalizer records in the middle of recording is refused (eventstore.reentry)
Not here  blocks within a rollout: eventstore.spans; numbering: eventstore.source
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from threading import RLock
from types import TracebackType
from typing import Any, Self, Unpack, cast

import numpy as np

from rolloutlog.eventstore import scope as _scope
from rolloutlog.eventstore.checks import refused, say_where
from rolloutlog.eventstore.conversation import Conversation
from rolloutlog.eventstore.errors import InvalidEvent, StoreError
from rolloutlog.eventstore.events import (
    COMPLETED,
    FAILED,
    ROLLOUT,
    STEP,
    RewardRecorded,
    RolloutCompleted,
    RolloutStarted,
    Span,
    Target,
)
from rolloutlog.eventstore.extra_info import encode_extra_info, reserved_collisions
from rolloutlog.eventstore.group import Group, GroupCount
from rolloutlog.eventstore.partitioner import partition_of
from rolloutlog.eventstore.recording import PolicyVersion, Recording
from rolloutlog.eventstore.reentry import refuse_reentry
from rolloutlog.eventstore.rewards import REWARD_NAME, check_reward
from rolloutlog.eventstore.scope import NotOpen
from rolloutlog.eventstore.source import Source
from rolloutlog.eventstore.spans import CallBlock, SpanBlock, SpanOptions, describe

_logger = logging.getLogger(__name__)

RewardValue = float | int | np.floating[Any] | np.integer[Any] | None


class Rollout:
    """One attempt at a task. Made by `EventPublisher.rollout`; works with `with` and `async with`.

    Leaving its block without `finish` completes it, without a final reward. Used without its block, its start is
    published by the first use, and only `finish` ends it: without that it stays open.

    rollout_id, attempt, task_id, group, source  as in its events
    """

    def __init__(
        self,
        source: Source,
        *,
        group: Group,
        partitions: int,
        clock: Callable[[], int],
        start: Mapping[str, Any],
        awaited_rewards: Iterable[str],
        group_count: GroupCount,
    ) -> None:
        self.rollout_id = source.rollout_id
        self.attempt = source.attempt
        self.source = source.source
        self.group = group
        self.task_id: str = start["task_id"]
        self._source = source
        self._clock = clock
        self._start = start
        self._group_count = group_count
        # A text is iterable too; what is none is refused below, by name.
        listed = isinstance(awaited_rewards, Iterable) and not isinstance(awaited_rewards, str | bytes)
        self._awaited_rewards = tuple(awaited_rewards) if listed else awaited_rewards
        self._lock = RLock()
        self._conversation = Conversation()
        self._blocks: dict[str, SpanBlock] = {}
        self._given_ids: set[str] = set()
        self._entered = False
        # What is wrong with the arguments is said where they are given, not when the block is entered.
        source.make(RolloutStarted, 0, start)
        source.make(RolloutCompleted, 0, {"awaited_rewards": self._awaited_rewards})
        self._key = group.group_id.encode()
        self._partition = partition_of(self._key, partitions)

    @property
    def finished(self) -> bool:
        """Whether its end is published; nothing can follow."""
        return self._source.last is RolloutCompleted

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
        name: str = REWARD_NAME,
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
        target      what a step reward is for: one of span_id, response_id, operation → its value; None = found by the
                    attribution policy from the enclosing span and the last call seen here, within the same agent
        extra_info  the scorer's further values; names of batch columns are reserved
        supersedes  the id of an earlier reward that this one replaces
        scope       "step", or "rollout" for an outcome of the whole rollout
        Raises      InvalidEvent naming the field; NotOpen after the rollout's end
        """
        fields = self._reward_fields(value, name, target, extra_info, scope)
        fields |= {
            "reward_id": reward_id,
            "supersedes": supersedes,
            "scorer": scorer,
            "scorer_version": scorer_version,
            "parent_id": _scope.enclosing_span(self),
            "after_call": _scope.last_call(self),
        }
        refuse_reentry(self._lock, f"reward {name!r}")
        with self._lock:
            self._require_open("reward")
            self._publish_start()
            event = self._source.make(RewardRecorded, self._clock(), fields)
            self._source.publish(event, partition=self._partition, key=self._key)
        return cast(RewardRecorded, event).id

    def finish(
        self,
        reward: RewardValue | Mapping[str, RewardValue] = None,
        status: str = COMPLETED,
        error: BaseException | str | None = None,
    ) -> None:
        """End the rollout. Blocks still open end with it; nothing can be recorded after.

        reward  its outcome: a number, or name → number for several; None publishes none. On a failed rollout it is
                recorded and never trained on
        status  "completed" or "failed"; failed work is a status, never a reward of 0
        error   of a failed rollout: text or an exception
        Raises  InvalidEvent naming the field, and the reward; nothing is then published, and it can be called again
        """
        self._check_error(status, error)
        named = reward if isinstance(reward, Mapping) else {REWARD_NAME: reward} if reward is not None else {}
        rewards = [self._reward_fields(value, name, None, None, ROLLOUT) for name, value in named.items()]
        end = {
            "status": status,
            "error": None if error is None else describe(error),
            "awaited_rewards": self._awaited_rewards,
        }
        refuse_reentry(self._lock, "finish")
        with self._lock:
            self._require_open("finish")
            self._source.make(RolloutCompleted, 0, end)
            self._publish_start()
            self._end_blocks(None if status == COMPLETED else "the rollout ended")
            for fields in rewards:
                event = self._source.make(RewardRecorded, self._clock(), fields)
                self._source.publish(event, partition=self._partition, key=self._key)
            event = self._source.make(RolloutCompleted, self._clock(), end)
            self._source.publish(event, partition=self._partition, key=self._key)
            self._conversation = Conversation()
        _scope.forget(self)

    def enter_block(self, block: SpanBlock) -> None:
        """Called by a block that is entered."""
        refuse_reentry(self._lock, f"block {block.name!r}")
        with self._lock:
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
            block.begin(self._clock(), _scope.enclosing_span(self))
            if block.given_id:
                self._given_ids.add(block.span_id)
            self._blocks[block.span_id] = block
        _scope.enter(self, block.span_id, is_agent=block.kind == "agent")

    def leave_block(self, block: SpanBlock, failure: BaseException | None) -> None:
        """Called by a block that is left, with the exception that leaves it."""
        _scope.leave(self, block.span_id)
        try:
            refuse_reentry(self._lock, f"end of block {block.name!r}")
            with self._lock:
                if block.ended:
                    return
                self._blocks.pop(block.span_id, None)
                self._publish_block(block, failure)
        except Exception as error:
            if failure is None:
                raise
            _add_fault(failure, error)
        else:
            if isinstance(block, CallBlock) and block.answered:
                _scope.see_call(self, block.span_id)

    def check_recording(self, block: CallBlock, recording: Recording) -> None:
        """Called by a call that records: check it as it will be published."""
        refuse_reentry(self._lock, f"record in {block.name!r}")
        with self._lock:
            self._require_open(f"record in {block.name!r}")
            fields = {"span_id": block.span_id, "name": block.name, "kind": block.kind, "start_ns": 0, "end_ns": 0}
            self._source.make(Span, 0, fields | block.check_fields(recording))

    def _publish_block(self, block: SpanBlock, failure: BaseException | str | None) -> None:
        now_ns = self._clock()
        fields = block.end(now_ns, failure)
        if isinstance(block, CallBlock):
            fields |= block.call_fields(self._conversation)
        event = self._source.make(Span, now_ns, fields)
        self._source.publish(event, partition=self._partition, key=self._key)
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

    def _publish_start(self) -> None:
        if not self._source.event_count:
            event = self._source.make(RolloutStarted, self._clock(), self._start)
            self._source.publish(event, partition=self._partition, key=self._key)
            self._group_count.start(self.group, self.rollout_id)

    def _require_open(self, what: str) -> None:
        if self.finished:
            raise NotOpen(
                f"{what} refused: rollout {self.rollout_id}, attempt {self.attempt}, is finished; nothing may follow "
                "its end: record before `finish`, or before its block is left"
            )

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

    def _check_error(self, status: Any, error: Any) -> None:
        try:
            if error is not None and not isinstance(error, str | BaseException):
                raise refused("text or an exception", error, "error")
            if error is not None and status == COMPLETED:
                raise refused(f"status {FAILED!r} with an error, or no error", status, "status")
        except InvalidEvent as refusal:
            say_where(refusal, RolloutCompleted.record, self.rollout_id, self.attempt)
            raise

    def __enter__(self) -> Self:
        refuse_reentry(self._lock, "entering its block")
        with self._lock:
            self._require_open("entering its block")
            if self._entered:
                raise NotOpen(
                    f"the block of rollout {self.rollout_id} was entered before; make a rollout for each time"
                )
            self._publish_start()
            self._entered = True
        _scope.enter(self, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _scope.leave(self, None)
        try:
            if not self.finished:
                self.finish(status=COMPLETED if error is None else FAILED, error=error)
        except Exception as fault:
            if error is None:
                with suppress(StoreError):
                    self.finish(status=FAILED, error=fault)
                raise
            _add_fault(error, fault)
        finally:
            _scope.forget(self)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def emit_reward(
    value: RewardValue,
    name: str = REWARD_NAME,
    target: Mapping[str, str] | None = None,
    extra_info: Mapping[str, Any] | None = None,
    reward_id: str | None = None,
    supersedes: str | None = None,
    scorer: str | None = None,
    scorer_version: str | None = None,
    scope: str = STEP,
) -> str:
    """`Rollout.reward` on the rollout whose block this code runs in. Raises NotOpen outside of any."""
    rollout = _scope.current_rollout()
    if rollout is None:
        raise NotOpen(
            f"reward {name!r} not recorded: no rollout's block is open in this context; call it within "
            "`with events.rollout(...)`, or `rollout.reward(...)` on a rollout you hold. A thread started by hand, or "
            "of a pool, has no context: use `asyncio.to_thread`, or start it with `contextvars.copy_context().run`"
        )
    return cast(Rollout, rollout).reward(
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


def _add_fault(error: BaseException, fault: Exception) -> None:
    """Say that something could not be recorded, without hiding the exception that is on its way."""
    error.add_note(f"rolloutlog: {fault}")
    _logger.error("%s", fault)
