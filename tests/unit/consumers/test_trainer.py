"""The batch stream on an embedded log: steps, acknowledgements, rewinds, the end of a run."""

import asyncio
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.batches import assert_ledger_holds, batch, end_records, last_words, records_of, sample
from support.store import Store
from unit.consumers.streams import end_run, put

from rolloutlog.consumers import published
from rolloutlog.consumers.batches import decode_part
from rolloutlog.consumers.position import PositionRefused
from rolloutlog.consumers.status import Status, status_record
from rolloutlog.consumers.stream import reader_owner, work
from rolloutlog.consumers.trainer import (
    AckRefused,
    BatchStream,
    FencedOut,
    HistoryLost,
    Step,
    WaitedTooLong,
    shard,
)
from rolloutlog.eventstore.acks import Rewound, StepAcknowledged, StepAwaited, read_ack, read_said
from rolloutlog.eventstore.errors import InvalidSettings, LogMissing, LogUnavailable, UnknownSchema
from rolloutlog.eventstore.log import ACKS, BATCHES, META, NewRecord, Position, open_log
from rolloutlog.eventstore.scope import NotOpen

pytestmark = pytest.mark.timeout(60)


def group_ids(step: Step | None) -> list[str]:
    assert step is not None
    return [each.group_id for each in step.batches]


def acks(store: Store) -> list[StepAcknowledged | Rewound]:
    return [ack for record in store.records(ACKS, [0]) if (ack := read_ack(record)) is not None]


def awaited(store: Store) -> list[StepAwaited]:
    said = [read_said(record) for record in store.records(ACKS, [0])]
    return [each for each in said if isinstance(each, StepAwaited)]


def positions(store: Store, reader: str = "trainer") -> dict[int, Position]:
    """As committed. Becomes the reader: only when no stream is open any more."""

    async def look() -> dict[int, Position]:
        owner = await store.log.own(reader, BATCHES, None)
        try:
            return dict(await owner.positions())
        finally:
            await owner.close()

    return store.run(look())


# steps


def test_steps_come_until_the_run_has_ended(store, stream_of):
    put(store, "a", "b", "c")
    end_run(store)
    stream = stream_of()
    steps = []
    for step in stream:
        steps.append((step.number, group_ids(step)))
        stream.ack(step, policy_version=step.number + 1)
    assert steps == [(0, ["a", "b"]), (1, ["c"])]
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 6}
    assert stream.next_step() is None


def test_steps_come_in_async_code(store):
    put(store, "a", "b", "c")
    end_run(store)

    async def train() -> list[list[str]]:
        found = []
        stream = BatchStream.open(store.url, groups_per_step=2, max_staleness=None, missing_reward="exclude")
        async with stream:
            async for step in stream:
                found.append(group_ids(step))
                await stream.aack(step, policy_version=None)
        return found

    assert asyncio.run(train()) == [["a", "b"], ["c"]]
    assert_ledger_holds(store, in_flight=0)


def test_step_forms_from_batches_that_come_while_it_is_awaited(store, stream_of):
    stream = stream_of()
    found: list[Step | None] = []
    waiting = threading.Thread(target=lambda: found.append(stream.next_step()))
    waiting.start()
    put(store, "a")
    put(store, "b", partition=1)
    waiting.join(10)
    assert group_ids(found[0]) == ["a", "b"]


def test_step_larger_than_the_prefetch_bound_still_forms(store, stream_of):
    put(store, "a", "b", "c", "d")
    stream = stream_of(groups_per_step=4, prefetch_bytes=1)
    assert group_ids(stream.next_step()) == ["a", "b", "c", "d"]


def test_prefetch_rests_once_a_step_is_ready(store, stream_of):
    put(store, *(f"g{index}" for index in range(10)))
    stream = stream_of(groups_per_step=2)
    prefetch = stream._work.parts.prefetch
    wait_for(lambda: len(prefetch._ready) == 2)
    time.sleep(0.1)  # it would have read the others by now
    assert len(prefetch._ready) == 2
    assert group_ids(stream.next_step()) == ["g0", "g1"]
    wait_for(lambda: len(prefetch._ready) == 2)
    assert group_ids(stream.next_step()) == ["g2", "g3"]


def test_prefetch_rests_at_its_bytes_but_lets_one_through(store, stream_of):
    put(store, "a", "b", "c")
    stream = stream_of(groups_per_step=3, prefetch_bytes=1)
    prefetch = stream._work.parts.prefetch
    wait_for(lambda: bool(prefetch._ready))
    assert group_ids(stream.next_step()) == ["a", "b", "c"]


def test_last_step_that_is_no_whole_one_is_left_with_drop_last(store, stream_of):
    put(store, "a", "b", "c")
    end_run(store)
    stream = stream_of(drop_last=True)
    for step in stream:
        stream.ack(step, policy_version=None)
    assert_ledger_holds(store, in_flight=2)
    stream.close()
    assert group_ids(stream_of().next_step()) == ["c"]


def test_partitions_to_read_can_be_chosen(store, stream_of):
    put(store, "a", "b", partition=0)
    put(store, "c", "d", partition=1)
    assert group_ids(stream_of(partitions=[1]).next_step()) == ["c", "d"]


def test_staleness_is_measured_when_a_step_is_handed_out(store, stream_of):
    put(store, "a", version=3)
    put(store, "b", "c", version=5)
    end_run(store)
    stream = stream_of(max_staleness=1)
    stream.set_policy_version(4)
    wait_for(lambda: bool(stream._work.parts.prefetch._ready))
    stream.set_policy_version(6)
    step = stream.next_step()
    assert group_ids(step) == ["b", "c"]
    assert (step.staleness, step.policy_version) == ((1, 1), 6)
    stream.ack(step, policy_version=7)
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 4, "stale": 2}


def test_step_asked_for_without_a_policy_version_says_what_to_do(store, stream_of):
    put(store, "a", "b")
    stream = stream_of(max_staleness=1)
    with pytest.raises(InvalidSettings, match=r"max_staleness=1: expected set_policy_version\(version\) before"):
        stream.next_step()
    stream.set_policy_version(3)
    assert group_ids(stream.next_step()) == ["a", "b"]


@pytest.mark.parametrize("version", [-1, 1.0, True, "3", None, 2**63])
def test_policy_version_that_is_none_is_refused(store, stream_of, version):
    with pytest.raises(InvalidSettings, match="policy version: expected an integer from 0, of 63 bits at most, got"):
        stream_of().set_policy_version(version)


def test_records_that_are_no_batch_are_named_counted_and_passed_over(store, stream_of, caplog):
    store.append([NewRecord(BATCHES, 0, b"k", b"junk")])
    put(store, "a")
    store.append([NewRecord(BATCHES, 0, b"k", None)])
    put(store, "b")
    end_run(store)
    stream = stream_of()
    step = stream.next_step()
    stream.ack(step, policy_version=None)
    assert group_ids(step) == ["a", "b"]
    assert stream.counts["refused"] == 2
    assert "batches 0:0: passed over, with the batch it may be a part of: expected Avro" in caplog.text
    assert "batches 0:2: passed over" in caplog.text
    assert_ledger_holds_ignoring_refused(store)


def test_batch_of_a_newer_version_ends_reading_and_is_trained_after_the_upgrade(store, stream_of, monkeypatch):
    """To pass it over would lose it: the position would move past it."""
    put(store, "a", "b", "newer", "c")
    (whole,) = [each for each in store.records(BATCHES, [0]) if each.key == b"newer"]
    newer = b"\xc3\x01" + bytes(8) + whole.value[10:]
    with monkeypatch.context() as old:
        old.setattr(published, "decode_part", lambda value: decode_part(newer if value == whole.value else value))
        stream = stream_of()
        stream.ack(stream.next_step(), policy_version=1)
        with pytest.raises(
            UnknownSchema, match=r"batches 0:2: .*written by a newer version\? Upgrade rolloutlog here, and"
        ):
            stream.next_step()
        stream.close()
    assert positions(store)[0].offset == 2
    assert group_ids(stream_of().next_step()) == ["newer", "c"]


def assert_ledger_holds_ignoring_refused(store: Store) -> None:
    assert Counter(last_words(store).values()) == {"trained": 4}


def test_batch_that_lacks_a_part_is_passed_over_and_the_rest_trained(store, stream_of, monkeypatch):
    from rolloutlog.consumers import batches as module

    monkeypatch.setattr(module, "PART_BYTES_MAX", 3_000)
    large = records_of(batch("large", [sample(f"l/{index}", response_ids=bytes(2_000)) for index in range(3)]))
    assert len(large) == 3
    store.append([large[0], large[2]])
    put(store, "a", "b")
    stream = stream_of()
    assert group_ids(stream.next_step()) == ["a", "b"]
    assert stream.counts["refused"] == 2


def test_batch_in_parts_is_handed_out_whole(store, stream_of, monkeypatch):
    from rolloutlog.consumers import batches as module

    monkeypatch.setattr(module, "PART_BYTES_MAX", 3_000)
    long = {"response_ids": bytes(1_600), "response_mask": b"\x01" * 400, "logprobs": None, "policy_version_runs": ()}
    large = batch("large", [sample(f"l/{index}", **long) for index in range(3)])
    store.append(records_of(large))
    end_run(store)
    stream = stream_of()
    step = stream.next_step()
    assert [each.sample_id for each in step.samples] == ["l/0", "l/1", "l/2"]
    wait_for(lambda: len(stream._work.parts.prefetch.ended_partitions) == 2)
    stream.ack(step, policy_version=None)
    assert (stream.state_dict()["offsets"], stream.state_dict()["ended"]) == ({"0": 4, "1": 1}, [0, 1])


def test_slow_step_loses_nothing_and_reads_on(store, stream_of):
    """The client's thread goes on while the caller is busy: what comes meanwhile is there at once."""
    put(store, "a", "b")
    stream = stream_of()
    step = stream.next_step()
    put(store, "c", "d")
    wait_for(lambda: len(stream._work.parts.prefetch._ready) == 2)
    stream.ack(step, policy_version=1)
    assert group_ids(stream.next_step(timeout_s=0)) == ["c", "d"]


# acknowledging


def test_ack_stores_ends_and_offsets_in_one_record(store, stream_of):
    put(store, "a", version=1)
    put(store, "b", "c", partition=1)
    stream = stream_of(max_staleness=0, clock=lambda: 5)
    stream.set_policy_version(3)
    stream.ack(stream.next_step(), policy_version=4)
    (ack,) = acks(store)
    assert ack == StepAcknowledged(
        reader="trainer",
        step=0,
        policy_version=4,
        batch_ids=("id-b", "id-c"),
        samples=tuple(ack.samples),
        offsets={0: ack.offsets[0], 1: 2},
        time_ns=5,
    )
    assert Counter(each.end for each in ack.samples)["trained"] == 4
    stream.close()
    committed = positions(store)
    assert {partition: each.offset for partition, each in committed.items()} == dict(ack.offsets)


def test_reopened_stream_goes_on_after_what_was_acknowledged(store, stream_of):
    put(store, "a", "b", "c", "d")
    first = stream_of()
    first.ack(first.next_step(), policy_version=4)
    first.next_step()
    first.close()
    again = stream_of()
    assert again.state_dict()["step"] == 1
    assert again.state_dict()["policy_version"] == 4
    step = again.next_step()
    assert (step.number, group_ids(step)) == (1, ["c", "d"])


def test_steps_may_be_handed_out_before_the_first_is_acknowledged(store, stream_of):
    put(store, "a", "b", "c", "d", "e", "f")
    stream = stream_of()
    first, second, third = (stream.next_step() for _ in range(3))
    with pytest.raises(AckRefused, match="step 1 refused: expected step 0, which was handed out before"):
        stream.ack(second, policy_version=None)
    stream.ack(first, policy_version=None)
    stream.ack(second, policy_version=None)
    assert stream.state_dict()["offsets"]["0"] == 4
    assert_ledger_holds(store, in_flight=4)
    stream.close()
    assert group_ids(stream_of().next_step()) == group_ids(third)


def test_step_acknowledged_twice_is_refused(store, stream_of):
    put(store, "a", "b")
    stream = stream_of()
    step = stream.next_step()
    stream.ack(step, policy_version=None)
    with pytest.raises(AckRefused, match="step 0 refused: it was acknowledged already; the next one is 1"):
        stream.ack(step, policy_version=None)
    assert len(acks(store)) == 1


def test_step_of_another_stream_is_refused(store, stream_of):
    put(store, "a", "b")
    step = stream_of(reader="other").next_step()
    stream = stream_of()
    stream.next_step()
    with pytest.raises(AckRefused, match=r"expected a step of this stream since it was opened.*got one of other\."):
        stream.ack(step, policy_version=None)


def test_share_of_a_pickled_step_stands_for_it(store, stream_of):
    put(store, "a", "b")
    stream = stream_of()
    part = pickle.loads(pickle.dumps(shard(stream.next_step(), 1, 3)))
    stream.ack(part, policy_version=None)
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 4}


def test_readers_of_other_names_each_get_everything(store, stream_of):
    put(store, "a", "b")
    for reader in ("one", "two"):
        stream = stream_of(reader=reader)
        stream.ack(stream.next_step(), policy_version=None)
        assert assert_ledger_holds(store, in_flight=0, reader=reader) == {"trained": 4}


def test_cancelled_wait_for_a_step_loses_no_batch(store, stream_of):
    put(store, "a")
    stream = stream_of()

    async def give_up() -> None:
        waiting = asyncio.create_task(stream.anext_step())
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(give_up())
    put(store, "b")
    assert group_ids(stream.next_step()) == ["a", "b"]


# the log does not answer


class Faulty:
    """Makes a log whose owners answer a commit with what `faults` hold, before or after they store it."""

    def __init__(self, *faults: tuple[str, Exception]) -> None:
        self.faults = list(faults)
        self.armed = False

    async def __call__(self, url: str, create: bool) -> Any:
        log = await open_log(url)
        own = log.own

        async def faulty(app: str, topic: str, partition: int | None) -> Any:
            owner = await own(app, topic, partition)
            commit = owner.commit

            async def answer(records: Any, found: Any) -> None:
                if not self.armed or not found or not self.faults:
                    return await commit(records, found)
                when, error = self.faults.pop(0)
                if when == "after":
                    await commit(records, found)
                raise error

            owner.commit = answer  # type: ignore[method-assign]
            return owner

        log.own = faulty  # type: ignore[method-assign]
        return log


@pytest.mark.parametrize("when", ["before", "after"])
def test_ack_without_an_answer_is_looked_for_and_stored_once(store, stream_of, when):
    put(store, "a", "b", "c", "d")
    faulty = Faulty((when, LogUnavailable("no answer")), (when, LogUnavailable("no answer")))
    stream = stream_of(opener=faulty)
    faulty.armed = True
    stream.ack(stream.next_step(), policy_version=None)
    stream.ack(stream.next_step(), policy_version=None)
    assert [each.step for each in acks(store)] == [0, 1]
    assert_ledger_holds(store, in_flight=0)


@pytest.mark.parametrize("when", ["before", "after"])
def test_ack_given_up_can_be_made_again(store, stream_of, when):
    put(store, "a", "b", "c", "d")
    faulty = Faulty((when, LogUnavailable("no answer")))
    stream = stream_of(opener=faulty, ack_s=0)
    faulty.armed = True
    step = stream.next_step()
    with pytest.raises(
        LogUnavailable, match=r"no answer within 0 s to what acknowledges up to step 1.*acknowledge it again"
    ):
        stream.ack(step, policy_version=None)
    stream.ack(step, policy_version=None)
    stream.ack(stream.next_step(), policy_version=None)
    assert [each.step for each in acks(store)] == [0, 1]
    assert_ledger_holds(store, in_flight=0)


def test_rewind_after_an_ack_that_was_given_up_is_not_taken_for_fencing(store, stream_of):
    put(store, "a", "b")
    faulty = Faulty(("after", LogUnavailable("no answer")))
    stream = stream_of(opener=faulty, ack_s=0)
    state = stream.state_dict()
    faulty.armed = True
    with pytest.raises(LogUnavailable):
        stream.ack(stream.next_step(), policy_version=3)
    stream.load_state_dict({**state, "policy_version": 2})
    assert [type(each).__name__ for each in acks(store)] == ["StepAcknowledged", "Rewound"]
    assert group_ids(stream.next_step()) == ["a", "b"]


def test_ack_without_an_answer_does_not_fence_a_newer_stream(store, stream_of, monkeypatch):
    put(store, "a", "b")
    faulty = Faulty(("before", LogUnavailable("no answer")))
    older = stream_of(opener=faulty)
    faulty.armed = True
    step = older.next_step()
    newer = stream_of()
    with pytest.raises(FencedOut, match=f"taken over by host {socket.gethostname()}, pid {os.getpid()}"):
        older.ack(step, policy_version=None)
    newer.ack(newer.next_step(), policy_version=None)


def test_log_that_cannot_be_read_for_a_while_is_read_on_from_what_was_taken(store, stream_of, caplog):
    put(store, "a", "b", "c", "d")
    faults = [LogUnavailable("away"), LogUnavailable("away")]

    async def opener(url: str, create: bool) -> Any:
        log = await open_log(url)
        make = log.reader

        async def reader(topic: str, offsets: Any) -> Any:
            made = await make(topic, offsets)
            fetch, count = made.fetch, 0

            async def breaking(**given: Any) -> Any:
                nonlocal count
                count += 1
                if topic == BATCHES and count == 2 and faults:
                    raise faults.pop()
                return await fetch(**given)

            made.fetch = breaking
            return made

        log.reader = reader  # type: ignore[method-assign]
        return log

    stream = stream_of(opener=opener, groups_per_step=1)
    assert [group_ids(stream.next_step()) for _ in range(4)] == [["a"], ["b"], ["c"], ["d"]]
    assert "away; reading again in 0.2 s" in caplog.text


def test_log_that_stays_unavailable_is_named_by_the_error_of_waiting(store, stream_of):
    async def opener(url: str, create: bool) -> Any:
        log = await open_log(url)
        make = log.reader

        async def reader(topic: str, offsets: Any) -> Any:
            if topic == BATCHES:
                raise LogUnavailable("the broker is away")
            return await make(topic, offsets)

        log.reader = reader  # type: ignore[method-assign]
        return log

    with pytest.raises(WaitedTooLong, match="the log cannot be read: the broker is away"):
        stream_of(opener=opener).next_step(timeout_s=0.3)


# fencing


def test_newer_stream_of_the_same_name_fences_the_older_ones_ack(store, stream_of):
    put(store, "a", "b", "c", "d")
    older = stream_of()
    step = older.next_step()
    newer = stream_of()
    with pytest.raises(
        FencedOut, match=r"reader trainer of batches was taken over by host .*, pid .*; this stream stored"
    ):
        older.ack(step, policy_version=None)
    newer.ack(newer.next_step(), policy_version=None)
    assert_ledger_holds(store, in_flight=4)


def test_newer_stream_of_the_same_name_ends_the_older_ones_steps(store, stream_of):
    put(store, "a", "b", "c", "d")
    older = stream_of()
    older.next_step()
    stream_of()
    with pytest.raises(FencedOut):
        older.next_step()


def test_newer_stream_ends_the_older_ones_steps_once_its_last_ack_is_a_second_old(store, stream_of, monkeypatch):
    put(store, *"abcdefgh")
    older = stream_of()
    older.ack(older.next_step(), policy_version=None)
    newer = stream_of()
    step = older.next_step()  # nobody looked so soon, and the acknowledgement tells
    with pytest.raises(FencedOut):
        older.ack(step, policy_version=None)
    with pytest.raises(FencedOut):
        older.next_step()
    newer.ack(newer.next_step(), policy_version=None)
    newest = stream_of()
    monkeypatch.setattr(reader_owner, "OWNED_S", 0.0)
    with pytest.raises(FencedOut):
        newer.next_step()
    assert group_ids(newest.next_step()) == ["e", "f"]


def test_successor_that_has_not_said_who_it_is_is_unknown(store, stream_of, monkeypatch):
    monkeypatch.setattr(reader_owner, "SUCCESSOR_WAIT_S", 0.2)
    put(store, "a", "b")
    stream = stream_of()
    step = stream.next_step()
    store.run(store.log.own("trainer", BATCHES, None))
    with pytest.raises(FencedOut, match="taken over by unknown"):
        stream.ack(step, policy_version=None)


# checkpoints


def test_load_of_the_committed_state_writes_nothing(store, stream_of):
    put(store, "a", "b", "c", "d")
    stream = stream_of()
    stream.ack(stream.next_step(), policy_version=4)
    stream.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert len(acks(store)) == 1
    assert group_ids(stream.next_step()) == ["c", "d"]


def test_load_of_an_earlier_state_rewinds_and_the_last_word_counts(store, stream_of):
    put(store, "a", "b", "c", "d", "e", "f", version=3)
    stream = stream_of(max_staleness=1)
    stream.set_policy_version(3)
    stream.ack(stream.next_step(), policy_version=4)
    state = json.loads(json.dumps(stream.state_dict()))
    for version in (5, 6):
        stream.ack(stream.next_step(), policy_version=version)
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 12}
    handed_out = stream.state_dict()
    stream.load_state_dict(state)
    assert {**stream.state_dict(), "line": 0} == state != handed_out
    assert isinstance(acks(store)[-1], Rewound)
    assert acks(store)[-1].step == 1
    assert acks(store)[-1].policy_version == 4
    assert assert_ledger_holds(store, in_flight=8) == {"trained": 4}
    stream.set_policy_version(4)
    step = stream.next_step()
    assert (step.number, group_ids(step)) == (1, ["c", "d"])
    stream.ack(step, policy_version=5)
    stream.set_policy_version(5)
    end_run(store)
    assert stream.next_step() is None
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 8, "stale": 4}


def test_steps_handed_out_before_a_rewind_cannot_be_acknowledged(store, stream_of):
    put(store, "a", "b", "c", "d")
    stream = stream_of()
    state = stream.state_dict()
    stream.ack(stream.next_step(), policy_version=None)
    step = stream.next_step()
    stream.load_state_dict(state)
    with pytest.raises(AckRefused, match="expected a step of this stream since it was opened or rewound"):
        stream.ack(step, policy_version=None)
    stream.ack(stream.next_step(), policy_version=None)
    assert_ledger_holds(store, in_flight=4)


def test_load_after_a_restart_rewinds_what_was_acknowledged_since_the_checkpoint(store, stream_of):
    put(store, "a", "b", "c", "d")
    first = stream_of()
    state = first.state_dict()
    first.ack(first.next_step(), policy_version=1)
    first.close()
    second = stream_of()
    second.load_state_dict(state)
    step = second.next_step()
    assert (step.number, group_ids(step)) == (0, ["a", "b"])


def test_load_of_a_state_ahead_of_the_reader_is_refused(store, stream_of):
    put(store, "a", "b", "c", "d")
    stream = stream_of()
    earlier = stream.state_dict()
    stream.ack(stream.next_step(), policy_version=None)
    later = stream.state_dict()
    stream.load_state_dict(earlier)
    with pytest.raises(InvalidSettings, match=r"at step 1, ahead of what reader trainer acknowledged, up to step 0"):
        stream.load_state_dict({**later, "reader": "other"})


def test_load_of_a_state_that_a_rewind_left_brings_back_what_was_acknowledged_for_it(store, stream_of):
    """Such as of a trainer that was stopped while another one went on, and saved its checkpoint later."""
    put(store, "a", "b", "c")
    put(store, "d", version=5)
    stream = stream_of(groups_per_step=1)
    begin = stream.state_dict()
    for _ in range(2):
        stream.ack(stream.next_step(), policy_version=None)
    left = json.loads(json.dumps(stream.state_dict()))
    stream.load_state_dict(begin)
    stream.close()
    other = stream_of(groups_per_step=1, max_staleness=0)
    other.set_policy_version(5)
    other.ack(other.next_step(), policy_version=None)
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 2, "stale": 6}
    other.load_state_dict(left)
    assert assert_ledger_holds(store, in_flight=4) == {"trained": 4}
    assert {name[0] for name in last_words(store)} == {"a", "b"}
    again = stream_of(groups_per_step=1)
    assert again.state_dict() == other.state_dict()
    step = again.next_step()
    assert (step.number, group_ids(step)) == (2, ["c"])


def test_new_reader_begins_where_the_state_of_another_is(store, stream_of):
    put(store, "a", "b", "c", "d")
    first = stream_of()
    first.ack(first.next_step(), policy_version=4)
    copy = stream_of(reader="copy")
    copy.load_state_dict(first.state_dict())
    step = copy.next_step()
    assert (step.number, group_ids(step)) == (1, ["c", "d"])
    copy.close()
    assert stream_of(reader="copy").state_dict()["step"] == 1


def test_state_above_the_logs_end_is_refused(store, stream_of):
    stream = stream_of()
    state = stream.state_dict()
    with pytest.raises(InvalidSettings, match="expected an offset up to 0 in partition 1, where the log ends, got 9"):
        stream.load_state_dict({**state, "offsets": {"0": 0, "1": 9}})


def test_load_waits_for_no_step_that_another_thread_waits_for(store, stream_of):
    put(store, "a", "b", "c")
    stream = stream_of()
    state = stream.state_dict()
    stream.ack(stream.next_step(), policy_version=None)
    found: list[Step | None] = []
    waiting = threading.Thread(target=lambda: found.append(stream.next_step()))
    waiting.start()
    stream.load_state_dict(state)
    waiting.join(10)
    assert group_ids(found[0]) == ["a", "b"]


# retention


def test_batches_cut_off_before_they_were_acknowledged_are_an_error_that_names_them(store, stream_of):
    put(store, "a", "b", "c", "d")
    first = stream_of()
    first.ack(first.next_step(), policy_version=None)
    first.close()
    store.cut(BATCHES, 0, 3)
    with pytest.raises(HistoryLost, match=r'are gone, by retention: partition 0: offsets 2-2\. Open .*"skip"'):
        stream_of()


def test_batches_cut_off_are_passed_over_when_told_so(store, stream_of, caplog):
    put(store, "a", "b", "c", "d", "e")
    first = stream_of()
    first.ack(first.next_step(), policy_version=None)
    first.close()
    store.cut(BATCHES, 0, 3)
    stream = stream_of(on_history_lost="skip")
    assert group_ids(stream.next_step()) == ["d", "e"]
    assert "partition 0: offsets 2-2; going on without them" in caplog.text


def test_batches_cut_off_while_they_were_read_end_the_stream(store, stream_of):
    put(store, *(f"g{index}" for index in range(8)))
    stream = stream_of(prefetch_bytes=1, groups_per_step=1)
    assert group_ids(stream.next_step()) == ["g0"]
    wait_for(lambda: bool(stream._work.parts.prefetch._ready))
    store.cut(BATCHES, 0, 7)
    assert group_ids(stream.next_step()) == ["g1"]
    with pytest.raises(HistoryLost, match=r"partition 0: offsets 2-6"):
        stream.next_step()


def test_state_whose_batches_were_cut_off_is_refused_before_anything_is_written(store, stream_of):
    put(store, "a", "b", "c", "d")
    stream = stream_of()
    state = stream.state_dict()
    stream.ack(stream.next_step(), policy_version=None)
    store.cut(BATCHES, 0, 1)
    with pytest.raises(HistoryLost, match="partition 0: offsets 0-0"):
        stream.load_state_dict(state)
    assert len(acks(store)) == 1
    assert group_ids(stream.next_step()) == ["c", "d"]


def test_position_above_the_logs_end_is_refused(store, stream_of):
    put(store, "a", "b")
    stream = stream_of()
    stream.ack(stream.next_step(), policy_version=None)
    stream.close()

    async def move() -> None:
        owner = await store.log.own("trainer", BATCHES, None)
        await owner.commit([], {0: (await owner.positions())[0]._replace(offset=99)})

    store.run(move())
    with pytest.raises(PositionRefused, match=r"partition 0 of batches: expected a position of at most 2.*got 99"):
        stream_of()


# the end of the run


def test_rest_after_the_last_step_is_acknowledged_at_the_end(store, stream_of):
    put(store, "a", "b", version=5)
    put(store, "old", version=1)
    store.append(records_of(batch("val", 0), 1))
    end_run(store)
    stream = stream_of(max_staleness=1)
    stream.set_policy_version(5)
    for step in stream:
        stream.ack(step, policy_version=6)
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 4, "stale": 2}
    state = stream.state_dict()
    assert (state["step"], state["policy_version"], state["offsets"]) == (1, 6, {"0": 4, "1": 2})
    assert [each.group_id for each in stream.evaluations] + [e.group_id for e in step.evaluations] == ["val"]


def test_run_whose_samples_all_end_otherwise_is_whole_in_the_ledger(store, stream_of):
    put(store, "old", version=1)
    end_run(store)
    stream = stream_of(max_staleness=1)
    stream.set_policy_version(5)
    assert list(stream) == []
    assert assert_ledger_holds(store, in_flight=0) == {"stale": 2}
    assert [each.step for each in acks(store)] == [-1]


def test_rest_goes_with_the_last_step_when_that_is_not_acknowledged_yet(store, stream_of):
    put(store, "a", "b", version=5)
    put(store, "old", version=1)
    end_run(store)
    stream = stream_of(max_staleness=1)
    stream.set_policy_version(5)
    step = stream.next_step()
    assert stream.next_step() is None
    assert acks(store) == []
    stream.ack(step, policy_version=6)
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 4, "stale": 2}


def test_reopened_stream_of_an_ended_run_ends_at_once(store, stream_of):
    put(store, "a", "b")
    end_run(store)
    first = stream_of()
    for step in first:
        first.ack(step, policy_version=None)
    first.close()
    again = stream_of(wait_s=5)
    assert again.next_step() is None
    assert len(acks(store)) == 1


def test_run_that_goes_on_after_its_end_gives_steps_again(store, stream_of):
    put(store, "a", "b")
    end_run(store)
    stream = stream_of()
    for step in stream:
        stream.ack(step, policy_version=None)
    put(store, "c", "d")
    assert stream.next_step(timeout_s=5) is not None


def test_run_has_not_ended_while_one_partition_goes_on(store, stream_of):
    put(store, "a", "b")
    end_run(store)
    put(store, "c", partition=1)
    stream = stream_of(groups_per_step=4)
    with pytest.raises(WaitedTooLong, match=r"got 3; partition 1: no assembler has said anything$"):
        stream.next_step(timeout_s=0.3)
    store.append(end_records(2))
    assert group_ids(stream.next_step()) == ["a", "b", "c"]


# waiting


def test_waiting_too_long_names_who_is_awaited(store, stream_of):
    put(store, "a")
    now_ns = time.time_ns()
    store.append(
        [
            status_record(status(0, now_ns, waiting=("group g-1: rollout r-2 (attempt 0) is not completed",))),
            status_record(status(1, now_ns - 90_000_000_000)),
        ]
    )
    stream = stream_of(clock=lambda: now_ns)
    with pytest.raises(WaitedTooLong) as found:
        stream.next_step(timeout_s=0.2)
    assert found.value.retriable
    assert str(found.value) == (
        "reader trainer: waited 0 s for 2 groups to train on, got 1; "
        "partition 0: group g-1: rollout r-2 (attempt 0) is not completed | "
        "partition 1: no assembler for 90 s (the last was host h, pid 7); no group is open"
    )


def test_waiting_without_any_assembler_says_so(store, stream_of):
    with pytest.raises(WaitedTooLong, match="partition 0: no assembler has said anything"):
        stream_of(wait_s=0.1).next_step()


def test_waiting_says_what_was_passed_over(store, stream_of):
    put(store, "old", version=1)
    stream = stream_of(max_staleness=0)
    stream.set_policy_version(9)
    with pytest.raises(WaitedTooLong, match="for 2 groups to train on, got 0, 2 samples stale; partition 0"):
        stream.next_step(timeout_s=0.3)


def test_trainer_that_waits_tells_hosts_again_and_again(store, stream_of, monkeypatch):
    """They may hold rollouts back until the trainer's lag is lower, which waits for them."""
    monkeypatch.setattr(work, "TELL_AFTER_S", 0.1)
    monkeypatch.setattr(work, "TELL_EVERY_S", 0.1)
    put(store, "a")
    stream = stream_of(clock=lambda: 5, groups_per_step=4)
    with pytest.raises(WaitedTooLong):
        stream.next_step(timeout_s=0.6)
    assert len(awaited(store)) >= 2
    assert set(awaited(store)) == {StepAwaited("trainer", 0, 3, 5)}


def test_trainer_that_asks_often_and_shortly_tells_hosts_too(store, stream_of, monkeypatch):
    monkeypatch.setattr(work, "TELL_AFTER_S", 0.2)
    stream = stream_of()
    deadline = time.monotonic() + 10
    while not awaited(store):
        assert time.monotonic() < deadline
        with pytest.raises(WaitedTooLong):
            stream.next_step(timeout_s=0.02)


def test_trainer_whose_steps_are_there_tells_nothing(store, stream_of):
    put(store, "a", "b", "c", "d")
    end_run(store)
    stream = stream_of()
    for step in stream:
        stream.ack(step, policy_version=None)
    assert awaited(store) == []


def test_waiting_is_warned_about(store, stream_of, caplog):
    stream = stream_of(warn_s=0.1)
    with caplog.at_level(logging.WARNING), pytest.raises(WaitedTooLong):
        stream.next_step(timeout_s=0.5)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "reader trainer: waited 0 s for 2 groups" in caplog.text


def test_step_that_is_not_there_with_no_time_to_wait_raises_at_once(store, stream_of):
    began = time.monotonic()
    with pytest.raises(WaitedTooLong):
        stream_of().next_step(timeout_s=0)
    assert time.monotonic() - began < 5


def status(partition: int, time_ns: int, waiting: tuple[str, ...] = ()) -> Status:
    return Status(
        app="assembler", partition=partition, host="h", pid=7, time_ns=time_ns, position=4, watermark=2, end=4,
        open_rollouts=len(waiting), open_groups=len(waiting), oldest_open_ns=None, counts={}, waiting=waiting,
    )  # fmt: skip


# opening and closing


@pytest.mark.parametrize("reader", ["", "a.b", "a/b", "assembler", "x" * 65, 7])
def test_unusable_reader_is_refused(store, stream_of, reader):
    with pytest.raises(InvalidSettings, match="reader: expected a name of up to 64 letters"):
        stream_of(reader=reader)


@pytest.mark.parametrize("partitions", [[], [2], [-1], [True], ["0"]])
def test_unusable_partitions_are_refused(store, stream_of, partitions):
    with pytest.raises(InvalidSettings, match="partitions: expected some of 0 to 1"):
        stream_of(partitions=partitions)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prefetch_bytes": 0}, "prefetch_bytes: expected an integer from 1, got 0"),
        ({"wait_s": -1}, "wait_s: expected seconds from 0, got -1"),
        ({"warn_s": float("nan")}, "warn_s: expected seconds from 0, got nan"),
        ({"on_history_lost": "ignore"}, "on_history_lost: expected 'fail' or 'skip', got 'ignore'"),
    ],
)
def test_unusable_setting_is_refused_by_name(stream_of, given, message):
    with pytest.raises(InvalidSettings, match=f"^{message}$"):
        stream_of(**given)


def test_log_that_is_missing_is_told(tmp_path):
    with pytest.raises(LogMissing, match="there is no such file"):
        BatchStream.open(f"sqlite:///{tmp_path}/none.db", groups_per_step=1, max_staleness=None, missing_reward=0)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (None, "step: expected a Step, .*, got None; None says that the run has ended: nothing is left to acknowledge"),
        (3, "step: expected a Step, .*, got 3"),
    ],
)
def test_ack_of_what_is_no_step_is_refused(stream_of, step, message):
    with pytest.raises(InvalidSettings, match=f"^{message}$"):
        stream_of().ack(step, policy_version=1)


@pytest.mark.parametrize(("version", "warnings"), [(6, 1), (7, 0)])
def test_first_step_with_an_older_policy_version_than_acknowledged_is_warned_about(
    store, stream_of, caplog, version, warnings
):
    put(store, "a", "b", "c")
    first = stream_of(groups_per_step=1)
    first.ack(first.next_step(), policy_version=7)
    first.close()
    again = stream_of(groups_per_step=1)
    again.set_policy_version(version)
    with caplog.at_level(logging.WARNING):
        again.next_step()
        again.next_step()
    told = [each for each in caplog.messages if f"its policy version is {version}, below 7" in each]
    assert len(told) == warnings
    assert all("with step 0" in each and "load the checkpoint's state" in each for each in told)


def test_closed_stream_says_so(store, stream_of):
    stream = stream_of()
    stream.close()
    stream.close()
    with pytest.raises(NotOpen, match="stream of reader trainer: it is closed"):
        stream.next_step()


def test_close_leaves_no_thread(store):
    before = set(threading.enumerate())
    with BatchStream.open(store.url, groups_per_step=1, max_staleness=None, missing_reward=0):
        assert set(threading.enumerate()) - before
    wait_for(lambda: not set(threading.enumerate()) - before)


def test_process_that_ends_without_closing_ends(store, tmp_path):
    put(store, "a", "b")
    code = (
        "import sys; from rolloutlog.consumers.trainer import BatchStream\n"
        "stream = BatchStream.open(sys.argv[1], groups_per_step=2, max_staleness=None, missing_reward=0)\n"
        "stream.ack(stream.next_step(), policy_version=1); print(stream.next_step)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, store.url], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert_ledger_holds(store, in_flight=0)


def test_process_that_ends_with_a_stream_that_still_reads_ends_quietly(store):
    """Another thread may use it to its own end; one that was dropped is closed as well."""
    put(store, "a", "b")
    code = """
import sys, threading
from rolloutlog.consumers.trainer import BatchStream

def open_(reader):
    stream = BatchStream.open(sys.argv[1], reader=reader, groups_per_step=1, max_staleness=None, missing_reward=0)
    return stream, stream.next_step().number

def work():
    threading.main_thread().join()
    print(stream.next_step().number)

open_("dropped")
stream, _ = open_("trainer")
threading.Thread(target=work).start()
"""
    done = subprocess.run([sys.executable, "-c", code, store.url], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_forked_process_is_told_to_open_its_own(store, stream_of):
    stream = stream_of()
    stream._pid = 1
    with pytest.raises(NotOpen, match="opened by pid 1 before a fork; open one here"):
        stream.next_step()


def test_import_loads_no_heavy_package():
    heavy = (
        "pydantic", "rich", "click", "aiokafka", "sqlite3", "fastavro", "pandas", "torch", "rolloutlog.consumers.cli",
        "rolloutlog.consumers.assembler", "rolloutlog.consumers.fold", "rolloutlog.consumers.status",
    )  # fmt: skip
    code = f"import sys, rolloutlog.consumers.trainer; print([name for name in {heavy!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"


def test_run_through_loads_neither_command_line_nor_its_settings(store):
    put(store, "a", "b")
    code = (
        "import sys; from rolloutlog.consumers.trainer import BatchStream, WaitedTooLong\n"
        "with BatchStream.open(sys.argv[1], groups_per_step=2, max_staleness=None, missing_reward=0) as stream:\n"
        "    step = stream.next_step(); step.padded(2, 3, 0); stream.ack(step, policy_version=1)\n"
        "    try: stream.next_step(timeout_s=0)\n"
        "    except WaitedTooLong: pass\n"
        "heavy = ('pydantic', 'rich', 'click', 'rolloutlog.consumers.cli', 'rolloutlog.consumers.assembler')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, store.url], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == "[]"


def test_owner_says_who_it_is(store, stream_of):
    stream_of()
    keys = [record.key for record in store.records(META, [0])]
    assert b"owner/trainer/batches/-1" in keys


def wait_for(met: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not met():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
