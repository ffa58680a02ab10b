"""Bytes that nobody would send: the fold raises nothing, each ends in a dead letter, a count or its rollout."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.building import call, completed, ended, expired, group_closed, ids, record, reward, started
from unit.consumers.folding import Partition

from rolloutlog.consumers.outputs import BatchReady
from rolloutlog.consumers.packing import Packer
from rolloutlog.eventstore.events import Target
from rolloutlog.eventstore.extra_info import encode_extra_info
from rolloutlog.eventstore.log import EVENTS, Record

JUDGE = "judge.00000000000000bb"
texts = st.text(max_size=12).map(lambda text: text.encode(errors="replace"))
blobs = st.none() | st.binary(max_size=60) | texts


def good_records() -> list[Record]:
    """A group of two rollouts with every kind of event."""
    events = [
        started("a", group_size=2, attempts_max=2),
        started("b", group_size=2),
        call("c1", 1, "a", prompt_ids=ids(*range(80))),
        call("c2", 2, "a", prompt_base="c1", prompt_base_tokens=80, prompt_ids=ids(5)),
        call("t", 3, "a", kind="tool", prompt_ids=None, response_ids=None, parent_id="c1"),
        reward(4, "a", target=Target("span_id", "c1"), extra_info=encode_extra_info({"acc": 1})),
        reward(0, "a", source=JUDGE, name="judge", scope="rollout", supersedes="x"),
        completed(5, "a", awaited_names=("judge",), awaited_rewards=("judge",)),
        ended(1, JUDGE, "a"),
        call("c1", 1, "b"),
        expired(9, "b"),
        completed(2, "b"),
        group_closed(),
        group_closed(reason="complete"),
    ]
    return [record(event, 0) for event in events]


def fold_all(records: list[Record]) -> Partition:
    """Fold and pack all of it, as the assembler does."""
    partition = Partition(min_group=1)
    packer = Packer(0, "c0" * 16, "assembler.00000000000000ff")
    for entry in records:
        packer.pack(partition.add(entry), time_ns=1)
        assert 0 <= partition.state.watermark() <= partition.state.position
        assert partition.state.open_rollouts == sum(group.open_count for group in partition.state.groups.values())
    return partition


def mutated(rng: random.Random, entry: Record) -> Record:
    """One part of a record changed: a byte, an end, the key, the header."""
    value, header = bytearray(entry.value or b""), bytearray(entry.headers[0][1] or b"")
    target = rng.choice([value, value, header])
    for _ in range(rng.randint(1, 4)):
        if not target:
            break
        at = rng.randrange(len(target))
        change = rng.choice(["flip", "cut", "insert", "double"])
        if change == "flip":
            target[at] = rng.randrange(256)
        elif change == "cut":
            del target[at : at + rng.randint(1, 8)]
        elif change == "insert":
            target[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            target[at:at] = target[at : at + 16]
    key = rng.choice([entry.key, entry.key, entry.key, b"", None, rng.randbytes(3), b"h"])
    return entry._replace(value=bytes(value), key=key, headers=((("e"), bytes(header)),))


@settings(max_examples=300, deadline=None)
@given(key=blobs, value=blobs, headers=st.lists(st.tuples(st.sampled_from(["e", "o", ""]), blobs), max_size=3))
def test_fold_of_random_bytes_makes_a_dead_letter(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
):
    partition = fold_all([Record(EVENTS, 0, 0, 0, key, value, tuple(headers))])
    assert len(partition.letters) == 1


@settings(max_examples=300, deadline=None)
@given(value=blobs, kind=st.sampled_from(["RolloutStarted", "RunEnded", "GroupClosed"]))
def test_fold_of_random_values_under_a_good_header_makes_a_dead_letter(value: bytes | None, kind: str):
    rollout = "r" if kind == "RolloutStarted" else ""
    header = f"{kind}/-/0/0/main.00000000000000aa/{rollout}".encode()
    assert len(fold_all([Record(EVENTS, 0, 0, 0, b"g", value, (("e", header),))]).letters) == 1


@pytest.mark.parametrize("seed", range(20))
def test_fold_of_changed_records_raises_nothing(seed: int):
    for number in range(40):
        rng = random.Random(seed * 1_000 + number)
        records = [mutated(rng, each) if rng.random() < 0.4 else each for each in good_records()]
        rng.shuffle(records)
        records.insert(0, good_records()[0])
        fold_all(records)


@pytest.mark.parametrize("seed", range(20))
def test_fold_of_changed_records_ends_each_in_a_letter_a_count_or_its_rollout(seed: int):
    rng = random.Random(seed)
    records = [mutated(rng, each) for each in good_records()]
    partition = fold_all(records)
    kept = sum(
        len(rollout.attempt.records) for group in partition.state.groups.values() for rollout in group.rollouts.values()
    )
    published = sum(isinstance(each, BatchReady) for each in partition.outputs)
    assert published or len(partition.letters) + sum(partition.counts.values()) + kept >= len(records)


def test_fold_of_all_kinds_unchanged_publishes_the_group():
    assert fold_all(good_records()).statuses == {"a": "emitted", "b": "expired"}
