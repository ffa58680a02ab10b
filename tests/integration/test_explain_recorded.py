"""`rolloutlog explain` of a rollout that scorers judged again: what was recorded, what counts of it, and since when."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner
from support.building import SECOND_NS, call, completed, reward, started
from support.processes import assemble
from support.store import Store
from support.workload import new_record

from rolloutlog.consumers.cli.main import rolloutlog
from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.outputs import GroupLeft
from rolloutlog.consumers.scoring import (
    LoadedScorer,
    Reward,
    RolloutView,
    Scoring,
    ScoringLimits,
    records_of,
    view_of,
)
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.consumers.times import show_time
from rolloutlog.eventstore.log import REWARDS, NewRecord

pytestmark = pytest.mark.slow_on_kafka

EVENTS = [
    started("rollout-1"),
    call("c", 1, "rollout-1"),
    reward(2, "rollout-1", reward_id="s", name="parses", value=1.0),
    reward(3, "rollout-1", reward_id="f", scope="rollout", value=0.0),
    completed(4, "rollout-1"),
]


def record(store: Store, version: str, *rewards: Reward) -> int:
    """Record what a version of the scorer `judge` gives. Returns its log time."""
    state = PartitionState(0, FoldSettings(), settles=False)
    outputs = [each for event in store.records("events") for each in fold(state, event)]
    (left,) = [each for each in outputs if isinstance(each, GroupLeft)]
    view = view_of(left.group.rollouts["rollout-1"], 0, closed_ns=left.closed_ns)

    def judge(rollout: RolloutView) -> Sequence[Reward]:
        return rewards

    async def score() -> list[NewRecord]:
        scoring = Scoring([LoadedScorer("judge", "m:judge", judge, version, "0")], ScoringLimits(), None, run_id="run")
        try:
            return records_of((await scoring.score(view)).record, "g", 0)
        finally:
            await scoring.close()

    return store.append(store.run(score()))[-1].log_time_ns


def explain(store: Store, *arguments: str) -> str:
    result = CliRunner().invoke(
        rolloutlog, ["explain", "rollout-1", "--log", store.url, *arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def recorded_part(text: str) -> list[str]:
    lines = text.splitlines()
    return lines[next(at for at, line in enumerate(lines) if line.startswith("recorded by scorers")) :]


@pytest.fixture
def published(store: Store) -> Store:
    """One rollout, assembled."""
    store.append([new_record(event, key="g") for event in EVENTS])
    assert assemble(store.url).finish() == 0
    return store


def test_explain_shows_recorded_rewards_with_what_they_revise_and_by_what_they_were_replaced(published: Store) -> None:
    first_ns = record(published, "1", Reward(0.25))
    time.sleep(1.1)  # times are shown to the second
    second_ns = record(published, "2", Reward(0.75), Reward(0.5, "parses", "step", {"span_id": "c"}, supersedes="s"))
    source_1, source_2 = (
        each["rewards"][0]["reward_id"].rpartition(":")[0]
        for each in json.loads(explain(published, "--json"))["recorded"]["sets"]
    )
    assert recorded_part(explain(published)) == [
        "recorded by scorers; this counts in replays and not in live assembly:",
        f"reward {source_1}:0 (reward 0.25, rollout): counts no more, replaced by judge 2, recorded "
        f"{show_time(second_ns)}; scorer judge 1, recorded {show_time(first_ns)}",
        f"reward {source_2}:0 (reward 0.75, rollout): in replays final, it belongs to the rollout and reaches call c; "
        f"scorer judge 2, recorded {show_time(second_ns)}",
        f"reward {source_2}:1 (parses 0.5, step): in replays attributed to call c by rule linked: its target names "
        f"that call, span_id 'c'; scorer judge 2, recorded {show_time(second_ns)}",
        f"reward s (parses 1, step): in replays revised by {source_2}:1, which supersedes it",
        f"reward f (reward 0, rollout): in replays revised by {source_2}:0, a later reward 'reward' of the "
        "whole rollout",
    ]


def test_explain_as_of_a_time_shows_the_version_that_counted_then(published: Store) -> None:
    first_ns = record(published, "1", Reward(0.25))
    time.sleep(1.1)
    record(published, "2", Reward(0.75))
    then = show_time(first_ns + SECOND_NS)
    found = json.loads(explain(published, "--json", "--rewards-as-of", then))["recorded"]
    assert [(each["version"], each["counts"], each["replaced_by"]) for each in found["sets"]] == [("1", True, None)]
    assert found["sets"][0]["rewards"][0]["value"] == 0.25
    assert (
        explain(published, "--rewards-as-of", then)
        .splitlines()[-3]
        .startswith(f"recorded by scorers before {then}; this counts in replays and not in live assembly:")
    )
    assert (
        explain(published, "--rewards-as-of", "-1h")
        .splitlines()[-1]
        .startswith("no scorer's reward was recorded for it before ")
    )
    assert json.loads(explain(published, "--json", "--rewards-as-of", "none"))["recorded"]["sets"] == []


def test_explain_json_says_of_each_recorded_set_whether_it_counts(published: Store) -> None:
    record(published, "1", Reward(0.25, extra_info={"why": "short"}))
    record(published, "2")
    found = json.loads(explain(published, "--json"))
    sets: list[dict[str, Any]] = found["recorded"]["sets"]
    assert [(each["scorer"], each["version"], each["counts"], len(each["rewards"])) for each in sets] == [
        ("judge", "1", False, 1),
        ("judge", "2", True, 0),
    ]
    assert sets[0]["replaced_by"] == {
        "version": "2",
        "offset": sets[1]["offset"],
        "recorded_ns": sets[1]["recorded_ns"],
    }
    assert (found["recorded"]["moves"], found["recorded"]["unread"], found["final"]) == ({}, [], {"reward": 0.0})
    assert recorded_part(explain(published))[-1].startswith("no reward; scorer judge 2, recorded ")


def test_explain_of_a_rollout_that_nobody_judged_again_says_nothing_of_it(published: Store) -> None:
    assert "recorded" not in explain(published)
    assert json.loads(explain(published, "--json"))["recorded"]["sets"] == []


def test_explain_names_records_of_the_rewards_topic_that_are_none(published: Store) -> None:
    published.append([NewRecord(REWARDS, 0, b"g", b"x", (("e", b"nonsense"),))])
    record(published, "1", Reward(0.25))
    assert recorded_part(explain(published))[-1].startswith("rewards 0:0 cannot be read: event refused: expected kind/")


def test_explain_of_a_rollout_whose_events_are_gone_still_shows_what_was_recorded(published: Store) -> None:
    record(published, "1", Reward(0.25))
    published.cut("events", 0, 5)
    assert (
        " (reward 0.25, rollout): its events are gone, so that where it goes can't be told; scorer judge 1"
        in (recorded_part(explain(published))[1])
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["rollout-1", "--rewards-as-of", "yesterday"], "time: expected ISO 8601 with a zone"),
        (["--diff", "enclosing", "nearest", "--rewards-as-of", "-1h"], "--rewards-as-of says which recorded rewards"),
    ],
)
def test_explain_with_a_time_that_is_none_or_for_many_rollouts_is_refused(
    embedded: Store, arguments: list[str], text: str
) -> None:
    result = CliRunner().invoke(rolloutlog, ["explain", *arguments, "--log", embedded.url])
    assert text in f"{result.exception} {result.output}"
