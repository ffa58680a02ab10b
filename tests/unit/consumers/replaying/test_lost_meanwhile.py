"""Retention that removes events while a replay reads them, or before it is gone on with."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.simulated_log import SimulatedLog
from support.workload import whole_group

from rolloutlog.consumers.recovery import HistoryLost
from rolloutlog.consumers.replaying import job as jobs
from rolloutlog.consumers.replaying import share
from rolloutlog.consumers.replaying.job import Wish, plan, run_share
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.log import EVENTS
from rolloutlog.eventstore.topics import create_topics

GROUP_EVENTS = 4


@pytest.fixture
async def log(monkeypatch: pytest.MonkeyPatch) -> SimulatedLog:
    """One partition with g0 to g9, read group by group."""
    made = SimulatedLog(lambda: 1_000, records_max=lambda: GROUP_EVENTS)
    await create_topics(made, partitions=1, run_id="run")
    for index in range(10):
        made.store(whole_group(f"g{index}"))

    async def opened(url: str, **given: Any) -> SimulatedLog:
        return made

    monkeypatch.setattr(jobs, "open_log", opened)
    monkeypatch.setattr(share, "RETRY_S", (0.0, 0.0))
    return made


async def replay(log: SimulatedLog, *, skip_lost: bool, step: Callable[[int, str], None] = lambda *_: None) -> None:
    job = await plan(Wish(log.url, "out", FoldSettings(), commit_bytes=1, skip_lost=skip_lost))
    await run_share(job, job.partitions, stop=asyncio.Event(), step=step)


def cut_at_third_fetch(log: SimulatedLog, first: int) -> Callable[[int, str], None]:
    seen: list[str] = []

    def step(partition: int, name: str) -> None:
        seen.append(name)
        if seen.count("receive") == 3:
            log.cut(EVENTS, 0, first)

    return step


def groups(log: SimulatedLog) -> list[str]:
    return [(each.key or b"").decode() for each in log.records("output.out")]


async def test_replay_whose_events_are_cut_while_it_reads_says_what_is_lost_and_goes_on_without_when_told(
    log: SimulatedLog,
):
    with pytest.raises(HistoryLost, match=r"partition 0 of events: events 0-27 are gone, and this replay goes on from"):
        await replay(log, skip_lost=False, step=cut_at_third_fetch(log, 7 * GROUP_EVENTS))
    assert groups(log) == ["g0", "g1"]
    with pytest.raises(HistoryLost, match="--on-history-lost skip"):
        await replay(log, skip_lost=False)
    await replay(log, skip_lost=True)
    assert groups(log) == ["g0", "g1", "g7", "g8", "g9"]


async def test_replay_that_may_go_on_without_lost_events_does_so_by_itself(log: SimulatedLog):
    await replay(log, skip_lost=True, step=cut_at_third_fetch(log, 7 * GROUP_EVENTS))
    assert groups(log) == ["g0", "g1", "g7", "g8", "g9"]


async def test_replay_of_which_everything_is_gone_meanwhile_ends(log: SimulatedLog):
    await replay(log, skip_lost=True, step=cut_at_third_fetch(log, 10 * GROUP_EVENTS))
    assert groups(log) == ["g0", "g1"]
