"""Read past a record that the driver can't decode, so that no partition is ever stuck.

Kafka's header names are text, but a broker stores what it is given. The driver decodes them while it walks a batch and
stops at one that is not UTF-8, for ever at the same record. Here the batch is read by the driver's own rules (CRC,
aborted transactions, markers), with records parsed one by one; one with such a name is given without headers, for the
reader to treat as what it is: a record that lacks what ours have.
"""

import logging
from collections.abc import Iterator
from typing import Any

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchPy, _DefaultRecordPy
from aiokafka.record.util import decode_varint

from rolloutlog.eventstore.errors import StoreError
from rolloutlog.eventstore.log.kafka_cluster import Cluster

_LENGTH_AT, _LOG_OVERHEAD = 8, 12  # of a batch: offset int64, length int32, then so many bytes

logger = logging.getLogger(__name__)

undecodable_count = 0  # in this process


async def read_undecodable(
    cluster: Cluster, topic: str, partition: int, offset: int, *, bytes_max: int, records_max: int
) -> tuple[list[Any], int]:
    """Fetch from `offset` on and read with the means of this module.

    Returns  the driver's records, headers left out where they can't be decoded, and the offset after them
    Raises   StoreError for a damaged batch, naming the place
    """
    aborted, stored = await cluster.fetch(topic, partition, offset, bytes_max=bytes_max)
    where = TopicPartition(cluster.settings.full_name(topic), partition)
    batches = _Batches(stored, f"{topic}/{partition}")
    walk: Any = PartitionRecords  # without types
    records = walk(where, batches, aborted, offset, None, None, True, READ_COMMITTED)
    found: list[Any] = []
    try:
        for record in records:
            found.append(record)
            if len(found) == records_max:
                break
    except (CorruptRecordException, IndexError) as error:
        if not found:
            raise StoreError(
                f"log {cluster.settings.url}: damaged record in {topic}/{partition} at or after offset "
                f"{records.next_fetch_offset}: {error}; check the broker's disk, then read on from a later offset"
            ) from error
    return found, records.next_fetch_offset


class _Batches:
    """The batches of a fetched set, as the driver's fetcher walks them."""

    def __init__(self, stored: bytes, where: str) -> None:
        self._batches = self._split(stored)
        self._next = next(self._batches, None)
        self._where = where

    def has_next(self) -> bool:
        return self._next is not None

    def next_batch(self) -> "_Batch":
        assert self._next is not None
        batch, self._next = _Batch(self._next, self._where), next(self._batches, None)
        return batch

    @staticmethod
    def _split(stored: bytes) -> Iterator[bytes]:
        at = 0
        while at + _LOG_OVERHEAD <= len(stored):
            length = int.from_bytes(stored[at + _LENGTH_AT : at + _LOG_OVERHEAD], "big")
            end = at + _LOG_OVERHEAD + length
            if end > len(stored):  # a fetch may end within a batch
                return
            yield stored[at:end]
            at = end


class _Batch:
    """One batch; unknown names come from the driver's own class."""

    def __init__(self, stored: bytes, where: str) -> None:
        self._batch = _DefaultRecordBatchPy(stored)
        self._where = where

    def __getattr__(self, name: str) -> Any:
        if name == "producer_id" and self._batch.producer_id < 0:
            return None
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        """The first record, of a control batch."""
        return next(iter(self))

    def __iter__(self) -> Iterator[Any]:
        batch = self._batch
        batch._maybe_uncompress()
        buffer, at = batch._buffer, batch._pos
        for _ in range(batch._num_records):
            length, at = decode_varint(buffer, at)
            yield self._parse(buffer, at)
            at += length

    def _parse(self, buffer: bytearray, at: int) -> Any:
        batch = self._batch
        time_delta, at = decode_varint(buffer, at + 1)  # after the attributes, which have no meaning yet
        offset_delta, at = decode_varint(buffer, at)
        key, at = _bytes(buffer, at)
        value, at = _bytes(buffer, at)
        count, at = decode_varint(buffer, at)
        headers: list[tuple[str, bytes | None]] = []
        offset = batch.base_offset + offset_delta
        try:
            for _ in range(count):
                name, at = _bytes(buffer, at)
                header, at = _bytes(buffer, at)
                headers.append(((name or b"").decode(), header))
        except UnicodeDecodeError:
            global undecodable_count
            undecodable_count += 1
            headers = []
            logger.warning(
                "%s: record at offset %d has a header name that is not UTF-8; read without its headers",
                self._where,
                offset,
            )
        append_time = batch.timestamp_type == batch.LOG_APPEND_TIME
        time_ms = batch.max_timestamp if append_time else batch.first_timestamp + time_delta
        return _DefaultRecordPy(offset, time_ms, batch.timestamp_type, key, value, headers)


def _bytes(buffer: bytearray, at: int) -> tuple[bytes | None, int]:
    length, at = decode_varint(buffer, at)
    return (None, at) if length < 0 else (bytes(buffer[at : at + length]), at + length)
