"""The chat messages and token ids that a span of a model call carries, in any of the conventions in use.

GenAI, newer   `gen_ai.input.messages`, `gen_ai.output.messages`, `gen_ai.system_instructions`: JSON of messages in
               parts, as attributes of the span or of its event `gen_ai.client.inference.operation.details`
GenAI, older   `gen_ai.prompt.N.role` and so on with `gen_ai.completion.N`; or each as one JSON text, also in the events
               `gen_ai.content.prompt` and `gen_ai.content.completion`; or an event a message, `gen_ai.user.message` to
               `gen_ai.choice`
OpenInference  `llm.input_messages.N.message.role` and so on with `llm.output_messages.N`
Token ids      `prompt_token_ids`, `response_token_ids` and log-probs beside them, as lists or JSON; no convention has a
               name for them, these are agent-lightning's and those of LiteLLM in front of vLLM

Found messages are in OpenAI form. Of several choices the first is taken: a span is one call. Pure.
"""

import json
from collections.abc import Mapping, Sequence
from re import compile as regex
from typing import Any, NamedTuple

from rolloutlog.consumers.importing.json_values import without_bools
from rolloutlog.consumers.importing.otlp_spans import OtlpSpan
from rolloutlog.consumers.importing.rendering import Message
from rolloutlog.eventstore.checks import refused

PROMPT_IDS = ("prompt_token_ids", "llm.hosted_vllm.prompt_token_ids")
RESPONSE_IDS = ("response_token_ids", "llm.hosted_vllm.response_token_ids")
PATH_MAX = 12  # parts of a name such as `gen_ai.prompt.0.tool_calls.0.name`
LOGPROBS = ("response_logprobs", "logprobs.content", "llm.hosted_vllm.logprobs")

_DETAILS = "gen_ai.client.inference.operation.details"
_INPUT, _OUTPUT, _SYSTEM = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
_MESSAGE_EVENT = regex(r"gen_ai\.(system|user|assistant|tool)\.message")
_NUMBER = regex(r"[0-9]{1,9}")
_ROLES = {"model": "assistant", "human": "user", "ai": "assistant"}


class Exchange(NamedTuple):
    """What went in and came out; `answer` None = the span does not hold it."""

    prompt: tuple[Message, ...]
    answer: Message | None
    finish_reason: str | None


class Tokens(NamedTuple):
    """Packed by whoever records them."""

    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float] | None


def exchange_of(span: OtlpSpan) -> Exchange | None:
    """The messages of a model call; None when it carries none. Raises InvalidEvent naming the attribute."""
    attributes = span.attributes
    for found in (attributes, *(each.attributes for each in span.events if each.name == _DETAILS)):
        if _INPUT in found or _OUTPUT in found:
            return _newer(found)
    flat = _flat(attributes, "gen_ai.prompt"), _flat(attributes, "gen_ai.completion")
    if flat[0] or flat[1]:
        return _older(*flat)
    events = {name: value for each in span.events for name, value in each.attributes.items()}
    for found in (attributes, events):
        if "gen_ai.prompt" in found or "gen_ai.completion" in found:
            return _texts(found)
    flat = _flat(attributes, "llm.input_messages"), _flat(attributes, "llm.output_messages")
    if flat[0] or flat[1]:
        return _open_inference(*flat)
    return _by_events(span)


def tokens_of(span: OtlpSpan) -> Tokens | None:
    """The token ids of a model call; None when it carries none. Raises InvalidEvent naming the attribute."""
    attributes = span.attributes
    response = _numbers(attributes, RESPONSE_IDS)
    prompt = _numbers(attributes, PROMPT_IDS)
    if response is None or prompt is None:
        return None
    logprobs = _numbers(attributes, LOGPROBS)
    return Tokens(prompt, response, logprobs)


def is_token_attribute(name: str) -> bool:
    return name in PROMPT_IDS or name in RESPONSE_IDS or name in LOGPROBS


def _newer(found: Mapping[str, Any]) -> Exchange:
    prompt = [_of_parts(each, _INPUT) for each in _json_list(found.get(_INPUT), _INPUT)]
    system = _json_list(found.get(_SYSTEM), _SYSTEM)
    if system:
        prompt.insert(0, _of_parts({"role": "system", "parts": system}, _SYSTEM))
    answers = _json_list(found.get(_OUTPUT), _OUTPUT)
    answer = _of_parts(answers[0], _OUTPUT) if answers else None
    reason = answers[0].get("finish_reason") if answers else None  # an object, or it were no message
    return Exchange(tuple(prompt), answer, reason if isinstance(reason, str) else None)


def _of_parts(given: Any, field: str) -> Message:
    """A message in parts. Tool calls become `tool_calls`; parts that are no text are kept, and rendered as nothing."""
    parts = _object(given, field).get("parts")
    if parts is None:
        return _plain(given, field)
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise refused("a list of parts", parts, f"{field}.parts")
    texts, calls, others, answered = [], [], [], None
    for part in parts:
        kind = part.get("type")
        if kind == "text":
            texts.append(_text(part.get("content")))
        elif kind == "tool_call":
            calls.append(_call(part.get("id"), part.get("name"), part.get("arguments"), field))
        elif kind == "tool_call_response":
            answered = part.get("id")
            texts.append(_text(part.get("response", part.get("result"))))
        else:
            others.append(part)
    message: dict[str, Any] = {"role": _role(given.get("role"), field), "content": "".join(texts)}
    if calls:
        message["tool_calls"] = calls
    if isinstance(answered, str):
        message["tool_call_id"] = answered
    if others:
        message["parts"] = others
    return message


def _older(prompts: list[Mapping[str, Any]], answers: list[Mapping[str, Any]]) -> Exchange:
    prompt = tuple(_plain(each, "gen_ai.prompt") for each in prompts)
    answer = None
    if answers:
        answer = _plain({"role": "assistant", **_object(answers[0], "gen_ai.completion")}, "gen_ai.completion")
    reason = answers[0].get("finish_reason") if answers else None
    return Exchange(prompt, answer, reason if isinstance(reason, str) else None)


def _texts(found: Mapping[str, Any]) -> Exchange:
    """Prompt and completion each as one text: JSON of messages, or what was said."""
    prompt = _said(found.get("gen_ai.prompt"), "user", "gen_ai.prompt")
    answers = _said(found.get("gen_ai.completion"), "assistant", "gen_ai.completion")
    return Exchange(tuple(prompt), answers[0] if answers else None, None)


def _said(given: Any, role: str, field: str) -> list[Message]:
    if given is None:
        return []
    if isinstance(given, str):
        try:
            parsed = json.loads(given)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict | list):
            return [{"role": role, "content": given}]
        given = parsed
    if isinstance(given, dict):
        given = given.get("messages", [given])
    if not isinstance(given, list):
        raise refused("messages", given, field)
    return [_of_parts({"role": role, **each} if isinstance(each, dict) else each, field) for each in given]


def _open_inference(prompts: list[Mapping[str, Any]], answers: list[Mapping[str, Any]]) -> Exchange:
    def message(given: Any, field: str, **otherwise: str) -> Message:
        found = _inner(given, "message", field)
        text = found.get("content")
        if text is None and isinstance(found.get("contents"), list):
            parts = [_inner(each, "message_content", f"{field}.contents") for each in found["contents"]]
            text = "".join(_text(part.get("text")) for part in parts)
        calls = [_inner(each, "tool_call", f"{field}.tool_calls") for each in _calls(found, field)]
        return _plain({**otherwise, **found, "content": text, "tool_calls": calls}, field)

    prompt = tuple(message(each, "llm.input_messages") for each in prompts)
    answer = message(answers[0], "llm.output_messages", role="assistant") if answers else None
    return Exchange(prompt, answer, None)


def _by_events(span: OtlpSpan) -> Exchange | None:
    """An event a message, in their order."""
    prompt, answer, reason = [], None, None
    for each in span.events:
        body = dict(each.attributes)
        packed = body.get("gen_ai.event.content")
        if isinstance(packed, str):
            read = _read_json(packed, None)
            body.update(read if isinstance(read, dict) else {"content": packed})
        role = _MESSAGE_EVENT.fullmatch(each.name)
        if role:
            given = {"role": role[1], **body, "tool_call_id": body.get("id")}
            prompt.append(_plain(_read_calls(given), each.name))
        elif each.name == "gen_ai.choice" and answer is None:
            message = body.get("message", body)
            if isinstance(message, str):
                message = _read_json(message, {"content": message})
            given = {"role": "assistant", **(message if isinstance(message, dict) else {})}
            answer = _plain(_read_calls(given), each.name)
            found = body.get("finish_reason")
            reason = found if isinstance(found, str) else None
    return Exchange(tuple(prompt), answer, reason) if prompt or answer else None


def _plain(given: Any, field: str) -> Message:
    """A message with text, and tool calls in any of the forms in use."""
    content = _object(given, field).get("content")
    if isinstance(content, list):
        content = "".join(_text(each.get("text", each.get("content"))) for each in content if isinstance(each, dict))
    message: dict[str, Any] = {"role": _role(given.get("role"), field), "content": _text(content)}
    calls = []
    for each in _calls(given, field):
        function = _object(each, f"{field}.tool_calls").get("function")
        of = function if isinstance(function, dict) else each
        calls.append(_call(each.get("id"), of.get("name"), of.get("arguments"), field))
    if calls:
        message["tool_calls"] = calls
    if isinstance(given.get("tool_call_id"), str) and message["role"] in ("tool", "function"):
        message["tool_call_id"] = given["tool_call_id"]
    return message


def _object(given: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise refused("an object", given, field)
    return given


def _inner(given: Any, name: str, field: str) -> Mapping[str, Any]:
    return _object(_object(given, field).get(name, {}), f"{field}.{name}")


def _calls(given: Mapping[str, Any], field: str) -> list[Any]:
    calls = given.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise refused("a list of tool calls", calls, f"{field}.tool_calls")
    return calls or []


def _read_calls(given: dict[str, Any]) -> dict[str, Any]:
    calls = given.get("tool_calls")
    return {**given, "tool_calls": _read_json(calls, [])} if isinstance(calls, str) else given


def _call(call_id: Any, name: Any, arguments: Any, field: str) -> dict[str, Any]:
    if not isinstance(name, str):
        raise refused("a tool call with a name", name, f"{field}.tool_calls")
    made: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call_id, **made} if isinstance(call_id, str) else made


def _role(given: Any, field: str) -> str:
    if not isinstance(given, str):
        raise refused("a role", given, f"{field}.role")
    return _ROLES.get(given, given)


def _text(given: Any) -> str:
    if given is None:
        return ""
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _flat(attributes: Mapping[str, Any], prefix: str) -> list[Mapping[str, Any]]:
    """`prefix.N.a.M.b` as a list of nested mappings and lists, by number."""
    root: dict[str, Any] = {}
    for name, value in attributes.items():
        if not name.startswith(f"{prefix}."):
            continue
        path = name[len(prefix) + 1 :].split(".")
        if not _NUMBER.fullmatch(path[0]) or len(path) > PATH_MAX:
            continue
        at = root
        for part in path[:-1]:
            following = at.setdefault(part, {})
            if not isinstance(following, dict):
                break
            at = following
        else:
            at[path[-1]] = value
    return _listed(root) if root else []


def _listed(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    found = {name: _listed(value) for name, value in tree.items()}
    if found and all(map(_NUMBER.fullmatch, found)):
        return [found[name] for name in sorted(found, key=int)]
    return found


def _numbers(attributes: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        value = attributes.get(name)
        if value is None:
            continue
        value = _read_json(value, None) if isinstance(value, str) else value
        if isinstance(value, dict) and isinstance(value.get("content"), list):
            value = value["content"]
        if isinstance(value, list) and value and isinstance(value[0], list):
            value = value[0]  # one list a choice
        if not isinstance(value, list):
            raise refused("a list of numbers, or JSON of one", attributes[name], name)
        if value and isinstance(value[0], dict):
            value = [each.get("logprob") if isinstance(each, dict) else each for each in value]
        return without_bools(value, name)
    return None


def _json_list(given: Any, field: str) -> list[Any]:
    if isinstance(given, str):
        given = _read_json(given, given)
    if given is None:
        return []
    if not isinstance(given, list):
        raise refused("a list, or JSON of one", given, field)
    return given


def _read_json(text: str, otherwise: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise
