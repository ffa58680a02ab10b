"""Where code is: the rollout and span it runs in, and the last call it saw, by context variables.

A task or `asyncio.to_thread` begins with a copy of its parent's context; a thread started by hand begins with none.

blocks  every open block of every rollout, innermost last; a block is left by its identity, not by its place, so that
        blocks that end out of order, or in another context than they began in, leave the others as they are
        Code that no context variable leaves again, such as a framework's callbacks, leaves a block everywhere: it is
        open in no context after that, those copied while it was open included
seen    the last call that ended in this context, of each rollout and, within it, of each open agent block; it outlives
        the blocks around that call. An agent sees no call from before its block. When the block is left, the last call
        seen inside becomes the last one outside; without any, the one from before it is the last again
"""

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from rolloutlog.eventstore.errors import StoreError

T = TypeVar("T")


class NotOpen(StoreError):
    """A rollout, block or publisher is used before or after its time; nothing was recorded."""


class Scoped(Protocol):
    """What this module needs of a rollout, or of what is attached to one."""

    @property
    def finished(self) -> bool: ...


class _Block(NamedTuple):
    """A span that is open, or with None the rollout's own block."""

    rollout: Scoped
    span_id: str | None
    is_agent: bool


class _Seen(NamedTuple):
    """The last call seen within an agent's block, or with None outside of any."""

    rollout: Scoped
    agent: str | None
    call: str


_blocks: ContextVar[tuple[_Block, ...]] = ContextVar("rolloutlog_blocks", default=())
_seen: ContextVar[tuple[_Seen, ...]] = ContextVar("rolloutlog_seen", default=())
_left: WeakKeyDictionary[Scoped, set[str]] = WeakKeyDictionary()
"""Spans that were left everywhere, of each rollout."""


def enter(rollout: Scoped, span_id: str | None, *, is_agent: bool = False) -> None:
    """Enter a block of the rollout: a span, or None for the rollout's own."""
    _blocks.set((*_open_blocks(), _Block(rollout, span_id, is_agent)))


def leave(rollout: Scoped, span_id: str | None) -> None:
    """Leave the block; without effect in a context that never entered it.

    With the rollout's own block all of its blocks are left here: nothing can follow, also where one was never left.
    """
    blocks = _blocks.get()
    if span_id is None:
        _blocks.set(tuple(block for block in blocks if block.rollout is not rollout))
        return
    for index in range(len(blocks) - 1, -1, -1):
        block = blocks[index]
        if block.rollout is rollout and block.span_id == span_id:
            _blocks.set(blocks[:index] + blocks[index + 1 :])
            if block.is_agent:
                _hand_out(rollout, span_id, _innermost_agent(rollout, blocks[:index]))
            return


def leave_everywhere(rollout: Scoped, span_id: str) -> None:
    """Leave the block in all contexts, of which this need not be one that entered it."""
    leave(rollout, span_id)
    _left.setdefault(rollout, set()).add(span_id)


def current_rollout() -> Scoped | None:
    """The rollout of the innermost open block."""
    blocks = _open_blocks()
    return blocks[-1].rollout if blocks else None


def enclosing_span(rollout: Scoped) -> str | None:
    """The innermost open span of this rollout."""
    for block in reversed(_open_blocks()):
        if block.rollout is rollout:
            return block.span_id
    return None


def enclosing_spans(rollout: Scoped, *, within_agent: bool = False) -> list[str | None]:
    """The open spans of this rollout, innermost first, and at last None, the rollout itself.

    within_agent  nothing beyond the innermost agent's
    """
    spans: list[str | None] = []
    for block in reversed(_open_blocks()):
        if block.rollout is rollout and block.span_id is not None:
            spans.append(block.span_id)
            if within_agent and block.is_agent:
                return spans
    return [*spans, None]


def run_in_block(rollout: Scoped, span_id: str, work: Callable[[], T]) -> T:
    """Run `work` as code of this block, left or not, that has seen no call."""

    def run() -> T:
        enter(rollout, span_id, is_agent=True)
        _seen.set(())
        return work()

    return copy_context().run(run)


def see_call(rollout: Scoped, call: str) -> None:
    """A call of the rollout ended here."""
    _see(_Seen(rollout, _innermost_agent(rollout, _open_blocks()), call))


def last_call(rollout: Scoped, before: str | None = None) -> str | None:
    """The last call of this rollout that ended here, or before in a context this one was copied from.

    Within an agent's block: that ended since the block was entered. Outside of any: else the one `before` all of them.
    """
    agent = _innermost_agent(rollout, _open_blocks())
    for seen in _seen.get():
        if seen.rollout is rollout and seen.agent == agent:
            return seen.call
    return before if agent is None else None


def forget(rollout: Scoped) -> None:
    """Drop what this context knows of the rollout's calls."""
    if any(seen.rollout is rollout for seen in _seen.get()):
        _seen.set(tuple(seen for seen in _seen.get() if seen.rollout is not rollout))


def _open_blocks() -> tuple[_Block, ...]:
    """The blocks of this context without those that were left everywhere."""
    blocks = _blocks.get()
    if not _left:
        return blocks
    return tuple(block for block in blocks if block.span_id not in _left.get(block.rollout, ()))


def _innermost_agent(rollout: Scoped, blocks: tuple[_Block, ...]) -> str | None:
    for block in reversed(blocks):
        if block.is_agent and block.rollout is rollout:
            return block.span_id
    return None


def _hand_out(rollout: Scoped, agent: str | None, outer: str | None) -> None:
    """The agent's block was left: what it saw last is now the last call of the agent around it, or of none."""
    for seen in _seen.get():
        if seen.rollout is rollout and seen.agent == agent:
            _seen.set(tuple(each for each in _seen.get() if each is not seen))
            _see(seen._replace(agent=outer))
            return


def _see(new: _Seen) -> None:
    kept = (
        each
        for each in _seen.get()
        if not each.rollout.finished and not (each.rollout is new.rollout and each.agent == new.agent)
    )
    _seen.set((*kept, new))
