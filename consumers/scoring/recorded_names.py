"""Whose recorded rewards count in a replay: names and versions of scorers, from the rewards topic, for people.

Of each rollout the version of a scorer that was recorded last counts. Whether its set is whole is looked at only by
who uses it: consumers.scoring.recorded.
"""

from collections.abc import Collection, Sequence
from contextlib import aclosing, suppress

from rolloutlog.eventstore.codec import HEADER, decode_event, parse_header
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import RewardRecorded
from rolloutlog.eventstore.log import REWARDS, Log, Record
from rolloutlog.eventstore.log.reading import read_range

Named = tuple[str, str | None]  # a scorer and its version


async def recorded_names(log: Log, ends: Sequence[int], *, without: Collection[str] = ()) -> tuple[Named, ...]:
    """Scorers whose rewards are recorded below `ends`, by partition; those named in `without` are left out."""
    partitions = [partition for partition, end in enumerate(ends) if end > 0]
    spans = await log.ranges(REWARDS, partitions) if partitions else {}
    found: set[Named] = set()
    for partition in partitions:
        newest: dict[tuple[str, int, str], str | None] = {}
        end = min(ends[partition], spans[partition].end)
        async with aclosing(read_range(log, REWARDS, partition, spans[partition].first, end)) as records:
            async for record in records:
                with suppress(InvalidEvent):
                    _take(record, without, newest)
        found.update((scorer, version) for (_, _, scorer), version in newest.items())
    return tuple(sorted(found, key=lambda each: (each[0], each[1] or "")))


def _take(record: Record, without: Collection[str], newest: dict[tuple[str, int, str], str | None]) -> None:
    header = parse_header(dict(record.headers).get(HEADER))
    scorer = header.source.rpartition(".")[0]
    if header.kind != RewardRecorded.record or record.value is None or scorer in without:
        return
    event = decode_event(RewardRecorded.record, record.value)
    assert isinstance(event, RewardRecorded)
    newest[header.rollout_id, header.attempt, scorer] = event.scorer_version
