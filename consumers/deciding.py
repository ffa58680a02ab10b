"""When the owner of a partition decides: only as of a moment until which everything written is folded.

Once a second at most it looks at what is open. Where something waits for too long, it asks the log for its end, reads
so far, and looks again, as of the moment at which it asked. The first end is read to in any case, since idleness and
most other limits count from there. So is one after a pause, in which this process was stopped or the log did not
answer: hosts may have been stopped or cut off just as long, and what they hold comes a moment later.

Not here  what is due: consumers.decisions; appending it: consumers.assembler
"""

import asyncio
from collections import deque
from collections.abc import Callable
from statistics import median

from rolloutlog.consumers.decisions import Decider, Decision, Look
from rolloutlog.consumers.limits import Limits
from rolloutlog.consumers.state import PartitionState
from rolloutlog.eventstore.log import EVENTS, Log, Record

LOOK_S = 1.0  # between two looks
LOOK_SHARE = 20  # a look that takes long is repeated after so many times as long
PAUSE_S = 10.0  # between two turns; the log's own answers take less, or are given up
PAUSE_TIMES = 3  # as long as turns that take long usually do: an owner that always has much to do decides as well
TURNS_KEPT = 5


class Deciding:
    """For one owner of one partition. `clock`: its own monotonic seconds."""

    def __init__(self, log: Log, partition: int, limits: Limits, clock: Callable[[], float]) -> None:
        self._log, self._partition, self._clock = log, partition, clock
        self._decider = Decider(limits)
        self._observed = self._decider.observed
        self._look_at = float("-inf")
        self._turns = _Turns()
        self._asked: tuple[float, int] | None = None  # when the log was asked for its end, and what it said

    def read(self, record: Record) -> None:
        """A record is folded."""
        self._observed.read(record.offset, len(record.key or b"") + len(record.value or b""))

    def hear_log_time(self, log_time_ns: int) -> None:
        """The log has just said what time it is."""
        self._observed.hear_log_time(log_time_ns, self._clock())

    async def due(self, state: PartitionState) -> list[Decision]:
        """What is to be appended now. To be asked often, with all folded below `state.position`."""
        now = self._clock()
        if self._turns.is_after_pause(now):
            self._observed.begin_anew()
            self._asked = None
        self._observed.move(state.position, now)
        if self._asked is None:
            if now < self._look_at or (self._observed.end_at_s is not None and not (await self._look(state, now)).any):
                return []
            span = (await self._log.ranges(EVENTS, [self._partition]))[self._partition]
            self._asked = (now, span.written)
        asked_at_s, written = self._asked
        if state.position < max(written, state.emit_from):
            return []
        self._asked = None
        if self._observed.end_at_s is None:
            self._observed.reach_end(state.position, state.now_ns, now)
            return []
        return self._decider.decide(await self._look(state, asked_at_s))

    async def _look(self, state: PartitionState, at_s: float) -> Look:
        look, began = self._decider.look(state, at_s), self._clock()
        for _ in look.walk():
            await asyncio.sleep(0)  # the other partitions' turn; nothing is folded here meanwhile
        ended = self._clock()
        self._look_at = ended + max(LOOK_S, LOOK_SHARE * (ended - began))
        self._turns.go_on(ended)
        return look


class _Turns:
    """When the owner had its turns, to tell a pause from much work."""

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._long_s = deque([LOOK_S] * TURNS_KEPT, maxlen=TURNS_KEPT)  # the last times between turns above LOOK_S

    def is_after_pause(self, now_s: float) -> bool:
        """A turn begins: whether there was a pause before it."""
        took_s = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s
        if took_s <= LOOK_S:
            return False
        usual_s = median(self._long_s)
        self._long_s.append(took_s)
        return took_s > PAUSE_S and took_s > PAUSE_TIMES * usual_s

    def go_on(self, now_s: float) -> None:
        """The turn has taken until now."""
        self._at_s = now_s
