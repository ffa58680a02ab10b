"""Where an owner of a partition begins: L and P as committed, or found again from what is out.

Not here  the text of a committed position: consumers.position
"""

import logging
from contextlib import suppress
from dataclasses import replace

from rolloutlog.consumers.origin import Origin, origin_of
from rolloutlog.consumers.position import PositionRefused, Progress, from_position
from rolloutlog.consumers.settings import FOLD_VERSION
from rolloutlog.eventstore.errors import InvalidEvent, OffsetOutOfRange, StoreError
from rolloutlog.eventstore.log import BATCHES, DEAD_LETTERS, EVENTS, Log, Owner, Range
from rolloutlog.eventstore.log.reading import read_range

logger = logging.getLogger("rolloutlog.assembler")


class HistoryLost(StoreError):
    """Events that the committed position needs are gone."""


async def starting_point(log: Log, owner: Owner, partition: int, span: Range, *, skip_lost: bool) -> Progress:
    """L and P of a partition whose events span `span`, read after `owner` had fenced its predecessor.

    skip_lost  go on without events that retention removed; else they are HistoryLost
    Raises     PositionRefused for a position that is not ours, of another version, or above the log's end
    """
    where = f"assembler, partition {partition} of {EVENTS}"
    position = (await owner.positions()).get(partition)
    if position is None:
        progress = Progress(span.first, max(span.first, await _last_trigger(log, partition) + 1))
    else:
        progress = from_position(position, where=where, crossing=True)
        if progress.emptied:
            logger.warning(
                "%s: metadata was emptied; outputs from offset %d on are published again", where, progress.position
            )
    if progress.position > span.written:
        raise PositionRefused(
            f"{where}: expected a position of at most {span.written}, where the log ends, got {progress.position}: "
            "the topic was made anew, or lost its end. What is below the position would be taken for published: "
            "reset the group's offsets, or start a new prefix"
        )
    if progress.fold_version != FOLD_VERSION:
        logger.warning(
            "%s: fold version %d goes on from %d where version %d left no group open",
            where, FOLD_VERSION, progress.position, progress.fold_version,
        )  # fmt: skip
        progress = replace(progress, crossing=progress.position, fold_version=FOLD_VERSION)
    if progress.watermark >= span.first:
        return progress
    lost = f"{where}: events {progress.watermark}-{span.first - 1} are gone, where the committed position begins"
    if not skip_lost:
        raise HistoryLost(f"{lost}. Start with --on-history-lost skip to go on without them, or replay from an archive")
    logger.warning("%s; going on without them", lost)
    return replace(progress, watermark=span.first, position=max(progress.position, span.first), emptied=False)


async def _last_trigger(log: Log, partition: int) -> int:
    """The highest trigger of a partition's outputs, -1 when there is none."""
    origins = [await last_origin(log, topic, partition) for topic in (BATCHES, DEAD_LETTERS)]
    return max((origin.trigger for origin in origins if origin is not None), default=-1)


async def last_origin(log: Log, topic: str, partition: int) -> Origin | None:
    """Where the last output of a partition comes from, None when there is none. Looks back in growing strides.

    Records without a readable origin are of others, and passed over. Raises LogUnavailable when the log goes silent.
    """
    span = (await log.ranges(topic, [partition]))[partition]
    stride = 1
    while span.first < span.end:
        start = max(span.first, span.end - stride)
        last = None
        try:
            async for record in read_range(log, topic, partition, start, span.end):
                with suppress(InvalidEvent):
                    last = origin_of(record)
        except OffsetOutOfRange:
            span = (await log.ranges(topic, [partition]))[partition]  # retention moved on meanwhile
            continue
        if last is not None or start == span.first:
            return last
        stride *= 8
    return None
