"""How rollouts close: what they wait for, in which order, decisions that end them, attempts that follow."""

from itertools import permutations
from typing import Any

import pytest
from support.building import MAIN, call, completed, ended, expired, reward, started
from unit.consumers.folding import Partition

from rolloutlog.eventstore.events import MissingEvents, RolloutHeartbeat

JUDGE = "judge.00000000000000bb"
JUDGE_TOO = "judge.00000000000000cc"
SECOND = "main.00000000000000cc"


def waiting(**fields: Any) -> Partition:
    """A rollout whose main source has said all but still awaits something."""
    partition = Partition()
    partition.add(started(), call(), completed(2, **fields))
    return partition


def second_attempt(number: int = 1) -> dict[str, Any]:
    return {"attempt": number, "source": SECOND}


def closed(partition: Partition) -> bool:
    return bool(partition.batches)


def test_fold_of_completed_closes_a_whole_rollout():
    partition = Partition()
    partition.add(started(), call(), completed(2))
    assert partition.result().closing_event == 2


def test_fold_of_completed_waits_for_a_gap_in_its_source():
    partition = Partition()
    partition.add(started(), completed(2))
    assert not closed(partition)


def test_fold_closes_at_the_event_that_fills_the_gap():
    partition = Partition()
    partition.add(started(), completed(3), call("a", 1), call("b", 2))
    assert partition.result().closing_event == 3


def test_fold_closes_without_waiting_for_sources_that_are_not_awaited():
    partition = Partition()
    partition.add(started(), reward(5, source=JUDGE, name="judge"), completed(1))
    assert closed(partition)


def test_fold_counts_what_other_sources_sent_as_far_as_it_has_arrived():
    partition = Partition()
    partition.add(started(), reward(5, source=JUDGE, name="judge"), completed(1), reward(6, source=JUDGE))
    assert [each.name for each in partition.result().outcomes] == ["judge"]
    assert partition.counts["late"] == 1


def test_fold_waits_for_an_awaited_name_that_was_never_seen():
    assert not closed(waiting(awaited_names=("judge",)))


def test_fold_waits_for_an_awaited_name_that_has_not_ended():
    partition = waiting(awaited_names=("judge",))
    partition.add(reward(0, source=JUDGE, name="judge"))
    assert not closed(partition)


def test_fold_closes_when_the_awaited_name_ends():
    partition = waiting(awaited_names=("judge",))
    partition.add(reward(0, source=JUDGE, name="judge"), ended(1, JUDGE))
    assert partition.result().closing_event == 4


def test_fold_waits_for_gaps_before_the_end_of_an_awaited_name():
    partition = waiting(awaited_names=("judge",))
    partition.add(ended(1, JUDGE))
    assert not closed(partition)


def test_fold_waits_for_all_sources_of_an_awaited_name():
    partition = waiting(awaited_names=("judge",))
    partition.add(reward(0, source=JUDGE_TOO, name="judge"), ended(0, JUDGE))
    assert not closed(partition)


def test_fold_closes_when_all_sources_of_an_awaited_name_have_ended():
    partition = waiting(awaited_names=("judge",))
    partition.add(reward(0, source=JUDGE_TOO, name="judge"), ended(0, JUDGE), ended(1, JUDGE_TOO))
    assert partition.result().closing_event == 5


def test_fold_waits_for_every_awaited_name():
    partition = waiting(awaited_names=("judge", "rater"))
    partition.add(ended(0, JUDGE))
    assert not closed(partition)


def test_fold_waits_for_an_awaited_reward():
    assert not closed(waiting(awaited_rewards=("quality",)))


def test_fold_waits_when_a_reward_has_another_name_than_the_awaited_one():
    partition = waiting(awaited_rewards=("quality",))
    partition.add(reward(0, source=JUDGE, name="speed"))
    assert not closed(partition)


def test_fold_closes_at_the_awaited_reward():
    partition = waiting(awaited_rewards=("quality",))
    partition.add(reward(0, source=JUDGE, name="quality"))
    assert partition.result().closing_event == 3


def test_fold_of_an_awaited_reward_before_completed_closes_at_completed():
    partition = Partition()
    partition.add(started(), reward(0, source=JUDGE, name="quality"), completed(1, awaited_rewards=("quality",)))
    assert closed(partition)


def test_fold_of_a_rollouts_events_in_any_order_gives_the_same_samples():
    found = set()
    for order in permutations([call("a", 1), reward(2, value=0.5), completed(3, awaited_names=("judge",)),
                               ended(1, JUDGE), reward(0, source=JUDGE, scope="rollout", name="judge")]):  # fmt: skip
        partition = Partition()
        partition.add(started(), *order)
        (sample,) = partition.batch.samples
        found.add((sample.sample_id, sample.prompt_ids, tuple(sample.final.items()), partition.statuses["r"]))
    assert len(found) == 1


def test_fold_of_a_repeated_event_keeps_state():
    partition = Partition()
    partition.add(started(), call())
    partition.add(call())
    assert len(partition.state.groups["g"].rollouts["r"].attempt.records) == 1
    assert partition.counts["duplicate"] == 1


def test_fold_of_the_same_identity_with_other_bytes_counts_a_conflict_and_the_first_holds():
    partition = Partition()
    partition.add(started(), reward(1, value=1.0), reward(1, value=2.0), completed(2))
    assert partition.counts["conflict"] == 1
    assert [each.value for each in partition.result().outcomes] == [1.0]


def test_fold_of_an_event_after_its_sources_end_counts_it():
    partition = Partition()
    partition.add(started(group_size=2), completed(2), call("x", 3))
    assert partition.counts["after_end"] == 1


def test_fold_takes_the_first_completed_in_log_order():
    partition = Partition()
    partition.add(started(), completed(0, source=JUDGE, status="failed", error="first"), completed(1))
    assert partition.statuses == {"r": "failed"}


def test_fold_of_a_heartbeat_counts_as_one_of_its_sources_events():
    beat = RolloutHeartbeat(rollout_id="r", attempt=0, source=MAIN, sequence=1, time_ns=0)
    partition = Partition()
    partition.add(started(), beat, completed(2))
    assert closed(partition)


def test_fold_of_events_of_a_closed_rollout_counts_them_as_late():
    partition = Partition()
    partition.add(started("a", group_size=2), completed(1, "a"), reward(0, "a", source=JUDGE))
    assert partition.counts["late"] == 1


def test_fold_of_events_of_a_closed_group_counts_them_as_late():
    partition = Partition()
    partition.add(started(), completed(1), reward(0, source=JUDGE))
    assert (partition.counts["late"], partition.letters) == (1, [])


def test_fold_of_failed_closes_the_last_attempt_as_failed():
    partition = Partition()
    partition.add(started(), completed(1, status="failed", error="ValueError: no"))
    assert (partition.statuses, partition.result().error) == ({"r": "failed"}, "ValueError: no")


def test_fold_of_failed_gives_no_sample_and_no_reward_of_its_own():
    """Failed infrastructure is a status, never reward 0."""
    partition = Partition()
    partition.add(started(), call(), completed(2, status="failed"))
    assert (partition.batch.samples, partition.result().final) == ((), {})


def test_fold_of_failed_with_attempts_left_waits():
    partition = Partition()
    partition.add(started(attempts_max=2), completed(1, status="failed"))
    assert (closed(partition), partition.state.open_rollouts) == (False, 1)


def test_fold_of_the_attempt_after_a_failed_one_closes_as_completed():
    partition = Partition()
    partition.add(started(attempts_max=2), completed(1, status="failed"))
    partition.add(started(attempts_max=2, **second_attempt()), completed(1, **second_attempt()))
    assert (partition.statuses, partition.result().attempt) == ({"r": "emitted"}, 1)


def test_fold_of_the_last_attempt_failed_closes_as_failed():
    partition = Partition()
    partition.add(started(attempts_max=2), completed(1, status="failed"))
    partition.add(started(attempts_max=2, **second_attempt()), completed(1, status="failed", **second_attempt()))
    assert partition.statuses == {"r": "failed"}


def test_fold_of_failed_waits_for_awaited_names_too():
    partition = Partition()
    partition.add(started(), completed(1, status="failed", awaited_names=("judge",)))
    assert not closed(partition)


# Decisions


def test_fold_of_an_expiry_as_of_the_newest_event_closes_the_rollout():
    partition = Partition()
    partition.add(started(), call(), expired(as_of=1))
    assert (partition.statuses, partition.result().reason) == ({"r": "expired"}, "idle")


def test_fold_of_an_expiry_names_what_was_missing():
    partition = Partition()
    partition.add(
        started(),
        expired(
            as_of=0,
            reason="grace",
            missing_events=(MissingEvents(MAIN, 1, 3),),
            missing_names=("judge",),
            missing_rewards=("quality",),
        ),
    )
    assert partition.result().reason == f"grace, missing events 1-3 of {MAIN}; end of judge; reward quality"


def test_fold_of_an_expired_rollout_gives_no_samples_but_its_rewards():
    partition = Partition()
    partition.add(started(), call(), reward(2, scope="rollout", value=0.5), expired(as_of=2))
    assert (partition.batch.samples, partition.result().final) == ((), {"reward": 0.5})


@pytest.mark.parametrize("reason", ["idle", "grace", "retry"])
@pytest.mark.parametrize("as_of", [0, 2, 99])
def test_fold_of_an_expiry_that_is_not_as_of_the_newest_event_is_ignored(as_of: int, reason: str):
    """Something arrived after the owner had decided."""
    partition = Partition()
    partition.add(started(), call(), expired(as_of, reason=reason))
    assert (closed(partition), partition.counts["stale_decision"]) == (False, 1)


def test_fold_of_an_expiry_by_age_as_of_an_older_event_closes_the_rollout():
    """No event makes it younger: one that never stops sending would wait without a limit."""
    partition = Partition()
    partition.add(started(), call(), expired(0, reason="age"))
    assert (partition.statuses, partition.result().reason) == ({"r": "expired"}, "age")


def test_fold_of_an_expiry_by_age_as_of_an_event_that_is_not_folded_is_ignored():
    partition = Partition()
    partition.add(started(), call(), expired(2, reason="age"))
    assert (closed(partition), partition.counts["stale_decision"]) == (False, 1)


def test_fold_of_an_expiry_by_age_closes_a_rollout_with_attempts_left():
    partition = Partition()
    partition.add(started(attempts_max=2), expired(0, reason="age"))
    assert partition.statuses == {"r": "expired"}


def test_fold_of_an_expiry_by_age_closes_an_expired_attempt_for_its_first_reason():
    partition = Partition()
    partition.add(started(attempts_max=2), expired(0), expired(0, reason="age"))
    assert partition.result().reason == "idle"


def test_fold_of_a_heartbeat_keeps_nothing_of_it_but_its_number():
    partition = Partition()
    heartbeat = RolloutHeartbeat(rollout_id="r", attempt=0, source=MAIN, sequence=1, time_ns=0)
    partition.add(started(), heartbeat, heartbeat)
    (attempt,) = (each.attempt for each in partition.state.groups["g"].rollouts.values())
    assert (attempt.records, attempt.newest_offset, partition.counts["duplicate"]) == ([], 1, 1)


def test_fold_of_a_duplicate_leaves_a_decision_valid():
    """The newest event folded is the newest that changed something."""
    partition = Partition()
    partition.add(started(), call(), call(), expired(as_of=1))
    assert closed(partition)


def test_fold_of_an_expiry_of_another_attempt_is_counted():
    partition = Partition()
    partition.add(started(attempts_max=2), started(attempts_max=2, **second_attempt()), expired(as_of=1, attempt=0))
    assert partition.counts["superseded"] == 1


def test_fold_of_an_expiry_with_attempts_left_waits_for_the_next_start():
    partition = Partition()
    partition.add(started(attempts_max=2), expired(as_of=0))
    assert (closed(partition), partition.state.open_rollouts) == (False, 1)


def test_fold_of_a_repeated_expiry_is_counted_as_stale():
    partition = Partition()
    partition.add(started(attempts_max=2), expired(as_of=0), expired(as_of=0, sequence=1))
    assert (closed(partition), partition.counts["stale_decision"]) == (False, 1)


def test_fold_of_events_after_an_attempt_expired_counts_them_as_late():
    partition = Partition()
    partition.add(started(attempts_max=2), expired(as_of=0), call())
    assert partition.counts["late"] == 1


def test_fold_of_the_attempt_after_an_expired_one_closes_as_completed():
    partition = Partition()
    partition.add(started(attempts_max=2), expired(as_of=0))
    partition.add(started(attempts_max=2, **second_attempt()), completed(1, **second_attempt()))
    assert partition.statuses == {"r": "emitted"}


def test_fold_of_a_retry_decision_closes_an_expired_attempt_for_its_first_reason():
    partition = Partition()
    partition.add(started(attempts_max=2), expired(as_of=0), expired(as_of=0, sequence=1, reason="retry"))
    assert (partition.statuses, partition.result().reason) == ({"r": "expired"}, "idle")


def test_fold_of_a_retry_decision_closes_a_failed_attempt_as_failed():
    partition = Partition()
    partition.add(started(attempts_max=2), completed(1, status="failed", error="no"), expired(as_of=1, reason="retry"))
    assert (partition.statuses, partition.result().error) == ({"r": "failed"}, "no")


def test_fold_of_a_retry_decision_after_the_next_start_is_ignored():
    partition = Partition()
    partition.add(started(attempts_max=2), completed(1, status="failed"))
    partition.add(started(attempts_max=2, **second_attempt()), expired(as_of=1, reason="retry"))
    assert (closed(partition), partition.counts["superseded"]) == (False, 1)


def test_fold_of_an_expiry_of_a_closed_rollout_is_counted_as_late():
    partition = Partition()
    partition.add(started("a", group_size=2), completed(1, "a"), expired(1, "a"))
    assert partition.counts["late"] == 1
