"""What a stream does with samples that are too long, bad, or without variance, up to their ends in the log."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.batches import assert_ledger_holds, batch, end_records, last_words, records_of, result, sample
from support.building import ids
from support.store import Store

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.trainer import BatchStream

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path}/log.db", partitions=1) as opened:
        yield opened


def trained(store: Store, *batches: Batch, **settings: object) -> tuple[list[list[str]], dict[str, int]]:
    """Sample ids of each step, all steps acknowledged; what the stream counted."""
    for each in batches:
        store.append(records_of(each))
    store.append(end_records(1))
    given = {"groups_per_step": 1, "max_staleness": None, "missing_reward": "exclude", **settings}
    steps = []
    with BatchStream.open(store.url, **given) as stream:  # type: ignore[arg-type]
        for step in stream:
            steps.append([each.sample_id for each in step.samples])
            step.padded(2, 3, 0)
            stream.ack(step, policy_version=1)
        return steps, dict(stream.counts)


def test_rejected_sample_ends_so_in_the_log_and_the_rest_is_trained(store: Store):
    steps, counts = trained(store, batch("g", [sample("g/0/a"), sample("g/0/b", reward_token_index=ids(9))]))
    assert steps == [["g/0/a"]]
    assert last_words(store) == {"g/0/a": "trained", "g/0/b": "rejected"}
    assert (counts["rejected"], counts["samples_rejected"]) == (1, 1)
    assert_ledger_holds(store, in_flight=0)


def test_batch_with_two_winners_ends_rejected_and_the_next_is_trained(store: Store):
    both = batch("g", [sample("g/0/a"), sample("g/1/a")], rollouts=(result("g"), replace(result("g"), attempt=1)))
    steps, _ = trained(store, both, batch("h", 1))
    assert steps == [["h/0/0"]]
    assert last_words(store) == {"g/0/a": "rejected", "g/1/a": "rejected", "h/0/0": "trained"}


def test_longer_samples_are_trained_on_cut_where_the_stream_says_so(store: Store):
    made = batch("g", [sample("g/0/a", prompt_ids=ids(7, 8, 9))])
    steps, counts = trained(store, made, prompt_tokens_max=2, prompt_overlong="truncate_left")
    assert steps == [["g/0/a"]]
    assert counts["samples_truncated"] == 1


def test_group_without_variance_ends_filtered_where_the_stream_says_so(store: Store):
    same = batch("g", [sample("g/0/a"), sample("h/0/a", rollout_index=1)], rollouts=(result("g"), result("h")))
    steps, counts = trained(store, same, zero_variance="filter")
    assert steps == []
    assert last_words(store) == {"g/0/a": "filtered", "h/0/a": "filtered"}
    assert counts["groups_without_variance"] == 1
