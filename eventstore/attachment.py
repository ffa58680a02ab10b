"""Attached to a rollout: what tools, judges and gateways hold that work for one in another process or thread.

Its events come from a source of its own, called after the ref. They nest below the place where the ref was made.
"""

from collections.abc import Callable
from typing import Any

from rolloutlog.eventstore.host import Host
from rolloutlog.eventstore.recorder import Recorder
from rolloutlog.eventstore.ref import RolloutRef
from rolloutlog.eventstore.scope import NotOpen
from rolloutlog.eventstore.source import Source


class Attachment(Recorder):
    """Made by `EventPublisher.attach`; works with `with` and `async with`, once. Blocks and rewards as of a Rollout.

    Its rewards need names: two judges' outcomes under the default one would revise each other.
    Leaving its block ends it; so does an exception, which goes on. Used without its block, `end` does. A rollout that
    awaits its name closes only then. What is recorded after the rollout closed counts as late.
    """

    def __init__(self, host: Host, ref: RolloutRef, clock: Callable[[], int]) -> None:
        super().__init__(
            host,
            host.source(ref.name, ref.rollout_id, ref.attempt),
            group_id=ref.group_id,
            clock=clock,
            parent_id=ref.parent_id,
            after_call=ref.after_call,
        )
        self.ref = ref

    def end(self) -> None:
        """Say that nothing more comes from here. Blocks still open end with it. Ending again does nothing."""
        self._end_source(None)

    def _require_open(self, what: str) -> None:
        if self.finished:
            raise NotOpen(
                f"{what} refused: this attachment {self.ref.name!r} to rollout {self.rollout_id}, attempt "
                f"{self.attempt}, has ended; attach again, while the rollout is open"
            )

    def _forked_source(self) -> Source:
        self._host.forked.add(self)
        return self._host.source(self.ref.name, self.rollout_id, self.attempt)

    def _must_name(self, scope: Any) -> bool:
        return True

    def _end_block(self, error: BaseException | None) -> None:
        self._end_source(None if error is None else "the attachment ended")

    def _end_block_that_failed(self, fault: Exception) -> None:
        self._end_source("the attachment ended")  # whoever awaits it waits for no more than its end
