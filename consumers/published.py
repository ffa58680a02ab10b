"""What stands in the batches topic, and in those of outputs: training batches, in one record or several parts, and the
end of the run.

Not here  a batch's own bytes: consumers.batches; who reads them to train: consumers.trainer
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from rolloutlog.consumers.batches import Batch, decode_part, join_parts
from rolloutlog.eventstore.codec import FRAME_BYTES, decode_record
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import RunEnded
from rolloutlog.eventstore.log import BATCHES, Log, Record
from rolloutlog.eventstore.log.reading import read_all
from rolloutlog.schemas import by_fingerprint


@dataclass(frozen=True, slots=True)
class Published:
    """A whole batch, or the end of the run, and where it stands.

    offset, end  of its first record, and after its last one
    log_time_ns  of its last record, UTC nanoseconds
    size_bytes   of all its records' values
    batch        None = the run ended: every group that was opened before is closed
    """

    partition: int
    offset: int
    end: int
    log_time_ns: int
    size_bytes: int
    batch: Batch | None


Refused = Callable[[Record, InvalidEvent], None]


class Joiner:
    """Joins the parts of batches of one partition, whose records it is given in offset order.

    on_refused  told of each record that is none, and of one that comes where a part is missing, with the reason; the
                batch that lacks a part is passed over, what comes after is not
    """

    def __init__(self, on_refused: Refused = lambda record, error: None) -> None:
        self._on_refused = on_refused
        self._parts: list[Batch] = []
        self._first = 0
        self._size_bytes = 0

    @property
    def waits(self) -> bool:
        """Whether a batch has begun whose other parts are to come."""
        return bool(self._parts)

    def add(self, record: Record) -> Published | None:
        """What is whole with this record; None while parts are to come, or when the record is refused."""
        try:
            part = _decode(record.value)
        except InvalidEvent as error:
            self._refuse(record, error)
            return None
        if self._parts and (part is None or part.part != len(self._parts) or part.batch_id != self._parts[0].batch_id):
            self._refuse(record, _missing([*self._parts, part] if part else self._parts))
        if part is None:
            size_bytes = len(record.value or b"")
            return Published(record.partition, record.offset, record.offset + 1, record.log_time_ns, size_bytes, None)
        if not self._parts and part.part != 0:
            self._refuse(record, _missing([part]))
            return None
        return self._take(part, record)

    def _take(self, part: Batch, record: Record) -> Published | None:
        if not self._parts:
            self._first, self._size_bytes = record.offset, 0
        self._parts.append(part)
        self._size_bytes += len(record.value or b"")
        if len(self._parts) < part.parts:
            return None
        try:
            batch, self._parts = join_parts(self._parts), []
        except InvalidEvent as error:  # its records do not agree in how many they are
            self._refuse(record, error)
            return None
        end = record.offset + 1
        return Published(record.partition, self._first, end, record.log_time_ns, self._size_bytes, batch)

    def _refuse(self, record: Record, error: InvalidEvent) -> None:
        self._parts = []
        self._on_refused(record, error)


def _missing(parts: list[Batch]) -> InvalidEvent:
    try:
        join_parts(parts)
    except InvalidEvent as error:
        return error
    raise AssertionError("a batch is refused only for a part that is not there")


def _decode(value: bytes | None) -> Batch | None:
    """A part of a batch; None for the end of the run."""
    schema = by_fingerprint((value or b"")[2:FRAME_BYTES])
    if schema is None or schema.name != RunEnded.record:
        return decode_part(value)
    decode_record(value)
    return None


async def read_published(
    log: Log, partition: int, *, topic: str = BATCHES, on_refused: Refused = lambda record, error: None
) -> AsyncGenerator[Published, None]:
    """All of a partition up to its end as of now. Records that are none are told and passed over."""
    joiner = Joiner(on_refused)
    async with aclosing(read_all(log, topic, partition)) as records:
        async for record in records:
            published = joiner.add(record)
            if published is not None:
                yield published
