"""Reads two outputs side by side, partition by partition, once each.

1. find both topics, and how each was made
2. per partition: read the side with fewer records and keep its groups, packed
3. read the other side beside it, and compare what is in both; what is left is in one alone

Memory  packed groups of one partition of one side, and what consumers.comparing.comparison says
"""

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing

from rolloutlog.consumers.comparing.comparison import EXAMPLES, Compared, Comparison
from rolloutlog.consumers.comparing.held import HeldGroup, held_group
from rolloutlog.consumers.comparing.made import side_of
from rolloutlog.consumers.comparing.pairing import Pairing
from rolloutlog.consumers.comparing.sides import Side, Sides
from rolloutlog.consumers.published import Refused, read_published
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.used_settings import read_used
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.log import Log, Record

OnProgress = Callable[[str, int, int], None]
Which = Callable[[int], Sequence[int]]


async def compare_outputs(
    log: Log,
    before: str,
    after: str,
    *,
    which: Which = range,
    names: Collection[str] = (),
    top: int = EXAMPLES,
    candidates: Sequence[FoldSettings] = (),
    on_refused: Refused = lambda record, error: None,
    on_progress: OnProgress = lambda topic, done, total: None,
) -> tuple[Compared, Sides]:
    """Compare two outputs by name, `live` being what was assembled, up to their ends as of now.

    which       partitions to read, of so many
    candidates  settings that live batches may have been made with, to be told by their hash
    Raises      InvalidSettings naming the outputs that exist
    """
    sides = [await side_of(log, name) for name in (before, after)]
    counts = [await log.partitions(side.topic) for side in sides]
    found = Comparison(names=names, top=top)
    repeated = 0
    partitions = which(max(counts))
    spans = [
        await log.ranges(side.topic, [each for each in partitions if each < count])
        for side, count in zip(sides, counts, strict=True)
    ]
    sizes = [{partition: span.end - span.first for partition, span in each.items()} for each in spans]
    reading = _Reading(log, sides, on_refused, on_progress, sum(sum(each.values()) for each in sizes))
    for partition in partitions:
        pairing = Pairing()
        waiting = int(sizes[1].get(partition, 0) < sizes[0].get(partition, 0))
        for side in (waiting, 1 - waiting):
            if partition not in spans[side]:
                continue
            async with aclosing(reading.groups(side, partition, sizes[side][partition])) as groups:
                async for group in groups:
                    if side == waiting:
                        pairing.wait(group)
                        continue
                    matched = pairing.match(group)
                    found.add_pairs(matched.pairs if waiting == 0 else [pair[::-1] for pair in matched.pairs])
                    for rollout in matched.alone:
                        found.add_alone(side, rollout)
        for rollout in pairing.rest():
            found.add_alone(waiting, rollout)
        repeated += pairing.repeated
    candidates = (*await read_used(log), *candidates)
    for each in sides:
        _know_settings(each, candidates)
    return found.result(), Sides(sides[0], sides[1], repeated)


class _Reading:
    """Reads groups of both sides, counts them, and says how far it is."""

    def __init__(
        self, log: Log, sides: Sequence[Side], on_refused: Refused, on_progress: OnProgress, total: int
    ) -> None:
        self._log, self._sides, self._on_refused, self._on_progress = log, sides, on_refused, on_progress
        self._done, self._total = 0, total

    async def groups(self, side: int, partition: int, size: int) -> AsyncGenerator[HeldGroup, None]:
        """The groups of a partition, which has about `size` records."""
        read = self._sides[side]

        def refused(record: Record, error: InvalidEvent) -> None:
            read.refused += 1
            self._on_refused(record, error)

        first: int | None = None
        reading = read_published(self._log, partition, topic=read.topic, on_refused=refused)
        async with aclosing(reading) as published:
            async for each in published:
                first = each.offset if first is None else first
                if each.batch is not None:
                    read.batches += 1
                    read.rollouts += len(each.batch.rollouts)
                    read.hashes[each.batch.config_hash] += 1
                    yield held_group(each.batch)
                self._on_progress("batches", min(self._total, self._done + each.end - first), self._total)
        self._done += size


def _know_settings(side: Side, candidates: Sequence[FoldSettings]) -> None:
    if side.settings is None and len(side.hashes) == 1:
        known = (each.canonical() for each in candidates if each.config_hash in side.hashes)
        side.settings = next(known, None)
