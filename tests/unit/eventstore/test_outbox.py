"""The buffer: limits, order, and what it says of events that are not stored."""

import os

import pytest

from rolloutlog.eventstore.codec import Header
from rolloutlog.eventstore.errors import BufferFull, RecordTooLarge
from rolloutlog.eventstore.outbox import ENTRY_OVERHEAD_BYTES, Entry, Outbox
from rolloutlog.eventstore.scope import NotOpen


def entry(sequence: int, *, rollout: str = "r-7", size_bytes: int = 100) -> Entry:
    return Entry(Header("Span", "-", 0, sequence, "main.00112233445566aa", rollout), 0, b"g", bytes(size_bytes))


def outbox(memory_bytes_max: int = 10_000) -> tuple[Outbox, list[str]]:
    signals: list[str] = []
    return Outbox(memory_bytes_max=memory_bytes_max, on_put=lambda: signals.append("put")), signals


def sequences(batch: list[Entry]) -> list[int]:
    return [each.header.sequence for each in batch]


def test_take_gives_events_in_the_order_they_were_put():
    box, _ = outbox()
    for sequence in range(5):
        box.put(entry(sequence))
    assert sequences(box.take(bytes_max=10_000, events_max=3)) == [0, 1, 2]
    assert sequences(box.take(bytes_max=10_000, events_max=3)) == [3, 4]


def test_take_stops_before_the_bytes_limit_but_gives_one_event_above_it():
    box, _ = outbox()
    for sequence in range(3):
        box.put(entry(sequence))
    assert sequences(box.take(bytes_max=2 * (100 + ENTRY_OVERHEAD_BYTES), events_max=9)) == [0, 1]
    assert sequences(box.take(bytes_max=1, events_max=9)) == [2]


def test_put_beyond_the_limit_raises_naming_sizes_and_takes_no_place():
    box, _ = outbox(memory_bytes_max=1_500)
    box.put(entry(0))
    box.put(entry(1))
    with pytest.raises(BufferFull) as caught:
        box.put(full := entry(2))
    assert str(caught.value) == (
        "Span of rollout r-7, attempt 0, not recorded: expected at most 1500 bytes of events that wait for the log, "
        "got 1224 bytes in 2 events and 612 more; the log is slower than this host"
    )
    assert not full.queued
    assert box.put_count == 2


def test_put_fits_again_once_events_are_stored_but_not_when_taken():
    box, _ = outbox(memory_bytes_max=700)
    box.put(entry(0))
    batch = box.take(bytes_max=9_999, events_max=9)
    with pytest.raises(BufferFull):
        box.put(entry(1))
    box.stored(batch)
    box.put(entry(1))
    assert box.size_bytes == 612


def test_put_signals_once_until_events_are_taken():
    box, signals = outbox()
    box.put(entry(0))
    box.put(entry(1))
    assert signals == ["put"]
    box.take(bytes_max=9_999, events_max=9)
    box.put(entry(2))
    assert signals == ["put", "put"]


def test_put_after_close_raises_saying_why():
    box, _ = outbox()
    box.close("the publisher is closed")
    with pytest.raises(NotOpen, match="Span of rollout r-7, attempt 0, not recorded: the publisher is closed"):
        box.put(entry(0))


def test_put_in_a_forked_child_raises_and_does_not_touch_the_lock():
    box, _ = outbox()
    reader, writer = os.pipe()
    with box._lock:
        child = os.fork()
        if not child:
            try:
                box.put(entry(0))
            except BaseException as error:
                os.write(writer, f"{type(error).__name__}: {error}".encode())
            os._exit(0)
        os.waitpid(child, 0)
    text = os.read(reader, 4_096).decode()
    assert text.startswith("NotOpen: Span of rollout r-7, attempt 0, not recorded: this process was forked")
    assert text.endswith("open a publisher after the fork")


def test_not_stored_counts_in_flight_and_waiting_events_by_rollout():
    box, _ = outbox()
    for sequence, rollout in enumerate(["r-1", "r-2", "r-2", "r-3", "r-4", "r-5"]):
        box.put(entry(sequence, rollout=rollout))
    box.stored(box.take(bytes_max=9_999, events_max=1))
    box.take(bytes_max=9_999, events_max=1)
    box.trouble = "the log's last answer was LogUnavailable: no"
    assert box.not_stored(6) == (
        "5 events of rollout r-2 (2), rollout r-3 (1), rollout r-4 (1) and 1 more are not stored; "
        "the log's last answer was LogUnavailable: no"
    )
    assert box.not_stored(2).startswith("1 events of rollout r-2 (1) are not stored")
    assert box.not_stored(1) == ""


def test_not_stored_tells_of_refused_events_once():
    box, _ = outbox()
    box.put(entry(0))
    box.refused(box.take(bytes_max=9_999, events_max=1), RecordTooLarge("above 5 bytes"))
    assert box.not_stored(1) == "1 events of rollout r-7 (1) were refused by the log and are lost: above 5 bytes"
    assert box.not_stored(1) == ""
    assert (box.size_bytes, box.done_count) == (0, 1)
