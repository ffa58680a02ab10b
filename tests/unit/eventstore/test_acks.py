"""Acknowledgements keep everything they say, in as many records as it takes."""

import pytest

from rolloutlog.eventstore.acks import (
    RECORD_BYTES_MAX,
    STALE,
    TRAINED,
    Rewound,
    SampleEnd,
    StepAcknowledged,
    StepAwaited,
    ack_records,
    read_ack,
    read_said,
)
from rolloutlog.eventstore.codec import encode_record
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.log import ACKS, Record


def stored(value: bytes | None, offset: int = 5) -> Record:
    return Record(ACKS, 0, offset, 0, b"trainer", value, ())


def acknowledged(samples: int = 2) -> StepAcknowledged:
    ends = tuple(SampleEnd(f"r-{index}/0/c", TRAINED if index % 2 else STALE) for index in range(samples))
    return StepAcknowledged("trainer", 7, 8, ("ab" * 16, "cd" * 16), ends, {0: 4, 3: 9}, 1_000)


def test_ack_of_a_step_comes_back_as_it_was():
    ack = acknowledged()
    (record,) = ack_records(ack)
    assert (record.topic, record.partition, record.key) == (ACKS, 0, b"trainer")
    assert read_ack(stored(record.value)) == ack


def test_ack_of_a_rewind_comes_back_as_it_was():
    rewound = Rewound("trainer", 5, {0: 1}, None, 2_000)
    (record,) = ack_records(rewound)
    assert read_ack(stored(record.value)) == rewound


def test_waiting_for_a_step_comes_back_as_it_was_and_acknowledges_nothing():
    awaited = StepAwaited("trainer", 7, 3, 1_000)
    (record,) = ack_records(awaited)
    assert read_said(stored(record.value)) == awaited
    assert read_ack(stored(record.value)) is None


def test_ack_of_a_step_without_samples_is_one_record():
    ack = StepAcknowledged("trainer", 0, None, (), (), {}, 1)
    assert [read_ack(stored(record.value)) for record in ack_records(ack)] == [ack]


def test_ack_of_a_large_step_takes_several_records_and_only_the_last_has_offsets():
    ack = acknowledged(samples=60_000)
    parts = [read_ack(stored(record.value)) for record in ack_records(ack)]
    assert len(parts) > 1
    assert {part.step for part in parts} == {7}
    assert [part.offsets for part in parts] == [{}] * (len(parts) - 1) + [{0: 4, 3: 9}]
    assert tuple(each for part in parts for each in part.batch_ids) == ack.batch_ids
    assert tuple(each for part in parts for each in part.samples) == ack.samples
    assert all(len(record.value or b"") < RECORD_BYTES_MAX + 1_000 for record in ack_records(ack))


@pytest.mark.parametrize(
    "said",
    [
        StepAcknowledged("trainer", 7, 8, (), (), {0: 4}, 1_000, "output.judged"),
        Rewound("trainer", 5, {0: 1}, None, 2_000, 0, "output.judged"),
        StepAwaited("trainer", 7, 3, 1_000, "output.judged"),
    ],
)
def test_what_a_reader_of_an_output_says_is_no_acknowledgement_of_live_batches(said):
    """A host's retention keeps the newest of each key: the live reader's must not give way to it."""
    (record,) = ack_records(said)
    assert record.key == b"trainer.output.judged"
    assert read_said(stored(record.value)) == said
    assert read_ack(stored(record.value)) is None
    if not isinstance(said, StepAwaited):
        assert read_ack(stored(record.value), "output.judged") == said


def test_read_ack_of_another_record_is_refused_by_name():
    value = encode_record("RunCreated", {"run_id": "r", "partitions": 1, "created_ns": 1})
    with pytest.raises(
        InvalidEvent, match=r"expected StepAcknowledged, Rewound or StepAwaited, got RunCreated .*offset 0:5"
    ):
        read_ack(stored(value))


@pytest.mark.parametrize("value", [None, b"", b"\xc3\x01short", b"nothing of ours at all"])
def test_read_ack_of_bytes_that_are_none_is_refused(value):
    with pytest.raises(InvalidEvent):
        read_ack(stored(value))
