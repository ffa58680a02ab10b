"""The output that a stream reads, and whether all that it will ever have is there.

A replay's owner of a partition says in meta how far it is, in transactions of its own, after that of the batches, and
fenced as they are. Where it has said that it is at the output's end, no batch comes any more: positions do not go back,
and the end was fixed when the output was created. A RunEnded in an output ends nothing: history may go on after it.

Not here  what an output is: consumers.replaying.outputs; the end of a live run: consumers.stream.prefetch
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import aclosing
from typing import Any

from rolloutlog.consumers.named_topic import topic_named
from rolloutlog.consumers.owners import META_PARTITION
from rolloutlog.consumers.replaying.outputs import PREFIX, Output, read_output
from rolloutlog.consumers.replaying.outputs import RECORD as CREATED_RECORD
from rolloutlog.consumers.status import RECORD as STATUS_RECORD
from rolloutlog.eventstore.codec import decode_record
from rolloutlog.eventstore.errors import InvalidEvent, InvalidSettings, LogMissing, OffsetOutOfRange
from rolloutlog.eventstore.log import BATCHES, META, Log
from rolloutlog.eventstore.log.reading import read_range

LOOK_EVERY_S = 1.0  # each look that finds something opens a reader
PARTITIONS_SHOWN = 8

_SECOND_NS = 1_000_000_000


class OutputEnd:
    """Made by `find`. Reads meta once, and from then on what is new.

    topic  of the output
    id     its name, and when it was made: one that is made anew under the name is another
    """

    def __init__(self, log: Log, output: Output) -> None:
        self.topic = output.topic
        self.id = f"{output.name}.{output.time_ns:x}"
        self._log = log
        self._output = output
        self._created = PREFIX + output.name.encode()
        self._said = f"status/{output.app}/".encode()
        self._next = 0
        self._is_there = True
        self._looked_at = float("-inf")  # by the loop's clock
        self._statuses: dict[int, dict[str, Any]] = {}  # by partition, of those that got furthest

    @classmethod
    async def find(cls, log: Log, name: str) -> "OutputEnd | None":
        """None when the name stands for live batches. Raises InvalidSettings naming the outputs that exist."""
        topic = await topic_named(log, name)
        if topic == BATCHES:
            return None
        output = await read_output(log, name)
        if output is None:
            raise InvalidSettings(
                f"output {name!r}: expected a record in {META} beside topic {topic}, got none that can be read: its "
                "replay was stopped right at the start, or is of a newer version of rolloutlog. Run the replay again, "
                "or that version"
            )
        return cls(log, output)

    async def is_whole(self, partitions: Collection[int]) -> bool:
        """Whether nothing will come any more after what now stands in these partitions.

        Raises  LogMissing when the output was removed, LogUnavailable
        """
        missing = self._missing(partitions)
        now = asyncio.get_running_loop().time()
        if missing and now >= self._looked_at + LOOK_EVERY_S:
            await self._read()
            self._looked_at = now
            missing = self._missing(partitions)
        return not missing

    def describe(self, partitions: Collection[int], clock: Callable[[], int]) -> str:
        """How far the replay is in those of the partitions that are not whole. `clock`: UTC nanoseconds."""
        name, missing = self._output.name, self._missing(partitions)
        if not missing:
            return f"output {name} is complete"
        shown = [self._partition(each, clock()) for each in missing[:PARTITIONS_SHOWN]]
        if len(missing) > len(shown):
            shown.append(f"and {len(missing) - len(shown)} more partitions")
        return (
            f"output {name} is not complete: {' | '.join(shown)}; where no replay runs, run `rolloutlog replay "
            f"--output {name}` again as it was"
        )

    def _missing(self, partitions: Collection[int]) -> list[int]:
        return [each for each in sorted(partitions) if self._position(each) < self._output.ends[each]]

    def _position(self, partition: int) -> int:
        said = self._statuses.get(partition)
        return self._output.first[partition] if said is None else int(said["position"])

    def _partition(self, partition: int, now_ns: int) -> str:
        said, end = self._statuses.get(partition), self._output.ends[partition]
        if said is None:
            return f"partition {partition}: no replay has said anything yet"
        ago_s = max(now_ns - said["time_ns"], 0) / _SECOND_NS
        return (
            f"partition {partition}: at {said['position']} of {end}, said {ago_s:.0f} s ago by host {said['host']}, "
            f"pid {said['pid']}"
        )

    async def _read(self) -> None:
        span = (await self._log.ranges(META, [META_PARTITION]))[META_PARTITION]
        self._next = max(self._next, span.first)
        try:
            async with aclosing(read_range(self._log, META, META_PARTITION, self._next, span.end)) as records:
                async for record in records:
                    self._take(record.key or b"", record.value)
                    self._next = record.offset + 1
        except OffsetOutOfRange:
            return  # records were removed meanwhile; the next look goes on where the topic begins by then
        self._next = max(self._next, span.end)
        if not self._is_there:
            raise LogMissing(
                f"output {self._output.name}: it was removed while this stream read it; no more steps are given. Open "
                "another stream on the one that took its place, if there is one"
            )

    def _take(self, key: bytes, value: bytes | None) -> None:
        if key == self._created:
            fields = _decoded(value, CREATED_RECORD)
            if fields is not None and fields["time_ns"] != self._output.time_ns:
                return
            self._is_there = value is not None
            self._statuses.clear()  # what was said before is of another output, that had its name
        elif key.startswith(self._said):
            status = _decoded(value, STATUS_RECORD)
            if status is not None and status["position"] >= self._position(status["partition"]):
                self._statuses[status["partition"]] = status


def _decoded(value: bytes | None, record: str) -> dict[str, Any] | None:
    """None for a deleted record, or one that a newer version wrote."""
    try:
        return decode_record(value, expected=record)[1]
    except InvalidEvent:
        return None
