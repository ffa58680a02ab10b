"""Batches: their id, their parts, what is refused when they are put together."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.building import call, completed, ids, reward, started
from unit.consumers.folding import Partition

from rolloutlog.consumers import batches
from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.consumers.batches import Batch, RewardOutcome, RolloutResult, decode_part, encode_parts, join_parts
from rolloutlog.consumers.samples import Sample
from rolloutlog.eventstore.codec import encode_record
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import PolicyVersionRun, TokenArray


def sample(name: str = "r/0/c", index: int = 0, size_bytes: int = 8, **fields: Any) -> Sample:
    made = Sample(
        sample_id=name,
        rollout_index=index,
        turn_index=0,
        span_ids=("c",),
        prompt_ids=ids(1, 2),
        response_ids=b"\x00" * size_bytes,
        response_mask=b"\x01" * (size_bytes // 4),
        logprobs=None,
        policy_version_runs=(),
        total=1.0,
        step={},
        final={"reward": 1.0},
        reward_token_index=ids(0),
        reward_token_value=b"\x00" * 8,
        extra_info=b"",
        model=None,
        finish_reason=None,
        arrays=(),
    )
    return made._replace(**fields)


def outcome(number: int = 0, **fields: Any) -> RewardOutcome:
    made = RewardOutcome(
        f"x:{number}", "reward", 1.0, "step", "attributed", "enclosing", ("c",), (), None, None, number
    )
    return replace(made, **fields)


def result(name: str = "r", outcomes: int = 1, **fields: Any) -> RolloutResult:
    made = RolloutResult(
        rollout_id=name,
        attempt=0,
        task_id="t",
        split="train",
        status="emitted",
        reason=None,
        error=None,
        policy_version=None,
        turn_count=1,
        final={"reward": 1.0},
        outcomes=tuple(outcome(number) for number in range(outcomes)),
        extra_info_refused=(),
        first_event=0,
        closing_event=3,
        metadata=b"",
    )
    return replace(made, **fields)


def batch(rollouts: tuple[RolloutResult, ...] = (), samples: tuple[Sample, ...] = (), **fields: Any) -> Batch:
    made = Batch("b" * 32, "g", "run", "c" * 32, 0, 3, 0, 7, "complete", 2, None, None, None, rollouts, samples)
    return replace(made, **fields)


def joined(value: Batch) -> Batch:
    return join_parts([decode_part(part) for part in encode_parts(value)])


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PART_BYTES_MAX", 2_000)
    monkeypatch.setattr(batches, "OUTCOME_BYTES_A_RECORD", 500)


# The id


def folded(*, span_id: str = "c", group_id: str = "g", **settings: Any) -> Batch:
    partition = Partition(**settings)
    partition.add(started(group_id=group_id), call(span_id, 1), reward(2), completed(3), key=group_id)
    return partition.batch


def test_batch_id_is_the_same_for_the_same_group():
    assert folded().batch_id == folded().batch_id


def test_batch_id_is_32_hex_digits():
    assert len(folded().batch_id) == 32
    assert int(folded().batch_id, 16) >= 0


def test_batch_id_differs_for_other_settings():
    changed = AttributionSettings(weights={"reward": 0.5})
    assert folded(attribution=changed).batch_id != folded().batch_id


def test_batch_id_differs_for_other_samples():
    assert folded(span_id="d").batch_id != folded().batch_id


def test_batch_id_differs_for_another_group():
    assert folded(group_id="h").batch_id != folded().batch_id


def test_batch_id_differs_for_another_order_of_samples():
    def of(*names: str) -> str:
        partition = Partition()
        partition.add(*(started(name, group_size=2) for name in names))
        for name in "ab":
            partition.add(call("c", 1, name), completed(2, name))
        return partition.batch.batch_id

    assert of("a", "b") != of("b", "a")


def test_batch_id_does_not_depend_on_where_in_the_log_the_group_is():
    later = Partition(position=1_000)
    later.add(started(), call("c", 1), reward(2), completed(3))
    assert later.batch.batch_id == folded().batch_id


# Policy versions


def versions(*runs: int | None, start: int | None = None) -> tuple[int | None, int | None]:
    partition = Partition()
    calls = [
        call(f"c{n}", n, response_ids=ids(5), policy_version_runs=(PolicyVersionRun(version, 1),))
        for n, version in enumerate(runs, 1)
    ]
    partition.add(started(policy_version=start), *calls, completed(len(calls) + 1))
    return partition.batch.policy_version_min, partition.batch.policy_version_max


def test_batch_policy_versions_are_the_oldest_and_newest_of_its_samples():
    assert versions(4, 2, 7) == (2, 7)


def test_batch_policy_version_0_counts():
    assert versions(0, 3) == (0, 3)


def test_batch_policy_version_of_calls_without_one_is_that_of_the_start():
    assert versions(None, 7, start=5) == (5, 7)


def test_batch_policy_versions_are_null_when_none_is_known():
    assert versions(None) == (None, None)


def test_batch_policy_versions_of_calls_override_that_of_the_start():
    assert versions(4, start=1) == (4, 4)


# Parts


def test_batch_below_the_limit_is_one_record():
    assert len(encode_parts(batch((result(),), (sample(),)))) == 1


def test_batch_written_and_read_is_the_same():
    whole = batch(
        (result(error="E: x", final={"a": 1.0}, extra_info_refused=("k",), metadata=b'{"a":1}', policy_version=3),),
        (
            sample(
                logprobs=b"\x00" * 8,
                policy_version_runs=(PolicyVersionRun(None, 1), PolicyVersionRun(2**40, 1)),
                step={"s": -0.5},
                extra_info=b'{"acc":1}',
                model="m",
                finish_reason="stop",
                arrays=(TokenArray("x", "<f4", (2, 1), b"\x00" * 8),),
            ),
        ),
        policy_version_min=0,
        policy_version_max=2**40,
    )
    assert joined(whole) == whole


@pytest.mark.usefixtures("small_parts")
def test_batch_above_the_limit_is_written_in_parts_none_above_it():
    whole = batch((result(),), tuple(sample(f"r/0/{n}", size_bytes=400) for n in range(20)))
    sizes = [len(part) for part in encode_parts(whole)]
    assert len(sizes) > 4
    assert max(sizes) <= 2_000


@pytest.mark.usefixtures("small_parts")
def test_batch_parts_know_their_place():
    whole = batch((result(),), tuple(sample(f"r/0/{n}", size_bytes=400) for n in range(8)))
    parts = [decode_part(part) for part in encode_parts(whole)]
    assert [(part.part, part.parts, part.batch_id) for part in parts] == [
        (n, len(parts), "b" * 32) for n in range(len(parts))
    ]


@pytest.mark.usefixtures("small_parts")
def test_batch_outcomes_spread_over_records_come_back_together():
    whole = batch((result("a", outcomes=100), result("b", outcomes=0), result("c", outcomes=3)))
    assert len(encode_parts(whole)) > 2
    assert joined(whole) == whole


@pytest.mark.usefixtures("small_parts")
def test_batch_outcomes_with_long_texts_stay_within_the_limit():
    """By bytes, not by number: names may be long, and an outcome may name many calls."""
    long = tuple(outcome(n, calls=tuple(f"call-{k}" for k in range(30)), name="n" * 100) for n in range(40))
    parts = encode_parts(batch((replace(result(), outcomes=long),)))
    assert max(map(len, parts)) <= 2_000


@pytest.mark.usefixtures("small_parts")
def test_batch_outcomes_spread_over_records_repeat_neither_metadata_nor_error():
    whole = batch((result("a", outcomes=100, metadata=b'{"a":1}', error="E", extra_info_refused=("k",)),))
    later = [each for part in encode_parts(whole)[1:] for each in decode_part(part).rollouts]
    assert {(each.metadata, each.error, each.extra_info_refused) for each in later} == {(b"", None, ())}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    outcomes=st.lists(st.integers(0, 30), max_size=8),
    sizes=st.lists(st.integers(0, 350).map(lambda n: 4 * n), max_size=12),
)
@pytest.mark.usefixtures("small_parts")
def test_batch_of_any_sizes_comes_back_from_its_parts(outcomes: list[int], sizes: list[int]):
    whole = batch(
        tuple(result(f"r{n}", outcomes=count) for n, count in enumerate(outcomes)),
        tuple(sample(f"r/0/{n}", size_bytes=size) for n, size in enumerate(sizes)),
    )
    parts = encode_parts(whole)
    assert max(map(len, parts)) <= 2_000
    assert join_parts([decode_part(part) for part in parts]) == whole


@settings(max_examples=100, deadline=None)
@given(
    text=st.text(max_size=40),
    number=st.integers(0, 20),
    packed=st.binary(max_size=200),
    version=st.integers(0, 2**62),
)
def test_sample_size_is_an_upper_limit_of_its_bytes(text: str, number: int, packed: bytes, version: int):
    text = text.encode(errors="replace").decode()
    made = sample(
        text,
        span_ids=(text,) * number,
        prompt_ids=packed,
        logprobs=packed,
        policy_version_runs=(PolicyVersionRun(version, 2**31 - 1),) * number,
        step={f"{text}{n}": 1.0 for n in range(number)},
        final={f"{text}{n}": 1.0 for n in range(number)},
        extra_info=packed,
        model=text,
        finish_reason=text,
        arrays=tuple(TokenArray(f"{text}{n}", "<f4", (2**40, 2**40, 2**40), packed) for n in range(number)),
    )
    without = len(encode_parts(batch())[0])
    assert len(encode_parts(batch(samples=(made,)))[0]) - without <= made.size_bytes


def some_parts(batch_id: str = "b" * 32, count: int = 3) -> list[Batch]:
    return [batch(batch_id=batch_id, part=n, parts=count) for n in range(count)]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (some_parts()[:2], "expected part 2 of 3, got none"),
        (some_parts()[1:], "expected part 0 of 3, got part 1 of 3 of batch bbbb"),
        ([some_parts()[0], some_parts()[2]], "expected part 1 of 3, got part 2 of 3 of batch bbbb"),
        ([some_parts()[0], *some_parts("a" * 32)[1:]], "expected part 1 of 3, got part 1 of 3 of batch aaaa"),
        ([some_parts()[0], some_parts(count=2)[1]], "expected part 1 of 3, got part 1 of 2 of batch bbbb"),
        ([*some_parts(), some_parts()[2]], "expected 3 parts, got part 2 of 3 of batch bbbb"),
    ],
    ids=["last missing", "first missing", "middle missing", "other batch", "other count", "one too many"],
)
def test_join_of_parts_that_do_not_belong_together_names_the_part(parts: list[Batch], text: str):
    with pytest.raises(InvalidEvent) as caught:
        join_parts(parts)
    assert text in str(caught.value)
    assert caught.value.reason == "part_missing"


@pytest.mark.parametrize("value", [None, b"", b"junk", encode_record("SourceEnded", {
    "rollout_id": "r", "attempt": 0, "source": "s", "sequence": 0, "time_ns": 0})])  # fmt: skip
def test_decode_of_a_record_that_is_no_batch_is_refused(value: bytes | None):
    with pytest.raises(InvalidEvent):
        decode_part(value)


@pytest.mark.usefixtures("small_parts")
def test_fold_of_a_large_group_gives_a_batch_that_comes_back_from_its_parts():
    partition = Partition()
    partition.add(started("a", group_size=2), started("b", group_size=2))
    for name in "ab":
        partition.add(*(call(f"c{n}", n, name, response_ids=ids(*range(100))) for n in range(1, 8)))
        partition.add(completed(8, name))
    assert len(encode_parts(partition.batch)) > 3
    assert joined(partition.batch) == partition.batch
