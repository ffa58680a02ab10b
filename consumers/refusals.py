"""When refused events are too many: a mistake in what is published must not drain a topic into the dead letters."""

from collections.abc import Sequence

from rolloutlog.consumers.outputs import DeadLetter
from rolloutlog.eventstore.errors import StoreError


class TooManyDeadLetters(StoreError):
    """So many events are refused that something is wrong with what is published, not with single events."""


class Refusals:
    """Stops a partition when refused events are not single ones any more."""

    WINDOW = 10_000

    def __init__(self, in_row_max: int, share_max: float) -> None:
        self._in_row_max = in_row_max
        self._window_max = share_max * self.WINDOW
        self._in_row = self._events = self._refused = 0

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Take note of one event and of what it made refused. Raises TooManyDeadLetters."""
        self._events += 1
        self._in_row = self._in_row + 1 if letters else 0
        self._refused += bool(letters)
        # A share of few events says little: it is looked at when the window is full.
        if self._in_row >= self._in_row_max or (self._events == self.WINDOW and self._refused >= self._window_max):
            # The reason in full: what was not committed yet is in no topic.
            raise TooManyDeadLetters(
                f"{self._in_row} events in a row and {self._refused} of the last {self._events} were refused, the last "
                f"one so: {letters[-1].detail}. Mend what publishes them, or raise dead_letters_in_row and "
                "dead_letters_share to put them into dead letters"
            )
        if self._events == self.WINDOW:
            self._events = self._refused = 0
