"""The topics of a log: how they are set, and how they and the run are created.

Every log holds the same six topics. Batches, dead letters and rewards have as many partitions as events, because each
partition's output stays in the partition of the same number.
"""

from collections.abc import Callable, Mapping
from time import time_ns

from rolloutlog.eventstore.errors import LogMissing, PartitionCountChanged
from rolloutlog.eventstore.log.port import (
    ACKS,
    BATCHES,
    DEAD_LETTERS,
    EVENTS,
    META,
    REWARDS,
    Log,
    TopicSettings,
    parse_url,
)
from rolloutlog.eventstore.meta import Run, create_run, read_run
from rolloutlog.eventstore.settings import EVENT_BYTES_MAX, RECORD_OVERHEAD_BYTES
from rolloutlog.eventstore.source import new_id

PARTITIONS = 32
PARTITIONS_EMBEDDED = 4  # one machine; the development broker takes as many

_DAY_S = 24 * 3600
RETENTION_S: Mapping[str, int | None] = {
    EVENTS: 7 * _DAY_S,
    REWARDS: 30 * _DAY_S,
    BATCHES: 3 * _DAY_S,
    ACKS: 30 * _DAY_S,
    DEAD_LETTERS: 7 * _DAY_S,
    META: None,
}


def partitions_default(url: str) -> int:
    """Partition count of events in a log that is created without saying."""
    return PARTITIONS_EMBEDDED if parse_url(url).scheme == "sqlite" else PARTITIONS


def topic_settings(
    *,
    partitions: int,
    event_bytes_max: int = EVENT_BYTES_MAX,
    retention_s: Mapping[str, int | None] | None = None,
) -> list[TopicSettings]:
    """Settings of all topics.

    retention_s  seconds by topic where they differ from RETENTION_S; None = kept for ever
    """
    kept = {**RETENTION_S, **(retention_s or {})}
    return [
        TopicSettings(
            name,
            partitions=1 if name in (META, ACKS) else partitions,
            retention_s=kept[name],
            # A dead letter is a record as it came, with two headers more.
            record_bytes_max=event_bytes_max + RECORD_OVERHEAD_BYTES * (2 if name == DEAD_LETTERS else 1),
            cleanup="compact" if name == META else "delete",
        )
        for name in (EVENTS, BATCHES, DEAD_LETTERS, REWARDS, ACKS, META)
    ]


async def create_topics(
    log: Log,
    *,
    partitions: int | None = None,
    event_bytes_max: int = EVENT_BYTES_MAX,
    retention_s: Mapping[str, int | None] | None = None,
    run_id: str | None = None,
    clock: Callable[[], int] = time_ns,
) -> Run:
    """Create the topics that are missing, and the run when there is none; safe in several processes at once.

    partitions  of events; None = what the log has, for a new one `partitions_default`
    run_id      of a run that is created; None = 32 random hex digits
    Returns     the run that counts, which another process may have created
    Raises      PartitionCountChanged when events has another partition count than wanted, or than the run
    """
    wanted = await _present(log) or partitions_default(log.url) if partitions is None else partitions
    await log.create(topic_settings(partitions=wanted, event_bytes_max=event_bytes_max, retention_s=retention_s))
    found = await log.partitions(EVENTS)
    if partitions is not None and found != partitions:
        raise PartitionCountChanged(
            f"log {log.url}: expected {partitions} partitions of {EVENTS}, got {found}; the count is fixed when a log "
            "is created: use a new prefix or file"
        )
    run = await read_run(log)
    if run is None:
        run = await create_run(log, Run(run_id or new_id(), found, clock()))
    check_partitions(run, found, log.url)
    return run


async def _present(log: Log) -> int | None:
    """The partition count that the log has: of its run, else of its events, else none."""
    try:
        run = await read_run(log)
        return run.partitions if run is not None else await log.partitions(EVENTS)
    except LogMissing:
        pass
    try:
        return await log.partitions(EVENTS)
    except LogMissing:
        return None


def check_partitions(run: Run, found: int, url: str) -> None:
    """Raise PartitionCountChanged when events has another partition count than when the run was created."""
    if run.partitions != found:
        raise PartitionCountChanged(
            f"log {url}: expected {run.partitions} partitions of {EVENTS}, as run {run.run_id} was created with, got "
            f"{found}; keys would move and groups would be torn: nothing was published; use a new prefix or file"
        )
