"""Moments as text: ISO 8601 with a zone, a day, or so long ago."""

from datetime import UTC, datetime, timedelta
from re import compile as regex

from rolloutlog.eventstore.errors import InvalidSettings

_AGO = regex(r"-(\d{1,9}(?:\.\d{1,9})?)([smhdw])")
_DAY = regex(r"\d{4}-\d{2}-\d{2}")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_NS = 2**63 - 1  # in 2262; what lies after it is as late as any event can be


def parse_time(text: str, now_ns: int) -> int:
    """A moment in UTC nanoseconds: `2026-03-01T12:00:00Z`, `2026-03-01` (its midnight in UTC), `-2h` (before now).

    Raises  InvalidSettings that shows what is expected
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(0, now_ns - round(float(ago[1]) * _SECONDS[ago[2]] * 1_000_000_000))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _unusable(text) from None
    if moment.tzinfo is None:
        if not _DAY.fullmatch(text):
            raise _unusable(text, "; which zone is it in? put Z behind it for UTC")
        moment = moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    if since < timedelta(0):
        raise _unusable(text, "; it lies before 1970")
    return min((since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000, LAST_NS)


def show_time(time_ns: int) -> str:
    """A moment in UTC to the second, as `parse_time` reads it."""
    return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def exact_time(time_ns: int) -> str:
    """A moment in UTC to the microsecond, as `parse_time` reads it: its text can be given again in full."""
    seconds, rest_ns = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns // 1_000:06}Z"


def _unusable(text: str, advice: str = "") -> InvalidSettings:
    return InvalidSettings(
        f"time: expected ISO 8601 with a zone such as 2026-03-01T12:00:00Z, a day such as 2026-03-01, or -2h, got "
        f"{text!r}{advice}"
    )
