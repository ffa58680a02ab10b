"""Batches with literal defaults, and what stands in the batches topic; ends of samples, counted from the topics."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from rolloutlog.consumers.batches import Batch, RolloutResult, encode_parts
from rolloutlog.consumers.published import Joiner, Published
from rolloutlog.consumers.samples import Sample
from rolloutlog.eventstore.acks import Rewound, read_ack
from rolloutlog.eventstore.codec import encode_event
from rolloutlog.eventstore.events import PolicyVersionRun
from rolloutlog.eventstore.log import ACKS, BATCHES, NewRecord, Record
from support.building import floats, ids, run_ended
from support.store import Store


def sample(name: str = "r/0/c", *, total: float | None = 1.0, **fields: Any) -> Sample:
    """Two prompt tokens, three of a response; the reward at its last one."""
    given: dict[str, Any] = {
        "rollout_index": 0, "turn_index": 0, "span_ids": ("c",), "prompt_ids": ids(1, 2),
        "response_ids": ids(3, 4, 5), "response_mask": b"\x01\x01\x01", "logprobs": floats(-0.5, -0.25, -1.0),
        "policy_version_runs": (PolicyVersionRun(3, 3),), "step": {}, "final": {},
        "reward_token_index": b"" if total is None else ids(2),
        "reward_token_value": b"" if total is None else np.array([total], "<f8").tobytes(),
        "extra_info": b"", "model": None, "finish_reason": None, "arrays": (), **fields,
    }  # fmt: skip
    return Sample(sample_id=name, total=total, **given)


def batch(group_id: str = "g", samples: Sequence[Sample] | int = 2, *, version: int | None = 3, **fields: Any) -> Batch:
    """A group of one rollout. `samples`: or how many, named after the group."""
    if isinstance(samples, int):
        runs = (PolicyVersionRun(version, 3),)
        samples = [sample(f"{group_id}/0/{index}", policy_version_runs=runs) for index in range(samples)]
    given: dict[str, Any] = {
        "batch_id": f"id-{group_id}", "run_id": "run", "config_hash": "c", "input_partition": 0, "trigger": 5,
        "first_event": 1, "closed_ns": 0, "closed_reason": "complete", "group_size": 1, "policy_version_min": version,
        "policy_version_max": version, "reason": None if samples else "split val", "rollouts": (result(group_id),),
        **fields,
    }  # fmt: skip
    return Batch(group_id=group_id, samples=tuple(samples), **given)


def result(rollout_id: str) -> RolloutResult:
    return RolloutResult(
        rollout_id=rollout_id, attempt=0, task_id="t", split="train", status="emitted", reason=None, error=None,
        policy_version=3, turn_count=1, final={}, outcomes=(), extra_info_refused=(), first_event=1, closing_event=5,
        metadata=b"",
    )  # fmt: skip


def published(made: Batch | None, offset: int, partition: int = 0) -> Published:
    """A batch as it stands in the topic, in one record."""
    return Published(partition, offset, offset + 1, 0, 100, made)


def records_of(made: Batch, partition: int = 0) -> list[NewRecord]:
    return [NewRecord(BATCHES, partition, made.group_id.encode(), value) for value in encode_parts(made)]


def end_records(partitions: int) -> list[NewRecord]:
    """The end of the run, in each partition."""
    return [NewRecord(BATCHES, partition, None, encode_event(run_ended())) for partition in range(partitions)]


def published_ids(store: Store, topic: str = BATCHES) -> list[str]:
    """Sample ids of all batches of a topic, by partition and offset."""
    found: list[str] = []
    for partition in range(store.partitions):
        joiner = Joiner()
        for record in store.records(topic, [partition]):
            whole = joiner.add(record)
            if whole is not None and whole.batch is not None:
                found += [each.sample_id for each in whole.batch.samples]
    return found


def last_words(store: Store, reader: str = "trainer", topic: str = BATCHES) -> dict[str, str]:
    """The last word on each sample: a rewind takes back what was said from its step on, or since on another line."""
    return last_words_of(store.records(ACKS, [0]), reader, topic)


def last_words_of(records: Sequence[Record], reader: str = "trainer", topic: str = BATCHES) -> dict[str, str]:
    said: list[tuple[int, dict[str, str]]] = []
    lines = {0: said}
    for record in records:
        ack = read_ack(record, topic)
        if ack is None or ack.reader != reader:
            continue
        if isinstance(ack, Rewound):
            before = said if ack.line is None else lines[ack.line]
            said = lines[ack.time_ns] = [(step, ends) for step, ends in before if step < ack.step]
        else:
            said.append((ack.step, dict(ack.samples)))
    return {sample_id: end for _, ends in said for sample_id, end in ends.items()}


def assert_ledger_holds(store: Store, in_flight: int, reader: str = "trainer", topic: str = BATCHES) -> Counter[str]:
    """Published samples = ends + in flight, and no end is of a sample that was never published. Returns the ends."""
    known, words = published_ids(store, topic), last_words(store, reader, topic)
    assert len(known) == len(set(known)), "a sample is published twice"
    assert set(words) <= set(known), "an end of a sample that was never published"
    assert len(known) == len(words) + in_flight
    return Counter(words.values())
