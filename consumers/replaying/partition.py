"""One partition of a replay. At start:

  1 fence     become the owner of this partition for the output; an older one can store nothing from here on
  2 claim     write host, pid and time to meta
  3 position  read L and P: an older owner's last transaction is in them
  4 seek      read from L; what is triggered below P is folded again, but is out already

and then, up to the output's end:

  1 receive   fetch committed records
  2 fold      each in offset order; of closed groups those that are wanted go on, unsettled
  3 score     ask the scorers, many groups at once
  4 settle    in trigger order: attribute, make samples, pack
  5 commit    one transaction: batches, recorded rewards, L and P
  6 confirm   only now is anything counted

P is the trigger of the first group that is still being scored, else the position; L is as it was at P. Closings, dead
letters and decisions are not written: they are live assembly's. A dry run does 2 to 4 without scorers and owns nothing.

Not here  what is read and wanted: consumers.replaying.bounds, selection; other partitions: consumers.replaying.share
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from rolloutlog.consumers.batches import decode_part
from rolloutlog.consumers.closing import settle_group
from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.origin import origin_of
from rolloutlog.consumers.outputs import GroupLeft, RunEnding
from rolloutlog.consumers.owners import Claim
from rolloutlog.consumers.packing import Packer
from rolloutlog.consumers.position import Progress, from_position, to_position
from rolloutlog.consumers.recovery import HistoryLost, last_origin
from rolloutlog.consumers.replaying.pipeline import Left, Pipeline, Scores
from rolloutlog.consumers.replaying.summary import ScoreFailure, Summary
from rolloutlog.consumers.scoring import Recorded, records_of
from rolloutlog.consumers.state import PartitionState
from rolloutlog.consumers.status import read_statuses, status_of, status_record
from rolloutlog.eventstore.errors import InvalidEvent, LogUnavailable
from rolloutlog.eventstore.log import EVENTS, NewRecord, Owner, Reader, Record
from rolloutlog.eventstore.log.reading import read_range

if TYPE_CHECKING:
    from rolloutlog.consumers.replaying.share import Share

FETCH_WAIT_S = 1.0
SILENT_S = 60.0  # above the transaction timeout of our own programs
COMMIT_S = 1.0  # from the first waiting output
POSITION_S = 10.0  # a fenced owner learns of it, also while scorers are slow
STATUS_S = 5.0
FOLD_SLICE = 200  # records folded before others get a turn
# Names of counts in a status: out, waiting to be; out and failed by a scorer; where the output ended; 1 = all is read.
GROUPS, GROUPS_AHEAD, UNSCORED, OUTPUT_END, READ = "groups", "groups_ahead", "unscored", "output_end", "read"
SOURCE = "replay.0000000000000000"  # it appends no events, so that no source is needed

logger = logging.getLogger("rolloutlog.replay")


class PartitionReplay:
    """Dropped whole when anything fails: a new one starts from what is committed."""

    def __init__(self, share: "Share", partition: int) -> None:
        self._share = share
        self._output = output = share.output
        self.partition = partition
        self.begin, self.end = output.first[partition], output.ends[partition]
        self.claim: Claim | None = None
        self.state = PartitionState(partition, share.fold, settles=False)
        self._packer = Packer(partition, share.fold.config_hash, SOURCE, topic=share.topic)
        self._pipeline: Pipeline | None = None
        self._records: list[NewRecord] = []
        self._size_bytes = 0
        self._waiting = Summary()  # settled, not committed
        self._groups = self._unscored = 0  # groups that are out, and failed rollouts in them, of all who worked on it
        self._committed_at = self._status_at = asyncio.get_running_loop().time()

    async def run(self) -> None:
        owner, reader = None if self._share.dry_run else await self._own(), None
        try:
            progress = await self._what_is_left(await self._progress(owner))
            self.state = PartitionState(
                self.partition, self._share.fold, position=progress.watermark, emit_from=progress.position,
                settles=False,
            )  # fmt: skip
            self.begin = min(max(progress.position, self.begin), self.end)
            if progress.watermark < self.end:
                await self._prepare_scoring()
                reader = await self._share.source.reader(EVENTS, {self.partition: progress.watermark})
                await self._cycle(owner, reader)
            await self._finish(owner)
        finally:
            if self._pipeline is not None:
                await self._pipeline.close()
            if reader is not None:
                await reader.close()
            if owner is not None:
                await owner.close()

    @property
    def done(self) -> int:
        """Offsets of `begin` to `end` below which all groups are out: with slow scorers, much more may be read."""
        return max(0, min(self._committed_position().position, self.end) - self.begin)

    async def _own(self) -> Owner:
        owner, self.claim = await self._share.own(self.partition)
        return owner

    async def _progress(self, owner: Owner | None) -> Progress:
        first = Progress(self._output.first[self.partition], self._output.first[self.partition])
        if owner is None:
            return first
        self._share.step(self.partition, "position")
        position = (await owner.positions()).get(self.partition)
        # None was committed, or the log has forgotten it: what is out tells as well.
        last = None if position is not None else await last_origin(self._share.log, self._share.topic, self.partition)
        if position is None and last is None:
            return first
        await self._count_what_is_out()
        if position is not None:
            return from_position(position, where=f"{self._output.app}, partition {self.partition} of {EVENTS}")
        assert last is not None
        return Progress(first.watermark, max(first.position, last.trigger + 1))

    async def _what_is_left(self, progress: Progress) -> Progress:
        """Where to begin, when retention has removed events since the output was made."""
        if progress.watermark >= self.end:
            return progress
        first = (await self._share.source.ranges(EVENTS, [self.partition]))[self.partition].first
        if progress.watermark >= first:
            return progress
        which = f"output {self._output.name}: " if self._output.name else ""
        lost = (
            f"{which}partition {self.partition} of {EVENTS}: events {progress.watermark}-{min(first, self.end) - 1} "
            "are gone"
        )
        if not self._share.skip_lost:
            raise HistoryLost(
                f"{lost}, and this replay goes on from {progress.watermark}. Read them from an archive with --archive, "
                "or go on without them with --on-history-lost skip"
            )
        logger.warning("%s; going on without them", lost)
        return replace(progress, watermark=first, position=max(progress.position, first))

    async def _prepare_scoring(self) -> None:
        if self._share.scoring is not None:
            recorded = await Recorded.read(
                self._share.source, self.partition, self._output.rewards_ends[self.partition]
            )
            calls_max = self._share.scoring.calls_max
            self._pipeline = Pipeline(self.partition, self._share.scoring, recorded, calls_max=calls_max)

    async def _cycle(self, owner: Owner | None, reader: Reader) -> None:
        loop = asyncio.get_running_loop()
        heard_at = loop.time()
        while self.state.position < self.end and not self._share.stop.is_set():
            self._share.step(self.partition, "receive")
            records = await reader.fetch(wait_s=FETCH_WAIT_S)
            self._share.step(self.partition, "fold")
            for index, record in enumerate(records):
                if record.offset >= self.end:
                    break
                self._fold(record)
                if index % FOLD_SLICE == FOLD_SLICE - 1:
                    await asyncio.sleep(0)
                while self._pipeline is not None and self._pipeline.full and not self._share.stop.is_set():
                    await self._pipeline.wait(COMMIT_S)
                    self._drain()
                    await self._commit_if_due(owner)
                if self._size_bytes >= self._share.commit_bytes:
                    await self._commit_if_due(owner)
            # Past markers too: nothing between the last record and here can cause anything.
            self.state.position = max(self.state.position, min(reader.position(self.partition), self.end))
            if records:
                heard_at = loop.time()
            elif self.state.position < self.end and loop.time() - heard_at > SILENT_S:
                raise LogUnavailable(
                    f"log {self._share.source.url}: expected events of partition {self.partition} up to offset "
                    f"{self.end}, got none above {self.state.position} for {SILENT_S:.0f} s; what was read is kept: "
                    "run the same command again to go on"
                )
            self._drain()
            await self._commit_if_due(owner)

    def _fold(self, record: Record) -> None:
        outputs = fold(self.state, record)
        if not outputs:
            return
        selection, now_ns = self._output.selection, self.state.now_ns
        left: list[Left] = []
        for each in outputs:
            if isinstance(each, GroupLeft):
                if selection.wants(each.group, each.closed_ns):
                    left.append(each)
            elif isinstance(each, RunEnding) and selection.wants_end(now_ns):
                left.append(each)
        if not left:
            return
        if self._pipeline is None:
            self._settle(left, Scores())
        else:
            self._pipeline.add(record.offset, self.state.watermark(), left)

    def _drain(self) -> None:
        if self._pipeline is not None:
            for work, scores in self._pipeline.done():
                self._settle(work.left, scores)

    def _settle(self, left: Sequence[Left], scores: Scores) -> None:
        counted = self._waiting
        for each in left:
            if isinstance(each, RunEnding):
                self._put(self._packer.pack([each], time_ns=0))
                continue
            if self._output.selection.by_id:
                counted.found.update(self._output.selection.named_by(each.group))
            ready, refused = settle_group(each, self._share.fold, self.partition)
            counted.take(ready.batch)
            counted.counts["refused"] += len(refused)
            if not self._share.dry_run:
                self._put(self._packer.pack([ready], time_ns=0))
        for rollout, scored in scores.of_rollouts:
            group_id = rollout.attempt.started.group_id
            failed = len(scored.failures)
            counted.counts.update(
                answered=scored.made - failed, failed=failed, cached=scored.cached, recorded=scored.recorded,
                unscored=bool(failed),
            )  # fmt: skip
            counted.asked.update(scored.ways)
            counted.failures += [
                ScoreFailure(group_id, each.rollout_id, each.attempt, each.scorer, each.reason)
                for each in scored.failures
            ]
            if self._share.record and scored.record:
                self._put(records_of(scored.record, group_id, self.partition))

    def _put(self, records: list[NewRecord]) -> None:
        if self._share.dry_run:
            return
        self._records += records
        self._size_bytes += sum(len(each.value or b"") for each in records)

    async def _commit_if_due(self, owner: Owner | None) -> None:
        loop = asyncio.get_running_loop()
        since_s = loop.time() - self._committed_at
        if self._size_bytes >= self._share.commit_bytes or since_s >= (COMMIT_S if self._records else POSITION_S):
            await self._commit(owner)

    async def _finish(self, owner: Owner | None) -> None:
        """Hand on what is still being scored, unless told to stop, and commit."""
        while self._pipeline is not None and len(self._pipeline) and not self._share.stop.is_set():
            await self._pipeline.wait(COMMIT_S)
            self._drain()
            await self._commit_if_due(owner)
        if self._share.stop.is_set() and (
            self.state.position < self.end or (self._pipeline is not None and len(self._pipeline))
        ):
            self._share.summary.stopped = True
        else:
            self._share.summary.open_rollouts += self.state.open_rollouts
            self._share.summary.open_groups += len(self.state.groups)
        await self._commit(owner, last=True)
        summary = self._share.summary
        summary.groups_out += self._groups
        summary.unscored_out += self._unscored
        summary.groups_ahead += self._groups_ahead()
        summary.partitions_read += self.state.position >= self.end

    async def _commit(self, owner: Owner | None, *, last: bool = False) -> None:
        if owner is None:
            if last:  # not before: a dry run that begins again counts again
                self._confirm()
            return
        if self.state.position < self.state.emit_from:
            return  # still on the way back to P
        loop = asyncio.get_running_loop()
        position = self._committed_position()
        self._share.step(self.partition, "commit")
        records = self._records
        if self._waiting.counts["unscored"]:  # known as soon as they are out: their batches do not tell them
            records = [*records, await self._status(position.position)]
        await owner.commit(records, {self.partition: to_position(position)})
        self._share.step(self.partition, "confirm")
        self._confirm()
        self._committed_at = loop.time()
        if last or loop.time() - self._status_at >= STATUS_S:
            await owner.commit([await self._status(position.position)], {})
            self._status_at = loop.time()

    def _confirm(self) -> None:
        self._waiting.counts["refused"] += self.state.counts["refused"]
        self.state.counts.clear()
        self._groups += self._waiting.counts["groups"]
        self._unscored += self._waiting.counts["unscored"]
        self._share.summary.add(self._waiting)
        self._waiting, self._records, self._size_bytes = Summary(), [], 0

    def _committed_position(self) -> Progress:
        oldest = None if self._pipeline is None else self._pipeline.oldest
        if oldest is not None:
            return Progress(oldest.watermark, oldest.trigger)
        return Progress(self.state.watermark(), self.state.position)

    async def _status(self, position: int) -> NewRecord:
        """Where it is, for people, and what is out: groups up to `output_end`, and with what this commits, failures."""
        assert self.claim is not None
        span = (await self._share.log.ranges(self._share.topic, [self.partition]))[self.partition]
        counts = {
            GROUPS: self._groups, GROUPS_AHEAD: self._groups_ahead(), OUTPUT_END: span.end,
            UNSCORED: self._unscored + self._waiting.counts["unscored"], READ: int(self.state.position >= self.end),
        }  # fmt: skip
        time_ns = self._share.clock()
        return status_record(
            status_of(self.state, self.claim, position=position, end=self.end, counts=counts, time_ns=time_ns)
        )

    def _groups_ahead(self) -> int:
        return self._waiting.counts["groups"] + (0 if self._pipeline is None else self._pipeline.groups)

    async def _count_what_is_out(self) -> None:
        """As the last status says, and groups that came after it. Ids that were asked for are in all batches."""
        status = (await read_statuses(self._share.log, app=self._output.app)).get(self.partition)
        counts = {} if status is None else status.counts
        topic, run_key = self._share.topic, f"run/{self._output.run_id}".encode()
        span = (await self._share.log.ranges(topic, [self.partition]))[self.partition]
        by_id = self._output.selection.by_id
        since = max(span.first, counts.get(OUTPUT_END, span.first))
        self._groups, self._unscored = counts.get(GROUPS, 0), counts.get(UNSCORED, 0)
        first = span.first if by_id else since
        async with aclosing(read_range(self._share.log, topic, self.partition, first, span.end)) as records:
            async for record in records:
                with suppress(InvalidEvent):  # a part that is not the first, or the end of the run
                    counted = origin_of(record).part == 0 and record.key != run_key
                    self._groups += counted and record.offset >= since
                    if by_id:
                        part = decode_part(record.value)
                        rollouts = [each.rollout_id for each in part.rollouts]
                        self._share.summary.found.update(self._output.selection.named(part.group_id, rollouts))
