"""Header `o` of outputs."""

import pytest

from rolloutlog.consumers.origin import Origin, origin_of
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.log import BATCHES, Record


def record(*headers: tuple[str, bytes | None]) -> Record:
    return Record(BATCHES, 3, 8, 0, b"g", b"", headers)


def test_origin_text_is_partition_trigger_first_event_hash_part_and_parts():
    assert Origin(3, 17, 4, "abc", 1, 2).text() == b"3/17/4/abc/1/2"


def test_origin_written_and_read_is_the_same():
    assert origin_of(record(("o", b"3/17/4/abc/1/2"))) == Origin(3, 17, 4, "abc", 1, 2)


@pytest.mark.parametrize("value", [None, b"", b"3/17/4/abc/1", b"3/17/4/abc/1/2/3", b"a/17/4/abc/1/2", b"\xff"])
def test_origin_that_is_no_origin_is_refused_by_place(value: bytes | None):
    with pytest.raises(InvalidEvent, match=r"in header o \(topic batches, offset 3:8\)"):
        origin_of(record(("o", value)))


def test_origin_of_a_record_without_header_is_refused():
    with pytest.raises(InvalidEvent, match="got b''"):
        origin_of(record())
