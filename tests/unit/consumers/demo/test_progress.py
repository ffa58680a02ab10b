"""What the demo counts, from batches and acknowledgements as they stand in the log."""

import pytest
from unit.consumers.test_batches import batch, result, sample

from rolloutlog.consumers.demo.progress import Point, Progress
from rolloutlog.consumers.demo.settings import READER, RECENT
from rolloutlog.eventstore.acks import STALE, TRAINED, SampleEnd, StepAcknowledged


def rollouts(version: int, *rewards: float, turns: int = 1):
    return tuple(
        result(f"r{index}", policy_version=version, final={"reward": reward}, turn_count=turns)
        for index, reward in enumerate(rewards)
    )


def ack(step: int, version: int, *samples: SampleEnd, reader: str = READER, **fields):
    given = {"batch_ids": (), "offsets": {0: step + 1}, "time_ns": 0, **fields}
    return StepAcknowledged(reader=reader, step=step, policy_version=version, samples=samples, **given)


def test_progress_with_batches_gives_the_mean_final_reward_of_each_version():
    progress = Progress()
    progress.add_batch(batch(rollouts(0, 0.0, 1.0, 0.0, 0.0)))
    progress.add_batch(batch(rollouts(1, 1.0, 1.0)))
    assert (progress.mean(0), progress.mean(1), progress.mean(2)) == (0.25, 1.0, None)
    assert (progress.rollouts, progress.batches) == (6, 2)


def test_progress_with_a_failed_rollout_has_no_verdict_of_it():
    progress = Progress()
    progress.add_batch(batch((*rollouts(0, 1.0), result("f", status="failed", policy_version=0, final={}))))
    assert (progress.rollouts, progress.mean(0)) == (2, 1.0)


def test_progress_with_few_rollouts_has_no_recent_mean():
    progress = Progress()
    progress.add_batch(batch(rollouts(0, *[1.0] * (RECENT - 1))))
    assert progress.recent is None


def test_progress_looks_at_the_last_rollouts_alone():
    progress = Progress()
    progress.add_batch(batch(rollouts(0, *[0.0] * RECENT)))
    progress.add_batch(batch(rollouts(1, *[1.0] * (RECENT // 2))))
    assert progress.recent == 0.5


def test_progress_keeps_a_solved_rollout_of_two_calls_as_an_example():
    progress = Progress()
    progress.add_batch(batch(rollouts(0, 0.0, 1.0, turns=2)))
    progress.add_batch(batch(rollouts(0, 1.0, turns=1)))
    assert progress.example == "r1"


@pytest.mark.parametrize("ack_first", [False, True])
def test_progress_measures_staleness_against_the_weights_that_were_trained(ack_first: bool):
    progress = Progress()
    progress.add_ack(ack(0, 3))
    published = batch(rollouts(1, 1.0), (sample("r0/0/c"),), policy_version_min=1)
    acknowledged = ack(1, 4, SampleEnd("r0/0/c", TRAINED))
    if ack_first:
        progress.add_ack(acknowledged)
        progress.add_batch(published)
    else:
        progress.add_batch(published)
        progress.add_ack(acknowledged)
    assert (progress.staleness, progress.staleness_max, progress.policy_version) == (2, 2, 4)


def test_progress_with_a_sample_that_was_not_trained_measures_no_staleness():
    progress = Progress()
    progress.add_batch(batch(rollouts(0, 1.0), (sample("r0/0/c"),), policy_version_min=0))
    progress.add_ack(ack(0, 9))
    progress.add_ack(ack(1, 10, SampleEnd("r0/0/c", STALE)))
    assert progress.staleness_max == 0


def test_progress_counts_a_step_of_several_records_once():
    progress = Progress()
    progress.add_ack(ack(0, 1, offsets={}))
    progress.add_ack(ack(0, 1))
    assert progress.steps == 1


def test_progress_leaves_other_readers_aside():
    progress = Progress()
    progress.add_ack(ack(0, 5, reader="someone"))
    assert (progress.steps, progress.policy_version) == (0, 0)


def test_curve_has_version_0_alone_and_the_others_in_equal_runs():
    progress = Progress()
    for version, reward in ((0, 0.0), (1, 0.0), (2, 1.0), (3, 1.0), (5, 0.5)):
        progress.add_batch(batch(rollouts(version, reward)))
    assert progress.curve(4) == [Point(0, 0, 1, 0.0), Point(1, 2, 2, 0.5), Point(3, 4, 1, 1.0), Point(5, 5, 1, 0.5)]
    assert len(progress.curve(2)) == 2


def test_curve_without_rollouts_is_empty():
    assert Progress().curve(10) == []
