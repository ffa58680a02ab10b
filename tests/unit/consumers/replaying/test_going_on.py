"""Outputs that are gone on with: failures of scorers stay known, and ids are looked for in all of it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.simulated_log import SimulatedLog
from support.workload import whole_group

from rolloutlog.consumers.replaying import job as jobs
from rolloutlog.consumers.replaying.job import NothingSelected, Wish, plan, run_share
from rolloutlog.consumers.replaying.outputs import list_outputs
from rolloutlog.consumers.replaying.selection import Selection
from rolloutlog.consumers.replaying.share import Share
from rolloutlog.consumers.replaying.summary import Summary
from rolloutlog.consumers.scoring import load_scorer
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.status import Status, read_statuses, status_record
from rolloutlog.eventstore.topics import create_topics

GROUP_EVENTS = 4
JUDGE = """
from rolloutlog.consumers.scoring import Reward, scorer

waits = []

@scorer(version="1", retries=0)
def judge(rollout):
    if rollout.group_id in ("g1", "g4"):
        raise ValueError("no opinion")
    return Reward(1.0, name="judge")

@scorer(version="1", concurrency=1)
async def slow(rollout):
    for wait in waits:
        await wait(rollout.group_id)
    return Reward(1.0, name="slow")
"""


@pytest.fixture
async def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimulatedLog:
    """One partition with g0 to g9 of one rollout each, read group by group."""
    made = SimulatedLog(lambda: 1_000, records_max=lambda: GROUP_EVENTS)
    await create_topics(made, partitions=1, run_id="run")
    for index in range(10):
        made.store(whole_group(f"g{index}"))

    async def opened(url: str, **given: Any) -> SimulatedLog:
        return made

    monkeypatch.setattr(jobs, "open_log", opened)
    (tmp_path / "going_on_judges.py").write_text(JUDGE)
    monkeypatch.syspath_prepend(tmp_path)
    return made


async def replay(
    log: SimulatedLog,
    *scorers: str,
    step: Callable[[int, str], None] = lambda *_: None,
    on_share: Callable[[Share], None] = lambda share: None,
    **given: Any,
) -> Summary:
    wish = Wish(
        log.url, "out", FoldSettings(), scorers=tuple(f"going_on_judges:{each}" for each in scorers), cache=False,
        commit_bytes=1, **given,
    )  # fmt: skip
    job = await plan(wish)
    return await run_share(job, job.partitions, stop=asyncio.Event(), step=step, on_share=on_share)


class Broken(Exception):
    """The process ends here."""


@pytest.mark.parametrize("commits", range(1, 12))
async def test_rollouts_that_a_scorer_failed_for_are_known_wherever_the_replay_broke_off(
    log: SimulatedLog, commits: int
):
    """The exit code tells of them as long as they are in the output."""
    seen: list[str] = []

    def step(partition: int, name: str) -> None:
        seen.append(name)
        if seen.count("confirm") == commits:
            raise Broken

    try:
        await replay(log, "judge", step=step)
    except Broken:
        summary = await replay(log, "judge")
    else:
        summary = await replay(log, "judge")
        assert summary.counts["groups"] == 0
    assert (summary.groups_out, summary.unscored_out) == (10, 2)
    (status,) = (await read_statuses(log, app="replay.out")).values()
    assert (status.counts["groups"], status.counts["unscored"], status.counts["read"]) == (10, 2, 1)


async def test_ids_that_were_asked_for_are_found_again_when_the_output_is_gone_on_with(log: SimulatedLog):
    selection = Selection(groups=("g2", "nowhere"), rollouts=("g3-r0",))
    for _ in range(2):
        summary = await replay(log, selection=selection)
        assert selection.missing(summary.found) == ["group nowhere"]
        assert summary.groups_out == 2


async def test_replay_of_which_nothing_is_selected_makes_no_output_where_an_assembler_tells_how_far_it_is(
    log: SimulatedLog,
):
    status = Status("assembler", 0, "h", 1, 0, 36, 36, 40, 0, 0, None, {}, ())
    log.store([status_record(status)])
    with pytest.raises(
        NothingSelected, match=r"got group nowhere: none of them is there, or has closed\. No output was"
    ):
        await replay(log, selection=Selection(groups=("nowhere",)))
    assert await list_outputs(log) == []
    summary = await replay(log, selection=Selection(groups=("g9",)))  # it is in what no batch tells of
    assert summary.groups_out == 1


async def test_progress_with_a_slow_scorer_is_that_of_what_is_out(log: SimulatedLog):
    """All is read long before."""
    told: list[tuple[str, int, int]] = []
    shares: list[Share] = []

    async def wait(group_id: str) -> None:
        await asyncio.sleep(0.02)
        told.append((group_id, *shares[0].progress()))

    load_scorer("going_on_judges:slow").function.__globals__["waits"].append(wait)
    await replay(log, "slow", on_share=shares.append)
    assert shares[0].progress() == (40, 40)
    done = [done for _, done, _ in told]
    assert {total for _, _, total in told} == {40}
    assert done == sorted(done)
    assert done[0] < 4
    assert len(set(done)) > 5


async def test_dry_run_counts_the_calls_that_there_would_be(log: SimulatedLog):
    summary = await replay(log, "judge", dry_run=True)
    assert summary.asked == {("judge", "unasked"): 10}
    assert (summary.counts["groups"], summary.failures) == (10, [])
