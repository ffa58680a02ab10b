"""Values as one line of text."""

import re
from base64 import urlsafe_b64encode
from zlib import crc32

import pytest

from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.text_form import pack, unpack

TEXT = "rolloutlog-group-1.WyJnLTEiLCJ0Iiw0XQ.648ccf5a"


def text_of(values: bytes) -> str:
    """A whole text that holds anything."""
    text = f"rolloutlog-group-1.{urlsafe_b64encode(values).rstrip(b'=').decode()}"
    return f"{text}.{crc32(text.encode()):08x}"


def test_text_is_the_same_in_every_release():
    """Processes of one run may have been started from different releases."""
    assert pack("group", ["g-1", "t", 4]) == TEXT
    assert unpack(TEXT, "group", 3) == ["g-1", "t", 4]


@pytest.mark.parametrize("values", [["ä/ß", None, 2**31 - 1], ["\n\0\"'", ""], ["x" * 512] * 7, ["日本"]])
def test_text_of_any_values_needs_no_quoting_and_gives_them_back(values):
    text = pack("ref", values)
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", text)
    assert unpack(f" {text}\n", "ref", len(values)) == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "expected text that begins with 'rolloutlog-group-1.', got None"),
        ("", "expected text that begins with 'rolloutlog-group-1.', got ''"),
        ("g-1,t,4", "expected text that begins with 'rolloutlog-group-1.', got 'g-1,t,4'"),
        (
            TEXT[:-1],
            "the whole text, unchanged, as `text()` gives it, got 45 characters whose checksum does not",
        ),
        (TEXT.replace("W", "w", 1), "was it cut, or joined with something?"),
        (TEXT.replace("group", "ref"), "whose checksum does not fit"),
        (f"{TEXT},{TEXT}", "whose checksum does not fit"),
        (pack("ref", [1, 2, 3]), "expected text that begins with 'rolloutlog-group-1.', got that of a ref"),
        (pack("group", [1, 2]), "expected 3 values in it, got something else"),
        (text_of(b"[" * 100_000), "expected 3 values in it, got something else"),
        (text_of(b"\xff"), "expected 3 values in it, got something else"),
        ("rolloutlog-group-2.W10.3e69be82", "expected version 1, got version 2; use the same release on both sides"),
    ],
)
def test_text_that_is_no_whole_one_is_refused_saying_what_is_expected(text, said):
    with pytest.raises(InvalidSettings) as caught:
        unpack(text, "group", 3)
    assert said in str(caught.value)
