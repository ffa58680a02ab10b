"""The run: the meta record that says which training run a log belongs to and how many partitions its events have.

Several processes may create a log at once and each write a RunCreated; the first in the log counts, for everyone. Each
has a key of its own, `run/{run_id}`: compaction keeps the last record of a key, and would otherwise turn the first into
the last.
"""

from contextlib import aclosing
from dataclasses import asdict, dataclass

from rolloutlog.eventstore.codec import decode_record, encode_record
from rolloutlog.eventstore.errors import InvalidEvent, UnknownSchema
from rolloutlog.eventstore.log.port import META, Log, NewRecord
from rolloutlog.eventstore.log.reading import read_all

RECORD = "RunCreated"
PREFIX = b"run/"


@dataclass(frozen=True, slots=True)
class Run:
    """A training run. `partitions`: of events, fixed for ever; `created_ns`: UTC nanoseconds."""

    run_id: str
    partitions: int
    created_ns: int


async def read_run(log: Log) -> Run | None:
    """The run of a log; None when none was created.

    Raises  LogMissing when there is no meta topic, LogUnavailable, UnknownSchema when a newer version created the run:
            another one beside it would split the log's users in two
    """
    async with aclosing(read_all(log, META)) as records:
        async for record in records:
            if run := _run_of(record.key, record.value):
                return run
    return None


async def create_run(log: Log, run: Run) -> Run:
    """Write `run`, and return the run that counts: the first in the log."""
    key = PREFIX + run.run_id.encode()
    await log.append([NewRecord(META, 0, key, encode_record(RECORD, asdict(run)))])
    return await read_run(log) or run


def _run_of(key: bytes | None, value: bytes | None) -> Run | None:
    try:
        name, fields = decode_record(value)
    except UnknownSchema as error:
        if key is not None and key.startswith(PREFIX):
            raise UnknownSchema(
                f"run of the log (topic {META}, key {key.decode(errors='replace')}): {error}"
            ) from error
        return None  # something else that a newer version wrote
    except InvalidEvent:
        return None  # a deleted record
    return Run(**fields) if name == RECORD else None
