"""What a replay is to do, as each of its processes is told: the output that was written down, and scorers by name.

`plan` makes a job of what was asked for; `run_share` does some partitions of it. Both open what they read and write:
the log, and the archive in front of it where there is one.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rolloutlog.consumers.replaying.bounds import find_bounds
from rolloutlog.consumers.replaying.ids import hinted
from rolloutlog.consumers.replaying.outputs import (
    IDS_SHOWN,
    Output,
    OutputRewards,
    OutputScorer,
    beyond_of,
    check_same,
    check_topic,
    create_output,
    read_output,
    topic_of,
)
from rolloutlog.consumers.replaying.selection import Selection
from rolloutlog.consumers.replaying.share import COMMIT_BYTES, Share
from rolloutlog.consumers.replaying.summary import Summary
from rolloutlog.consumers.scoring import (
    Cache,
    LoadedScorer,
    Scoring,
    ScoringLimits,
    cache_path,
    load_scorer,
    recorded_names,
)
from rolloutlog.consumers.settings import FoldSettings, canonical_json
from rolloutlog.eventstore.errors import InvalidSettings, LogMissing
from rolloutlog.eventstore.log import EVENTS, REWARDS, Log, open_log, parse_url
from rolloutlog.eventstore.meta import Run, read_run
from rolloutlog.eventstore.topics import check_partitions, create_topics

KEPT_BYTES = 2**25 - 2**16  # the largest block that counts
NO_REWARDS = 0  # --rewards-as-of none

logger = logging.getLogger("rolloutlog.replay")


@dataclass(frozen=True)
class Wish:
    """What was asked for.

    name           of the output; None = a dry run, which needs none
    rewards_as_of  recorded rewards count up to this log time; NO_REWARDS = none do, None = all
    scorers        by name, `package.module:function`
    cache          keep and use what scorers said
    """

    url: str
    name: str | None
    fold: FoldSettings
    selection: Selection = field(default_factory=Selection)
    archive: str | None = None
    scorers: tuple[str, ...] = ()
    limits: ScoringLimits = field(default_factory=ScoringLimits)
    rewards_as_of: int | None = None
    cache: bool = True
    record: bool = False
    dry_run: bool = False
    skip_lost: bool = False
    commit_bytes: int = COMMIT_BYTES


@dataclass(frozen=True)
class Job:
    """A wish, and the output as it was written down. `fold` has what counts beyond the events."""

    wish: Wish
    output: Output
    fold: FoldSettings
    resumed: bool = False

    @property
    def partitions(self) -> list[int]:
        """Those of which something is read."""
        output = self.output
        return [p for p, (first, end) in enumerate(zip(output.first, output.ends, strict=True)) if first < end]


class NothingSelected(InvalidSettings):
    """None of the ids asked for is in the log, as far as it tells; the text names them. Nothing was made."""


class Logs(NamedTuple):
    """`log` holds outputs, `source` the events and recorded rewards, `same_run` whether both are of one run."""

    log: Log
    source: Log
    run: Run
    same_run: bool


async def plan(wish: Wish, *, clock: Callable[[], int] = time.time_ns) -> Job:
    """Find out what has to be read, and write the output down unless there is one to go on with.

    Raises  OutputDiffers naming what is other than when the output was made; HistoryLost, InvalidSettings,
            NothingSelected
    """
    if not wish.dry_run:
        topic_of(wish.name or "")
    wish.selection.check()
    scorers = tuple(_scorer(load_scorer(each)) for each in wish.scorers)
    async with _opened(wish) as logs:
        found = None if wish.dry_run else await read_output(logs.log, wish.name or "")
        wanted = await _output(wish, logs, scorers, found, clock())
        if found is None and not wish.dry_run:
            found = await create_output(logs.log, wanted)
        output = found or wanted
        check_same(output, wanted, rewards_given=wish.rewards_as_of is not None)
        if not wish.dry_run:
            await check_topic(logs.log, output)
    fold = replace(wish.fold, beyond=beyond_of(output.scorers, output.rewards_ends))
    return Job(wish, output, fold, resumed=output is not wanted)


async def run_share(
    job: Job,
    partitions: Sequence[int],
    *,
    stop: asyncio.Event,
    step: Callable[[int, str], None] = lambda partition, step: None,
    on_share: Callable[[Share], None] = lambda share: None,
) -> Summary:
    """Replay some partitions in this process. `on_share`: given what tells how far it is."""
    _keep_freed_memory()
    wish, output = job.wish, job.output
    scorers = [load_scorer(each) for each in wish.scorers]
    if tuple(map(_scorer, scorers)) != output.scorers:
        raise InvalidSettings("scorers: a file was changed while the replay began; run the same command again")
    path = cache_path(output.run_id)
    cache = Cache(path) if scorers and wish.cache and (not wish.dry_run or path.exists()) else None
    scoring = None
    try:
        if scorers or any(output.rewards_ends):
            scoring = Scoring(scorers, wish.limits, cache, run_id=output.run_id, calls=not wish.dry_run)
        async with _opened(wish) as logs:
            share = Share(
                logs.log, logs.source, output, job.fold, scoring, wish.record, wish.dry_run, wish.skip_lost,
                wish.commit_bytes, step=step, stop=stop,
            )  # fmt: skip
            on_share(share)
            return await share.run(partitions)
    finally:
        if scoring is not None:
            await scoring.close()
        if cache is not None:
            cache.close()


def _keep_freed_memory() -> None:
    """Let the C library keep what is freed, where it is glibc: records come and go by the megabyte.

    It gives memory at the top back at once, and gets it again a page at a time: a tenth of a replay's time. Once a
    large block was freed, it keeps twice as much (mallopt(3), M_MMAP_THRESHOLD).
    """
    block = bytes(KEPT_BYTES)
    del block


async def _output(
    wish: Wish, logs: Logs, scorers: tuple[OutputScorer, ...], found: Output | None, time_ns: int
) -> Output:
    """The output as it would be made now; where one is found, with what was read for it."""
    if found is None or wish.rewards_as_of is not None:
        rewards_ends = await _rewards_ends(logs.source, wish.rewards_as_of, logs.run.partitions)
    else:
        rewards_ends = found.rewards_ends
    if found is None:
        published = logs.log if logs.same_run else None
        bounds = await find_bounds(published, logs.source, wish.selection, wish.fold, skip_lost=wish.skip_lost)
        first, ends = bounds.first, bounds.ends
        if wish.selection.by_id and all(begin >= end for begin, end in zip(first, ends, strict=True)):
            raise _nothing_selected(wish.selection, logs.source)
        unfound = bounds.unfound
        names = await recorded_names(logs.source, rewards_ends, without=[each.name for each in scorers])
        rewards_of = tuple(OutputRewards(*each) for each in names)
    else:
        first, ends, rewards_of, unfound = found.first, found.ends, found.rewards_of, False
    output = Output(
        name=wish.name or "",
        run_id=logs.run.run_id,
        config_hash=replace(wish.fold, beyond=beyond_of(scorers, rewards_ends)).config_hash,
        settings=canonical_json(wish.fold.canonical()),
        scorers=scorers,
        selection=wish.selection,
        first=first,
        ends=ends,
        rewards_ends=rewards_ends,
        time_ns=time_ns,
        source="log" if wish.archive is None else logs.source.url,
        record=wish.record and bool(scorers),
        rewards_before_ns=wish.rewards_as_of,
        rewards_of=rewards_of,
    )
    if unfound and not await _is_any_found(wish, logs, output):
        raise _nothing_selected(wish.selection, logs.source)
    return output


async def _is_any_found(wish: Wish, logs: Logs, output: Output) -> bool:
    """Look for the ids in the events, before an output is made that may have nothing in it."""
    share = Share(logs.log, logs.source, output, wish.fold, dry_run=True, skip_lost=wish.skip_lost)
    return bool((await share.run(range(len(output.ends)))).found)


def _nothing_selected(selection: Selection, source: Log) -> NothingSelected:
    missing = selection.missing(set())
    shown = ", ".join(map(hinted, missing[:IDS_SHOWN]))
    more = f" and {len(missing) - IDS_SHOWN} more" if len(missing) > IDS_SHOWN else ""
    return NothingSelected(
        f"nothing is selected: expected groups that have closed in log {source.url}, got {shown}{more}: none of them "
        "is there, or has closed. No output was made"
    )


async def _rewards_ends(source: Log, as_of: int | None, count: int) -> tuple[int, ...]:
    """Below which offset recorded rewards count, by partition; 0 where none does."""
    try:
        spans = await source.ranges(REWARDS, range(count))
    except LogMissing:
        return (NO_REWARDS,) * count
    if as_of == NO_REWARDS:
        return (NO_REWARDS,) * count
    ends = {p: span.end for p, span in spans.items()}
    if as_of is not None:
        ends = dict(await source.offsets_at(REWARDS, range(count), as_of))
    return tuple(ends[p] if ends[p] > spans[p].first else NO_REWARDS for p in range(count))


@asynccontextmanager
async def _opened(wish: Wish) -> AsyncIterator[Logs]:
    opened: list[Log] = []
    try:
        yield await (_open(wish, opened) if wish.archive is None else _open_archive(wish, wish.archive, opened))
    finally:
        for log in opened:
            await log.close()


async def _open(wish: Wish, opened: list[Log]) -> Logs:
    log = await open_log(wish.url)
    opened.append(log)
    count, run = await log.partitions(EVENTS), await read_run(log)
    if run is None:
        raise LogMissing(f"log {log.url}: it has no run; make it with `rolloutlog topics create --log {log.url}`")
    check_partitions(run, count, log.url)
    return Logs(log, log, run, True)


async def _open_archive(wish: Wish, url: str, opened: list[Log]) -> Logs:
    """The archive, with the log behind it where that is of the same run. A log of another run takes the output alone.

    A missing embedded log is made with a run of its own: of the archive's run it would have other offsets.
    """
    from rolloutlog.consumers.archiving import open_archive, spliced

    archive = await open_archive(url)
    opened.append(archive)
    embedded = parse_url(wish.url).scheme == "sqlite"
    try:
        log = await open_log(wish.url, create=embedded and not wish.dry_run)
    except LogMissing:
        if not wish.dry_run:
            raise
        return Logs(archive, archive, archive.run, False)  # nothing is written
    opened.append(log)
    run = None
    with suppress(LogMissing):
        run = await read_run(log)
    if run is None and embedded and not wish.dry_run:
        run = await create_topics(log, partitions=archive.run.partitions)
    if run is None:
        raise LogMissing(
            f"log {log.url}: it has no run; make it with `rolloutlog topics create --log {log.url} --partitions "
            f"{archive.run.partitions}`"
        )
    if run.partitions != archive.run.partitions:
        raise InvalidSettings(
            f"log {log.url}: expected {archive.run.partitions} partitions of {EVENTS}, as archive {archive.url} has, "
            f"got {run.partitions}: a partition's output stays in the partition of its number"
        )
    if run.run_id != archive.run_id:
        if wish.record:
            raise InvalidSettings(
                f"--record: expected the log of run {archive.run_id}, which archive {archive.url} is of, got run "
                f"{run.run_id} of log {log.url}: no replay of the archive would read what is recorded there. Leave "
                "--record out: the cache keeps what scorers say"
            )
        return Logs(log, archive, archive.run, False)
    return Logs(log, await spliced(archive, log), archive.run, True)


def _scorer(loaded: LoadedScorer) -> OutputScorer:
    # A version that it names itself stands for its file: the file may be reformatted.
    source = "" if loaded.names_version else loaded.source
    return OutputScorer(loaded.name, loaded.version, source, loaded.deterministic)
