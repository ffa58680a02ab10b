"""The host's clock, corrected by the log's."""

from rolloutlog.eventstore.clock import HostClock

MS = 1_000_000
HOUR = 3600 * 1000 * MS


class Hands:
    """A clock that a test sets; the monotonic one moves with it."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.monotonic_ns = 0

    def move(self, by_ns: int) -> None:
        self.now_ns += by_ns
        self.monotonic_ns += by_ns

    def clock(self) -> HostClock:
        return HostClock(lambda: self.now_ns, lambda: self.monotonic_ns)


def test_clock_an_hour_slow_is_corrected_by_the_first_acknowledgement():
    clock = Hands(5 * HOUR).clock()
    clock.acknowledge(5 * HOUR, 5 * HOUR + 20 * MS, 6 * HOUR + 10 * MS)
    assert clock.now_ns() == 6 * HOUR


def test_clock_an_hour_fast_is_corrected_by_the_first_acknowledgement():
    clock = Hands(5 * HOUR).clock()
    clock.acknowledge(5 * HOUR, 5 * HOUR, 4 * HOUR)
    assert clock.now_ns() == 4 * HOUR


def test_clock_off_by_250_ms_is_network_delay_and_stays():
    clock = Hands(5 * HOUR).clock()
    clock.acknowledge(5 * HOUR, 5 * HOUR + MS, 5 * HOUR + 251 * MS)
    assert clock.now_ns() == 5 * HOUR


def test_clock_with_slow_append_stays_when_log_time_lies_within_it():
    clock = Hands(5 * HOUR).clock()
    clock.acknowledge(5 * HOUR, 5 * HOUR + 9_000 * MS, 5 * HOUR + 100 * MS)
    assert clock.now_ns() == 5 * HOUR


def test_clock_takes_only_the_first_acknowledgement():
    clock = Hands(5 * HOUR).clock()
    clock.acknowledge(5 * HOUR, 5 * HOUR, 5 * HOUR)
    clock.acknowledge(5 * HOUR, 5 * HOUR, 9 * HOUR)
    assert clock.now_ns() == 5 * HOUR


def test_rollout_clock_keeps_the_correction_it_began_with():
    hands = Hands(5 * HOUR)
    clock = hands.clock()
    rollout = clock.for_rollout()
    clock.acknowledge(5 * HOUR, 5 * HOUR, 6 * HOUR)
    hands.move(7)
    assert rollout() == 5 * HOUR + 7
    assert clock.for_rollout()() == 6 * HOUR + 7


def test_rollout_clock_when_host_clock_is_set_back_goes_on():
    hands = Hands(5 * HOUR)
    rollout = hands.clock().for_rollout()
    hands.move(10)
    hands.now_ns -= HOUR
    hands.move(10)
    assert rollout() == 5 * HOUR + 20
