"""Chat trajectories in OpenAI message form, as events of a rollout.

One trajectory is one rollout. Each assistant message is a call whose prompt is all messages before it; tool calls are
tool spans beside it; the trajectory's reward is a rollout-scope reward. Text is rendered so that a call's prompt and
answer together begin the next call's prompt. Token ids are the text's UTF-8 bytes.

`parse_trajectory` refuses a line by the name of the field; `trajectory_events` makes the same events for the same line
every time, but for their times. Pure.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from rolloutlog.eventstore.checks import refused
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import (
    ROLLOUT,
    Event,
    RewardRecorded,
    RolloutCompleted,
    RolloutStarted,
    Span,
)
from rolloutlog.eventstore.prompts import PromptShare
from rolloutlog.eventstore.rewards import check_reward

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TASK_CHARACTERS_MAX = 200
DEPTH_SPARE = 100  # levels that a message could be nested deeper and still be written, wherever the stack is deeper
STEP_NS = 1_000  # trajectories carry no times: calls are a microsecond apart, in their order


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One line. `task_id` and `trial` as text; `reward` None = the line has none."""

    line: int
    task_id: str
    trial: str
    reward: float | None
    messages: tuple[Mapping[str, Any], ...]


def parse_trajectory(text: bytes, line: int) -> Trajectory:
    """Read one line, from 1. Raises InvalidEvent naming the field, what was expected and what came."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidEvent(f"expected a JSON object, got text that is none ({error})") from error
    if not isinstance(record, dict):
        raise InvalidEvent(f"expected a JSON object, got {type(record).__name__} at $")
    given = [name for name in ("traj", "messages") if name in record]
    if len(given) != 1:
        raise refused("one of traj and messages", f"{len(given)} of them", "messages")
    messages = record[given[0]]
    if not isinstance(messages, list):
        raise refused("a list of messages", messages, given[0])
    for index, message in enumerate(messages):
        _check_message(message, f"{given[0]}[{index}]")
    reward = record.get("reward")
    try:
        check_reward(value=reward, name="reward", scope=ROLLOUT, target=None)
    except InvalidEvent as error:
        raise refused("a finite number or null", reward, "reward") from error
    return Trajectory(
        line,
        _name(record, "task_id"),
        _name(record, "trial") if "trial" in record else "0",
        None if reward is None else float(reward),
        tuple(messages),
    )


@dataclass(frozen=True, slots=True)
class Imported:
    """Identities of one imported trajectory, derived from the file's digest, task, trial and line."""

    rollout_id: str
    group_id: str
    source: str


def identities(trajectory: Trajectory, digest: str) -> Imported:
    prefix = f"import-{digest[:12]}"
    rollout_id = f"{prefix}-{trajectory.task_id}-{trajectory.trial}-{trajectory.line}"
    source = blake2b(f"{digest}/{rollout_id}".encode(), digest_size=8).hexdigest()
    return Imported(rollout_id, f"{prefix}-{trajectory.task_id}", f"main.{source}")


def trajectory_events(
    trajectory: Trajectory, digest: str, *, group_size: int, run_id: str, time_ns: int
) -> Iterator[Event]:
    """The rollout's events, numbered from 0. `time_ns`: when the import began, UTC nanoseconds."""
    which = identities(trajectory, digest)
    share = PromptShare()
    shared_messages: dict[str, int] = {}
    sequence = 0

    def envelope() -> dict[str, Any]:
        nonlocal sequence
        sequence += 1
        return {
            "rollout_id": which.rollout_id,
            "attempt": 0,
            "source": which.source,
            "sequence": sequence - 1,
            "time_ns": time_ns,
        }

    yield RolloutStarted(
        **envelope(),
        run_id=run_id,
        task_id=trajectory.task_id,
        group_id=which.group_id,
        group_size=group_size,
        metadata=json.dumps({"trial": trajectory.trial, "line": trajectory.line}).encode(),
    )
    text = ""
    for index, message in enumerate(trajectory.messages):
        if message["role"] == "assistant":
            at_ns = time_ns + index * STEP_NS
            prompt, answer = _ids(text + _opening(message)), _ids(_body(message))
            shared = share.share(prompt)
            span_id = f"call-{index}"
            before = shared_messages.get(shared.prompt_base or "", 0)
            yield Span(
                **envelope(),
                span_id=span_id,
                name="chat",
                kind="call",
                start_ns=at_ns,
                end_ns=at_ns,
                prompt_base=shared.prompt_base,
                prompt_base_tokens=shared.prompt_base_tokens,
                prompt_ids=shared.prompt_ids,
                response_ids=answer,
                messages=_json(trajectory.messages[before : index + 1]),
            )
            share.remember(span_id, prompt, answer)
            shared_messages[span_id] = index + 1
            yield from _tool_spans(trajectory, index, at_ns, envelope)
        text += _opening(message) + _body(message)
    if trajectory.reward is not None:
        yield RewardRecorded(**envelope(), value=trajectory.reward, scope=ROLLOUT)
    yield RolloutCompleted(**envelope())


def _tool_spans(trajectory: Trajectory, index: int, at_ns: int, envelope: Any) -> Iterator[Span]:
    """One span for each tool call of an assistant message; its result is a tool message after it, by id or order."""
    calls = trajectory.messages[index].get("tool_calls") or ()
    results = []
    for message in trajectory.messages[index + 1 :]:
        if message["role"] not in ("tool", "function"):
            break
        results.append(message)
    by_id = {result["tool_call_id"]: result for result in results if result.get("tool_call_id")}
    for number, tool_call in enumerate(calls):
        function = tool_call["function"]
        result = by_id.get(tool_call.get("id") or "")
        if result is None and number < len(results):
            # by order only where an id is absent: the result of another call is none of this one
            named = tool_call.get("id") and results[number].get("tool_call_id")
            result = None if named else results[number]
        attributes = {"arguments": function.get("arguments"), "result": None if result is None else _content(result)}
        yield Span(
            **envelope(),
            span_id=f"tool-{index}-{number}",
            name=function["name"],
            kind="tool",
            start_ns=at_ns + number + 1,
            end_ns=at_ns + number + 1,
            attributes=_json(attributes),
        )


def _opening(message: Mapping[str, Any]) -> str:
    return f"<|im_start|>{message['role']}\n"


def _body(message: Mapping[str, Any]) -> str:
    parts = [_content(message)]
    for tool_call in message.get("tool_calls") or ():
        function = tool_call["function"]
        called = json.dumps({"name": function["name"], "arguments": function.get("arguments")}, ensure_ascii=False)
        parts.append(f"<tool_call>{called}</tool_call>")
    return "\n".join(filter(None, parts)) + "<|im_end|>\n"


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def _ids(text: str) -> bytes:
    return np.frombuffer(text.encode(), np.uint8).astype("<i4").tobytes()


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _name(record: Mapping[str, Any], field: str) -> str:
    value = record.get(field)
    if type(value) not in (str, int) or value == "" or len(str(value)) > TASK_CHARACTERS_MAX:
        raise refused(f"text or an integer of 1 to {TASK_CHARACTERS_MAX} characters", value, field)
    _check_utf8(str(value), field)
    return str(value)


def _check_message(message: Any, field: str) -> None:
    if not isinstance(message, dict):
        raise refused("a message, which is a JSON object", message, field)
    _check_plain(message, field)
    if message.get("role") not in ROLES:
        raise refused(f"one of {', '.join(ROLES)}", message.get("role"), f"{field}.role")
    content = message.get("content")
    if isinstance(content, list):
        for index, part in enumerate(content):
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                raise refused("a part with text", part, f"{field}.content[{index}]")
    elif content is not None and not isinstance(content, str):
        raise refused("text, a list of parts or null", content, f"{field}.content")
    _check_id(message.get("tool_call_id"), f"{field}.tool_call_id")
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise refused("a list of tool calls", calls, f"{field}.tool_calls")
    for index, tool_call in enumerate(calls or ()):
        _check_tool_call(tool_call, f"{field}.tool_calls[{index}]")


def _check_tool_call(tool_call: Any, field: str) -> None:
    function = tool_call.get("function") if isinstance(tool_call, dict) else None
    if not isinstance(function, dict):
        raise refused("a tool call with a function", tool_call, field)
    name = function.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= TASK_CHARACTERS_MAX:
        raise refused(f"a name of 1 to {TASK_CHARACTERS_MAX} characters", name, f"{field}.function.name")
    _check_id(tool_call.get("id"), f"{field}.id")


def _check_id(value: Any, field: str) -> None:
    if value is not None and not isinstance(value, str):
        raise refused("text or null", value, field)


def _check_plain(value: Mapping[str, Any], field: str) -> None:
    """Check that every value of a message, also of fields that nothing reads, can be written as JSON in UTF-8."""
    for name, part in value.items():
        deeper = part
        for _ in range(DEPTH_SPARE):
            deeper = [deeper]
        try:
            text = json.dumps({name: deeper}, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError) as error:
            raise refused("a value that JSON can hold", str(error), f"{field}.{ascii(name)[1:-1]}") from error
        _check_utf8(text, f"{field}.{ascii(name)[1:-1]}")


def _check_utf8(text: str, field: str) -> None:
    # JSON may hold half of a surrogate pair, which no UTF-8 can.
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refused("text that UTF-8 can hold", "half of a surrogate pair", field) from None
