"""What a call recorded: its answer, packed and checked, before it becomes part of a span event.

Takes lists, numpy arrays and packed bytes; gives the fields of eventstore.events.Span that belong to calls.

Not here  sharing prompts and messages with earlier calls: eventstore.conversation
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rolloutlog.eventstore.checks import refused
from rolloutlog.eventstore.events import PolicyVersionRun, TokenArray
from rolloutlog.eventstore.json_text import json_bytes
from rolloutlog.eventstore.tokens import TOKEN_BYTES, Logprobs, TokenIds, pack_logprobs, pack_token_ids

PolicyVersion = int | Sequence[tuple[int | None, int] | PolicyVersionRun] | None


class Recording(NamedTuple):
    """A call's answer. `prompt_ids` and `messages` are whole; `fields` holds everything else of the span's fields."""

    prompt_ids: bytes | None
    messages: tuple[bytes, ...] | None
    fields: Mapping[str, Any]


def make_recording(
    *,
    prompt_ids: TokenIds | None,
    response_ids: TokenIds | None,
    logprobs: Logprobs | None,
    response_id: str | None,
    choice_index: int,
    finish_reason: str | None,
    messages: Iterable[Mapping[str, Any]] | None,
    arrays: Mapping[str, npt.ArrayLike] | None,
    trainable: bool,
    policy_version: PolicyVersion,
) -> Recording:
    """Pack what `CallBlock.record` was given. Raises InvalidEvent naming the field."""
    response = None if response_ids is None else pack_token_ids(response_ids, "response_ids")
    return Recording(
        prompt_ids=None if prompt_ids is None else pack_token_ids(prompt_ids, "prompt_ids"),
        messages=None if messages is None else _pack_messages(messages),
        fields={
            "response_ids": response,
            "logprobs": None if logprobs is None else pack_logprobs(logprobs, "logprobs"),
            "response_id": response_id,
            "choice_index": choice_index,
            "finish_reason": finish_reason,
            "arrays": _pack_arrays(arrays) if arrays else (),
            "trainable": trainable,
            "policy_version_runs": _runs(policy_version, len(response or b"") // TOKEN_BYTES),
        },
    )


def _runs(policy_version: PolicyVersion, tokens: int) -> tuple[PolicyVersionRun, ...]:
    if policy_version is None:
        return ()
    if isinstance(policy_version, np.integer):
        policy_version = int(policy_version)
    if isinstance(policy_version, int):
        return (PolicyVersionRun(policy_version, tokens),) if tokens else ()
    runs = []
    for run in policy_version:
        try:
            version, count = (run.policy_version, run.tokens) if isinstance(run, PolicyVersionRun) else run
        except (TypeError, ValueError):
            raise refused("an integer, or runs of (version or None, tokens)", run, "policy_version_runs") from None
        runs.append(PolicyVersionRun(version, count))
    return tuple(runs)


def _pack_messages(messages: Iterable[Mapping[str, Any]]) -> tuple[bytes, ...]:
    if isinstance(messages, str | bytes | Mapping):
        raise refused("a list of messages", type(messages).__name__, "messages", quote=False)
    packed = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise refused("messages that are mappings", message, f"messages[{index}]")
        packed.append(json_bytes(message, f"messages[{index}]"))
    return tuple(packed)


def _pack_arrays(arrays: Mapping[str, npt.ArrayLike]) -> tuple[TokenArray, ...]:
    packed = []
    for name, values in arrays.items():
        try:
            array = np.asarray(values)
        except ValueError as error:  # rows of different length
            raise refused("an array of numbers", error, f"arrays.{name}", quote=False) from error
        array = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        packed.append(TokenArray(name, array.dtype.str, array.shape, array.tobytes()))
    return tuple(packed)
