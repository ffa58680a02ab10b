"""Reads the topics that a ledger is made of.

Order   acknowledgements, events, dead letters, batches: each is caused by what is read after it, or told apart by its
        offset, so that a run that goes on meanwhile looks like no error
"""

import json
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from rolloutlog.consumers.ledger import Cut, Ledger
from rolloutlog.consumers.packing import WHY
from rolloutlog.consumers.published import read_published
from rolloutlog.eventstore.acks import PARTITION as ACKS_PARTITION
from rolloutlog.eventstore.acks import read_ack
from rolloutlog.eventstore.codec import HEADER, Header, decode_event, parse_header
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import COMPLETE, GroupClosed, RolloutStarted
from rolloutlog.eventstore.log import ACKS, BATCHES, DEAD_LETTERS, EVENTS, Log, Range, Record
from rolloutlog.eventstore.log.reading import read_range

LATE_WINDOW_S = 600.0
ASSEMBLER = "assembler."  # begins the source of the closings that an assembler writes
TELL_EVERY = 500  # records

OnProgress = Callable[[str, int, int], None]


async def read_ledger(
    log: Log,
    *,
    reader: str | None = None,
    late_window_s: float = LATE_WINDOW_S,
    on_progress: OnProgress = lambda topic, done, total: None,
) -> Ledger:
    """Read everything up to the ends as of now.

    reader         whose acknowledgements are looked at; None = everyone's
    late_window_s  the assembler's setting: starts that were sent again later than this opened nothing
    on_progress    told of a topic's offsets read and to be read in all
    """
    return await _Reading(log, reader, int(late_window_s * 1e9), on_progress).run()


class _Reading:
    def __init__(self, log: Log, reader: str | None, late_window_ns: int, on_progress: OnProgress) -> None:
        self._log, self._reader, self._late_window_ns = log, reader, late_window_ns
        self._on_progress = on_progress
        self._ledger = Ledger()

    async def run(self) -> Ledger:
        partitions = range(await self._log.partitions(EVENTS))
        acks = await self._topic(ACKS, [ACKS_PARTITION], self._ack)
        self._ledger.acks_cut = acks[ACKS_PARTITION].first > 0
        events = await self._topic(EVENTS, partitions, self._event)
        await self._topic(DEAD_LETTERS, partitions, self._dead_letter)
        batches = await self._batches(partitions)
        for partition, span in events.items():
            self._ledger.add_cut(partition, Cut(span.first, span.end, batches[partition].first))
        return self._ledger

    async def _topic(
        self, topic: str, partitions: range | list[int], take: Callable[[Record], None]
    ) -> Mapping[int, Range]:
        spans = await self._log.ranges(topic, partitions)
        total, done = sum(span.end - span.first for span in spans.values()), 0
        for partition, span in spans.items():
            async with aclosing(read_range(self._log, topic, partition, span.first, span.end)) as records:
                index = 0
                async for record in records:
                    take(record)
                    index += 1
                    if index % TELL_EVERY == 0:
                        self._on_progress(topic, done + record.offset - span.first, total)
            done += span.end - span.first
            self._on_progress(topic, done, total)
        return spans

    async def _batches(self, partitions: range) -> Mapping[int, Range]:
        spans = await self._log.ranges(BATCHES, partitions)
        total, done = sum(span.end - span.first for span in spans.values()), 0
        for partition, span in spans.items():

            def refused(record: Record, error: InvalidEvent, first: int = span.first) -> None:
                # Retention may have taken the first parts of the first batch that is left.
                if first == 0 or error.reason != "part_missing":
                    self._ledger.unreadable[BATCHES] += 1

            async with aclosing(read_published(self._log, partition, on_refused=refused)) as found:
                async for published in found:
                    self._ledger.add_published(published)
                    self._on_progress(BATCHES, min(total, done + published.end - span.first), total)
            done += span.end - span.first
            self._on_progress(BATCHES, done, total)
        return spans

    def _ack(self, record: Record) -> None:
        if self._reader is not None and record.key != self._reader.encode():
            return
        try:
            ack = read_ack(record)
        except InvalidEvent:
            self._ledger.unreadable[ACKS] += 1
            return
        if ack is not None:
            self._ledger.add_ack(ack)

    def _event(self, record: Record) -> None:
        header = _header(record)
        if header is None or not record.key:
            return  # refused: a dead letter, no start
        group_id = record.key.decode(errors="replace")
        if header.kind == RolloutStarted.record:
            self._ledger.add_start(record.partition, record.offset, group_id, header.rollout_id, header.attempt)
            if header.resend and self._came_late(record):
                self._ledger.add_refused(record.partition, record.offset, "stale_resend")
        elif header.kind == GroupClosed.record and header.source.startswith(ASSEMBLER) and _is_complete(record):
            self._ledger.add_closing(group_id, record.offset)
        elif header.kind == GroupClosed.record:
            self._ledger.add_request(group_id, record.offset)

    def _came_late(self, record: Record) -> bool:
        try:
            time_ns = decode_event(RolloutStarted.record, record.value).time_ns
        except InvalidEvent:
            return False  # a dead letter says so
        return record.log_time_ns - time_ns > self._late_window_ns

    def _dead_letter(self, record: Record) -> None:
        why = why_of(record)
        self._ledger.add_dead_letter(why["reason"])
        header = _header(record)
        # One that was too large to be kept whole has lost its header: it is named all the same.
        if (header is None or header.kind == RolloutStarted.record) and isinstance(why.get("offset"), int):
            self._ledger.add_refused(record.partition, why["offset"], "dead_letter")


def why_of(record: Record) -> dict[str, Any]:
    """Why a dead letter is one: its last header `why`; the reason is `unknown` where there is none."""
    why: Any = None
    values = [value for name, value in record.headers if name == WHY]
    with suppress(ValueError):
        why = json.loads(values[-1] or b"") if values else None
    found = why if isinstance(why, dict) else {}
    return {**found, "reason": str(found.get("reason", "unknown"))}


def _header(record: Record) -> Header | None:
    values = [value for name, value in record.headers if name == HEADER]
    try:
        return parse_header(values[0]) if values else None
    except InvalidEvent:
        return None


def _is_complete(record: Record) -> bool:
    try:
        event = decode_event(GroupClosed.record, record.value)
    except InvalidEvent:
        return False
    return isinstance(event, GroupClosed) and event.reason == COMPLETE
