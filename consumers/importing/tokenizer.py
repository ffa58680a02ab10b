"""Token ids of a model's vocabulary, from a `tokenizer.json` alone; no network.

ChatML's markers are the vocabulary's special tokens where it has both, else text like any other. Text is never taken
for a special token, whatever it holds. The line end after an answer belongs to the next prompt: the policy does not
write it.

Needs  the extra `tokenizer`
"""

from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from rolloutlog.consumers.adapters import missing
from rolloutlog.consumers.importing.rendering import BEGIN, END
from rolloutlog.eventstore.checks import refused
from rolloutlog.eventstore.errors import InvalidEvent, InvalidSettings
from rolloutlog.eventstore.tokens import pack_token_ids

try:
    from tokenizers import Tokenizer
except ModuleNotFoundError as error:
    raise missing(__name__, "tokenizer", error) from error


class Vocabulary:
    """A rendering with the ids of a tokenizer file. Raises InvalidSettings when the file is none."""

    def __init__(self, path: Path) -> None:
        try:
            text = path.read_bytes()
        except OSError as error:
            raise InvalidSettings(f"--tokenizer {path}: expected a file that can be read: {error}") from error
        try:
            self._tokenizer: Any = Tokenizer.from_buffer(text)
        except BaseException as error:
            _reraise_signal(error)
            raise InvalidSettings(
                f"--tokenizer {path}: expected a tokenizer.json of the tokenizers library, got a file that it does not "
                f"read ({error})"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # special tokens in a text are text
        self._begin, self._end = (self._tokenizer.token_to_id(marker) for marker in (BEGIN, END))
        self.special = self._begin is not None and self._end is not None
        self.name = f"tokenizer {blake2b(text, digest_size=16).hexdigest()}"
        markers = "special tokens" if self.special else f"text: the vocabulary lacks {BEGIN} or {END}"
        self.said = f"token ids of {path.name}, {self._tokenizer.get_vocab_size()} tokens; ChatML, markers as {markers}"
        try:
            self.gap = self._ids("\n")
        except InvalidEvent as error:
            raise InvalidSettings(f"--tokenizer {path}: expected one that has ids of a line end: {error}") from error

    def opening(self, role: str) -> bytes:
        return self._marker(BEGIN, self._begin) + self._ids(f"{role}\n")

    def answer(self, text: str) -> bytes:
        return self._ids(text) + self._marker(END, self._end)

    def _marker(self, marker: str, token: int | None) -> bytes:
        return np.array([token], "<i4").tobytes() if self.special else self._ids(marker)

    def _ids(self, text: str) -> bytes:
        if not text:
            return b""
        try:
            found = self._tokenizer.encode(text, add_special_tokens=False).ids
        except BaseException as error:  # such as of text that is not in a vocabulary without a token for it
            _reraise_signal(error)
            raise refused(
                f"text that the tokenizer has ids of ({str(error)[:200]})", ascii(text), "content", quote=False
            ) from error
        return pack_token_ids(found, "content")


def _reraise_signal(error: BaseException) -> None:
    """The library raises plain exceptions, and a panic is none: only what ends a program is not its own."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
        raise error
