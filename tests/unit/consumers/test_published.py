"""Whole batches from the records of a partition, whatever stands between them."""

from dataclasses import replace

import pytest
from support.building import ids
from unit.consumers.test_batches import batch, result, sample

from rolloutlog.consumers import batches
from rolloutlog.consumers.batches import Batch, encode_parts
from rolloutlog.consumers.published import Joiner, Published
from rolloutlog.eventstore.codec import encode_record
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.log import BATCHES, Record

RUN_ENDED = encode_record(
    "RunEnded",
    {
        "rollout_id": "",
        "attempt": 0,
        "source": "publisher.00000000000000aa",
        "sequence": 0,
        "time_ns": 1,
        "run_id": "x",
    },
)


class Reading:
    """A joiner and what it told."""

    def __init__(self) -> None:
        self.refused: list[tuple[int, str]] = []
        self.joiner = Joiner(self._refuse)

    def add(self, *values: bytes | None) -> list[Published | None]:
        found = []
        for value in values:
            found.append(self.joiner.add(Record(BATCHES, 2, self.next, 100 + self.next, b"g", value, ())))
            self.next += 1
        return found

    next = 10

    def _refuse(self, record: Record, error: InvalidEvent) -> None:
        self.refused.append((record.offset, str(error)))


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> tuple[Batch, list[bytes]]:
    """A batch that takes three records."""
    monkeypatch.setattr(batches, "PART_BYTES_MAX", 1_000)
    whole = batch((result(),), tuple(sample(f"r/0/{n}", response_ids=ids(*range(100))) for n in range(3)))
    encoded = encode_parts(whole)
    assert len(encoded) >= 3
    return whole, encoded


def test_joiner_with_a_batch_of_one_record_gives_it_with_its_place():
    reading, whole = Reading(), batch((result(),), (sample(),))
    (value,) = encode_parts(whole)
    assert reading.add(value) == [Published(2, 10, 11, 110, len(value), whole)]
    assert not reading.joiner.waits


def test_joiner_with_parts_gives_the_batch_with_the_last_one(parts):
    whole, encoded = parts
    reading = Reading()
    found = reading.add(*encoded)
    assert found[:-1] == [None] * (len(encoded) - 1)
    assert found[-1] == Published(2, 10, 10 + len(encoded), 109 + len(encoded), sum(map(len, encoded)), whole)
    assert reading.refused == []


def test_joiner_waits_while_parts_are_to_come(parts):
    reading = Reading()
    reading.add(parts[1][0])
    assert reading.joiner.waits


def test_joiner_at_the_end_of_the_run_gives_no_batch():
    assert Reading().add(RUN_ENDED) == [Published(2, 10, 11, 110, len(RUN_ENDED), None)]


@pytest.mark.parametrize("value", [None, b"", b"\xc3\x01", b"no batch at all", RUN_ENDED[2:], RUN_ENDED[:-1]])
def test_joiner_with_a_record_that_is_none_tells_and_goes_on(value):
    reading, (good,) = Reading(), encode_parts(batch((result(),), (sample(),)))
    bad, whole = reading.add(value, good)
    assert bad is None
    assert whole is not None
    assert [offset for offset, _ in reading.refused] == [10]


def test_joiner_with_a_part_missing_passes_over_that_batch_alone(parts):
    whole, encoded = parts
    reading, (good,) = Reading(), encode_parts(replace(whole, batch_id="e" * 32, samples=()))
    found = reading.add(encoded[0], encoded[2], good)
    assert [each.batch.batch_id for each in found if each and each.batch] == ["e" * 32]
    assert "expected part 1 of" in reading.refused[0][1]
    assert not reading.joiner.waits


def test_joiner_with_the_last_part_missing_keeps_the_batch_that_follows(parts):
    whole, encoded = parts
    reading, (good,) = Reading(), encode_parts(replace(whole, batch_id="e" * 32, samples=()))
    found = reading.add(*encoded[:-1], good)
    assert found[-1] is not None
    assert found[-1].offset == 10 + len(encoded) - 1
    assert len(reading.refused) == 1


def test_joiner_that_begins_amid_a_batch_passes_over_its_rest(parts):
    reading = Reading()
    assert reading.add(*parts[1][1:]) == [None] * (len(parts[1]) - 1)
    assert "expected part 0 of" in reading.refused[0][1]


def test_joiner_with_a_run_end_amid_a_batch_gives_the_end_and_tells_of_the_batch(parts):
    reading = Reading()
    _, ended = reading.add(parts[1][0], RUN_ENDED)
    assert ended is not None
    assert ended.batch is None
    assert len(reading.refused) == 1


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ([{"part": -1}], 1),
        ([{"part": 7, "parts": 3}], 1),
        ([{"parts": 3}, {"part": 1, "parts": 2}], 1),
        ([{"parts": 2}, {"part": 1, "parts": 3}, {"part": 2, "parts": 3}], 1),
        ([{"parts": 2}, {"part": -1, "parts": 2}], 2),
        ([{"parts": 2**31 - 1}, {"part": 2**31 - 2, "parts": 2**31 - 1}], 2),
    ],
)
def test_joiner_with_parts_that_do_not_agree_tells_and_goes_on(changes, refused):
    """Of another program: our own never write such records, but a reader must not stop at them for ever."""
    reading, (good,) = Reading(), encode_parts(batch((result(),), (sample(),)))
    part = replace(batch((result(),), (sample(),)), batch_id="e" * 32)
    found = reading.add(*(batches._encode(replace(part, **each)) for each in changes), good)
    assert found[:-1] == [None] * len(changes)
    assert found[-1] is not None
    assert len(reading.refused) == refused
