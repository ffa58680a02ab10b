"""Values as one line of text, for environment variables, headers and command lines.

    rolloutlog-ref-1.WyJhIiwi….3f2a90c1
    what        version  values (JSON, base64url without padding)  checksum (CRC-32 of all before it)

Letters, digits and `-_.` only: no quoting is needed anywhere. A text that was cut or changed is refused.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from re import compile as regex
from typing import Any
from zlib import crc32

from rolloutlog.eventstore.errors import InvalidSettings

VERSION = 1

_TEXT = regex(r"rolloutlog-([a-z]+)-([0-9]{1,9})\.([A-Za-z0-9_-]*)\.([0-9a-f]{8})")


def pack(what: str, values: Sequence[Any]) -> str:
    """The text of some values that JSON can hold; `what` they are: lowercase letters."""
    packed = json.dumps(list(values), ensure_ascii=False, separators=(",", ":")).encode()
    text = f"rolloutlog-{what}-{VERSION}.{urlsafe_b64encode(packed).rstrip(b'=').decode()}"
    return f"{text}.{crc32(text.encode()):08x}"


def unpack(text: Any, what: str, fields: int) -> list[Any]:
    """The values of a text of `pack`; blanks around it are ignored. Raises InvalidSettings."""
    expected = f"rolloutlog-{what}-{VERSION}."
    if not isinstance(text, str):
        raise InvalidSettings(f"expected text that begins with {expected!r}, got {text!r}"[:400])
    text = text.strip()
    if not text.startswith("rolloutlog-"):
        raise InvalidSettings(f"expected text that begins with {expected!r}, got {text[:40]!r}")
    found = _TEXT.fullmatch(text)
    if found is None or crc32(text[:-9].encode()) != int(found[4], 16):
        raise InvalidSettings(
            f"expected the whole text, unchanged, as `text()` gives it, got {len(text)} characters whose checksum does "
            f"not fit, {_shown(text)}; was it cut, or joined with something?"
        )
    if found[1] != what:
        raise InvalidSettings(f"expected text that begins with {expected!r}, got that of a {found[1]}, {_shown(text)}")
    if int(found[2]) != VERSION:
        raise InvalidSettings(f"expected version {VERSION}, got version {found[2]}; use the same release on both sides")
    try:
        values = json.loads(urlsafe_b64decode(found[3] + "=" * (-len(found[3]) % 4)))
    except (ValueError, RecursionError):  # a deep list, which anyone can send in a header
        values = None
    if not isinstance(values, list) or len(values) != fields:
        raise InvalidSettings(f"expected {fields} values in it, got something else, {_shown(text)}")
    return values


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:40]}…{text[-12:]}")
