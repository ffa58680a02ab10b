"""Records of outputs."""

import json
from hashlib import blake2b

from support.building import call, completed, record, started

from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.outputs import DeadLetter, GroupClosing
from rolloutlog.consumers.packing import Packer
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.eventstore.codec import decode_event
from rolloutlog.eventstore.log import BATCHES, DEAD_LETTERS, EVENTS, NewRecord, Record

SOURCE = "assembler.00000000000000ff"
HASH = "c0" * 16


def packer() -> Packer:
    return Packer(0, HASH, SOURCE)


def letter() -> NewRecord:
    bad = Record(EVENTS, 0, 7, 5, b"g", b"junk", (("e", b"bad"), ("trace", None)))
    return packer().pack([DeadLetter(9, bad, "not_framed", "$.x", "why so")], time_ns=1)[0]


def test_packer_writes_a_batch_under_its_group_in_the_input_partition():
    state = PartitionState(0, FoldSettings())
    events = [started(), call(), completed(2)]
    outputs = [output for offset, event in enumerate(events, 4) for output in fold(state, record(event, offset))]
    batch = packer().pack(outputs, time_ns=1)[0]
    assert (batch.topic, batch.partition, batch.key, batch.headers) == (
        BATCHES,
        0,
        b"g",
        (("o", f"0/6/4/{HASH}/0/1".encode()),),
    )


def test_packer_writes_a_dead_letter_as_the_record_came():
    packed = letter()
    assert (packed.topic, packed.key, packed.value, packed.headers[:2]) == (
        DEAD_LETTERS,
        b"g",
        b"junk",
        (("e", b"bad"), ("trace", None)),
    )


def test_packer_says_in_a_dead_letter_why_and_where():
    why = json.loads(dict(letter().headers)["why"] or b"")
    assert why == {
        "reason": "not_framed",
        "field": "$.x",
        "topic": "events",
        "partition": 0,
        "offset": 7,
        "detail": "why so",
    }


def test_packer_cuts_a_dead_letter_above_the_limit_and_says_what_it_was():
    """Kafka limits compressed bytes: a record can come in that does not fit into the dead letters."""
    value = bytes(9 * 2**20)
    bad = Record(EVENTS, 0, 7, 5, b"g" * 2_000, value, (("e", b"bad"),))
    packed = packer().pack([DeadLetter(9, bad, "not_framed", "$", "why")], time_ns=1)[0]
    why = json.loads(dict(packed.headers)["why"] or b"")
    assert (packed.key, packed.value) == (b"g" * 1_024, None)
    assert [name for name, _ in packed.headers] == ["why", "o"]
    assert (why["cut"], why["size_bytes"], why["header_count"]) == (True, 9 * 2**20 + 2_004, 1)
    assert why["value_blake2b"] == blake2b(value, digest_size=16).hexdigest()


def test_packer_cuts_a_dead_letter_with_very_many_headers():
    bad = Record(EVENTS, 0, 7, 5, b"g", b"v", (("", b""),) * 300)
    packed = packer().pack([DeadLetter(9, bad, "bad_header", "e", "why")], time_ns=1)[0]
    assert len(packed.headers) == 2


def test_packer_gives_a_dead_letter_its_trigger():
    assert letter().headers[-1] == ("o", f"0/9/7/{HASH}/0/1".encode())


def test_packer_appends_a_closing_to_the_events_of_the_partition():
    closing = packer().pack([GroupClosing(9, "g")], time_ns=17)[0]
    assert (closing.topic, closing.partition, closing.key, closing.headers) == (
        EVENTS,
        0,
        b"g",
        (("e", f"GroupClosed/-/0/0/{SOURCE}/".encode()),),
    )


def test_packer_gives_closings_the_reason_complete_and_the_time_given():
    event = decode_event("GroupClosed", packer().pack([GroupClosing(9, "g")], time_ns=17)[0].value)
    assert (event.group_id, event.reason, event.as_of, event.time_ns) == ("g", "complete", None, 17)


def test_packer_numbers_its_events_over_all_calls():
    one = packer()
    texts = [one.pack([GroupClosing(9, "g")], time_ns=1)[0].headers[0][1] for _ in range(3)]
    assert [text.split(b"/")[3] for text in texts if text] == [b"0", b"1", b"2"]


def test_packer_keeps_the_order_of_outputs():
    bad = Record(EVENTS, 0, 7, 5, b"g", b"junk", ())
    records = packer().pack([GroupClosing(1, "a"), DeadLetter(2, bad, "r", "f", "d"), GroupClosing(3, "b")], time_ns=1)
    assert [each.topic for each in records] == [EVENTS, DEAD_LETTERS, EVENTS]
