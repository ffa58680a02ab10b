"""Who owns a partition: records in the meta topic, for people and for fenced predecessors.

Ownership itself is the log's fencing; these records only name it. Each owner writes one once it has fenced.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolloutlog.eventstore.codec import decode_record, encode_record
from rolloutlog.eventstore.errors import InvalidEvent, StoreError
from rolloutlog.eventstore.log import META, Log, NewRecord, Owner, Range, Reader, Record

RECORD = "OwnerClaimed"
META_PARTITION = 0
WHOLE_TOPIC = -1  # the partition in the claim of a topic's owner as a whole
PREFIX = b"owner/"
POLL_S = 0.2
SUCCESSOR_WAIT_S = 5.0


class FencedOut(StoreError):
    """Another process took over what this one owned; the text names it. Nothing of ours was stored after that."""


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
    """The owners' records of a log, as they come: read once, after that only what is new.

    first  offset of meta to read from, below the claim that will be asked about; None = all of it
    """

    def __init__(self, log: Log, first: int | None = None) -> None:
        self._log = log
        self._next = first or 0
        self._reader: Reader | None = None
        self._claims: dict[bytes, list[Claim]] = {}  # by key, in the order in which owners fenced each other
        self._turn = asyncio.Lock()

    async def newest(self, claim: Claim) -> Claim | None:
        """The newest owner since the one of `claim`, which may be that one; None while its claim is not to be seen.

        A claim can be hidden for a while by a dead owner's open transaction. While ours is, nothing that is seen can
        have come after it.
        """
        claims = await self.all(claim.key)
        return claims[-1] if claim in claims else None

    async def all(self, key: bytes) -> list[Claim]:
        """The claims of this key that are to be seen now, in the order in which they were made."""
        async with self._turn:
            span = (await self._log.ranges(META, [META_PARTITION]))[META_PARTITION]
            try:
                await self._read_to(span)
            except StoreError:
                await self._drop_reader()  # the next one goes on where this one was, or where the log begins by then
                raise
        return list(self._claims.get(key, ()))

    async def follower(self, claim: Claim) -> Claim | None:
        """The newest owner after the one of `claim`, of another process; None when there is none."""
        newest = await self.newest(claim)
        return None if newest is None or claim.by_same_process(newest) else newest

    async def successor(self, claim: Claim, *, wait_s: float) -> Claim | None:
        """The owner that fenced us, None when it has not said who it is within `wait_s`."""
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            follower = await self.follower(claim)
            if follower is not None or asyncio.get_running_loop().time() >= deadline:
                return follower
            await asyncio.sleep(POLL_S)

    async def successor_named(self, claim: Claim | None, logger: logging.Logger) -> str:
        """The owner that fenced us, for an error's text; `unknown` when it does not say so, or cannot be read."""
        successor = None
        if claim is not None:
            try:
                successor = await self.successor(claim, wait_s=SUCCESSOR_WAIT_S)
            except StoreError:
                logger.warning("partition %d: the successor's name could not be read", claim.partition)
        return str(successor or "unknown")

    async def close(self) -> None:
        await self._drop_reader()

    async def _read_to(self, span: Range) -> None:
        if self._reader is None:
            self._next = max(span.first, self._next)
            self._reader = await self._log.reader(META, {META_PARTITION: self._next})
        while self._next < span.end:
            for record in await self._reader.fetch(wait_s=1.0):
                self._take(record)
            self._next = self._reader.position(META_PARTITION)

    async def _drop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    def _take(self, record: Record) -> None:
        if record.key is None or not record.key.startswith(PREFIX):
            return
        try:
            claim = Claim(**decode_record(record.value, expected=RECORD)[1])
        except InvalidEvent:
            return  # not readable to this version: as if unknown
        self._claims.setdefault(record.key, []).append(claim)
