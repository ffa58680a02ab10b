"""Time of events: the host's clock, corrected by the log's.

The log sets its own time when a record is appended. The first acknowledgement shows how far the host's clock is off;
within CORRECTION_NS_MIN the difference is network delay and nothing is corrected. A rollout keeps the correction it
began with, and counts on from there with the monotonic clock, so that its spans keep their durations and their order
when the host's clock is set. Rollouts that began before the first acknowledgement stay uncorrected.
"""

import time
from collections.abc import Callable

CORRECTION_NS_MIN = 250_000_000

TimeNs = Callable[[], int]


class HostClock:
    """UTC nanoseconds of this host.

    time_ns       the host's clock, UTC nanoseconds
    monotonic_ns  nanoseconds that never fall, from any beginning
    """

    def __init__(self, time_ns: TimeNs = time.time_ns, monotonic_ns: TimeNs = time.monotonic_ns) -> None:
        self.correction_ns = 0
        self.time_ns = time_ns
        self._monotonic_ns = monotonic_ns
        self._acknowledged = False

    def now_ns(self) -> int:
        return self.time_ns() + self.correction_ns

    def for_rollout(self) -> TimeNs:
        """A clock for one rollout: the correction of now, and never falling."""
        monotonic_ns = self._monotonic_ns
        begin_ns = self.now_ns() - monotonic_ns()
        return lambda: begin_ns + monotonic_ns()

    def acknowledge(self, sent_ns: int, acknowledged_ns: int, log_time_ns: int) -> None:
        """Take the first acknowledgement: two times of the host's clock, and the log's time in between."""
        if self._acknowledged:
            return
        self._acknowledged = True
        early_ns = sent_ns - log_time_ns
        late_ns = log_time_ns - acknowledged_ns
        if max(early_ns, late_ns) > CORRECTION_NS_MIN:
            self.correction_ns = log_time_ns - (sent_ns + acknowledged_ns) // 2
