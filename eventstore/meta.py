"""The run: the meta record that says which training run a log belongs to and how many partitions its events have.

Several processes may create a log at once and each write a RunCreated; the first in the log counts, for everyone. Each
has a key of its own, `run/{run_id}`: compaction keeps the last record of a key, and would otherwise turn the first into
the last.
"""

from contextlib import aclosing
from dataclasses import asdict, dataclass

from rolloutlog.eventstore.codec import decode_record, encode_record
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.log.port import META, Log, NewRecord
from rolloutlog.eventstore.log.reading import read_all

RECORD = "RunCreated"


@dataclass(frozen=True, slots=True)
class Run:
    """A training run. `partitions`: of events, fixed for ever; `created_ns`: UTC nanoseconds."""

    run_id: str
    partitions: int
    created_ns: int


async def read_run(log: Log) -> Run | None:
    """The run of a log; None when none was created. Raises LogMissing when there is no meta topic, LogUnavailable."""
    async with aclosing(read_all(log, META)) as records:
        async for record in records:
            if run := _run_of(record.value):
                return run
    return None


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
