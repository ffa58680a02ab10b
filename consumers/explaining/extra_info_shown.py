"""A reward's extra info, such as a judge's reasons: one line for people, which is cut, and all of it for programs."""

import json
from typing import Any

from rolloutlog.consumers.printable import printable

CHARACTERS_MAX = 200
UNREADABLE = "cannot be read"


def extra_json(encoded: bytes) -> Any:
    """JSON as it was recorded; None where another writer's is none."""
    try:
        return json.loads(encoded or b"{}")
    except (ValueError, RecursionError):
        return None


def extra_text(encoded: bytes) -> str:
    """One line of at most CHARACTERS_MAX characters; empty when there is none."""
    if encoded in (b"", b"{}"):
        return ""
    value = extra_json(encoded)
    text = UNREADABLE if value is None else json.dumps(value, ensure_ascii=False)
    shown = f"extra_info {printable(text)}"
    return shown if len(shown) <= CHARACTERS_MAX else f"{shown[: CHARACTERS_MAX - 1]}…"
