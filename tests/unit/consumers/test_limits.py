from dataclasses import replace
from pathlib import Path

import pytest

from rolloutlog.consumers.assembler import AssemblerSettings
from rolloutlog.consumers.limits import Limits, check_retention, events_kept_s, too_short
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import Difference, open_log
from rolloutlog.eventstore.topics import create_topics

DAY_S = 86_400


def test_limits_by_default_are_as_documented():
    limits = Limits()
    assert (limits.idle_s, limits.age_s, limits.grace_s, limits.retry_s, limits.group_age_s) == (
        600,
        7200,
        60,
        300,
        900,
    )
    assert limits.replay_bytes_max == 2 * 2**30


def test_limits_change_no_config_hash():
    """They act through events in the log alone."""
    one, other = AssemblerSettings(), AssemblerSettings(limits=Limits(idle_s=1, age_s=2))
    assert one.fold.config_hash == other.fold.config_hash


@pytest.mark.parametrize("name", ["idle_s", "age_s", "grace_s", "retry_s", "group_age_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_limit_that_is_none_is_refused_by_name(name: str, value: float):
    with pytest.raises(InvalidSettings, match=f"{name}: expected seconds above 0"):
        replace(Limits(), **{name: value})


def test_replay_bytes_max_of_0_is_refused():
    with pytest.raises(InvalidSettings, match="replay_bytes_max: expected at least 1, got 0"):
        Limits(replay_bytes_max=0)


def test_retention_needed_is_that_of_the_longest_rollout_and_group_and_a_day():
    assert Limits(age_s=1_000, group_age_s=100).retention_s_min == 1_100 + DAY_S


def test_retention_is_too_short_up_to_what_is_needed():
    limits = Limits(age_s=1_000, group_age_s=100)
    assert too_short(1_101 + DAY_S, limits) is None
    assert too_short(None, limits) is None
    assert too_short(1_100 + DAY_S, limits) == (
        "events are kept for 87500 s, expected more than 87500 s: the longest rollout and group (age_s 1000 + "
        "group_age_s 100) and a day to repair what stopped the assembler"
    )


@pytest.mark.parametrize(("found", "kept_s"), [("1000", 1000.0), ("None", None)])
def test_retention_is_found_in_the_differences_from_the_default(found: str, kept_s: float | None):
    differences = [Difference("acks", "retention_s", "1", "2"), Difference("events", "retention_s", "604800", found)]
    assert events_kept_s(differences) == kept_s


def test_retention_without_a_difference_is_the_default():
    assert events_kept_s([]) == 7 * DAY_S


async def test_check_of_a_log_that_keeps_events_too_short_refuses_it(tmp_path: Path):
    log = await open_log(f"sqlite:///{tmp_path}/log.db", create=True)
    try:
        await create_topics(log, retention_s={"events": 2 * DAY_S})
        await check_retention(log, Limits())
        with pytest.raises(InvalidSettings, match=r"events are kept for 172800 s, .* lower age_s or group_age_s"):
            await check_retention(log, Limits(age_s=DAY_S))
    finally:
        await log.close()
