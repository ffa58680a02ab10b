"""Recorded rewards of one rollout: what is said of them beside a live batch, and beside an output that has them."""

from dataclasses import replace

from support.building import call, completed, reward, started
from unit.consumers.explaining.test_finding import found, log_of, new_record

from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.consumers.explaining.account import Account, account_of
from rolloutlog.consumers.explaining.rescored import Rescored, rescored_of
from rolloutlog.consumers.explaining.rescored_lines import rescored_json, rescored_lines
from rolloutlog.consumers.scoring import Recorded, records_of
from rolloutlog.eventstore.events import RewardRecorded
from rolloutlog.eventstore.extra_info import encode_extra_info
from rolloutlog.eventstore.log import Record

EVENTS = [started("rollout-1"), call("c", 1, "rollout-1"), reward(2, "rollout-1", reward_id="f", scope="rollout"),
          completed(3, "rollout-1")]  # fmt: skip
GIVEN = RewardRecorded(
    rollout_id="rollout-1", attempt=0, source="judge.00000000000000bb", sequence=0, time_ns=0, name="style",
    value=0.5, scope="rollout", scorer="judge", scorer_version="1",
)  # fmt: skip


def account() -> Account:
    return account_of(found(log_of(*map(new_record, EVENTS)), "rollout-1"))


def rescored(of: Account, before_ns: int | None = None, *rewards: RewardRecorded) -> Rescored:
    recorded = Recorded()
    for offset, each in enumerate(records_of(rewards, "g", 0)):
        recorded.add(Record("rewards", 0, offset, 5_000_000_000, each.key, each.value, each.headers))
    return rescored_of(of, recorded, AttributionSettings(), before_ns)


def lines(it: Rescored) -> list[str]:
    return [line.plain for line in rescored_lines(it)]


def test_recorded_reward_beside_a_live_batch_is_said_to_count_in_replays():
    assert lines(rescored(account(), None, GIVEN)) == [
        "",
        "recorded by scorers; this counts in replays and not in live assembly:",
        "reward judge.00000000000000bb:0 (style 0.5, rollout): in replays final, it belongs to the rollout and reaches "
        "call c; scorer judge 1, recorded 1970-01-01T00:00:05Z",
    ]


def test_recorded_reward_beside_an_output_that_has_it_is_not_said_twice():
    it = account()
    result = it.found.result
    assert result is not None
    outcome = replace(result.outcomes[0], reward_id=GIVEN.id, offset=-1)
    having = replace(it, found=replace(it.found, result=replace(result, outcomes=(*result.outcomes, outcome))))
    both = rescored(having, None, GIVEN)
    assert lines(both) == []
    assert [each["in_batch"] for each in rescored_json(both)["sets"]] == [True]


def test_recorded_rewards_extra_info_stands_beneath_it_and_whole_for_programs():
    it = rescored(account(), None, replace(GIVEN, extra_info=encode_extra_info({"reason": "too long"})))
    assert lines(it)[3:] == ['   extra_info {"reason": "too long"}']
    assert rescored_json(it)["sets"][0]["rewards"][0]["extra_info"] == {"reason": "too long"}


def test_nothing_recorded_is_nothing_said_unless_a_time_was_asked_for():
    assert lines(rescored(account())) == []
    assert lines(rescored(account(), 1_000_000_000)) == [
        "",
        "no scorer's reward was recorded for it before 1970-01-01T00:00:01Z",
    ]
