"""Import a file's content into a log, once, whatever its format.

1. Read the file: what is refused, what belongs together. Nothing is stored yet.
2. `import/{digest}` in meta says that an import of this content began, and where the events ended then. A content that
   was imported before ends here.
3. Read which of its events are stored: of an import that was cut off, from where it began; of events of other logs,
   from the first.
4. Read the file again and append what is not there, in its order.
5. A second record in meta says that the import finished.

Killed anywhere, the same command goes on: events keep their identity, times come from the first try's record.

One process at a time imports a content: it owns the content's name, in whose transactions everything is stored, and is
fenced by the next one, which then finds what was stored, and nothing is under way.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from rolloutlog.consumers.importing.contents import Content, Entry, Identity, Place, Survey, identity_of
from rolloutlog.consumers.importing.known import Counted, Known, Stored, record_identity
from rolloutlog.eventstore.codec import HEADER, decode_record, encode_event, encode_record, header_of
from rolloutlog.eventstore.errors import Fenced, InvalidEvent
from rolloutlog.eventstore.events import Event, GroupClosed, RolloutExpired
from rolloutlog.eventstore.log import EVENTS, META, Log, NewRecord, Owner, Range
from rolloutlog.eventstore.log.reading import read_range
from rolloutlog.eventstore.meta import Run
from rolloutlog.eventstore.partitioner import partition_of

RECORD = "ImportRecorded"
STARTED, FINISHED = "started", "finished"
META_PARTITION = 0
APPEND_BYTES = 4 * 2**20
APPEND_RECORDS = 1_000
UNKNOWN_PLACE = "decisions about events that are not in the file"

OnProgress = Callable[[str, int, int | None], None]


@dataclass
class Loaded:
    """What came of it.

    before          rollouts of the earlier import, when the content had been imported; nothing was added
    resumed_from    events found of an import that was cut off; None = it began now
    events, calls   of the file, those stored before included; so are the bytes
    repeated_bytes  as large as the events would be with every prompt written in full
    added, present  events that were stored now; that were there
    left_out        what was not stored, by why
    """

    before: int | None = None
    resumed_from: int | None = None
    events: int = 0
    calls: int = 0
    size_bytes: int = 0
    repeated_bytes: int = 0
    added: int = 0
    present: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


async def load(
    log: Log, run: Run, content: Content, survey: Survey, *, name: str, on_progress: OnProgress, on_resume: Any = None
) -> Loaded:
    """Store what `content` holds and `log` lacks.

    survey     of `content`
    name       of the file, for the record in meta
    on_resume  called with the number of stored events, when an import that was cut off goes on
    Raises     StoreError when the file changed meanwhile; Fenced when another process began to import the same
    """
    # Not of the topic as a whole: without positions that would hold back what is trimmed elsewhere.
    owner = await log.own(f"import.{content.digest}", META, META_PARTITION)
    try:
        return await _load(log, owner, run, content, survey, name, on_progress, on_resume)
    except Fenced as error:
        raise Fenced(
            f"{name}: another process began to import the same and goes on with it, so this one stopped; no event is "
            f"stored twice ({error})"
        ) from error
    finally:
        await owner.close()


async def _load(
    log: Log,
    owner: Owner,
    run: Run,
    content: Content,
    survey: Survey,
    name: str,
    on_progress: OnProgress,
    on_resume: Any,
) -> Loaded:
    earlier = await _earlier(log, content.digest)
    if earlier is not None and earlier["status"] == FINISHED:
        return Loaded(before=earlier["rollouts"])
    spans = await log.ranges(EVENTS, range(run.partitions))
    # Of the first try, so that events made again by the one that goes on are the same bytes.
    time_ns = time.time_ns() if earlier is None else earlier["time_ns"]
    if earlier is None:
        await _record(owner, content.digest, name, STARTED, spans, survey, time_ns)
    stored = await _stored(log, content, survey, earlier, spans, on_progress)
    loaded = Loaded(resumed_from=None if earlier is None else stored.events, left_out=survey.left_out.copy())
    if earlier is not None and on_resume is not None:
        on_resume(stored.events)
    writer = Writer(log, owner, run, stored, survey.wanted, loaded)
    for done, entry in enumerate(content.entries(survey, run_id=run.run_id, time_ns=time_ns)):
        on_progress("importing", done, survey.events)
        await writer.add(entry)
    await writer.end()
    await _record(owner, content.digest, name, FINISHED, spans, survey, time.time_ns())
    return loaded


class Writer:
    """Appends entries in requests of bounded size and counts them."""

    def __init__(self, log: Log, owner: Owner, run: Run, stored: Stored, wanted: set[Place], loaded: Loaded) -> None:
        self._log, self._owner, self._run, self._stored, self._loaded = log, owner, run, stored, loaded
        self._wanted = wanted
        self._moved: dict[Place, int] = {}  # of the wanted places: where their events are in this log
        self._records: list[NewRecord] = []
        self._places: dict[int, dict[Identity, Place]] = {}  # of what waits and is wanted, by partition in this log
        self._waiting_bytes = 0
        self._everywhere: dict[int, Entry] = {}  # by the partition that it stood in

    async def add(self, entry: Entry) -> None:
        if entry.everywhere:
            self._everywhere.setdefault(-1 if entry.place is None else entry.place[0], entry)
            return
        moved = await self._with_moved_place(entry)
        if moved is None:
            self._loaded.left_out[UNKNOWN_PLACE] += 1
            return
        self._count(moved)
        await self._store(moved, self._partition(moved))

    async def end(self) -> None:
        """Write what waits, and what is for every partition."""
        if self._everywhere:
            # The last one, numbered on, for partitions that had none in the log that it comes from.
            last = max(self._everywhere.values(), key=lambda each: _event(each).sequence)
            sequence = _event(last).sequence
            for partition in range(self._run.partitions):
                entry = self._everywhere.get(partition)
                if entry is None and partition == 0:
                    entry = self._everywhere.get(-1)
                if entry is None:
                    sequence += 1
                    event = replace(_event(last), sequence=sequence)
                    header = header_of(event)
                    entry = last._replace(
                        value=encode_event(event),
                        headers=((HEADER, header.text()),),
                        identity=identity_of(header),
                        event=event,
                    )
                self._count(entry)
                await self._store(entry, partition)
        await self.flush()

    async def flush(self) -> None:
        """Append what waits. Its places are known afterwards."""
        if self._records:
            before = await self._log.ranges(EVENTS, self._places) if self._places else {}
            await self._owner.commit(self._records, {})
            for partition, wanted in self._places.items():
                await self._find(partition, wanted, before[partition].end)
        self._records, self._places, self._waiting_bytes = [], {}, 0

    async def _find(self, partition: int, wanted: dict[Identity, Place], first: int) -> None:
        """Note where these records are, which were stored at `first` or above."""
        end = (await self._log.ranges(EVENTS, [partition]))[partition].written
        left = dict(wanted)
        async with aclosing(read_range(self._log, EVENTS, partition, first, end)) as records:
            async for record in records:
                place = left.pop(record_identity(record.key, record.value, record.headers), None)
                if place is not None:
                    self._moved[place] = record.offset
                if not left:
                    return

    async def _store(self, entry: Entry, partition: int) -> None:
        wanted = entry.place if entry.place in self._wanted else None
        if self._stored.take(entry):
            self._loaded.present += 1
            at = None if wanted is None else self._stored.offset(entry.identity)
            if wanted is not None and at is not None:
                self._moved.setdefault(wanted, at)
            return
        self._loaded.added += 1
        self._records.append(NewRecord(EVENTS, partition, entry.key, entry.value, entry.headers))
        if wanted is not None:
            self._places.setdefault(partition, {})[entry.identity] = wanted
        self._waiting_bytes += len(entry.value or b"")
        if len(self._records) >= APPEND_RECORDS or self._waiting_bytes >= APPEND_BYTES:
            await self.flush()

    async def _with_moved_place(self, entry: Entry) -> Entry | None:
        """A decision as of the same event in this log; None when that event is not here."""
        decision = entry.decision
        if decision is None or entry.place is None or decision.as_of is None:
            return entry
        as_of = (entry.place[0], decision.as_of)
        if as_of not in self._moved:
            await self.flush()
        if as_of not in self._moved:
            return None
        event: GroupClosed | RolloutExpired = replace(decision, as_of=self._moved[as_of])
        return entry._replace(value=encode_event(event), event=event)

    def _partition(self, entry: Entry) -> int:
        if entry.key:
            return partition_of(entry.key, self._run.partitions)
        return 0 if entry.place is None else entry.place[0] % self._run.partitions

    def _count(self, entry: Entry) -> None:
        size_bytes = len(entry.value or b"")
        self._loaded.events += 1
        self._loaded.size_bytes += size_bytes
        self._loaded.repeated_bytes += size_bytes + getattr(entry.event, "prompt_base_tokens", 0) * 4
        self._loaded.calls += getattr(entry.event, "kind", "") == "call"


def _event(entry: Entry) -> Event:
    assert entry.event is not None, "only events are for every partition"
    return entry.event


async def _earlier(log: Log, digest: str) -> dict[str, Any] | None:
    """The newest record of this content's import."""
    found = None
    span = (await log.ranges(META, [META_PARTITION]))[META_PARTITION]
    async with aclosing(read_range(log, META, META_PARTITION, span.first, span.written)) as records:
        async for record in records:
            if record.key == f"import/{digest}".encode():
                try:
                    found = decode_record(record.value, expected=RECORD)[1]
                except InvalidEvent:
                    continue  # deleted, or not readable to this version: as if it were not there
    return found


async def _record(
    owner: Owner, digest: str, name: str, status: str, spans: Mapping[int, Range], survey: Survey, time_ns: int
) -> None:
    fields = {
        "digest": digest,
        "file": name.encode(errors="backslashreplace").decode(),
        "status": status,
        "offsets": [{"partition": partition, "offset": span.end} for partition, span in spans.items()],
        "lines": survey.items,
        "rollouts": survey.rollouts,
        "refused": survey.refused,
        "time_ns": time_ns,
    }
    record = NewRecord(META, META_PARTITION, f"import/{digest}".encode(), encode_record(RECORD, fields))
    await owner.commit([record], {})


async def _stored(
    log: Log,
    content: Content,
    survey: Survey,
    earlier: dict[str, Any] | None,
    spans: Mapping[int, Range],
    on_progress: OnProgress,
) -> Stored:
    """What of the content is in the log."""
    stored: Stored = Counted() if content.verbatim else Known(content.prefix, offsets=bool(survey.wanted))
    if earlier is None and (content.prefix is not None or content.verbatim):
        return stored  # ids of its own: none can be there
    # Up to all that is written: a transaction of another process may stand open before what was stored.
    begins = {partition: span.first for partition, span in spans.items()}
    if earlier is not None and (content.prefix is not None or content.verbatim):
        begins.update((each["partition"], each["offset"]) for each in earlier["offsets"])
    total = sum(max(0, span.written - begins[partition]) for partition, span in spans.items())
    done = 0
    for partition, span in spans.items():
        first = max(begins[partition], span.first)
        async with aclosing(read_range(log, EVENTS, partition, first, span.written)) as records:
            async for record in records:
                stored.add(record)
                done += 1
                on_progress("looking for what is stored", done, total)
    return stored
