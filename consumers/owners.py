"""Who owns a partition: records in the meta topic, for people and for fenced predecessors.

Ownership itself is the log's fencing; these records only name it. Each owner writes one once it has fenced.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolloutlog.eventstore.codec import decode_record, encode_record
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.log import META, Log, NewRecord

RECORD = "OwnerClaimed"
META_PARTITION = 0
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Claim:
    """One owner's record. Fields: schemas/OwnerClaimed.v1.avsc."""

    app: str
    topic: str
    partition: int
    host: str
    pid: int
    time_ns: int

    @property
    def key(self) -> bytes:
        return f"owner/{self.app}/{self.topic}/{self.partition}".encode()

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.pid}"


async def write_claim(log: Log, claim: Claim) -> None:
    fields: Mapping[str, Any] = {name: getattr(claim, name) for name in Claim.__slots__}
    await log.append([NewRecord(META, META_PARTITION, claim.key, encode_record(RECORD, fields))])


async def newest_claim(log: Log, claim: Claim) -> Claim | None:
    """The last record of the partition that `claim` is about, whoever wrote it."""
    ends = (await log.ranges(META, [META_PARTITION]))[META_PARTITION]
    reader = await log.reader(META, {META_PARTITION: ends.first})
    newest = None
    try:
        while reader.position(META_PARTITION) < ends.end:
            for record in await reader.fetch(wait_s=1.0):
                if record.key == claim.key:
                    try:
                        newest = Claim(**decode_record(record.value, expected=RECORD)[1])
                    except InvalidEvent:
                        continue  # not readable to this version: as if unknown
    finally:
        await reader.close()
    return newest


async def successor_of(log: Log, claim: Claim, *, wait_s: float) -> Claim | None:
    """The owner that fenced us, None when it has not said who it is within `wait_s`."""
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        newest = await newest_claim(log, claim)
        if newest is not None and newest != claim:
            return newest
        if asyncio.get_running_loop().time() >= deadline:
            return None
        await asyncio.sleep(POLL_S)
