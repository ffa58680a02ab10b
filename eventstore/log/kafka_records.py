"""Records on their way to Kafka: their sizes, their batches; and positions, checked before they travel.

Kafka's limit `max.message.bytes` counts a whole batch with its framing, the port's `record_bytes_max` only what a
caller gives. A topic is therefore created with FRAMING_BYTES more, and a batch never grows above the topic's limit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import time_ns
from typing import Any

from rolloutlog.eventstore.errors import InvalidSettings, RecordTooLarge
from rolloutlog.eventstore.log.limits import record_size
from rolloutlog.eventstore.log.port import NewRecord

FRAMING_BYTES = 4 * 1024  # what Kafka may add to one record; with more headers than fit, the record is refused
BATCH_BYTES_MAX = 512 * 1024  # before compression; a larger record travels alone

_BATCH_HEADER_BYTES = 61
_RECORD_BYTES = 36  # lengths, time and offset of a record, at most
_HEADER_BYTES = 10  # lengths of a header's name and value, at most


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What must be known of a topic before anything is sent to it. `message_bytes_max`: Kafka's limit of a batch."""

    name: str
    full_name: str
    partitions: int
    message_bytes_max: int

    @property
    def record_bytes_max(self) -> int:
        return self.message_bytes_max - FRAMING_BYTES


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one partition that travel together. `indexes`: their places in the request."""

    builder: Any
    indexes: list[int]


Lanes = dict[tuple[str, int], list[Batch]]  # by Kafka's topic name and partition; batches in order


def framed_size(record: NewRecord) -> int:
    """Upper bound of the bytes that a record takes in a batch."""
    return record_size(record) + _RECORD_BYTES + _HEADER_BYTES * len(record.headers)


def check_records(records: Sequence[NewRecord], facts: Mapping[str, TopicFacts]) -> None:
    """Raises InvalidSettings for a partition that a topic does not have, RecordTooLarge above its limit."""
    for record in records:
        topic = facts[record.topic]
        check_partition(topic, record.partition)
        size_bytes = record_size(record)
        if size_bytes > topic.record_bytes_max:
            raise RecordTooLarge(
                f"record for {topic.name}/{record.partition}: expected at most {topic.record_bytes_max} bytes with key "
                f"and headers, got {size_bytes}; nothing of this request was stored"
            )
        if framed_size(record) + _BATCH_HEADER_BYTES > topic.message_bytes_max:
            raise RecordTooLarge(
                f"record for {topic.name}/{record.partition}: expected at most {topic.message_bytes_max} bytes with "
                f"Kafka's framing, got {framed_size(record) + _BATCH_HEADER_BYTES} by its {len(record.headers)} headers"
                "; nothing of this request was stored"
            )


def check_partition(topic: TopicFacts, partition: int) -> None:
    """Raises InvalidSettings."""
    if not 0 <= partition < topic.partitions:
        raise InvalidSettings(
            f"topic {topic.name}: expected a partition from 0 to {topic.partitions - 1}, got {partition}"
        )


def pack(records: Sequence[NewRecord], facts: Mapping[str, TopicFacts], create_batch: Callable[[], Any]) -> Lanes:
    """Put checked records into batches, in order within each partition."""
    lanes: Lanes = {}
    now_ms = time_ns() // 1_000_000  # Kafka keeps its own time, but wants to see one
    for index, record in enumerate(records):
        topic = facts[record.topic]
        lane = lanes.setdefault((topic.full_name, record.partition), [])
        fits = lane and lane[-1].builder.size() + framed_size(record) <= topic.message_bytes_max
        if not fits or not _add(lane[-1].builder, record, now_ms):
            lane.append(Batch(create_batch(), []))
            _add(lane[-1].builder, record, now_ms)
        lane[-1].indexes.append(index)
    for lane in lanes.values():
        lane[-1].builder.close()  # a closed batch is sent at once
    return lanes


def _add(builder: Any, record: NewRecord, now_ms: int) -> bool:
    headers = list(record.headers)
    return builder.append(timestamp=now_ms, key=record.key, value=record.value, headers=headers) is not None
