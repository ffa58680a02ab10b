"""Checks of events: in the publish call, and again when an event is decoded.

`check_event` raises InvalidEvent whose text names kind, field, what was expected, what came, and the rollout. Types are
checked too: Avro's writer would turn 1.9 into 1 and True into 1 without a word.

Not here  the header's grammar: eventstore.codec; what a reward may be: eventstore.rewards
"""

import json
from collections.abc import Callable, Iterable
from math import prod
from re import compile as regex
from typing import Any

import numpy as np

from rolloutlog.eventstore.codec import Header, is_source
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import (
    COMPLETED,
    DECIDED_GROUP_REASONS,
    EXPIRY_REASONS,
    FAILED,
    GROUP_REASONS,
    SPAN_KINDS,
    SPAN_STATUSES,
    SPLITS,
    WITHOUT_ROLLOUT,
    Event,
    GroupClosed,
    RewardRecorded,
    RolloutCompleted,
    RolloutExpired,
    RolloutStarted,
    RunEnded,
    Span,
)
from rolloutlog.eventstore.rewards import check_reward
from rolloutlog.eventstore.tokens import TOKEN_BYTES, check_logprobs, check_packed

ID_CHARACTERS_MAX = 512
AXES_MAX = 32
AWAITED_MAX = 256  # names that a rollout waits for: looked at with every event that comes after its end
METADATA_BYTES_MAX = 2**20  # it travels with the batch, whose record has a limit
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

ARRAY_DTYPE = regex(r"[<|][fiub][1248]")


def check_event(event: Event, *, where: str = "") -> None:
    """Check every field of an event. `where` is added to the message, e.g. `offset 3:88213`.

    Raises  InvalidEvent with text, reason and field
    """
    try:
        _check_envelope(event)
        _CHECKS.get(type(event), _nothing)(event)
    except InvalidEvent as error:
        say_where(error, event.record, event.rollout_id, event.attempt, where)
        raise


def say_where(error: InvalidEvent, record: str, rollout_id: str, attempt: int, where: str = "") -> None:
    """Add to the error's text which event of which rollout was refused."""
    place = f"rollout {rollout_id}, attempt {attempt}" + (f", {where}" if where else "")
    error.args = (f"{record} refused: {error} ({place})",)


def check_agreement(header: Header, event: Event, key: bytes | None) -> None:
    """Check that header, body and key of a stored event say the same."""
    for field in ("rollout_id", "attempt", "source", "sequence"):
        said, found = getattr(header, field), getattr(event, field)
        if said != found:
            raise InvalidEvent(
                f"{event.record} refused: expected header and body to agree, got {said!r} and {found!r} at $.{field}",
                reason="header_disagrees",
                field=f"$.{field}",
            )
    if isinstance(event, RolloutStarted | GroupClosed) and key != event.group_id.encode():
        raise InvalidEvent(
            f"{event.record} refused: expected the key to be the group, got key {key!r} and {event.group_id!r}"
            " at $.group_id",
            reason="key_disagrees",
            field="$.group_id",
        )


def _check_envelope(event: Event) -> None:
    if event.record in WITHOUT_ROLLOUT:
        if event.rollout_id != "" or event.attempt != 0:
            raise refused(
                "no rollout and attempt 0", f"{event.rollout_id!r}, {event.attempt!r}", "rollout_id", quote=False
            )
    else:
        _id(event.rollout_id, "rollout_id")
    _integer(event.attempt, "attempt", 0, INT32_MAX)
    if not isinstance(event.source, str) or not is_source(event.source):
        raise refused("`name.16 hex digits`", event.source, "source")
    _integer(event.sequence, "sequence", 0, INT64_MAX)
    _integer(event.time_ns, "time_ns", 0, INT64_MAX)


def _check_started(event: RolloutStarted) -> None:
    _text(event.run_id, "run_id")
    _id(event.task_id, "task_id")
    _id(event.group_id, "group_id")
    if event.group_size is not None:
        _integer(event.group_size, "group_size", 1, INT32_MAX)
    _one_of(event.split, "split", SPLITS)
    _integer(event.attempts_max, "attempts_max", 1, INT32_MAX)
    if event.attempt >= event.attempts_max:
        raise refused(f"an attempt below attempts_max {event.attempts_max}", event.attempt, "attempt")
    _version(event.policy_version, "policy_version")
    _json_object(event.metadata, "metadata")
    if len(event.metadata) > METADATA_BYTES_MAX:
        raise refused(
            f"at most {METADATA_BYTES_MAX} bytes of JSON", f"{len(event.metadata)} bytes", "metadata", quote=False
        )


def _check_span(event: Span) -> None:
    _id(event.span_id, "span_id")
    if "/" in event.span_id:  # a sample's id is `{rollout_id}/{attempt}/{span_id}`, read from its end
        raise refused("an id without /", event.span_id, "span_id")
    if event.parent_id is not None:
        _id(event.parent_id, "parent_id")
    _id(event.name, "name")
    _one_of(event.kind, "kind", SPAN_KINDS)
    _integer(event.start_ns, "start_ns", 0, INT64_MAX)
    _integer(event.end_ns, "end_ns", 0, INT64_MAX)
    if event.end_ns < event.start_ns:
        raise refused(f"an end not before the start {event.start_ns}", event.end_ns, "end_ns")
    _one_of(event.status, "status", SPAN_STATUSES)
    _bytes(event.attributes, "attributes")
    _ids(event.links, "links")
    for field in ("model", "response_id", "finish_reason"):
        _optional_text(getattr(event, field), field)
    _integer(event.choice_index, "choice_index", 0, INT32_MAX)
    if type(event.trainable) is not bool:
        raise refused("true or false", event.trainable, "trainable")
    if event.messages is not None:
        _bytes(event.messages, "messages")
    _check_tokens(event)


def _check_tokens(event: Span) -> None:
    for field in ("prompt_ids", "response_ids", "logprobs", "prompt_base"):
        if getattr(event, field) is not None and event.kind != "call":
            raise refused(f"none in a span of kind {event.kind}", "some", field, quote=False)
    if event.prompt_ids is not None:
        _bytes(event.prompt_ids, "prompt_ids")
        check_packed(event.prompt_ids, "prompt_ids")
    response_tokens = 0
    if event.response_ids is not None:
        _bytes(event.response_ids, "response_ids")
        check_packed(event.response_ids, "response_ids")
        response_tokens = len(event.response_ids) // TOKEN_BYTES
    if event.logprobs is not None:
        _bytes(event.logprobs, "logprobs")
        check_logprobs(event.logprobs, "logprobs")
        if len(event.logprobs) // TOKEN_BYTES != response_tokens:
            got = len(event.logprobs) // TOKEN_BYTES
            raise refused(f"{response_tokens} log-probs, one per response token", got, "logprobs", "logprobs_length")
    if event.prompt_base is not None:
        _id(event.prompt_base, "prompt_base")
    _integer(event.prompt_base_tokens, "prompt_base_tokens", 0, INT32_MAX)
    if (event.prompt_base is None) != (event.prompt_base_tokens == 0):
        raise refused("prompt_base and a count, or neither", event.prompt_base_tokens, "prompt_base_tokens")
    if event.policy_version_runs:
        for run in event.policy_version_runs:
            _version(run.policy_version, "policy_version_runs")
            _integer(run.tokens, "policy_version_runs", 0, INT32_MAX)
        tokens = sum(run.tokens for run in event.policy_version_runs)
        if tokens != response_tokens:
            raise refused(f"runs of {response_tokens} response tokens in all", tokens, "policy_version_runs")
    if event.arrays:
        _check_arrays(event, response_tokens)


def _check_arrays(event: Span, response_tokens: int) -> None:
    names = [each.name for each in event.arrays]
    if len(set(names)) < len(names):
        raise refused("each array once", names, "arrays")
    for each in event.arrays:
        _id(each.name, "arrays")
        field = f"arrays.{each.name}"
        if not isinstance(each.dtype, str) or not ARRAY_DTYPE.fullmatch(each.dtype):
            raise refused("a little-endian dtype of numbers such as '<f4'", each.dtype, field)
        # Numbers of a shape come from the wire: many or large ones would take long to multiply.
        if not 0 < len(each.shape) <= AXES_MAX or not all(0 <= size <= INT32_MAX for size in each.shape):
            raise refused(f"a shape of 1 to {AXES_MAX} axes from 0 to 2**31 - 1", each.shape[:AXES_MAX], field)
        if each.shape[0] != response_tokens:
            raise refused(f"a shape whose first axis is {response_tokens} response tokens", each.shape, field)
        try:
            expected = prod(each.shape) * np.dtype(each.dtype).itemsize
        except TypeError:
            raise refused("a dtype that numpy knows", each.dtype, field) from None
        _bytes(each.data, field)
        if len(each.data) != expected:
            raise refused(f"{expected} bytes", len(each.data), field)


def _check_reward(event: RewardRecorded) -> None:
    target = None if event.target is None else {event.target.key: event.target.value}
    check_reward(value=event.value, name=event.name, scope=event.scope, target=target)
    for field in ("reward_id", "parent_id", "supersedes"):
        if getattr(event, field) is not None:
            _id(getattr(event, field), field)
    for field in ("after_call", "scorer", "scorer_version"):
        _optional_text(getattr(event, field), field)
    # Extra info is looked at when it is used: refused extra info costs only itself, value and sample stay.
    _bytes(event.extra_info, "extra_info")


def _check_completed(event: RolloutCompleted) -> None:
    _one_of(event.status, "status", (COMPLETED, FAILED))
    if event.error is not None:
        if not isinstance(event.error, str):
            raise refused("text or null", event.error, "error")
        _utf8(event.error, "error")
    for field in ("awaited_names", "awaited_rewards"):
        _ids(getattr(event, field), field)
        if len(getattr(event, field)) > AWAITED_MAX:
            raise refused(f"at most {AWAITED_MAX} names", f"{len(getattr(event, field))} of them", field, quote=False)


def _check_expired(event: RolloutExpired) -> None:
    _one_of(event.reason, "reason", EXPIRY_REASONS)
    _integer(event.as_of, "as_of", 0, INT64_MAX)
    for gap in event.missing_events:
        if not isinstance(gap.source, str) or not is_source(gap.source):
            raise refused("`name.16 hex digits`", gap.source, "missing_events")
        _integer(gap.first, "missing_events", 0, INT64_MAX)
        _integer(gap.last, "missing_events", gap.first, INT64_MAX)
    _ids(event.missing_names, "missing_names")
    _ids(event.missing_rewards, "missing_rewards")


def _check_closed(event: GroupClosed) -> None:
    _id(event.group_id, "group_id")
    _one_of(event.reason, "reason", GROUP_REASONS)
    if event.reason in DECIDED_GROUP_REASONS:
        _integer(event.as_of, "as_of", 0, INT64_MAX)
    elif event.as_of is not None:
        raise refused(f"none with reason {event.reason}", event.as_of, "as_of")


def _check_run_ended(event: RunEnded) -> None:
    _text(event.run_id, "run_id")


def _nothing(event: Any) -> None:
    pass


_CHECKS: dict[type[Event], Callable[[Any], None]] = {
    RolloutStarted: _check_started,
    Span: _check_span,
    RewardRecorded: _check_reward,
    RolloutCompleted: _check_completed,
    RolloutExpired: _check_expired,
    GroupClosed: _check_closed,
    RunEnded: _check_run_ended,
}


def check_id(value: Any, field: str) -> None:
    """Check that a value can be an id or a name: text of 1 to ID_CHARACTERS_MAX characters that UTF-8 can hold."""
    _id(value, field)


def check_integer(value: Any, field: str, low: int, high: int) -> None:
    """Check that a value is an int (no bool, no numpy integer) from `low` to `high`."""
    _integer(value, field, low, high)


def check_text(value: Any, field: str) -> None:
    """Check that a value is text of at most ID_CHARACTERS_MAX characters that UTF-8 can hold, or None."""
    _optional_text(value, field)


def plain_integer(value: Any) -> Any:
    """A numpy integer as an int, anything else as it is: hosts take counts and versions from arrays."""
    return int(value) if isinstance(value, np.integer) else value


def plain_number(value: Any) -> Any:
    """As `plain_integer`, for any number: a numpy one as an int or a float."""
    return float(value) if isinstance(value, np.floating) else plain_integer(value)


def refused(expected: str, got: Any, field: str, reason: str | None = None, *, quote: bool = True) -> InvalidEvent:
    """An InvalidEvent whose text says what was expected and what came at `field`.

    got  a value, written as Python does; a phrase with blanks, or anything without `quote`, is written as it is
    """
    try:
        text = repr(got) if quote and not (isinstance(got, str) and " " in got) else str(got)
    except Exception:  # a value whose text fails must not hide the refusal
        text = f"a {type(got).__name__}"
    if len(text) > 80:
        text = text[:77] + "..."
    return InvalidEvent(f"expected {expected}, got {text} at $.{field}", reason=reason or field, field=f"$.{field}")


def _integer(value: Any, field: str, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise refused(f"an integer from {low} to {high}", value, field)


def _version(value: Any, field: str) -> None:
    if value is not None:
        _integer(value, field, 0, INT64_MAX)


def _text(value: Any, field: str) -> None:
    if not isinstance(value, str):
        raise refused("text", value, field)
    if len(value) > ID_CHARACTERS_MAX:
        raise refused(f"at most {ID_CHARACTERS_MAX} characters", f"{len(value)} characters", field, quote=False)
    _utf8(value, field)


def _utf8(value: str, field: str) -> None:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise refused("text that UTF-8 can hold", ascii(value), field, quote=False) from None


def _optional_text(value: Any, field: str) -> None:
    if value is not None:
        _text(value, field)


def _id(value: Any, field: str) -> None:
    _text(value, field)
    if not value:
        raise refused("text that is not empty", value, field)


def _ids(values: Iterable[Any], field: str) -> None:
    if not isinstance(values, tuple | list):
        raise refused("a list of texts", values, field)
    for value in values:
        _id(value, field)


def _one_of(value: Any, field: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise refused(f"one of {', '.join(allowed)}", value, field)


def _bytes(value: Any, field: str) -> None:
    if not isinstance(value, bytes):
        raise refused("bytes", type(value).__name__, field, quote=False)


def _json_object(value: Any, field: str) -> None:
    _bytes(value, field)
    if value:
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            raise refused("a JSON object in UTF-8", value, field) from None
        if not isinstance(parsed, dict):
            raise refused("a JSON object", type(parsed).__name__, field, quote=False)
