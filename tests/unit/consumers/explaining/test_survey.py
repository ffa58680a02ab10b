"""Many rollouts under two settings."""

import asyncio
from io import StringIO

import pytest
from rich.console import Console, Group
from support.building import call, completed, reward, started
from support.memory_log import MemoryLog
from unit.consumers.explaining.test_finding import log_of, new_record

from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.consumers.explaining import tally as module
from rolloutlog.consumers.explaining.explain_json import survey_json
from rolloutlog.consumers.explaining.explain_tables import survey_lines
from rolloutlog.consumers.explaining.survey import Which, survey
from rolloutlog.consumers.explaining.tally import Tally
from rolloutlog.eventstore.events import Span
from rolloutlog.eventstore.log import EVENTS, NewRecord


def span(span_id: str, sequence: int, rollout_id: str, kind: str, **fields: object) -> Span:
    return call(span_id, sequence, rollout_id, kind=kind, prompt_ids=None, response_ids=None, **fields)


def rollout(
    rollout_id: str, group_id: str, task_id: str = "t", value: float = 0.5, **fields: object
) -> list[NewRecord]:
    """A call of agent sql in operation write, and a reward of agent critic after it, that no call is near to."""
    events = [
        started(rollout_id, group_id=group_id, task_id=task_id, **fields),
        call("c", 1, rollout_id, parent_id="w"),
        span("w", 2, rollout_id, "operation", name="write", parent_id="a"),
        span("a", 3, rollout_id, "agent", name="sql"),
        reward(4, rollout_id, reward_id="s", name="style", value=value, parent_id="b"),
        span("b", 5, rollout_id, "agent", name="critic"),
        reward(6, rollout_id, reward_id="f", scope="rollout"),
        completed(7, rollout_id),
    ]
    return [new_record(event, key=group_id) for event in events]


NEAREST = ("nearest", AttributionSettings(policy="nearest"))


def surveyed(log: MemoryLog, which: Which | None = None, **settings: object) -> Tally:
    return asyncio.run(survey(log, ("plain", AttributionSettings(**settings)), NEAREST, which or Which()))


def printed(found: Tally) -> list[str]:
    out = StringIO()
    Console(file=out, width=40).print(Group(*survey_lines(found)), soft_wrap=True, highlight=False)
    return out.getvalue().splitlines()


def test_survey_says_how_many_rewards_move_and_what_that_makes_of_totals():
    log = log_of(*rollout("a", "g1", value=0.25), *rollout("b", "g2", value=0.75))
    assert printed(surveyed(log)) == [
        "nearest against plain: 2 of 2 rollouts change",
        "",
        "reward  count  moved    share  how",
        "style       2      2  100.0 %  2 unattributed → attributed",
        "reward      2      0    0.0 %",
        "",
        "operation  calls    rewarded    mean total",
        "write          2           2             1  → 1.5",
        "all            2           2             1  → 1.5",
        "",
        "agent  calls    rewarded    mean total",
        "sql        2           2             1  → 1.5",
        "",
        "changes most  task  moved  sum before  sum after  one reward",
        "b             t         1           1       1.75  style 0.75: unattributed → c (nearest)",
        "a             t         1           1       1.25  style 0.25: unattributed → c (nearest)",
    ]


def test_survey_for_programs_has_the_same():
    it = survey_json(surveyed(log_of(*rollout("a", "g"))))
    assert (it["rollouts"], it["changed"], it["missing"]) == (1, 1, [])
    assert it["rewards"]["style"] == {
        "count": 1, "moved": 1, "ways": [{"before": "unattributed", "after": "attributed", "count": 1}]}  # fmt: skip
    assert it["operations"]["write"] == {
        "before": {"calls": 1, "rewarded": 1, "total": 1.0, "mean_total": 1.0},
        "after": {"calls": 1, "rewarded": 1, "total": 1.5, "mean_total": 1.5},
    }
    assert it["examples"][0]["rollout_id"] == "a"


def test_survey_without_a_difference_has_no_examples():
    lines = printed(surveyed(log_of(*rollout("a", "g")), policy="nearest"))
    assert lines[0] == "nearest against plain: 0 of 1 rollout change"
    assert not any(line.startswith("changes most") for line in lines)


def test_survey_goes_over_published_rollouts_alone():
    log = log_of(*rollout("a", "g1"), *rollout("b", "g2"), *rollout("c", "g3", group_size=2), published=8)
    assert surveyed(log).rollouts == 1


def test_survey_of_a_group_waits_for_all_of_its_rollouts():
    it = surveyed(log_of(*rollout("a", "g", group_size=2), *rollout("b", "g", group_size=2)))
    assert (it.rollouts, it.rewards["style"].moved) == (2, 2)


def test_survey_counts_what_it_leaves_aside():
    failed = [started("f", group_id="h"), completed(1, "f", status="failed", error="Crash")]
    it = surveyed(log_of(*rollout("a", "g"), *(new_record(event, key="h") for event in failed)))
    assert (it.rollouts, it.not_completed) == (1, 1)
    assert printed(it)[0] == "nearest against plain: 1 of 1 rollout changes; left aside: 1 not completed"


def test_survey_of_rollouts_whose_events_are_gone_counts_them(monkeypatch):
    log = log_of(*rollout("a", "g1"), *rollout("b", "g2"))
    ranges = log.ranges

    async def cut(topic, partitions):
        spans = await ranges(topic, partitions)
        return {p: span._replace(first=4) if topic == EVENTS else span for p, span in spans.items()}

    monkeypatch.setattr(log, "ranges", cut)
    it = surveyed(log)
    assert (it.rollouts, it.gone, [each.rollout_id for each in it.examples]) == (1, 1, ["b"])


def test_survey_of_a_task_takes_its_rollouts_alone():
    it = surveyed(log_of(*rollout("a", "g1", "one"), *rollout("b", "g2", "two")), Which(task_id="two"))
    assert [each.rollout_id for each in it.examples] == ["b"]
    assert it.gone == 0


def test_survey_of_the_last_two_takes_the_newest():
    clock = iter(range(1_000))
    log = log_of(*(each for n in range(4) for each in rollout(f"r{n}", f"g{n}")), log_time_ns=lambda: next(clock))
    it = surveyed(log, Which(last=2))
    assert sorted(each.rollout_id for each in it.examples) == ["r2", "r3"]
    assert (it.rollouts, it.gone) == (2, 0)


def test_survey_of_given_ids_names_those_that_are_not_published():
    log = log_of(*rollout("a", "g1"), *rollout("b", "g2"))
    it = surveyed(log, Which(rollout_ids=["b", "x"]))
    assert ([each.rollout_id for each in it.examples], it.missing) == (["b"], ("x",))
    assert printed(it)[1] == "not published: x"


def test_survey_keeps_the_examples_that_change_most(monkeypatch):
    monkeypatch.setattr(module, "EXAMPLES", 2)
    log = log_of(*(each for n in range(4) for each in rollout(f"r{n}", f"g{n}", value=float(n))))
    assert [each.rollout_id for each in surveyed(log).examples] == ["r3", "r2"]


def test_survey_with_more_names_than_are_kept_counts_the_others_together(monkeypatch):
    monkeypatch.setattr(module, "NAMES_MAX", 1)
    it = surveyed(log_of(*rollout("a", "g")))
    assert {name: moves.count for name, moves in it.rewards.items()} == {"style": 1, "(others)": 1}


@pytest.mark.parametrize("which", [Which(), Which(last=5)])
def test_survey_of_an_empty_log_finds_nothing(which):
    assert printed(surveyed(log_of(), which)) == ["nearest against plain: 0 of 0 rollouts change"]
