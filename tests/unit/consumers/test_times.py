"""Moments as text."""

import pytest

from rolloutlog.consumers.times import parse_time, show_time
from rolloutlog.eventstore.errors import InvalidSettings

NOW_NS = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("2026-01-01T00:00:00Z", NOW_NS),
        ("2026-01-01", NOW_NS),
        ("2026-01-01T01:00:00+01:00", NOW_NS),
        ("2026-01-01T00:00:00.000001Z", NOW_NS + 1_000),
        ("1970-01-01", 0),
        ("-2h", NOW_NS - 7_200_000_000_000),
        ("-1.5s", NOW_NS - 1_500_000_000),
        ("-1w", NOW_NS - 604_800_000_000_000),
        ("-999999w", 0),
        ("2999-01-01", 2**63 - 1),
    ],
)
def test_time_in_every_form_is_utc_nanoseconds(text: str, time_ns: int):
    assert parse_time(text, NOW_NS) == time_ns


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("yesterday", "got 'yesterday'$"),
        ("2026-01-01T00:00:00", "which zone is it in"),
        ("1969-12-31", "before 1970"),
        ("2h", "got '2h'"),
        ("", "got ''"),
        ("-2y", "or -2h"),
    ],
)
def test_time_that_is_none_is_refused_with_what_is_expected(text: str, why: str):
    with pytest.raises(InvalidSettings, match=why):
        parse_time(text, NOW_NS)


def test_time_shown_is_read_back():
    assert show_time(NOW_NS + 5) == "2026-01-01T00:00:00Z"
    assert parse_time(show_time(NOW_NS), 0) == NOW_NS
