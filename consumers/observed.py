"""What the owner of a partition has seen, told by its own monotonic clock.

Times are seconds of that clock, handed in: nothing here depends on any host's wall clock, and the log's is asked only
for what began before this owner had read to the end. From then on an event is as old as the time since it was folded.

end      the moment the end was reached, once after each start and each pause. What was folded before it counts as
         folded then: after a pause nothing is told by how long the pause was
marks    offsets and times, a second or more apart: an offset below a mark was folded by the mark's time
log time of the end, so that an age survives a restart: the highest one folded, until the log says what it is now
"""

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

MARK_S = 1.0
MARKS_KEPT = 60
STRIDES = 64  # marks of bytes within replay_bytes_max

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Aged:
    """The events of an age: below `offset`, or, of those from before the end, up to a log time."""

    offset: int
    end_offset: int
    log_ns: int

    def includes(self, offset: int, log_ns: int) -> bool:
        """Whether the event at this offset, with the log time of its own, is so old."""
        return offset < self.offset if offset >= self.end_offset else log_ns <= self.log_ns


class Observed:
    """One owner's observations of one partition, from its start on.

    longest_s  what is older than that may be told as just that old
    bytes_max  bytes are told to within a 64th of it
    """

    def __init__(self, *, longest_s: float, bytes_max: int) -> None:
        self._longest_s = longest_s
        self._stride = max(1, bytes_max // STRIDES)
        self.end_at_s: float | None = None
        self._end_offset = 0
        self._end_log_ns = 0
        self._is_log_time_asked = False
        self._offsets, self._at_s = array("q"), array("d")
        self._bytes = 0
        self._byte_offsets, self._byte_counts = array("q"), array("q")

    # What is seen

    def read(self, offset: int, size_bytes: int) -> None:
        """A record was read."""
        if not self._byte_counts or self._bytes - self._byte_counts[-1] >= self._stride:
            self._byte_offsets.append(offset)
            self._byte_counts.append(self._bytes)
        self._bytes += size_bytes

    def begin_anew(self) -> None:
        """There was a pause: what is folded by now counts as folded when the end is reached again."""
        self.end_at_s, self._is_log_time_asked = None, False
        del self._offsets[:], self._at_s[:]

    def reach_end(self, position: int, log_ns: int, at_s: float) -> None:
        """Everything written before is folded, for the first time. `log_ns`: the highest log time folded."""
        self.end_at_s, self._end_offset, self._end_log_ns = at_s, position, log_ns
        self._mark(position, at_s)

    def move(self, position: int, at_s: float) -> None:
        """All below `position` is folded."""
        if self.end_at_s is None or position <= self._offsets[-1] or at_s - self._at_s[-1] < MARK_S:
            return
        self._mark(position, at_s)
        old = bisect_right(self._at_s, at_s - self._longest_s) - 1
        if old > MARKS_KEPT:  # not each time: it moves all that stays
            del self._offsets[:old], self._at_s[:old]

    def hear_log_time(self, log_ns: int, at_s: float) -> None:
        """The log has just said what its time is. The first time counts: if its clock is set, that changes nothing."""
        if self.end_at_s is None or self._is_log_time_asked:
            return
        self._is_log_time_asked = True
        self._end_log_ns = max(self._end_log_ns, log_ns - int((at_s - self.end_at_s) * _SECOND_NS))

    # What it tells

    def since_end(self, at_s: float) -> float:
        """Seconds since the end was reached."""
        return at_s - self.end_at_s if self.end_at_s is not None else 0.0

    def waited(self, limit_s: float, at_s: float) -> int:
        """Events below this offset were folded `limit_s` ago or longer; where the end was reached later, then."""
        index = bisect_right(self._at_s, at_s - limit_s)
        return self._offsets[index - 1] if index else -1

    def aged(self, limit_s: float, at_s: float) -> "Aged":
        """Which events are of this age, or older."""
        log_ns = self._end_log_ns + int((self.since_end(at_s) - limit_s) * _SECOND_NS)
        return Aged(self.waited(limit_s, at_s), self._end_offset, log_ns)

    def bytes_since(self, offset: int) -> int:
        """Bytes read from this offset on, told a little low."""
        index = bisect_left(self._byte_offsets, offset)
        return self._bytes - self._byte_counts[index] if index < len(self._byte_counts) else 0

    def forget_bytes(self, offset: int) -> None:
        """Nothing below this offset is asked for any more."""
        old = bisect_left(self._byte_offsets, offset)
        if old > STRIDES:
            del self._byte_offsets[:old], self._byte_counts[:old]

    def _mark(self, position: int, at_s: float) -> None:
        self._offsets.append(position)
        self._at_s.append(at_s)
