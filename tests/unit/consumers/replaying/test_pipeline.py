"""Groups while they are scored: any order in, trigger order out."""

import asyncio
from typing import Any, cast

import pytest
from support.building import call, completed, record, started

from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.outputs import GroupLeft
from rolloutlog.consumers.replaying import pipeline
from rolloutlog.consumers.replaying.pipeline import Pipeline
from rolloutlog.consumers.scoring import Recorded, Scored, Scoring
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState


class Judge:
    """Answers about a rollout when the test says so."""

    def __init__(self) -> None:
        self.asked: dict[str, asyncio.Future[Scored]] = {}
        self.heard = asyncio.Semaphore(0)

    async def score(self, view: Any, recorded: Any) -> Scored:
        self.asked[view.rollout_id] = asyncio.get_running_loop().create_future()
        self.heard.release()
        return await self.asked[view.rollout_id]


def left(name: str, trigger: int) -> GroupLeft:
    """A group of one rollout, both of this name."""
    state = PartitionState(0, FoldSettings(), settles=False)
    events = (started(name, group_id=name, group_size=1), call("c", 1, name), completed(2, name))
    outputs = [
        each for at, event in enumerate(events) for each in fold(state, record(event, trigger - 2 + at, key=name))
    ]
    return next(each for each in outputs if isinstance(each, GroupLeft))


async def begun(*names: str) -> tuple[Pipeline, Judge]:
    judge = Judge()
    made = Pipeline(0, cast(Scoring, judge), cast(Recorded, None))
    for index, name in enumerate(names):
        made.add(10 * (index + 1), index, [left(name, 10 * (index + 1))])
    for _ in names:
        await judge.heard.acquire()
    return made, judge


async def test_pipeline_hands_groups_on_in_trigger_order_whatever_order_they_are_scored_in():
    made, judge = await begun("a", "b")
    judge.asked["b"].set_result(Scored())
    await asyncio.sleep(0)
    assert list(made.done()) == []
    oldest = made.oldest
    assert oldest is not None
    assert (oldest.trigger, oldest.watermark) == (10, 0)
    judge.asked["a"].set_result(Scored(made=1))
    await made.wait(10)
    assert [(work.trigger, [each.made for _, each in scores.of_rollouts]) for work, scores in made.done()] == [
        (10, [1]), (20, [0])
    ]  # fmt: skip
    assert made.oldest is None


async def test_pipeline_with_many_groups_or_bytes_is_full(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pipeline, "GROUPS_MAX", 2)
    made, _ = await begun("a")
    assert not made.full
    made.add(20, 1, [left("b", 20)])
    assert made.full
    monkeypatch.setattr(pipeline, "GROUPS_MAX", 100)
    monkeypatch.setattr(pipeline, "BYTES_MAX", 10)
    assert made.full
    await made.close()
    assert not made.full


async def test_pipeline_is_not_full_before_scorers_have_twice_as_many_rollouts_as_they_take(
    monkeypatch: pytest.MonkeyPatch,
):
    """Groups may be of one rollout each: 64 of them would keep 200 calls at a time from being made."""
    monkeypatch.setattr(pipeline, "GROUPS_MAX", 1)
    made = Pipeline(0, cast(Scoring, Judge()), cast(Recorded, None), calls_max=2)
    fullness = []
    for number, name in enumerate("abcd", 1):
        made.add(10 * number, number, [left(name, 10 * number)])
        fullness.append(made.full)
    assert fullness == [False, False, False, True]
    await made.close()


async def test_pipeline_raises_what_went_wrong_beside_the_scorers():
    made, judge = await begun("a")
    judge.asked["a"].set_exception(RuntimeError("no view"))
    await made.wait(10)
    with pytest.raises(RuntimeError, match="no view"):
        list(made.done())


async def test_pipeline_closed_gives_up_what_is_under_way():
    made, judge = await begun("a")
    await made.close()
    assert judge.asked["a"].cancelled()
    assert len(made) == 0
