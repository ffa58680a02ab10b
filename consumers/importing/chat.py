"""Checks of chat messages in OpenAI form, and the tool spans that stand beside an assistant's message.

Values are checked so that every message can be rendered and written as JSON again. Pure.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rolloutlog.consumers.importing.rendering import Message, content_text
from rolloutlog.eventstore.checks import refused
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.settings import EVENT_BYTES_MAX

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
NAME_CHARACTERS_MAX = 200
DEPTH_SPARE = 100  # levels that a message could be nested deeper and still be written, wherever the stack is deeper

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def parse_object(text: bytes, what: str = "a JSON object", *, unique: bool = False) -> dict[str, Any]:
    """Read a JSON object. Raises InvalidEvent saying what came.

    unique  refuse an object, at any level, in which a name stands twice: else the last one counts
    """
    try:
        record = json.loads(text, object_pairs_hook=_unique if unique else None)
    except (ValueError, RecursionError) as error:
        raise InvalidEvent(f"expected {what}, got text that is none ({error})") from error
    if not isinstance(record, dict):
        raise InvalidEvent(f"expected {what}, got {type(record).__name__} at $")
    return record


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise refused("each name once in an object", f"{name!r} twice", name[:NAME_CHARACTERS_MAX], quote=False)
            seen.add(name)
    return found


def json_text(value: Any) -> bytes:
    return _JSON.encode(value).encode()


def tool_results(messages: Sequence[Message], index: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and attributes of each tool call of message `index`; its result is a tool message after it, by id or
    order."""
    calls = messages[index].get("tool_calls") or ()
    results = []
    for message in messages[index + 1 :]:
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
        yield (
            function["name"],
            {"arguments": function.get("arguments"), "result": None if result is None else content_text(result)},
        )


def check_message(message: Any, field: str) -> None:
    if not isinstance(message, dict):
        raise refused("a message, which is a JSON object", message, field)
    check_plain(message, field)
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
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise refused(f"a name of 1 to {NAME_CHARACTERS_MAX} characters", name, f"{field}.function.name")
    _check_id(tool_call.get("id"), f"{field}.id")


def _check_id(value: Any, field: str) -> None:
    if value is not None and not isinstance(value, str):
        raise refused("text or null", value, field)


def check_plain(value: Mapping[str, Any], field: str) -> None:
    """Check that every value of a message, also of fields that nothing reads, can be written as JSON in UTF-8."""
    for name, part in value.items():
        deeper = part
        for _ in range(DEPTH_SPARE):
            deeper = [deeper]
        try:
            text = json.dumps({name: deeper}, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError) as error:
            raise refused("a value that JSON can hold", str(error), f"{field}.{ascii(name)[1:-1]}") from error
        if len(text) > EVENT_BYTES_MAX:  # before it is rendered, which takes many times its memory
            raise refused(
                f"at most {EVENT_BYTES_MAX} bytes, as events may have",
                f"{len(text)}",
                f"{field}.{ascii(name)[1:-1]}",
                quote=False,
            )
        check_utf8(text, f"{field}.{ascii(name)[1:-1]}")


def check_utf8(text: str, field: str) -> None:
    # JSON may hold half of a surrogate pair, which no UTF-8 can.
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refused("text that UTF-8 can hold", "half of a surrogate pair", field) from None
