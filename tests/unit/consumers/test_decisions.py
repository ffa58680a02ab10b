"""What is due for which state, and what a decision names."""

from typing import Any

import pytest
from support.building import MAIN, SECOND_NS, call, completed, ended, expired, reward, started
from unit.consumers.folding import Partition

from rolloutlog.consumers.decisions import DECISIONS_MAX, ROLLOUTS_A_SLICE, Decider, Decision, Expiry
from rolloutlog.consumers.limits import Limits
from rolloutlog.eventstore.events import MissingEvents, RolloutHeartbeat

JUDGE = "judge.00000000000000bb"
OTHER = "tool.00000000000000cc"


def due(partition: Partition, at_s: float, **limits: Any) -> list[Decision]:
    """What is due so many seconds after the end was reached."""
    decider = Decider(Limits(**limits))
    decider.observed.reach_end(partition.state.position, partition.state.now_ns, 0.0)
    look = decider.look(partition.state, at_s)
    list(look.walk())
    return decider.decide(look)


def test_running_rollout_is_idle_after_idle_s():
    partition = Partition()
    partition.add(started(), call())
    assert (due(partition, 599.9), due(partition, 600)) == ([], [Expiry("g", "r", 0, "idle", 1)])


def test_completed_rollout_that_lacks_its_own_events_ends_by_grace():
    partition = Partition()
    partition.add(started(), call("c", 2), completed(5))
    assert (due(partition, 59.9), due(partition, 60)) == (
        [],
        [Expiry("g", "r", 0, "grace", 2, (MissingEvents(MAIN, 1, 1), MissingEvents(MAIN, 3, 4)))],
    )


def test_completed_rollout_that_awaits_others_names_them():
    partition = Partition()
    partition.add(started(), completed(1, awaited_names=("judge", "gate"), awaited_rewards=("style", "quality")))
    assert due(partition, 60) == [
        Expiry("g", "r", 0, "grace", 1, (), ("judge", "gate"), ("quality", "style")),
    ]


def test_awaited_source_with_a_gap_is_named_with_the_gap():
    partition = Partition()
    partition.add(started(), reward(0, source=JUDGE), ended(3, JUDGE), completed(1, awaited_names=("judge",)))
    assert due(partition, 60) == [Expiry("g", "r", 0, "grace", 3, (MissingEvents(JUDGE, 1, 2),), ("judge",))]


def test_gaps_of_sources_that_nobody_awaits_are_not_named():
    partition = Partition()
    partition.add(started(), call("d", 4, source=OTHER), completed(1, awaited_rewards=("style",)))
    assert due(partition, 60) == [Expiry("g", "r", 0, "grace", 2, (), (), ("style",))]


def test_idle_rollout_names_the_gaps_that_are_known():
    partition = Partition()
    partition.add(started(), call("c", 3), call("d", 1, source=OTHER))
    (decision,) = due(partition, 600)
    assert isinstance(decision, Expiry)
    assert decision.missing_events == (MissingEvents(MAIN, 1, 2), MissingEvents(OTHER, 0, 0))


def test_decision_names_a_hundred_missing_things_at_most():
    partition = Partition()
    names = tuple(f"judge{index}" for index in range(150))
    partition.add(started(), completed(1, awaited_names=names, awaited_rewards=names))
    (decision,) = due(partition, 60)
    assert isinstance(decision, Expiry)
    assert (len(decision.missing_names), len(decision.missing_rewards)) == (100, 100)


def test_completed_rollout_whose_judge_is_heard_of_waits_on():
    partition = Partition()
    partition.add(started(), completed(1, awaited_names=("judge",)))
    decider = Decider(Limits())
    decider.observed.reach_end(partition.state.position, 0, 0.0)
    partition.add(RolloutHeartbeat(rollout_id="r", attempt=0, source=JUDGE, sequence=0, time_ns=0))
    decider.observed.move(partition.state.position, 50.0)
    found = []
    for at_s in (60.0, 109.0, 110.0):
        look = decider.look(partition.state, at_s)
        list(look.walk())
        found.append([each.reason for each in decider.decide(look)])
    assert found == [[], [], ["grace"]]


def test_failed_attempt_waits_retry_s_for_the_next_start():
    partition = Partition()
    partition.add(started(attempts_max=2), completed(1, status="failed"))
    assert (due(partition, 299.9), due(partition, 300)) == ([], [Expiry("g", "r", 0, "retry", 1)])


def test_failed_attempt_that_lacks_events_ends_by_grace_and_then_by_retry():
    partition = Partition()
    partition.add(started(attempts_max=2), completed(2, status="failed"))
    assert due(partition, 60) == [Expiry("g", "r", 0, "grace", 1, (MissingEvents(MAIN, 1, 1),))]
    partition.add(expired(1, reason="grace"))
    assert (due(partition, 299), [each.reason for each in due(partition, 300)]) == ([], ["retry"])


def test_expired_attempt_waits_retry_s_for_the_next_start():
    partition = Partition()
    partition.add(started(attempts_max=2), expired(0))
    assert due(partition, 300) == [Expiry("g", "r", 0, "retry", 0)]


def test_attempt_that_follows_runs_as_the_first_one_did():
    partition = Partition()
    partition.add(started(attempts_max=2), expired(0), started(attempts_max=2, attempt=1, source=OTHER))
    assert due(partition, 600) == [Expiry("g", "r", 1, "idle", 2)]


def test_age_of_a_rollout_is_that_of_all_its_attempts():
    partition = Partition()
    partition.add(started(attempts_max=2))
    partition.at_s = 7_000.0
    partition.add(started(attempts_max=2, attempt=1, source="main.00000000000000cc"))
    assert (due(partition, 199), due(partition, 200)) == ([], [Expiry("g", "r", 1, "age", 1)])


def test_age_is_named_before_other_reasons():
    partition = Partition()
    partition.add(started(), completed(1, awaited_names=("judge",)))
    assert [each.reason for each in due(partition, 7_200)] == ["age"]


def test_group_that_closes_expires_none_of_its_rollouts_apart():
    partition = Partition()
    partition.add(started("a", group_size=2), started("b", group_size=2), completed(1, "a"))
    assert [each.reason for each in due(partition, 900, idle_s=100)] == ["age"]


def test_closed_rollouts_are_not_looked_at():
    partition = Partition()
    partition.add(started("a", group_size=2), completed(1, "a"))
    assert due(partition, 899) == []


def test_no_more_than_a_thousand_decisions_are_made_at_once():
    partition = Partition()
    for index in range(DECISIONS_MAX + 500):
        name = f"g{index}"
        partition.add(started(name, group_id=name), completed(1, name, awaited_names=("judge",)), key=name)
    assert len(due(partition, 60)) == DECISIONS_MAX


def test_look_at_many_rollouts_halts_now_and_then():
    partition = Partition()
    for index in range(ROLLOUTS_A_SLICE + 1):
        name = f"g{index}"
        partition.add(started(name, group_id=name), key=name)
    decider = Decider(Limits())
    decider.observed.reach_end(partition.state.position, 0, 0.0)
    assert len(list(decider.look(partition.state, 1.0).walk())) == 1


@pytest.mark.parametrize(
    ("events", "ends"),
    [
        ((started(),), "idle"),
        ((started(), completed(2)), "grace"),
        ((started(), completed(1, awaited_names=("judge",))), "grace"),
        ((started(), completed(1, awaited_rewards=("style",))), "grace"),
        ((started(attempts_max=3), completed(1, status="failed")), "retry"),
        ((started(attempts_max=3), completed(2, status="failed")), "grace"),
        ((started(attempts_max=3), expired(0)), "retry"),
        ((started(group_size=2), completed(1)), "age"),
        ((started(group_size=None), completed(1)), "age"),
        ((started("a"), started("b")), "idle"),
    ],
)
def test_every_state_is_ended_by_a_limit(events: tuple[Any, ...], ends: str):
    partition = Partition()
    partition.add(*events)
    assert [each.reason for each in due(partition, 1_000)] == [ends]


def test_partition_without_anything_open_decides_nothing():
    assert due(Partition(), 1e6) == []


def test_log_time_of_events_counts_for_ages_from_before_the_end_alone():
    partition = Partition()
    partition.add(started())
    partition.at_s = 6_000.0
    partition.add(call())
    assert partition.state.now_ns == 6_000 * SECOND_NS
    assert [each.reason for each in due(partition, 1_200)] == ["age"]
