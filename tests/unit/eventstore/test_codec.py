"""Framing, header grammar, and bytes of unknown senders."""

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.schemas.make_golden import EVENTS

from rolloutlog.eventstore.checks import check_event
from rolloutlog.eventstore.codec import (
    Header,
    decode_event,
    decode_record,
    encode_event,
    header_of,
    parse_header,
)
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import KINDS
from rolloutlog.schemas import newest

EACH_KIND = pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.record)


def test_header_is_kind_flags_attempt_sequence_source_rollout():
    assert header_of(EVENTS[1]).text() == b"Span/-/1/1/main.00112233445566aa/r-7"


def test_header_marked_resend_says_so():
    header = header_of(EVENTS[1], resend=True)
    assert header.text() == b"Span/r/1/1/main.00112233445566aa/r-7"
    assert parse_header(header.text()).resend


def test_header_keeps_slashes_of_the_rollout_id():
    assert parse_header(b"Span/-/0/0/main.00112233445566aa/a/b//c").rollout_id == "a/b//c"


@EACH_KIND
def test_header_of_every_kind_comes_back(event):
    assert parse_header(header_of(event).text()) == header_of(event)


@given(
    st.builds(
        Header,
        st.sampled_from([kind for kind in KINDS if kind not in ("GroupClosed", "RunEnded")]),
        st.sampled_from(["-", "r", "rx"]),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**63 - 1),
        st.from_regex(r"[A-Za-z0-9_.-]{1,64}\.[0-9a-f]{16}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    )
)
def test_header_of_any_parts_comes_back(header):
    assert parse_header(header.text()) == header


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "expected a header `e`, got none"),
        (b"\xff", "expected UTF-8 text, got b'\\xff'"),
        (b"Span/-/0/0/main.00112233445566aa", "expected kind/flags/attempt/sequence/source/rollout_id"),
        (b"Spam/-/0/0/main.00112233445566aa/r", "expected a kind among RolloutStarted"),
        (b"RunCreated/-/0/0/main.00112233445566aa/r", "got 'RunCreated'"),
        (b"Span/R/0/0/main.00112233445566aa/r", "expected flags of letters, or -, got 'R'"),
        (b"Span//0/0/main.00112233445566aa/r", "expected flags of letters, or -, got ''"),
        (b"Span/-/-1/0/main.00112233445566aa/r", "expected attempt from 0 below 2**31, got '-1'"),
        (b"Span/-/2147483648/0/main.00112233445566aa/r", "expected attempt from 0 below 2**31"),
        (b"Span/-/0/ 1/main.00112233445566aa/r", "expected sequence from 0 below 2**63, got ' 1'"),
        (b"Span/-/0/9223372036854775808/main.00112233445566aa/r", "expected sequence from 0 below 2**63"),
        ("Span/-/0/٣/main.00112233445566aa/r".encode(), "expected sequence from 0 below 2**63"),
        (b"Span/-/0/0/main.00112233445566AA/r", "expected a source `name.16 hex digits`"),
        (b"Span/-/0/0/main.00112233445566aa\n/r", "expected a source `name.16 hex digits`"),
        (b"Span/-/0/0/main.00112233445566aa/", "expected a rollout id for Span, got ''"),
        (b"RunEnded/-/0/0/main.00112233445566aa/r", "expected no rollout id for RunEnded, got 'r'"),
    ],
)
def test_header_with_fault_is_refused_by_name(value, text):
    with pytest.raises(InvalidEvent) as caught:
        parse_header(value)
    assert text in str(caught.value)
    assert caught.value.reason == "bad_header"


@given(st.binary(max_size=80) | st.from_regex(rb"[A-Za-z]*(/[0-9a-z.-]*){0,7}", fullmatch=True))
def test_header_of_any_bytes_parses_or_is_invalid(value):
    with suppress(InvalidEvent):
        parse_header(value)


@EACH_KIND
def test_event_truncated_at_every_length_is_invalid(event):
    value = encode_event(event)
    for length in range(len(value)):
        with pytest.raises(InvalidEvent):
            decode_event(event.record, value[:length])


@EACH_KIND
def test_event_with_trailing_bytes_is_invalid(event):
    for tail in (b"\0", b"\xc3\x01", b"x" * 40):
        with pytest.raises(InvalidEvent, match="trailing bytes") as caught:
            decode_event(event.record, encode_event(event) + tail)
        assert caught.value.reason == "trailing_bytes"


def test_event_of_unknown_fingerprint_is_invalid_by_name():
    value = encode_event(EVENTS[0])
    with pytest.raises(InvalidEvent, match="got fingerprint 0000000000000000: written by a newer version"):
        decode_event("RolloutStarted", value[:2] + bytes(8) + value[10:])


def test_event_of_another_kind_than_its_header_is_invalid():
    with pytest.raises(InvalidEvent, match="expected a Span, got a RolloutStarted"):
        decode_event("Span", encode_event(EVENTS[0]))


@pytest.mark.parametrize("value", [None, b"", b"\xc3\x01", b"\0\0\0\0\7magic-confluent"])
def test_event_without_frame_is_invalid(value):
    with pytest.raises(InvalidEvent) as caught:
        decode_event("Span", value)
    assert caught.value.reason == "not_framed"


def mutate(chance: random.Random, value: bytes) -> bytes:
    """Flip, cut out, insert or repeat bytes anywhere, the frame mostly left alone."""
    out = bytearray(value)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(0 if chance.random() < 0.05 else 10, len(out) + 1)
        kind = chance.randrange(5)
        if kind == 0 and at < len(out):
            out[at] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif kind == 1 and at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            del out[at : at + chance.randint(1, 4)]
        elif kind == 3:
            out[at:at] = chance.randbytes(chance.randint(1, 4))
        else:
            out[at:at] = b"\xff" * chance.choice([4, 9, 10, 12])
    return bytes(out)


@EACH_KIND
def test_event_with_random_mutations_is_valid_or_invalid_and_nothing_else(event):
    chance = random.Random(event.record)
    value = encode_event(event)
    valid = 0
    for _ in range(4_000):
        mutated = mutate(chance, value)
        try:
            decoded = decode_event(event.record, mutated)
            check_event(decoded)
        except InvalidEvent:
            continue
        valid += 1
        assert decode_event(event.record, encode_event(decoded)) == decoded
    print(f"{event.record}: {valid} of 4000 mutations are valid events")


@given(st.sampled_from(["Span", "TrainingBatch", "StepAcknowledged"]), st.binary(max_size=200))
def test_record_of_any_bytes_after_a_known_frame_decodes_or_is_invalid(name, body):
    with suppress(InvalidEvent):
        decode_record(b"\xc3\x01" + newest(name).fingerprint + body)
