"""A rollout: what an agent's code holds while it works on a task.

start     published when the block is entered, or by the first use
end       published by `finish`, or when the block is left: then as completed, without a final reward. An exception ends
          it as failed and goes on. Spans that are still open end with it, since nothing may follow
refs      made once the start is stored, so that nothing attached can arrive before it
forks     the process that began it ends it; others that it forks record in it from sources named `fork`, and store its
          start too if that was under way
Not here  recording: eventstore.recorder; blocks within a rollout: eventstore.spans; numbering: eventstore.source
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rolloutlog.eventstore import forks
from rolloutlog.eventstore import scope as _scope
from rolloutlog.eventstore.checks import refused, say_where
from rolloutlog.eventstore.conversation import Conversation
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import COMPLETED, FAILED, ROLLOUT, RewardRecorded, RolloutCompleted, RolloutStarted
from rolloutlog.eventstore.group import Group
from rolloutlog.eventstore.host import Host
from rolloutlog.eventstore.outbox import Entry
from rolloutlog.eventstore.recorder import Recorder, RewardValue
from rolloutlog.eventstore.ref import RolloutRef, check_name
from rolloutlog.eventstore.rewards import REWARD_NAME
from rolloutlog.eventstore.scope import NotOpen
from rolloutlog.eventstore.source import Source
from rolloutlog.eventstore.spans import describe


class Rollout(Recorder):
    """One attempt at a task. Made by `EventPublisher.rollout`; works with `with` and `async with`.

    Leaving its block without `finish` completes it, without a final reward. Used without its block, its start is
    published by the first use, and only `finish` ends it: without that it stays open.

    rollout_id, attempt, task_id, group, source  as in its events
    """

    def __init__(
        self,
        host: Host,
        source: Source,
        *,
        group: Group,
        clock: Callable[[], int],
        start: Mapping[str, Any],
        awaited_rewards: Iterable[str],
    ) -> None:
        # What is wrong with the arguments is said where they are given, not when the block is entered.
        source.make(RolloutStarted, 0, start)
        # A text is iterable too; what is none is refused below, by name.
        listed = isinstance(awaited_rewards, Iterable) and not isinstance(awaited_rewards, str | bytes)
        self._awaited_rewards = tuple(awaited_rewards) if listed else awaited_rewards
        source.make(RolloutCompleted, 0, {"awaited_rewards": self._awaited_rewards})
        super().__init__(host, source, group_id=group.group_id, clock=clock)
        self.group = group
        self.task_id: str = start["task_id"]
        self._start = start
        self._awaited_names: tuple[str, ...] = ()
        self._start_again: Entry | None = None  # in a forked process; whoever stores it first opens the rollout

    def ref(self, name: str, awaited: bool = False, timeout_s: float | None = None) -> RolloutRef:
        """What others attach to this rollout with (`EventPublisher.attach`), here: below the span that is open now.

        Blocks until the rollout's start is stored; `aref` awaits it.

        name      of the sources that attach with it: letters, digits and `-_.`
        awaited   the rollout closes only once sources of this name have attached, and all of them have ended
        Raises    NotStored after `timeout_s` (close_deadline_s): nothing is awaited then. NotOpen when `awaited` comes
                  after the rollout's end, or in a forked process. InvalidEvent naming the argument
        """
        entry = self._open_for_ref(name, awaited)
        if not entry.stored:
            self._host.wait_stored(entry, timeout_s).result()
        return self._make_ref(name, awaited)

    async def aref(self, name: str, awaited: bool = False, timeout_s: float | None = None) -> RolloutRef:
        """As `ref`, without blocking the event loop."""
        import asyncio

        entry = self._open_for_ref(name, awaited)
        if not entry.stored:
            await asyncio.wrap_future(self._host.wait_stored(entry, timeout_s))
        return self._make_ref(name, awaited)

    def finish(
        self,
        reward: RewardValue | Mapping[str, RewardValue] = None,
        status: str = COMPLETED,
        error: BaseException | str | None = None,
    ) -> None:
        """End the rollout. Blocks still open end with it; nothing can be recorded after.

        reward  its outcome: a number, or name → number for several; None publishes none. On a failed rollout it is
                recorded and never trained on
        status  "completed" or "failed"; failed work is a status, never a reward of 0. A failed rollout waits for
                nobody: those it awaits may never have begun
        error   of a failed rollout: text or an exception
        Raises  InvalidEvent naming the field, and the reward; nothing is then published, and it can be called again
        """
        self._check_error(status, error)
        named = reward if isinstance(reward, Mapping) else {REWARD_NAME: reward} if reward is not None else {}
        rewards = [self._reward_fields(value, name, None, None, ROLLOUT) for name, value in named.items()]
        with self._free_lock("finish"):
            self._require_home("finish")
            self._require_open("finish")
            end: dict[str, Any] = {"status": status, "error": None if error is None else describe(error)}
            if status == COMPLETED:
                end |= {"awaited_names": self._awaited_names, "awaited_rewards": self._awaited_rewards}
            self._source.make(RolloutCompleted, 0, end)
            self._publish_start()
            self._end_blocks(None if status == COMPLETED else "the rollout ended")
            for fields in rewards:
                self._publish(self._source.make(RewardRecorded, self._clock(), fields))
            self._publish(self._source.make(RolloutCompleted, self._clock(), end))
            self._conversation = Conversation()
        _scope.forget(self)

    def _open_for_ref(self, name: Any, awaited: Any) -> Entry:
        """Check the arguments and publish the start."""
        try:
            check_name(name)
            if type(awaited) is not bool:
                raise refused("True or False", awaited, "awaited")
        except InvalidEvent as error:
            say_where(error, "ref", self.rollout_id, self.attempt)
            raise
        with self._free_lock(f"ref {name!r}"):
            self._require_home(f"ref {name!r}")
            if awaited:
                self._require_open(f"awaited ref {name!r}")
                self._source.make(RolloutCompleted, 0, {"awaited_names": self._with_name(name)})
            self._publish_start()
            assert self._source.first is not None
            return self._source.first

    def _make_ref(self, name: str, awaited: bool) -> RolloutRef:
        if awaited:
            with self._free_lock(f"ref {name!r}"):
                self._require_open(f"awaited ref {name!r}")
                self._awaited_names = self._with_name(name)
        return RolloutRef(
            run_id=self._start["run_id"],
            group_id=self.group.group_id,
            rollout_id=self.rollout_id,
            attempt=self.attempt,
            name=name,
            parent_id=_scope.enclosing_span(self),
            after_call=_scope.last_call(self),
        )

    def _with_name(self, name: str) -> tuple[str, ...]:
        return self._awaited_names if name in self._awaited_names else (*self._awaited_names, name)

    def _publish_start(self) -> None:
        if self._start_again is not None and not self._start_again.queued:
            self._host.outbox.put(self._start_again)
        if not self._source.event_count and self._home == self._forks:
            self._publish(self._source.make(RolloutStarted, self._clock(), self._start))
            self._host.group_count.start(self.group, self.rollout_id)

    def _forked_source(self) -> Source:
        if not self._source.event_count:
            # It has not begun: whoever begins it first is its process. Two that do are told apart by their sources.
            self._home = forks.count
            return self._host.source("main", self.rollout_id, self.attempt)
        start = self._source.first if self._home == self._forks else self._start_again
        if start is not None and not start.stored:
            # It waits in the process before the fork: what is recorded here must not arrive before it.
            self._start_again = start.again()
        self._host.forked.add(self)
        return self._host.source("fork", self.rollout_id, self.attempt)

    def _must_name(self, scope: Any) -> bool:
        """Steps in a forked process are the block's own work, gone on with; its outcomes may be one of many."""
        return bool(scope == ROLLOUT) and self._is_forked

    def _require_open(self, what: str) -> None:
        if self.finished:
            raise NotOpen(
                f"{what} refused: rollout {self.rollout_id}, attempt {self.attempt}, is finished; nothing may follow "
                "its end: record before `finish`, or before its block is left"
            )

    def _require_home(self, what: str) -> None:
        if self._is_forked:
            raise NotOpen(
                f"{what} refused: rollout {self.rollout_id}, attempt {self.attempt}, was begun before this process was "
                "forked, and belongs to the process that began it: make its refs and finish it there; here record, and "
                "leave its block"
            )

    def _check_error(self, status: Any, error: Any) -> None:
        try:
            if error is not None and not isinstance(error, str | BaseException):
                raise refused("text or an exception", error, "error")
            if error is not None and status == COMPLETED:
                raise refused(f"status {FAILED!r} with an error, or no error", status, "status")
        except InvalidEvent as refusal:
            say_where(refusal, RolloutCompleted.record, self.rollout_id, self.attempt)
            raise

    def _end_block(self, error: BaseException | None) -> None:
        if self._is_forked:
            self._end_source(None if error is None else "the rollout's block was left")
        elif not self.finished:
            self.finish(status=COMPLETED if error is None else FAILED, error=error)

    def _end_block_that_failed(self, fault: Exception) -> None:
        self.finish(status=FAILED, error=fault)
