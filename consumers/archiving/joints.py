"""Where an archive and its log meet: is the log still the one that was archived?

A topic that was deleted and made again has offsets of its own, under the same run when the meta topic was kept. What
stands at the offset of the last archived record tells, as long as the log has it.

Raises    InvalidSettings naming both records
Not here  whether both are of one run: consumers.archiving.manifest
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import NamedTuple

from rolloutlog.eventstore.errors import InvalidSettings, LogUnavailable, OffsetOutOfRange
from rolloutlog.eventstore.log import Log, Record

CHECK_S = 60.0  # above the time for which a dead owner's open transaction holds readers back
FETCH_WAIT_S = 1.0
FETCH_RECORDS = 16  # one of each partition is wanted


class Last(NamedTuple):
    """The last archived record of a partition: what of it is compared."""

    offset: int
    log_time_ns: int
    key: bytes | None
    digest: bytes

    @classmethod
    def of(cls, record: Record) -> "Last":
        tag = b"none" if record.value is None else b"some"
        value = blake2b(tag + (record.value or b""), digest_size=16).digest()
        return cls(record.offset, record.log_time_ns, record.key, value)


async def check_joints(url: str, log: Log, topic: str, lasts: Mapping[int, Last]) -> None:
    """Compare the last archived record of each partition with what the log has there, where it still has it.

    url  of the archive
    """
    waiting = dict(lasts)
    deadline = asyncio.get_running_loop().time() + CHECK_S
    while waiting:
        spans = await log.ranges(topic, list(waiting))
        waiting = {p: last for p, last in waiting.items() if spans[p].first <= last.offset < spans[p].end}
        if not waiting:
            return
        reader = await log.reader(topic, {p: last.offset for p, last in waiting.items()})
        try:
            while waiting:
                for record in await reader.fetch(wait_s=FETCH_WAIT_S, records_max=FETCH_RECORDS * len(waiting)):
                    last = waiting.pop(record.partition, None)
                    if last is not None and Last.of(record) != last:
                        raise _other(url, log, topic, record.partition, last, record)
                for partition in [p for p, last in waiting.items() if reader.position(p) > last.offset]:
                    raise _other(url, log, topic, partition, waiting[partition], None)
                if asyncio.get_running_loop().time() > deadline:
                    raise LogUnavailable(
                        f"log {log.url}: expected the records of {topic} at the end of archive {url}, got none for "
                        f"{CHECK_S:.0f} s: {', '.join(f'{topic}/{p}' for p in sorted(waiting))}",
                        maybe_stored=False,
                    )
        except OffsetOutOfRange:
            continue  # retention was faster: what it removed cannot be compared
        finally:
            await reader.close()


def _other(url: str, log: Log, topic: str, partition: int, last: Last, found: Record | None) -> InvalidSettings:
    got = "none" if found is None else "the same offset with other bytes"
    if found is not None and found.offset != last.offset:
        got = f"none, and then offset {found.offset}"
    elif found is not None and found.log_time_ns != last.log_time_ns:
        got = f"one of {_time(found.log_time_ns)}"
    return InvalidSettings(
        f"log {log.url}: {topic}/{partition}: expected at offset {last.offset} the record of {_time(last.log_time_ns)} "
        f"with which archive {url} ends, got {got}: the topic was made anew since it was archived, under the same run; "
        "nothing was written. Archive it to another folder or URL; this archive is whole, and can be replayed alone"
    )


def _time(time_ns: int) -> str:
    whole = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{time_ns % 1_000_000_000:09}Z"
