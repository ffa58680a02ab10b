"""Who owns a partition: records in the meta topic, for people and for fenced predecessors.

Ownership itself is the log's fencing; these records only name it. Each owner writes one once it has fenced.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolloutlog.eventstore.codec import decode_record, encode_record
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.log import META, Log, NewRecord, Owner, Reader, Record

RECORD = "OwnerClaimed"
META_PARTITION = 0
PREFIX = b"owner/"
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

    def by_same_process(self, other: "Claim") -> bool:
        """A process that came back after the log was away claims again, and is no successor of itself."""
        return (self.host, self.pid) == (other.host, other.pid)

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.pid}"


async def write_claim(owner: Owner, claim: Claim) -> None:
    """Say who owns the partition, in a transaction of the owner: no one who was fenced can say so later."""
    fields: Mapping[str, Any] = {name: getattr(claim, name) for name in Claim.__slots__}
    record = NewRecord(META, META_PARTITION, claim.key, encode_record(RECORD, fields))
    await owner.commit([record], {})


class Claims:
    """The owners' records of a log, as they come: read once, after that only what is new."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._reader: Reader | None = None
        self._claims: dict[bytes, list[Claim]] = {}  # by key, in the order in which owners fenced each other
        self._turn = asyncio.Lock()

    async def follower(self, claim: Claim) -> Claim | None:
        """The newest owner after the one of `claim`, None when there is none.

        A claim can be hidden for a while by a dead owner's open transaction. While ours is, nothing that is seen can
        have come after it.
        """
        async with self._turn:
            span = (await self._log.ranges(META, [META_PARTITION]))[META_PARTITION]
            if self._reader is None:
                self._reader = await self._log.reader(META, {META_PARTITION: span.first})
            while self._reader.position(META_PARTITION) < span.end:
                for record in await self._reader.fetch(wait_s=1.0):
                    self._take(record)
        claims = self._claims.get(claim.key, [])
        if claim not in claims or claim.by_same_process(claims[-1]):
            return None
        return claims[-1]

    async def successor(self, claim: Claim, *, wait_s: float) -> Claim | None:
        """The owner that fenced us, None when it has not said who it is within `wait_s`."""
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            follower = await self.follower(claim)
            if follower is not None or asyncio.get_running_loop().time() >= deadline:
                return follower
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()

    def _take(self, record: Record) -> None:
        if record.key is None or not record.key.startswith(PREFIX):
            return
        try:
            claim = Claim(**decode_record(record.value, expected=RECORD)[1])
        except InvalidEvent:
            return  # not readable to this version: as if unknown
        self._claims.setdefault(record.key, []).append(claim)
