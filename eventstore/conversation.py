"""Calls of one source without repetition: each names the earlier call whose tokens, and messages, its own begin with.

Tokens    eventstore.prompts finds the base: the recent call with which the prompt shares most
Messages  of a call with a base are stored only after the base's, where null counts as none of its own. A call whose
          messages do not begin with those of a base cannot use that base; without any it stores prompt and messages
          whole. So joining a base's messages and a call's own gives the call's again, always.
"""

from hashlib import blake2b
from typing import Any, NamedTuple

from rolloutlog.eventstore.prompts import PromptShare
from rolloutlog.eventstore.recording import Recording

_DIGEST_BYTES = 16


class _Messages(NamedTuple):
    """The messages of a call, its base's included: how many, and a digest of them all."""

    length: int
    digest: bytes


_NO_MESSAGES = _Messages(0, b"")


class Conversation:
    """The recent calls of one source. Its user holds a lock."""

    def __init__(self) -> None:
        self._prompts = PromptShare()
        self._messages: dict[str, _Messages] = {}

    def fields(self, recording: Recording) -> dict[str, Any]:
        """The fields of the span event: `recording` with prompt and messages after those of its base."""
        shared, own = self._share(recording)
        messages = None if own is None else b"[" + b",".join(own) + b"]"
        return {**recording.fields, **shared, "messages": messages}

    def remember(self, span_id: str, recording: Recording, fields: dict[str, Any]) -> None:
        """Offer a call, whose event is recorded with `fields`, as a base to later ones."""
        if recording.prompt_ids is None:
            return
        self._prompts.remember(span_id, recording.prompt_ids, recording.fields["response_ids"] or b"")
        if recording.messages is not None:
            self._messages[span_id] = _chain(recording.messages)[-1]
        elif fields["prompt_base"] in self._messages:
            self._messages[span_id] = self._messages[fields["prompt_base"]]
        for forgotten in self._messages.keys() - self._prompts.span_ids:
            del self._messages[forgotten]

    def _share(self, recording: Recording) -> tuple[dict[str, Any], tuple[bytes, ...] | None]:
        messages = recording.messages
        if recording.prompt_ids is None:
            return {}, messages
        if messages is None:
            return self._prompts.share(recording.prompt_ids)._asdict(), None
        chain = _chain(messages)

        def fits(span_id: str) -> bool:
            base = self._messages.get(span_id, _NO_MESSAGES)
            return base.length < len(chain) and chain[base.length] == base

        shared = self._prompts.share(recording.prompt_ids, usable=fits)
        base = self._messages.get(shared.prompt_base or "", _NO_MESSAGES)
        return shared._asdict(), messages[base.length :]


def _chain(messages: tuple[bytes, ...]) -> list[_Messages]:
    """The first none, one, two ... and at last all of the messages."""
    chain = [_NO_MESSAGES]
    for message in messages:
        last = chain[-1]
        chain.append(_Messages(last.length + 1, blake2b(last.digest + message, digest_size=_DIGEST_BYTES).digest()))
    return chain
