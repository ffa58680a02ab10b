"""Published rollouts under two settings: how many rewards move, and what that makes of the calls' totals.

`survey(log, ...)` reads the events once, partition by partition, and folds them again beside the batches, which say
what was published. Each rollout is attributed twice, taken into the sums, and let go.

Memory    open rollouts of one partition, the sums, the ids that were asked for; of an output, recorded rewards
Compared  rollouts that completed (emitted, or dropped with their group), with their events still there; the others are
          counted. Rewards and totals are what attribution gives, whether or not the group was trained
Not here  one rollout: consumers.explaining.comparison; the sums: consumers.explaining.tally
"""

import heapq
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass

from rolloutlog.consumers.attribution import AttributionSettings, attribute
from rolloutlog.consumers.attribution.facts import Facts
from rolloutlog.consumers.batches import RolloutResult
from rolloutlog.consumers.closing import entries_of, reward_entry
from rolloutlog.consumers.explaining.comparison import Comparison, compare, side_of
from rolloutlog.consumers.explaining.refolding import Refold
from rolloutlog.consumers.explaining.tally import Tally
from rolloutlog.consumers.published import Published, read_published
from rolloutlog.consumers.replaying.outputs import Output
from rolloutlog.consumers.scoring.recorded import Recorded
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import Rollout
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import BATCHES, EVENTS, Log
from rolloutlog.eventstore.log.reading import read_range

COMPARED = ("emitted", "group_dropped")

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Which:
    """Which published rollouts are looked at: all, those of a task, of a list of ids, or the last N."""

    task_id: str | None = None
    rollout_ids: Collection[str] | None = None
    last: int | None = None


async def survey(
    log: Log,
    before: tuple[str, AttributionSettings],
    after: tuple[str, AttributionSettings],
    which: Which,
    *,
    output: Output | None = None,
    settings: FoldSettings | None = None,
    on_progress: OnProgress = lambda topic, done, total: None,
) -> Tally:
    """Compare two settings, each with its name, over published rollouts.

    output    whose rollouts are looked at, with the recorded rewards that it counted; None = live ones
    settings  those of the assembler or the output, for what decides which events count
    Raises    InvalidSettings for an output with scorers: what they gave is neither in the events nor surely recorded
    """
    if output is not None and output.scorers:
        raise InvalidSettings(_with_scorers(output))
    topic = BATCHES if output is None else output.topic
    found = Tally(before[0], after[0])
    chosen = await _choose(log, topic, which, on_progress)
    partitions = range(await log.partitions(EVENTS)) if chosen is None else sorted(chosen.ranges)
    spans = await log.ranges(EVENTS, partitions)
    parts = []
    for partition in partitions:
        first, end = spans[partition].first, spans[partition].end
        if output is not None:
            first, end = max(first, output.first[partition]), min(end, output.ends[partition])
        if chosen is not None:
            first, end = max(first, chosen.ranges[partition][0]), min(end, chosen.ranges[partition][1])
        parts.append((partition, first, end))
    total, done = sum(max(0, end - first) for _, first, end in parts), 0
    for partition, first, end in parts:
        recorded = None
        if output is not None and output.rewards_ends[partition] > 0:
            recorded = await Recorded.read(log, partition, output.rewards_ends[partition])
        work = _Partition(partition, which, chosen, found, before[1], after[1], settings or FoldSettings(), recorded)
        async with aclosing(read_published(log, partition, topic=topic)) as batches:
            reading = read_range(log, EVENTS, partition, first, end)
            async with aclosing(reading) as records:
                async for record in records:
                    closed = work.refold.add(record)
                    for rollout in closed.rollouts:
                        work.take(rollout)
                    if closed.group_id is not None:
                        await work.group(closed.group_id, record.offset, batches)
                    on_progress(EVENTS, done + record.offset + 1 - first, total)
            await work.rest(batches)
        done += max(0, end - first)
    if chosen is not None:
        found.missing = tuple(sorted(set(which.rollout_ids or ()) - chosen.published))
    return found.finish()


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Rollouts that were asked for. `ranges`: per partition, from and to which event they lie."""

    rollout_ids: Collection[str]
    published: set[str]
    ranges: dict[int, tuple[int, int]]


def _with_scorers(output: Output) -> str:
    scorers = ", ".join(f"{each.name} {each.version}" for each in output.scorers)
    return (
        f"--diff over output {output.name}: expected one whose rewards are in the events or were recorded before, got "
        f"one that was scored by {scorers}. Replay with the same --scorer to two outputs, one by each policy, and "
        "`rolloutlog compare` them: verdicts are taken from the cache"
    )


async def _choose(log: Log, topic: str, which: Which, on_progress: OnProgress) -> _Chosen | None:
    """Look through the batches for what was asked for; None = all are wanted."""
    if which.rollout_ids is None and which.last is None:
        return None
    ids = None if which.rollout_ids is None else set(which.rollout_ids)
    published: set[str] = set()
    newest: list[tuple[int, int, int, int, str, int, int]] = []
    partitions = range(await log.partitions(topic))
    spans = await log.ranges(topic, partitions)
    total, done = sum(span.end - span.first for span in spans.values()), 0
    for partition, span in spans.items():
        async with aclosing(read_published(log, partition, topic=topic)) as batches:
            async for each in batches:
                batch = each.batch
                for index, result in enumerate(() if batch is None else batch.rollouts):
                    assert batch is not None
                    if ids is not None and result.rollout_id in ids:
                        published.add(result.rollout_id)
                    if not _wanted(result, which, ids):
                        continue
                    place = (batch.closed_ns, partition, each.offset, index)
                    newest.append((*place, result.rollout_id, batch.first_event, batch.trigger + 1))
                if which.last is not None and len(newest) > 2 * which.last + 1_000:
                    newest = heapq.nlargest(which.last, newest)
                on_progress(BATCHES, min(total, done + each.end - span.first), total)
        done += span.end - span.first
    if which.last is not None:
        newest = heapq.nlargest(which.last, newest)
    ranges: dict[int, tuple[int, int]] = {}
    for _, partition, _, _, _, first, end in newest:
        low, high = ranges.get(partition, (first, end))
        ranges[partition] = min(low, first), max(high, end)
    return _Chosen({each[4] for each in newest}, published, ranges)


def _wanted(result: RolloutResult, which: Which, ids: Collection[str] | None) -> bool:
    if which.task_id is not None and result.task_id != which.task_id:
        return False
    if ids is not None and result.rollout_id not in ids:
        return False
    return ids is not None or result.status in COMPARED  # the last N are the last N that can be compared


class _Partition:
    """One partition: closed rollouts are compared, and counted once their group's batch is found."""

    def __init__(
        self,
        partition: int,
        which: Which,
        chosen: _Chosen | None,
        found: Tally,
        before: AttributionSettings,
        after: AttributionSettings,
        settings: FoldSettings,
        recorded: Recorded | None,
    ) -> None:
        self.refold = Refold(partition, settings)
        self._partition, self._which, self._chosen, self._found = partition, which, chosen, found
        self._before, self._after = before, after
        self._recorded = recorded
        self._waiting: dict[str, dict[str, tuple[int, Comparison]]] = {}  # group → rollout → attempt, comparison
        self._next: Published | None = None

    def take(self, rollout: Rollout) -> None:
        """Compare a rollout that has closed, and let go of its events."""
        started = rollout.attempt.started
        closed = rollout.closed
        wanted = self._which.task_id in (None, started.task_id)
        if self._chosen is not None:
            wanted = wanted and rollout.rollout_id in self._chosen.rollout_ids
        if wanted and closed is not None and closed.status == "completed":
            entries = entries_of(rollout, self._partition)
            if self._recorded is not None:
                added = self._recorded.of(rollout.rollout_id, rollout.attempt.number)
                entries = [*entries, *(reward_entry(reward) for _, reward in added)]
            facts = Facts(entries)
            one = side_of(self._found.before, attribute(entries, self._before), facts)
            other = side_of(self._found.after, attribute(entries, self._after), facts)
            of_group = self._waiting.setdefault(started.group_id, {})
            of_group[rollout.rollout_id] = rollout.attempt.number, compare(facts, one, other)
        rollout.attempt.records = []

    async def group(self, group_id: str, trigger: int, batches: AsyncGenerator[Published, None]) -> None:
        """Count the rollouts of a closed group, when its batch is published."""
        compared = self._waiting.pop(group_id, {})
        while True:
            if self._next is None:
                self._next = await anext(batches, None)
            at = self._next
            if at is None or (at.batch is not None and at.batch.trigger > trigger):
                return
            self._next = None
            if at.batch is not None:
                self._count(at, compared if at.batch.trigger == trigger else {})

    async def rest(self, batches: AsyncGenerator[Published, None]) -> None:
        """Count the batches whose groups were not among the events."""
        if self._next is not None:
            self._count(self._next, {})
        async for each in batches:
            self._count(each, {})

    def _count(self, published: Published, compared: dict[str, tuple[int, Comparison]]) -> None:
        ids = None if self._chosen is None else self._chosen.rollout_ids
        for result in () if published.batch is None else published.batch.rollouts:
            if self._which.task_id not in (None, result.task_id) or (ids is not None and result.rollout_id not in ids):
                continue
            attempt, comparison = compared.get(result.rollout_id, (None, None))
            if result.status not in COMPARED:
                self._found.not_completed += 1
            elif comparison is None or attempt != result.attempt:
                self._found.gone += 1
            else:
                self._found.add(result.rollout_id, result.task_id, comparison)
