"""What a call recorded: its answer, packed and checked, before it becomes part of a span event.

Takes lists, numpy arrays and packed bytes; gives the fields of eventstore.events.Span that belong to calls.

Not here  sharing prompts and messages with earlier calls: eventstore.conversation
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rolloutlog.eventstore.checks import INT32_MAX, INT64_MAX, check_id, check_integer, plain_integer, refused
from rolloutlog.eventstore.events import PolicyVersionRun, TokenArray
from rolloutlog.eventstore.json_text import json_bytes
from rolloutlog.eventstore.tokens import TOKEN_BYTES, Logprobs, TokenIds, pack_logprobs, pack_token_ids

PolicyVersion = int | Sequence[tuple[int | None, int] | PolicyVersionRun] | None

_VERSION, _VERSION_EXPECTED = "policy_version", "an integer, or runs of (version or None, tokens)"


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
    if prompt_ids is None and response_ids is None and response_id is None and messages is None:
        raise refused("prompt_ids and response_ids, a response_id, or messages", "none of them", "response_ids")
    version = plain_policy_version(policy_version)
    response = None if response_ids is None else pack_token_ids(response_ids, "response_ids")
    if response and prompt_ids is None:
        raise refused("the response's whole prompt (an empty list for none)", "no prompt_ids", "prompt_ids")
    return Recording(
        prompt_ids=None if prompt_ids is None else pack_token_ids(prompt_ids, "prompt_ids"),
        messages=None if messages is None else _pack_messages(messages),
        fields={
            "response_ids": response,
            "logprobs": None if logprobs is None else pack_logprobs(logprobs, "logprobs"),
            "response_id": response_id,
            "choice_index": plain_integer(choice_index),
            "finish_reason": finish_reason,
            "arrays": () if arrays is None else _pack_arrays(arrays),
            "trainable": trainable,
            "policy_version_runs": _runs(version, len(response or b"") // TOKEN_BYTES),
        },
    )


def plain_policy_version(version: PolicyVersion) -> int | tuple[PolicyVersionRun, ...] | None:
    """The version, or runs of versions, of a response, checked but for their length. Raises InvalidEvent."""
    version = plain_integer(version)
    if version is None:
        return None
    if isinstance(version, int):
        check_integer(version, _VERSION, 0, INT64_MAX)
        return version
    if isinstance(version, str | bytes | Mapping) or not isinstance(version, Iterable):
        raise refused(_VERSION_EXPECTED, version, _VERSION)
    return tuple(_run(run, f"{_VERSION}[{index}]") for index, run in enumerate(version))


def _run(run: Any, field: str) -> PolicyVersionRun:
    if isinstance(run, PolicyVersionRun):
        run = (run.policy_version, run.tokens)
    if isinstance(run, str | bytes | Mapping):
        raise refused(_VERSION_EXPECTED, run, field)
    try:
        version, tokens = run
    except (TypeError, ValueError):
        raise refused(_VERSION_EXPECTED, run, field) from None
    version, tokens = plain_integer(version), plain_integer(tokens)
    if version is not None:
        check_integer(version, field, 0, INT64_MAX)
    check_integer(tokens, field, 0, INT32_MAX)
    return PolicyVersionRun(version, tokens)


def _runs(version: int | tuple[PolicyVersionRun, ...] | None, tokens: int) -> tuple[PolicyVersionRun, ...]:
    if isinstance(version, int):
        return (PolicyVersionRun(version, tokens),) if tokens else ()
    return version or ()


def _pack_messages(messages: Iterable[Mapping[str, Any]]) -> tuple[bytes, ...]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise refused("a list of messages", type(messages).__name__, "messages", quote=False)
    packed = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            hint = ", such as `.model_dump()` gives" if hasattr(message, "model_dump") else ""
            raise refused(f"messages that are mappings{hint}", message, f"messages[{index}]")
        packed.append(json_bytes(message, f"messages[{index}]"))
    return tuple(packed)


def _pack_arrays(arrays: Mapping[str, npt.ArrayLike]) -> tuple[TokenArray, ...]:
    if not isinstance(arrays, Mapping):
        raise refused("a mapping of names to arrays", type(arrays).__name__, "arrays", quote=False)
    packed = []
    for name, values in arrays.items():
        check_id(name, "arrays")
        try:
            array = np.asarray(values)
        except Exception as error:  # rows of different length; tensors on a device or with a gradient
            raise refused("an array of numbers", error, f"arrays.{name}", quote=False) from error
        array = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        packed.append(TokenArray(name, array.dtype.str, array.shape, array.tobytes()))
    return tuple(packed)
