"""What one event or rollout can cost is bounded: by refusal by name, or by work that grows with its size alone."""

import time
from dataclasses import replace

import pytest
from support.building import MAIN, call, completed, ended, group_closed, ids, reward, started
from unit.consumers.folding import Partition

from rolloutlog.consumers import batches, closing
from rolloutlog.consumers.batches import decode_part, encode_parts, join_parts
from rolloutlog.eventstore.events import TokenArray

JUDGE = "judge.00000000000000bb"


@pytest.mark.parametrize("shape", [(2,) + (2**62,) * 300, (2, 2**40), (2,) * 33, (2, -1)])
def test_span_with_a_hostile_array_shape_is_a_dead_letter(shape):
    partition = Partition()
    span = call("c", 1, arrays=(TokenArray("a", "<f4", shape, b""),))
    partition.add(started(), span, completed(2))
    assert [letter.field for letter in partition.letters] == ["$.arrays.a"]
    assert partition.result().status == "incomplete"


def test_start_with_metadata_above_a_mebibyte_is_refused():
    partition = Partition()
    partition.add(started(metadata=b'{"a":"' + b"x" * 2**20 + b'"}'))
    assert [letter.field for letter in partition.letters] == ["$.metadata"]


def test_completion_that_awaits_more_than_256_names_is_refused():
    partition = Partition()
    partition.add(started(), completed(1, awaited_rewards=tuple(map(str, range(257)))))
    assert [letter.field for letter in partition.letters] == ["$.awaited_rewards"]


def test_span_id_with_a_slash_is_refused():
    """Rollout a/0 with span b and rollout a with span 0/b would give samples of one id."""
    partition = Partition()
    partition.add(started(), call("0/b", 1), completed(2))
    assert [letter.field for letter in partition.letters] == ["$.span_id"]


def test_rollout_whose_full_prompts_are_above_the_limit_is_incomplete_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(closing, "ROLLOUT_BYTES_MAX", 31)
    partition = Partition()
    partition.add(started(), call("c", 1), call("d", 2), completed(3))
    assert partition.result().status == "incomplete"
    assert partition.result().reason == "full prompts and responses of 32 bytes, at most 31"


def test_result_with_many_long_finals_is_spread_and_comes_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batches, "PART_BYTES_MAX", 20_000)
    monkeypatch.setattr(batches, "OUTCOME_BYTES_A_RECORD", 4_000)
    partition = Partition()
    finals = [reward(n, scope="rollout", name=f"{n}" + "x" * 400) for n in range(1, 101)]
    partition.add(started(), *finals, completed(101))
    parts = encode_parts(partition.batch)
    assert len(parts) > 1
    assert max(map(len, parts)) <= 20_000
    assert join_parts([decode_part(part) for part in parts]) == partition.batch


def test_outcome_that_names_many_calls_is_spread_and_comes_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batches, "PART_BYTES_MAX", 30_000)
    monkeypatch.setattr(batches, "OUTCOME_BYTES_A_RECORD", 4_000)
    monkeypatch.setattr(batches, "CALLS_AN_OUTCOME", 10)
    partition = Partition()
    partition.add(started(), call("c", 1), reward(2, parent_id="c"), completed(3))
    (result,) = partition.batch.rollouts
    outcome = replace(result.outcomes[0], calls=tuple(f"call-{n:0200}" for n in range(300)))
    batch = replace(partition.batch, rollouts=(replace(result, outcomes=(outcome,)),))
    parts = encode_parts(batch)
    assert len(parts) > 1
    assert join_parts([decode_part(part) for part in parts]) == batch


def duplicates(count: int) -> Partition:
    partition = Partition()
    partition.add(started(), *(call(f"c{n}", n, response_ids=ids(1)) for n in range(1, count)))
    partition.add(*(call(f"c{n}", n, response_ids=ids(1)) for n in range(1, count)))
    return partition


def many_sources(count: int) -> Partition:
    partition = Partition()
    partition.add(started(), completed(1, awaited_names=("judge", "never")))
    partition.add(*(ended(0, f"judge.{n:016x}") for n in range(count)))
    return partition


def many_reward_names(count: int) -> Partition:
    partition = Partition()
    partition.add(started(), *(reward(n, name=f"n{n}") for n in range(1, count)), completed(count))
    return partition


@pytest.mark.parametrize("work", [duplicates, many_sources, many_reward_names])
def test_fold_takes_time_in_proportion(work):
    """Ten times the events took a hundred times as long. The bound leaves room for a busy machine."""

    def seconds(count: int) -> float:
        began = time.process_time()
        work(count)
        return time.process_time() - began

    small, large = (min(seconds(count) for _ in range(3)) for count in (500, 5_000))
    assert large < 40 * max(small, 0.005)


def test_duplicate_of_a_refused_event_is_a_duplicate():
    partition = Partition()
    bad = reward(1, value=float("nan"))
    partition.add(started(), bad, bad)
    assert partition.counts["duplicate"] == 1
    assert len(partition.letters) == 1


def test_source_seen_after_the_completion_is_waited_for():
    partition = Partition()
    partition.add(started(), completed(1, awaited_names=("judge",)))
    partition.add(reward(0, source=JUDGE, name="j"), ended(0, "judge.00000000000000cc"))
    assert partition.batches == []
    partition.add(ended(1, JUDGE))
    assert len(partition.batches) == 1


def test_rewards_before_and_after_the_completion_are_both_seen():
    partition = Partition()
    partition.add(started(), reward(1, name="a"), completed(2, awaited_rewards=("a", "b")))
    assert partition.batches == []
    partition.add(reward(0, source=JUDGE, name="b"))
    assert len(partition.batches) == 1


def test_group_closed_twice_by_hosts_is_remembered_from_the_later_one():
    partition = Partition(late_window_s=10)
    partition.add(group_closed())
    partition.at_s = 8
    partition.add(group_closed())
    partition.at_s = 15
    partition.add(started(source=MAIN))
    assert partition.counts["group_reused"] == 1
