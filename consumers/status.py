"""Where assemblers are: a record a partition in the meta topic, written every few seconds, for people who look on.

Statuses say what a process sees; nothing reads them to decide. Sums that have to hold come from topics:
consumers.ledger.
"""

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from rolloutlog.consumers.owners import PREFIX as OWNER_PREFIX
from rolloutlog.consumers.owners import RECORD as CLAIM_RECORD
from rolloutlog.consumers.owners import Claim
from rolloutlog.consumers.state import PartitionState
from rolloutlog.consumers.waiting import describe_open
from rolloutlog.eventstore.codec import decode_record, encode_record
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.log import EVENTS, META, Log, NewRecord, Record
from rolloutlog.eventstore.log.reading import read_range

RECORD = "AssemblerStatus"
APP = "assembler"
META_PARTITION = 0
WAITING_GROUPS = 8
LINE_CHARACTERS_MAX = 1_000
WAITING_BYTES_MAX = 48 * 1024  # of all lines; ids may be long, and a status is written often
TAIL_RECORDS = 4_096  # of meta, read first; twice as many again until every partition is found


@dataclass(frozen=True, slots=True)
class Status:
    """One partition of one assembler. Fields and units: schemas/AssemblerStatus.v3.avsc."""

    app: str
    partition: int
    host: str
    pid: int
    time_ns: int
    position: int
    watermark: int
    end: int
    open_rollouts: int
    open_groups: int
    oldest_open_ns: int | None
    counts: Mapping[str, int]
    waiting: tuple[str, ...]
    ended: bool = False

    @property
    def lag(self) -> int:
        """Offsets up to the end seen then: events, and on Kafka the markers of transactions."""
        return max(0, self.end - self.position)


def status_of(
    state: PartitionState, claim: Claim, *, position: int, end: int, counts: Mapping[str, int], time_ns: int
) -> Status:
    """What a worker says of its partition.

    position  every output triggered below it is out
    counts    events and outputs by name since the process began
    """
    oldest = next(iter(state.groups.values()), None)
    return Status(
        app=claim.app,
        partition=state.partition,
        host=claim.host,
        pid=claim.pid,
        time_ns=time_ns,
        position=position,
        watermark=min(state.watermark(), position),
        end=end,
        open_rollouts=state.open_rollouts,
        open_groups=len(state.groups),
        oldest_open_ns=None if oldest is None else oldest.first_ns,
        counts=dict(counts),
        waiting=_bounded(describe_open(state, groups_max=WAITING_GROUPS)),
    )


def status_record(status: Status) -> NewRecord:
    """The record to append: the newest of its key counts."""
    fields: dict[str, Any] = {name: getattr(status, name) for name in Status.__slots__}
    return NewRecord(META, META_PARTITION, status_key(status.app, status.partition), encode_record(RECORD, fields))


def status_key(app: str, partition: int) -> bytes:
    return f"status/{app}/{partition}".encode()


async def read_statuses(log: Log, *, partitions: int | None = None, app: str = APP) -> dict[int, Status]:
    """The newest status of each partition; of the partition's newest owner, where that has written one.

    One that was fenced may not have noticed yet, and goes on writing for some seconds.

    partitions  how many there are: reading from the end stops when all are found; None = all of meta is read
    """
    span = (await log.ranges(META, [META_PARTITION]))[META_PARTITION]
    wanted, count = partitions, TAIL_RECORDS
    while True:
        first = span.first if wanted is None else max(span.first, span.end - count)
        found = _Newest(app)
        async with aclosing(read_range(log, META, META_PARTITION, first, span.end)) as records:
            async for record in records:
                found.add(record)
        if first == span.first or len(found.by_partition) == wanted:
            return found.statuses()
        count *= 2


class _Newest:
    def __init__(self, app: str) -> None:
        self._app = app
        self._owners: dict[int, tuple[str, int]] = {}
        self.by_partition: dict[int, dict[tuple[str, int], Status]] = {}

    def add(self, record: Record) -> None:
        key = record.key or b""
        try:
            if key.startswith(f"status/{self._app}/".encode()):
                if record.value is None:  # its output was deleted
                    self.by_partition.pop(int(key.rpartition(b"/")[2]), None)
                    return
                status = _status(record.value)
                by_process = self.by_partition.setdefault(status.partition, {})
                process = (status.host, status.pid)
                by_process.pop(process, None)  # to the end: the last one is the newest
                by_process[process] = status
            elif key.startswith(OWNER_PREFIX + f"{self._app}/{EVENTS}/".encode()):
                claim = Claim(**decode_record(record.value, expected=CLAIM_RECORD)[1])
                self._owners[claim.partition] = (claim.host, claim.pid)
        except InvalidEvent:
            return  # a deleted record, or one that a newer version wrote

    def statuses(self) -> dict[int, Status]:
        found = {}
        for partition, by_process in sorted(self.by_partition.items()):
            newest = next(reversed(by_process.values()))
            found[partition] = by_process.get(self._owners.get(partition, ("", 0)), newest)
        return found


def _status(value: bytes | None) -> Status:
    fields = decode_record(value, expected=RECORD)[1]
    fields["waiting"] = tuple(fields["waiting"])
    return Status(**fields)


def _bounded(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines, each cut to LINE_CHARACTERS_MAX, and as many as WAITING_BYTES_MAX lets in."""
    kept: list[str] = []
    size_bytes = 0
    for line in lines:
        cut = line if len(line) <= LINE_CHARACTERS_MAX else f"{line[: LINE_CHARACTERS_MAX - 4]} ..."
        size_bytes += len(cut.encode("utf-8", "replace"))
        if size_bytes > WAITING_BYTES_MAX:
            break
        kept.append(cut)
    return tuple(kept)
