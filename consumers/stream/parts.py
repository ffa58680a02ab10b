"""What a batch stream holds in its client's thread: log, owner of the reader's name, prefetch."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from re import compile as regex
from typing import TYPE_CHECKING, Any

from rolloutlog.consumers.position import PositionRefused
from rolloutlog.consumers.stream.acked import Acked
from rolloutlog.consumers.stream.prefetch import Prefetch, readable_offsets
from rolloutlog.consumers.stream.reader_owner import ReaderOwner
from rolloutlog.eventstore.checks import plain_integer, plain_number
from rolloutlog.eventstore.connection import Opener
from rolloutlog.eventstore.errors import InvalidSettings, LogMissing
from rolloutlog.eventstore.log import BATCHES, EVENTS, Log, open_log
from rolloutlog.eventstore.meta import Run, read_run
from rolloutlog.eventstore.topics import check_partitions

if TYPE_CHECKING:
    from rolloutlog.consumers.stream.output_end import OutputEnd

CLOSE_S = 5.0  # for each part

_READER = regex(r"[A-Za-z0-9_-]{1,64}")  # no dot: `{prefix}.{reader}` would not be unique
_ASSEMBLER = "assembler"

logger = logging.getLogger("rolloutlog.trainer")


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How a stream reads. Times in seconds. Raises InvalidSettings naming the setting.

    reader           a name of letters, digits, `_` and `-`
    partitions       of batches; None = all
    prefetch_bytes   of batches read ahead
    wait_s, warn_s   until a step that does not come is an error; between warnings that name who is awaited
    ack_s            for an acknowledgement while the log does not answer
    on_history_lost  `fail`, or `skip` what retention removed
    output           name of the replay's output that is read; None = live batches
    """

    reader: str
    partitions: Sequence[int] | None
    prefetch_bytes: int
    wait_s: float
    warn_s: float
    ack_s: float
    on_history_lost: str
    output: str | None = None

    def __post_init__(self) -> None:
        reader = self.reader
        if not isinstance(reader, str) or not _READER.fullmatch(reader) or reader == _ASSEMBLER:
            raise InvalidSettings(
                f"reader: expected a name of up to 64 letters, digits, _ and -, and not {_ASSEMBLER!r}, got {reader!r}"
            )
        if self.output is not None and not isinstance(self.output, str):
            raise InvalidSettings(f"output: expected the name of an output, or None, got {self.output!r}")
        prefetch_bytes = plain_integer(self.prefetch_bytes)
        if type(prefetch_bytes) is not int or prefetch_bytes < 1:
            raise InvalidSettings(f"prefetch_bytes: expected an integer from 1, got {prefetch_bytes!r}")
        object.__setattr__(self, "prefetch_bytes", prefetch_bytes)
        if self.on_history_lost not in ("fail", "skip"):
            raise InvalidSettings(f"on_history_lost: expected 'fail' or 'skip', got {self.on_history_lost!r}")
        for name in ("wait_s", "warn_s", "ack_s"):
            object.__setattr__(self, name, checked_seconds(name, getattr(self, name)))

    @property
    def skip_lost(self) -> bool:
        return self.on_history_lost == "skip"


class StreamParts:
    """Made by `open`.

    begin       what is acknowledged of the partitions read
    topic       that is read
    output      its name; None = live batches
    output_end  tells which one of that name it is, and when all of it is there; None = live batches
    """

    def __init__(self, log: Log, run: Run, settings: StreamSettings, clock: Callable[[], int]) -> None:
        self.log = log
        self.run = run
        self.settings = settings
        self.clock = clock
        self.owner: ReaderOwner
        self.prefetch: Prefetch
        self.begin: Acked
        self.topic = BATCHES
        self.output: str | None = None
        self.output_end: OutputEnd | None = None

    @classmethod
    async def open(
        cls,
        url: str,
        settings: StreamSettings,
        *,
        batches_max: int,
        clock: Callable[[], int],
        opener: Opener | None,
    ) -> "StreamParts":
        log = await (opener or _open)(url, False)
        try:
            run = await read_run(log)
            if run is None:
                raise LogMissing(f"log {url}: its topics hold no run yet; create it with `rolloutlog topics create`")
            check_partitions(run, await log.partitions(EVENTS), url)
            wanted = _checked_partitions(settings.partitions, run.partitions)
            parts = cls(log, run, settings, clock)
            await parts._choose_topic()
            reader, topic = settings.reader, parts.topic
            app = reader if parts.output_id is None else f"{reader}.output.{parts.output_id}"
            parts.owner = await ReaderOwner.open(
                log, app, topic, name=f"reader {reader} of {topic}", clock=clock, commit_s=settings.ack_s
            )
            try:
                parts.begin = await _begin(log, topic, parts.owner.acked, wanted, reader)
                offsets = await readable_offsets(log, topic, parts.begin.offsets, skip_lost=settings.skip_lost)
                parts.prefetch = Prefetch(
                    log,
                    offsets,
                    parts.begin.ended,
                    batches_max=batches_max,
                    bytes_max=settings.prefetch_bytes,
                    skip_lost=settings.skip_lost,
                    topic=topic,
                    is_whole=None if parts.output_end is None else parts.output_end.is_whole,
                )
            except BaseException:
                await parts.owner.close()
                raise
        except BaseException:
            await log.close()
            raise
        return parts

    @property
    def output_id(self) -> str | None:
        """The output's name, and when it was made; None = live batches."""
        return None if self.output_end is None else self.output_end.id

    async def _choose_topic(self) -> None:
        if self.settings.output is None:
            return
        from rolloutlog.consumers.stream.output_end import OutputEnd  # a live stream needs nothing of replays

        self.output_end = await OutputEnd.find(self.log, self.settings.output)
        if self.output_end is not None:
            self.topic, self.output = self.output_end.topic, self.settings.output

    async def close(self) -> None:
        for close in (self.prefetch.close, self.owner.close, self.log.close):
            await _close_quietly(close, self.log.url)


async def _begin(log: Log, topic: str, acked: Acked, partitions: Sequence[int], reader: str) -> Acked:
    """What was acknowledged of these partitions; one that never was begins at its first readable offset."""
    ranges = await log.ranges(topic, partitions)
    for partition in partitions:
        if (offset := acked.offsets.get(partition, 0)) > ranges[partition].written:
            raise PositionRefused(
                f"reader {reader}, partition {partition} of {topic}: expected a position of at most "
                f"{ranges[partition].written}, where the log ends, got {offset}: the topic was made anew, or lost its "
                "end. Open the stream with another reader's name"
            )
    offsets = {partition: acked.offsets.get(partition, ranges[partition].first) for partition in partitions}
    return Acked(acked.step, acked.policy_version, offsets, acked.ended & offsets.keys(), acked.line)


async def _open(url: str, create: bool) -> Log:
    return await open_log(url, create=create)


async def _close_quietly(close: Callable[[], Awaitable[None]], url: str) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await close()
    except Exception as error:
        logger.warning("log %s: closing a part of its client failed: %s: %s", url, type(error).__name__, error)


def checked_seconds(name: str, value: Any) -> float:
    """A plain number. Raises InvalidSettings."""
    seconds: Any = plain_number(value)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidSettings(f"{name}: expected seconds from 0, got {value!r}")
    return seconds


def _checked_partitions(partitions: Sequence[int] | None, count: int) -> list[int]:
    if partitions is None:
        return list(range(count))
    try:
        wanted = [plain_integer(partition) for partition in partitions]
    except TypeError:  # such as a single number
        wanted = []
    if not wanted or not all(type(each) is int and 0 <= each < count for each in wanted):
        raise InvalidSettings(f"partitions: expected some of 0 to {count - 1}, got {partitions!r}")
    return sorted(set(wanted))
