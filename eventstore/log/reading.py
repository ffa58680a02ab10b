"""Reading a partition up to an end: what is stored there now, and no more.

A log that goes silent before the end is an error, never an end. Whoever leaves a loop over these early closes it, with
`contextlib.aclosing`: the reader behind it would stay open until the garbage collector comes.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from rolloutlog.eventstore.errors import LogUnavailable
from rolloutlog.eventstore.log.port import Log, Record

SILENT_S = 30.0

_FETCH_WAIT_S = 1.0


async def read_all(
    log: Log, topic: str, partition: int = 0, *, silent_s: float = SILENT_S
) -> AsyncGenerator[Record, None]:
    """All committed records of a partition up to its end as of now, in offset order. Raises as `read_range`."""
    span = (await log.ranges(topic, [partition]))[partition]
    async with aclosing(read_range(log, topic, partition, span.first, span.end, silent_s=silent_s)) as records:
        async for record in records:
            yield record


async def read_range(
    log: Log, topic: str, partition: int, first: int, end: int, *, silent_s: float = SILENT_S
) -> AsyncGenerator[Record, None]:
    """Committed records with first <= offset < end, in offset order.

    silent_s  seconds without any record after which the log counts as unavailable
    Raises    LogUnavailable; OffsetOutOfRange when `first` is not there (any more), or `end` is above the log's
    """
    if first >= end:
        return
    reader = await log.reader(topic, {partition: first})
    try:
        silent = 0.0
        while reader.position(partition) < end:
            records = await reader.fetch(wait_s=_FETCH_WAIT_S)
            for record in records:
                if record.offset >= end:
                    return
                yield record
            silent = 0.0 if records else silent + _FETCH_WAIT_S
            if silent >= silent_s:
                raise LogUnavailable(
                    f"log {log.url}: expected records of {topic}, partition {partition}, up to offset {end}, got none "
                    f"for {silent:.0f} s at offset {reader.position(partition)}; try again"
                )
    finally:
        await reader.close()
