"""Which samples of a batch are trained on, and how the others end."""

import logging
from collections import Counter
from typing import Any

import pytest
from support.batches import batch, result, sample
from support.building import ids

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.stream.admission import admit
from rolloutlog.consumers.stream.collector import StepSettings
from rolloutlog.eventstore.errors import InvalidSettings


def admitted(made: Batch, **given: Any) -> tuple[list[str], dict[str, str], dict[str, int]]:
    """Ids of the samples to train on, ends of the others, counts."""
    counts: Counter[str] = Counter()
    settings = StepSettings(**{"groups_per_step": 1, "max_staleness": None, "missing_reward": "exclude", **given})
    kept, ends = admit(made, settings, counts)
    assert len(kept) + len(ends) == len(made.samples)
    return [each.sample_id for each in kept], dict(ends), dict(counts)


def group(*totals: float) -> Batch:
    """A rollout for each total, of one sample."""
    samples = [sample(f"r{at}/0/c", total=total, rollout_index=at) for at, total in enumerate(totals)]
    return batch("g", samples, rollouts=tuple(result(f"r{at}") for at in range(len(totals))))


def test_bad_sample_ends_rejected_by_name_and_the_rest_is_trained_on(caplog: pytest.LogCaptureFixture):
    made = batch("g", [sample("g/0/a"), sample("g/0/b", response_mask=b"\x01"), sample("g/0/c", prompt_ids=ids(-1))])
    assert admitted(made) == (["g/0/a"], {"g/0/b": "rejected", "g/0/c": "rejected"}, {"samples_rejected": 2})
    assert [record.message for record in caplog.records] == [
        "group g: a sample is rejected, others are trained on: g/0/b: response_mask: expected 3 values, one per "
        "response token, got 1; 1 more of its batch"
    ]


def test_batch_with_two_winners_of_one_rollout_is_rejected_whole(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        found = admitted(batch("g", [sample("r/0/a"), sample("r/1/a")]))
    assert found == ([], {"r/0/a": "rejected", "r/1/a": "rejected"}, {"samples_rejected": 2})
    assert "got attempts 0 and 1 of rollout r" in caplog.records[0].message


def test_longer_samples_are_cut_and_counted():
    found = admitted(batch("g", 2), response_tokens_max=2, response_overlong="truncate_right")
    assert found == (["g/0/0", "g/0/1"], {}, {"samples_truncated": 2})


def test_longer_prompts_are_cut_and_longer_responses_dropped_where_the_stream_says_so():
    made = batch("g", [sample("g/0/a", prompt_ids=ids(1, 2, 3)), sample("g/0/b", response_mask=b"\x01" * 5,
        response_ids=ids(*range(5)), logprobs=None, policy_version_runs=())])  # fmt: skip
    found = admitted(made, prompt_tokens_max=2, prompt_overlong="truncate_left", response_tokens_max=4)
    assert found == (["g/0/a"], {"g/0/b": "filtered"}, {"samples_truncated": 1, "samples_too_long": 1})


def test_sample_with_nothing_left_to_train_on_ends_filtered():
    made = batch("g", [sample("g/0/a", response_mask=b"\x00\x00\x01")])
    found = admitted(made, response_tokens_max=2, response_overlong="truncate_right")
    assert found == ([], {"g/0/a": "filtered"}, {"samples_too_long": 1})


def test_group_without_variance_is_kept_by_default():
    assert admitted(group(1.0, 1.0))[0] == ["r0/0/c", "r1/0/c"]


def test_group_without_variance_ends_filtered_where_the_stream_says_so():
    found = admitted(group(0.1 + 0.2, 0.3), zero_variance="filter")
    counts = {"groups_without_variance": 1, "samples_without_variance": 2}
    assert found == ([], {"r0/0/c": "filtered", "r1/0/c": "filtered"}, counts)


@pytest.mark.parametrize("totals", [(1.0, 0.0), (1.0,)], ids=["different", "one rollout"])
def test_group_with_variance_or_of_one_rollout_is_kept(totals: tuple[float, ...]):
    assert len(admitted(group(*totals), zero_variance="filter")[0]) == len(totals)


def test_variance_is_that_of_rollouts_and_not_of_their_rows():
    halves = [sample("r0/0/a", total=0.5), sample("r0/0/b", total=0.5)]
    made = batch("g", [*halves, sample("r1/0/c", rollout_index=1)], rollouts=(result("r0"), result("r1")))
    assert admitted(made, zero_variance="filter")[0] == []


def test_variance_counts_the_reward_of_a_sample_that_is_too_long():
    """Its last call is not trained on, but the rollout has earned what stands there."""
    first = [sample(f"r{n}/0/a", total=0.5, rollout_index=n) for n in (0, 1)]
    last = sample("r0/0/b", total=1.0, prompt_ids=ids(1, 2, 3))
    made = batch("g", [*first, last], rollouts=(result("r0"), result("r1")))
    kept, ends, _ = admitted(made, zero_variance="filter", prompt_tokens_max=2)
    assert (kept, ends) == (["r0/0/a", "r1/0/a"], {"r0/0/b": "filtered"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt_overlong": "cut"}, "prompt_overlong: expected one of drop, truncate_left, truncate_right, got 'cut'"),
        ({"prompt_overlong": "truncate_left"}, "prompt_overlong='truncate_left': expected prompt_tokens_max, got none"),
        ({"zero_variance": True}, "zero_variance: expected one of keep, filter, got True"),
    ],
)  # fmt: skip
def test_unusable_setting_is_refused_by_name(given: dict[str, Any], message: str):
    with pytest.raises(InvalidSettings, match=f"^{message}$"):
        admitted(batch("g"), **given)
