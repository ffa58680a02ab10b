"""Chat messages as token ids, in ChatML: `<|im_start|>role`, a line end, the text, `<|im_end|>`, a line end.

Each piece is made into ids by itself, so that a call's prompt and answer together begin the next call's prompt,
whatever the vocabulary: what two calls share is stored once, and no token reaches from a prompt into its answer.

Bytes     ids are the UTF-8 bytes of the text, markers included: for looking at rewards and batches, not for training
Not here  ids of a model's vocabulary: importing.tokenizer
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

Message = Mapping[str, Any]

BEGIN, END = "<|im_start|>", "<|im_end|>"


class Rendering(Protocol):
    """Packed ids of pieces of a conversation.

    name   tells other renderings apart, also those of other vocabularies; empty = bytes
    said   what the ids are, for whoever imports
    gap    packed ids between an answer and the next message
    """

    @property
    def name(self) -> str: ...

    @property
    def said(self) -> str: ...

    @property
    def gap(self) -> bytes: ...

    def opening(self, role: str) -> bytes:
        """What stands before a message's text; before an answer it is the end of the prompt."""

    def answer(self, text: str) -> bytes:
        """A message's text up to its end: of an answer, what the policy wrote."""


class Bytes:
    """Ids are UTF-8 bytes."""

    name = ""
    said = "UTF-8 bytes as token ids, for looking at rewards and batches: --tokenizer gives those of a model"
    gap = b""

    def opening(self, role: str) -> bytes:
        return byte_ids(f"{BEGIN}{role}\n")

    def answer(self, text: str) -> bytes:
        return byte_ids(f"{text}{END}\n")


class Renderer:
    """Renders the prompts of one rollout. What an earlier prompt had at the same place is not rendered anew."""

    def __init__(self, rendering: Rendering) -> None:
        self._rendering = rendering
        self._rendered: list[tuple[Message, bytes]] = []

    def prompt(self, messages: Sequence[Message], role: str = "assistant") -> bytes:
        """Packed ids of all messages, and of the beginning of an answer."""
        parts = []
        for index, message in enumerate(messages):
            if index == len(self._rendered) or not _same(self._rendered[index][0], message):
                del self._rendered[index:]
                self._rendered.append((message, self._message(message)))
            parts.append(self._rendered[index][1])
        return b"".join(parts) + self._rendering.opening(role)

    def answer(self, message: Message) -> bytes:
        return self._rendering.answer(message_text(message))

    def _message(self, message: Message) -> bytes:
        rendering = self._rendering
        return rendering.opening(message["role"]) + rendering.answer(message_text(message)) + rendering.gap


def message_text(message: Message) -> str:
    """A message's text, its tool calls included."""
    parts = [content_text(message)]
    for tool_call in message.get("tool_calls") or ():
        function = tool_call["function"]
        called = json.dumps({"name": function["name"], "arguments": function.get("arguments")}, ensure_ascii=False)
        parts.append(f"<tool_call>{called}</tool_call>")
    return "\n".join(filter(None, parts))


def content_text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def byte_ids(text: str) -> bytes:
    return np.frombuffer(text.encode(), np.uint8).astype("<i4").tobytes()


def _same(left: Message, right: Message) -> bool:
    return left is right or left == right
