"""Where code is: the rollout and span it runs in, and the last call it saw, by context variables.

A task or `asyncio.to_thread` begins with a copy of its parent's context; a thread started by hand begins with none.

blocks  every open block of every rollout, innermost last; a block is left by its identity, not by its place, so that
        blocks that end out of order, or in another context than they began in, leave the others as they are
seen    of each rollout the last call that ended in this context; it outlives the blocks around that call
"""

from contextvars import ContextVar
from typing import Protocol

from rolloutlog.eventstore.errors import StoreError


class NotOpen(StoreError):
    """A rollout, block or publisher is used before or after its time; nothing was recorded."""


class Scoped(Protocol):
    """What this module needs of a rollout."""

    @property
    def finished(self) -> bool: ...


_blocks: ContextVar[tuple[tuple[Scoped, str | None], ...]] = ContextVar("rolloutlog_blocks", default=())
_seen: ContextVar[tuple[tuple[Scoped, str], ...]] = ContextVar("rolloutlog_seen", default=())


def enter(rollout: Scoped, span_id: str | None) -> None:
    """Enter a block of the rollout: a span, or None for the rollout's own."""
    _blocks.set((*_blocks.get(), (rollout, span_id)))


def leave(rollout: Scoped, span_id: str | None) -> None:
    """Leave the block; without effect in a context that never entered it."""
    blocks = _blocks.get()
    for index in range(len(blocks) - 1, -1, -1):
        if blocks[index][0] is rollout and blocks[index][1] == span_id:
            _blocks.set(blocks[:index] + blocks[index + 1 :])
            return


def current_rollout() -> Scoped | None:
    """The rollout of the innermost open block."""
    blocks = _blocks.get()
    return blocks[-1][0] if blocks else None


def enclosing_span(rollout: Scoped) -> str | None:
    """The innermost open span of this rollout."""
    for owner, span_id in reversed(_blocks.get()):
        if owner is rollout:
            return span_id
    return None


def see_call(rollout: Scoped, call: str) -> None:
    """A call of the rollout ended here."""
    others = tuple(each for each in _seen.get() if each[0] is not rollout and not each[0].finished)
    _seen.set((*others, (rollout, call)))


def last_call(rollout: Scoped) -> str | None:
    """The last call of this rollout that ended here, or before in a context this one was copied from."""
    for owner, call in _seen.get():
        if owner is rollout:
            return call
    return None


def forget(rollout: Scoped) -> None:
    """Drop what this context knows of the rollout's calls."""
    if any(owner is rollout for owner, _ in _seen.get()):
        _seen.set(tuple(each for each in _seen.get() if each[0] is not rollout))
