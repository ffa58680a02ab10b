"""Lines of conversation: which calls of a rollout become one row (`merge=trajectory`).

A call goes on with a line when its prompt begins with all tokens of the line so far (the prompt and responses of its
calls, and what came between). Several lines are open at once, so that sub-agents that take turns each go on with their
own. Calls are looked at in turn order.

Several lines   the longest; of equally long ones the one that grew last
Equal prompts   two calls that answer the same prompt are two lines: neither prompt holds the other's response
Shorter prompt  begins a new line, unless it begins with another one
No observation  a prompt that is the tokens so far and nothing more goes on with the line
No response     is no call (consumers.attribution) and has no place in a line
Not selected    nor has a call that is not trained on; what it wrote stands in later prompts like a tool's tokens
Unlike calls    a call with log-probs never joins calls without, nor those whose arrays differ in name, dtype or shape,
                nor a line that would become too large: it begins a new line, whose prompt holds what was said before
Cost            what is new in each call: a prompt stored as base + rest is never put together to be compared

Not here        the row of a line: consumers.samples
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from rolloutlog.consumers.attribution import CallResult
from rolloutlog.consumers.token_tree import Node, TokenTree, packed_path
from rolloutlog.eventstore.events import Span
from rolloutlog.eventstore.prompts import PromptRestore, check_base_tokens
from rolloutlog.eventstore.tokens import TOKEN_BYTES

BYTES_A_TOKEN = 2 * TOKEN_BYTES + 1  # id, log-prob, mask
RECENT_CALLS = 8  # looked at before the tree is gone through: memory is compared faster than many small nodes
BYTES_A_RUN = 20  # of one policy version
BYTES_A_VALUE = 20  # of a reward, beside its name


class PromptPaths:
    """Where the prompts and responses of an attempt's calls end in a tree. Add every call of a source, then ask."""

    def __init__(self) -> None:
        self.tree = TokenTree()
        self._restore = PromptRestore()
        self._prompts: dict[tuple[str, str], Node] = {}
        self._responses: dict[tuple[str, str], Node] = {}
        self._whole: deque[Span] = deque(maxlen=RECENT_CALLS)  # whose prompts are stored whole

    def add(self, call: Span) -> None:
        """Make a call known. A span id recorded twice counts once, the first time."""
        self._restore.add(call)

    def prompt(self, call: Span) -> Node:
        """The end of its prompt. Raises InvalidEvent when a base is missing or too short."""
        # A chain of bases can be as long as the rollout has calls: walked, not recursed.
        chain = []
        at: Span | None = call
        while at is not None and (at.source, at.span_id) not in self._prompts:
            chain.append(at)
            at = self._restore.base(at)
        for each in reversed(chain):
            base, packed = self._restore.base(each), each.prompt_ids or b""
            if base is None:
                start, packed = self._known(packed)
                self._whole.append(each)
            else:
                end = self.response(base)
                check_base_tokens(each, end.depth)
                start = self.tree.above(end, each.prompt_base_tokens)
            self._prompts[each.source, each.span_id] = self.tree.add(start, packed)
        return self._prompts[call.source, call.span_id]

    def response(self, call: Span) -> Node:
        """The end of its response, after its prompt."""
        identity = (call.source, call.span_id)
        if identity not in self._responses:
            self._responses[identity] = self.tree.add(self.prompt(call), call.response_ids or b"")
        return self._responses[identity]

    def _known(self, packed: bytes) -> tuple[Node, bytes]:
        """Where a recent call ends whose tokens the prompt begins with, and the rest: the root and all, if none is."""
        for call in reversed(self._whole):
            prompt, response = call.prompt_ids or b"", call.response_ids or b""
            if packed.startswith(prompt) and packed.startswith(response, len(prompt)):
                return self.response(call), packed[len(prompt) + len(response) :]
        return self.tree.root, packed


class LineCall(NamedTuple):
    """A call in its line.

    before  where the line's tokens ended before it; for the first call the end of its prompt
    prompt  the end of its prompt: what lies between was observed, and not written by the line
    """

    result: CallResult
    span: Span
    before: Node
    prompt: Node

    @property
    def observed(self) -> bytes:
        """The tokens that came between the line so far and its response, packed."""
        return packed_path(self.prompt, self.before)


class Line:
    """One line of conversation, of one or more calls. `end`: of its tokens."""

    __slots__ = ("_beside_bytes", "_names", "calls", "end", "like", "start")

    def __init__(self, prompt: Node, span: Span) -> None:
        self.calls: list[LineCall] = []
        self.start = self.end = prompt
        self.like = _like(span)
        self._beside_bytes = 0  # what its calls have beside tokens
        self._names: set[str] = set()  # of rewards that reach them

    @property
    def prompt_ids(self) -> bytes:
        """The prompt of its first call, packed."""
        return packed_path(self.start, None)

    @property
    def size_bytes(self) -> int:
        """Of its row, without rewards."""
        return self._size_bytes(self.end)

    def takes(self, result: CallResult, span: Span, response: Node, size_bytes_max: int) -> bool:
        """Whether it can go on with this call, whose prompt begins with its tokens."""
        if self.like != _like(span):
            return False
        return self._size_bytes(response) + self._more_bytes(result, span) <= size_bytes_max

    def add(self, result: CallResult, span: Span, prompt: Node, response: Node) -> None:
        self.calls.append(LineCall(result, span, self.end, prompt))
        self.end = response
        self._beside_bytes += self._more_bytes(result, span)
        self._names.update(result.step, result.final)

    def _more_bytes(self, result: CallResult, span: Span) -> int:
        """What a call has beside tokens and the line does not have yet."""
        names = {*result.step, *result.final} - self._names
        named_bytes = sum(4 * len(name) + BYTES_A_VALUE for name in names) * 2  # as a step and as a final value
        return 4 * len(span.span_id) + BYTES_A_RUN * (2 + len(span.policy_version_runs)) + named_bytes

    def _size_bytes(self, end: Node) -> int:
        tokens = end.depth - self.start.depth
        token_bytes = self.start.depth * TOKEN_BYTES + tokens * (BYTES_A_TOKEN + self.like.array_bytes)
        return token_bytes + self._beside_bytes


def find_lines(calls: Iterable[tuple[CallResult, Span]], paths: PromptPaths, *, size_bytes_max: int) -> list[Line]:
    """Put calls together into lines, each call into one.

    calls           selected ones in turn order, of which all prompts are known to `paths`
    size_bytes_max  a line stays below it; a single call may be above
    Returns         lines in the order of their first calls, each with its calls in turn order
    """
    lines: list[Line] = []
    ends: dict[Node, list[Line]] = {}  # lines by where their tokens end; one that grew last stands last
    for result, span in calls:
        prompt, response = paths.prompt(span), paths.response(span)
        line = _longest(prompt, response, result, span, ends, size_bytes_max)
        if line is None:
            line = Line(prompt, span)
            lines.append(line)
        else:
            ends[line.end].remove(line)
        line.add(result, span, prompt, response)
        ends.setdefault(response, []).append(line)
    return lines


def _longest(
    prompt: Node,
    response: Node,
    result: CallResult,
    span: Span,
    ends: Mapping[Node, Sequence[Line]],
    size_bytes_max: int,
) -> Line | None:
    at: Node | None = prompt
    while at is not None:
        for line in reversed(ends.get(at, ())):
            if line.takes(result, span, response, size_bytes_max):
                return line
        at = at.parent
    return None


class _Like(NamedTuple):
    """What all calls of a line have in common."""

    has_logprobs: bool
    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]  # name, dtype, shape of one token's values
    array_bytes: int  # of one token


def _like(span: Span) -> _Like:
    arrays = tuple(sorted((each.name, each.dtype, each.shape[1:]) for each in span.arrays))
    token_bytes = sum(prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in arrays)
    return _Like(span.logprobs is not None, arrays, token_bytes)
