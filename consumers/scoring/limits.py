"""How much a scorer may do at once, how fast, how long and how often: limits of a whole run."""

from dataclasses import dataclass
from typing import Any

from rolloutlog.consumers.scoring.loading import LoadedScorer, check_limits
from rolloutlog.eventstore.errors import InvalidSettings

CONCURRENCY, ASYNC_CONCURRENCY = 4, 16  # calls at a time in a process, where neither scorer nor settings say
TIMEOUT_S = 300.0
RETRIES = 2


@dataclass(frozen=True, slots=True)
class Allowed:
    """What one scorer may do in one process. `rate_per_s` None = as much as it can."""

    concurrency: int
    rate_per_s: float | None
    timeout_s: float
    retries: int


@dataclass(frozen=True, slots=True)
class ScoringLimits:
    """What the command line gives; None = as the scorer says, else the default.

    concurrency  calls of each scorer at a time, in all workers together
    rate_per_s   calls of each scorer that begin in a second, in all workers together, retries included
    timeout_s    of one call, in seconds
    retries      further tries after an error
    workers      processes that share concurrency and rate; each is given its part
    Raises       InvalidSettings naming the one that is unusable
    """

    concurrency: int | None = None
    rate_per_s: float | None = None
    timeout_s: float | None = None
    retries: int | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        check_limits(
            "scorer",
            concurrency=self.concurrency,
            rate_per_s=self.rate_per_s,
            timeout_s=self.timeout_s,
            retries=self.retries,
        )

    def of(self, scorer: LoadedScorer) -> Allowed:
        """What a scorer may do in one of the workers. Raises InvalidSettings where they cannot share its limit."""
        concurrency = scorer.concurrency if self.concurrency is None else self.concurrency
        if concurrency is not None and concurrency < self.workers:
            raise InvalidSettings(
                f"scorer {scorer.name}: expected at most {concurrency} workers, got {self.workers}: it allows "
                f"{concurrency} calls at a time, and each worker makes one; give fewer workers or more concurrency"
            )
        rate_per_s = scorer.rate_per_s if self.rate_per_s is None else self.rate_per_s
        default = ASYNC_CONCURRENCY if scorer.is_async else CONCURRENCY
        return Allowed(
            concurrency=default if concurrency is None else concurrency // self.workers,
            rate_per_s=None if rate_per_s is None else rate_per_s / self.workers,
            timeout_s=_first(self.timeout_s, scorer.timeout_s, TIMEOUT_S),
            retries=_first(self.retries, scorer.retries, RETRIES),
        )


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)
