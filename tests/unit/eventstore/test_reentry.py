"""Recording from a signal handler, or a finalizer, that interrupts recording: refused, never waited for."""

import signal

import pytest

from rolloutlog.eventstore import NotOpen
from rolloutlog.eventstore.events import RewardRecorded, RolloutCompleted, Span
from rolloutlog.eventstore.outbox import Outbox


class InterruptedClock:
    """A rollout's clock, which is read in the middle of recording: once, a signal comes just then."""

    def __init__(self) -> None:
        self.armed = False

    def __call__(self) -> int:
        if self.armed:
            self.armed = False
            signal.raise_signal(signal.SIGUSR1)
        return 1


@pytest.fixture
def handle():
    old = signal.getsignal(signal.SIGUSR1)
    yield lambda work: signal.signal(signal.SIGUSR1, lambda number, frame: work())
    signal.signal(signal.SIGUSR1, old)


def test_signal_handler_that_records_in_the_middle_of_recording_is_refused(published, handle):
    clock = InterruptedClock()
    rollout = published.publisher.rollout("t", clock=clock)
    said = []

    def work() -> None:
        for use in (lambda: rollout.reward(2.0), rollout.finish, rollout.tool("late").__enter__):
            with pytest.raises(NotOpen) as caught:
                use()
            said.append(str(caught.value))

    handle(work)
    rollout.reward(0.0)
    clock.armed = True
    rollout.reward(1.0)
    rollout.finish()
    assert [text.partition(":")[0] for text in said] == [
        "reward 'reward' refused",
        "finish refused",
        "block 'late' refused",
    ]
    assert "a signal handler or a finalizer interrupted it; let a signal handler set a flag" in said[0]
    assert [reward.value for reward in published.of(RewardRecorded)] == [0.0, 1.0]


def test_finalizer_that_leaves_a_block_in_the_middle_of_recording_loses_nothing(published, handle, caplog):
    """Python finalizes abandoned generators whenever it likes. The block then ends with its rollout."""
    clock = InterruptedClock()
    rollout = published.publisher.rollout("t", clock=clock)

    def generator():
        with rollout.tool("sql"):
            yield

    abandoned = generator()
    next(abandoned)
    handle(abandoned.close)
    clock.armed = True
    rollout.reward(1.0)
    rollout.finish()
    assert "end of block 'sql' refused: this thread is in the middle of recording" in caplog.text
    assert [type(event) for event in published.events()[1:]] == [RewardRecorded, Span, RolloutCompleted]


def test_put_flush_and_close_within_a_put_are_refused(published):
    outbox: Outbox = published.publisher._outbox
    with outbox._lock:
        with pytest.raises(NotOpen, match="RolloutStarted of rollout r-7, attempt 0, refused"):
            published.publisher.rollout("t", rollout_id="r-7").reward(1.0)
        with pytest.raises(NotOpen, match="flush refused"):
            published.publisher.flush()
        with pytest.raises(NotOpen, match="close refused"):
            published.publisher.close()
    published.publisher.rollout("t").finish(1.0)
    assert len(published.events()) == 3
