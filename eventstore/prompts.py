"""Prompts without repetition.

Most prompts of an agent repeat the tokens of an earlier call. A call's event names that call (`prompt_base`), how many
of its prompt + response tokens the prompt repeats (`prompt_base_tokens`), and holds the rest. `PromptShare` finds the
base when an event is made; `PromptRestore` puts full prompts together when a rollout closes. For any calls in, the same
prompts come out.

The base is an earlier call of the same source, so that its event is always stored before.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import Span
from rolloutlog.eventstore.tokens import TOKEN_BYTES

SHARED_TOKENS_MIN = 64  # below this the reference costs about as much as it saves
CANDIDATES_MAX = 16  # calls looked at: enough for some sub-agents taking turns, bounded work a call
CANDIDATE_BYTES_MAX = 16 * 2**20  # memory a source may hold for this


class Shared(NamedTuple):
    """What a call's event holds of its prompt."""

    prompt_base: str | None
    prompt_base_tokens: int
    prompt_ids: bytes


class PromptShare:
    """The recent calls of one source, newest last."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, bytes]] = []

    @property
    def span_ids(self) -> set[str]:
        """The calls that can be a base."""
        return {span_id for span_id, _ in self._calls}

    def share(self, prompt_ids: bytes, *, usable: Callable[[str], bool] | None = None) -> Shared:
        """Split a full prompt into the longest part that a recent call has, and the rest.

        usable  says of a call's span id whether it may be the base; None = all may
        """
        best, best_bytes = None, SHARED_TOKENS_MIN * TOKEN_BYTES - 1
        for span_id, tokens in reversed(self._calls):
            common = common_prefix_bytes(prompt_ids, tokens)
            if common > best_bytes and (usable is None or usable(span_id)):
                best, best_bytes = span_id, common
        if best is None:
            return Shared(None, 0, prompt_ids)
        return Shared(best, best_bytes // TOKEN_BYTES, prompt_ids[best_bytes:])

    def remember(self, span_id: str, prompt_ids: bytes, response_ids: bytes) -> None:
        """Offer this call as a base to later ones. Call it once the call's event is recorded."""
        new = prompt_ids + response_ids
        # A call that is repeated whole can share nothing that the new one does not: a conversation keeps one call.
        self._calls = [(each, tokens) for each, tokens in self._calls if not new.startswith(tokens)]
        self._calls.append((span_id, new))
        while len(self._calls) > CANDIDATES_MAX or sum(len(tokens) for _, tokens in self._calls) > CANDIDATE_BYTES_MAX:
            del self._calls[0]


class PromptRestore:
    """Full prompts of one attempt's calls. Add every call of a source before asking for any of them."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], Span] = {}
        self._full: dict[tuple[str, str], bytes] = {}

    def add(self, call: Span) -> None:
        """Make a call known. A span id recorded twice counts once, the first time."""
        self._calls.setdefault((call.source, call.span_id), call)

    def prompt(self, call: Span) -> bytes:
        """The call's full prompt, packed. Raises InvalidEvent when a base is missing or too short."""
        # A chain of bases can be as long as the rollout has calls: walked, not recursed.
        chain = []
        at: Span | None = call
        while at is not None and (at.source, at.span_id) not in self._full:
            chain.append(at)
            at = self.base(at)
        for each in reversed(chain):
            base = self.base(each)
            rest = each.prompt_ids or b""
            if base is None:
                full = rest
            else:
                repeated = each.prompt_base_tokens * TOKEN_BYTES
                base_prompt = self._full[(base.source, base.span_id)]
                tokens = base_prompt if repeated <= len(base_prompt) else base_prompt + (base.response_ids or b"")
                check_base_tokens(each, len(tokens) // TOKEN_BYTES)
                full = tokens[:repeated] + rest
            self._full[(each.source, each.span_id)] = full
        return self._full[(call.source, call.span_id)]

    def base(self, call: Span) -> Span | None:
        """The call that its prompt begins with. Raises InvalidEvent when there is no such earlier call."""
        if call.prompt_base is None:
            return None
        base = self._calls.get((call.source, call.prompt_base))
        # Only earlier calls may be bases, which also rules out cycles.
        if base is None or base.sequence >= call.sequence:
            raise InvalidEvent(
                f"expected an earlier call of source {call.source}, got {call.prompt_base!r} at $.prompt_base",
                reason="prompt_base",
                field="$.prompt_base",
            )
        return base


def check_base_tokens(call: Span, base_tokens: int) -> None:
    """Raise InvalidEvent when the call repeats more than the `base_tokens` tokens that its base has."""
    if call.prompt_base_tokens > base_tokens:
        raise InvalidEvent(
            f"expected at most the {base_tokens} tokens of call {call.prompt_base}, got {call.prompt_base_tokens} at "
            "$.prompt_base_tokens",
            reason="prompt_base_tokens",
            field="$.prompt_base_tokens",
        )


def common_prefix_bytes(left: bytes, right: bytes) -> int:
    """Length of the common prefix of two packed token runs, in bytes; 0 where it is below SHARED_TOKENS_MIN tokens."""
    length = min(len(left), len(right))
    first = SHARED_TOKENS_MIN * TOKEN_BYTES
    # Most candidates differ early or are repeated whole; both are told by comparing memory, without numpy.
    if length < first or left[:first] != right[:first]:
        return 0
    if left.startswith(right) if length == len(right) else right.startswith(left):
        return length
    count = length // TOKEN_BYTES
    different = np.frombuffer(left, "<i4", count) != np.frombuffer(right, "<i4", count)
    return int(different.argmax()) * TOKEN_BYTES
