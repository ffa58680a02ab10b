"""The run: the meta record that says which training run a log belongs to and how many partitions its events have.

Several processes may create a log at once and each write a RunCreated; the first in the log counts, for everyone. Each
has a key of its own, `run/{run_id}`: compaction keeps the last record of a key, and would otherwise turn the first into
the last.
"""

from dataclasses import asdict, dataclass

from rolloutlog.eventstore.codec import decode_record, encode_record
from rolloutlog.eventstore.errors import InvalidEvent, LogUnavailable
from rolloutlog.eventstore.log.port import META, Log, NewRecord

RECORD = "RunCreated"
READ_DEADLINE_S = 30.0

_FETCH_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Run:
    """A training run. `partitions`: of events, fixed for ever; `created_ns`: UTC nanoseconds."""

    run_id: str
    partitions: int
    created_ns: int


async def read_run(log: Log) -> Run | None:
    """The run of a log; None when none was created. Raises LogMissing when there is no meta topic, LogUnavailable."""
    reach = (await log.ranges(META, [0]))[0]
    reader = await log.reader(META, {0: reach.first})
    try:
        idle_s = 0.0
        while reader.position(0) < reach.end:
            records = await reader.fetch(wait_s=_FETCH_WAIT_S)
            for record in records:
                if run := _run_of(record.value):
                    return run
            idle_s = 0.0 if records else idle_s + _FETCH_WAIT_S
            if idle_s >= READ_DEADLINE_S:
                raise LogUnavailable(
                    f"log {log.url}: expected records of {META} up to offset {reach.end}, got none for {idle_s:.0f} s "
                    f"at offset {reader.position(0)}; try again"
                )
        return None
    finally:
        await reader.close()


async def create_run(log: Log, run: Run) -> Run:
    """Write `run`, and return the run that counts: the first in the log."""
    key = f"run/{run.run_id}".encode()
    await log.append([NewRecord(META, 0, key, encode_record(RECORD, asdict(run)))])
    return await read_run(log) or run


def _run_of(value: bytes | None) -> Run | None:
    try:
        name, fields = decode_record(value)
    except InvalidEvent:
        return None  # a deleted record, or one that a newer version wrote
    return Run(**fields) if name == RECORD else None
