"""A batch stream that is disturbed: closed or interrupted while it waits, fenced, cut off, left without an answer."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.batches import assert_ledger_holds, last_words, published_ids
from support.store import Store
from unit.consumers.streams import end_run, put

from rolloutlog.consumers.stream import work
from rolloutlog.consumers.stream.prefetch import readable_offsets
from rolloutlog.consumers.trainer import AckRefused, BatchStream, FencedOut, HistoryLost, Step, WaitedTooLong, shard
from rolloutlog.eventstore.acks import Rewound, read_ack
from rolloutlog.eventstore.errors import InvalidSettings, LogUnavailable
from rolloutlog.eventstore.log import ACKS, BATCHES, open_log
from rolloutlog.eventstore.scope import NotOpen

pytestmark = pytest.mark.timeout(60)


def cut_all(store: Store) -> None:
    for partition, span in store.run(store.log.ranges(BATCHES, range(store.partitions))).items():
        store.cut(BATCHES, partition, span.end)


def train(stream: BatchStream) -> list[str]:
    """To the end of the run; the samples trained on."""
    trained = []
    for step in stream:
        trained += [each.sample_id for each in step.samples]
        stream.ack(step, policy_version=None)
    return trained


# retention after the end of the run


def test_end_of_a_run_whose_batches_were_cut_off_is_no_loss(store, stream_of):
    put(store, "a", "b")
    put(store, "c", partition=1)
    end_run(store)
    stream = stream_of()
    assert len(train(stream)) == 6
    state = stream.state_dict()
    stream.close()
    cut_all(store)
    again = stream_of()
    assert again.next_step(timeout_s=5) is None
    again.load_state_dict(state)
    assert again.next_step(timeout_s=5) is None


def test_end_of_a_run_that_came_after_the_last_acknowledgement_is_kept_when_cut_off(store, stream_of):
    put(store, "a", "b")
    stream = stream_of()
    stream.ack(stream.next_step(), policy_version=None)
    end_run(store)
    assert stream.next_step(timeout_s=5) is None
    assert len(store.records(ACKS, [0])) == 1, "nothing ended with it"
    stream.close()
    cut_all(store)
    assert stream_of().next_step(timeout_s=5) is None


def test_run_that_went_on_after_its_end_was_cut_off_gives_steps(store, stream_of):
    put(store, "a", "b")
    end_run(store)
    stream = stream_of()
    train(stream)
    stream.close()
    cut_all(store)
    put(store, "c", "d")
    stream = stream_of()
    step = stream.next_step(timeout_s=5)
    assert step is not None
    assert [each.group_id for each in step.batches] == ["c", "d"]
    stream.ack(step, policy_version=None)
    with pytest.raises(WaitedTooLong):
        stream.next_step(timeout_s=0.2)


def test_batches_cut_off_that_came_after_the_end_of_the_run_are_lost(store, stream_of):
    put(store, "a", "b")
    end_run(store)
    stream = stream_of()
    train(stream)
    stream.close()
    put(store, "c", "d")
    cut_all(store)
    with pytest.raises(HistoryLost, match=r"partition 0: offsets 3-4\."):
        stream_of()


def test_end_of_the_run_that_cannot_be_kept_is_only_warned_about(store, stream_of, caplog):
    put(store, "a", "b")
    stream = stream_of(ack_s=0, opener=faulty([("before", LogUnavailable("away"))]))
    stream.ack(stream.next_step(), policy_version=None)
    end_run(store)
    FAULTS.armed = True
    assert stream.next_step(timeout_s=5) is None
    assert "reader trainer: that the run has ended could not be stored" in caplog.text
    assert stream.next_step(timeout_s=5) is None


# no answer


class FAULTS:
    armed = False


def faulty(faults: list[tuple[str, Exception]]) -> Any:
    """Opens a log whose owners, once armed, answer commits of positions with `faults`, before or after storing them."""
    FAULTS.armed = False

    async def opener(url: str, create: bool) -> Any:
        log = await open_log(url)
        own = log.own

        async def owned(app: str, topic: str, partition: int | None) -> Any:
            owner = await own(app, topic, partition)
            commit = owner.commit

            async def answer(records: Any, found: Any) -> None:
                if not FAULTS.armed or not found or not faults:
                    return await commit(records, found)
                when, error = faults.pop(0)
                if when == "after":
                    await commit(records, found)
                raise error

            owner.commit = answer  # type: ignore[method-assign]
            return owner

        log.own = owned  # type: ignore[method-assign]
        return log

    return opener


@pytest.mark.parametrize("when", ["before", "after"])
def test_nothing_goes_on_after_a_load_without_an_answer_until_it_is_loaded_again(store, stream_of, when):
    """It may be stored: an acknowledgement of a later step would then leave out what is between."""
    put(store, "a", "b", "c", "d", "e", "f")
    end_run(store)
    stream = stream_of(ack_s=0, opener=faulty([(when, LogUnavailable("no answer"))]))
    begin = stream.state_dict()
    stream.ack(stream.next_step(), policy_version=1)
    later = stream.state_dict()
    step = stream.next_step()
    FAULTS.armed = True
    with pytest.raises(LogUnavailable):
        stream.load_state_dict(begin)
    with pytest.raises(AckRefused, match=r"step 1 refused: .*load of a state at step 0.*load it again"):
        stream.ack(step, policy_version=2)
    with pytest.raises(
        LogUnavailable, match="no step is given: the log gave no answer to the load of a state at step 0"
    ):
        stream.next_step()
    with pytest.raises(InvalidSettings, match="ahead of what reader trainer acknowledged, up to step 0"):
        stream.load_state_dict(later)
    stream.load_state_dict(stream.state_dict())
    rewound = [ack for ack in map(read_ack, store.records(ACKS, [0])) if isinstance(ack, Rewound)]
    assert [(each.step, each.line) for each in rewound] == [(0, 0)] * (2 if when == "after" else 1)
    assert sorted(train(stream)) == sorted(published_ids(store))
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 12}


def test_log_that_ends_before_what_was_read_is_named_by_the_error_of_waiting(store):
    put(store, "a")
    with pytest.raises(LogUnavailable, match=r"an end before that \(partition 0: 2 > 1\): it is not back yet, or"):
        store.run(readable_offsets(store.log, BATCHES, {0: 2, 1: 0}, skip_lost=True))


# fencing


def test_stream_that_is_fenced_while_it_opens_says_by_whom(store, stream_of):
    newer: list[BatchStream] = []

    async def opener(url: str, create: bool) -> Any:
        log = await open_log(url)
        own = log.own

        async def overtaken(app: str, topic: str, partition: int | None) -> Any:
            owner = await own(app, topic, partition)
            newer.append(await asyncio.to_thread(stream_of))
            return owner

        log.own = overtaken  # type: ignore[method-assign]
        return log

    with pytest.raises(FencedOut, match=f"reader trainer of batches was taken over by host .*, pid {os.getpid()}"):
        stream_of(opener=opener)
    put(store, "a", "b")
    newer[0].ack(newer[0].next_step(), policy_version=None)


def test_ack_without_an_answer_fences_nobody_while_claims_cannot_be_read(store, stream_of):
    put(store, "a", "b")
    older = stream_of(ack_s=0.3, opener=faulty([("before", LogUnavailable("no answer"))]))
    FAULTS.armed = True
    step = older.next_step()
    newer = stream_of()

    async def unreadable(claim: Any) -> Any:
        raise LogUnavailable("meta cannot be read")

    older._work.parts.owner._claims.newest = unreadable  # type: ignore[method-assign]
    with pytest.raises(LogUnavailable, match="meta cannot be read"):
        older.ack(step, policy_version=None)
    newer.ack(newer.next_step(), policy_version=None)
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 4}


# closed, interrupted, cancelled


def test_thread_that_waits_for_a_step_while_the_stream_is_closed_is_told_so(stream_of):
    stream = stream_of()
    found: list[BaseException] = []

    def wait() -> None:
        try:
            stream.next_step()
        except BaseException as error:
            found.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for(lambda: bool(stream._work._waits))
    stream.close()
    waiting.join(10)
    assert [(type(error), str(error)) for error in found] == [
        (NotOpen, "stream of reader trainer: it was closed meanwhile")
    ]


def test_task_that_waits_for_a_step_while_the_stream_is_closed_is_not_cancelled(stream_of):
    async def run() -> str:
        stream = stream_of()
        waiting = asyncio.create_task(stream.anext_step())
        await asyncio.to_thread(wait_for, lambda: bool(stream._work._waits))
        await stream.aclose()
        with pytest.raises(NotOpen) as found:
            await waiting
        return str(found.value)

    assert asyncio.run(run()) == "stream of reader trainer: it was closed meanwhile"


def test_interrupted_wait_ends_so_that_hosts_are_not_told_of_it(store, stream_of):
    stream = stream_of()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        stream.next_step()
    wait_for(lambda: not stream._work._waits)
    put(store, "a", "b")
    assert stream.next_step(timeout_s=5) is not None


def test_interrupted_acknowledgement_is_stored_all_the_same(store, stream_of, monkeypatch):
    put(store, "a", "b")
    stream = stream_of()
    step = stream.next_step()
    commit = stream._work.parts.owner.commit

    async def slow(*given: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.3)
        await commit(*given)

    monkeypatch.setattr(stream._work.parts.owner, "commit", slow)
    with pytest.raises(KeyboardInterrupt):
        stream.ack(step, policy_version=None)
    with pytest.raises(AckRefused, match="step 0 refused: it was acknowledged already"):
        stream.ack(step, policy_version=None)
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 4}


def test_cancelled_acknowledgement_whose_step_is_refused_complains_to_nobody(store, stream_of, caplog):
    put(store, "a", "b")
    stream = stream_of()
    step = stream.next_step()
    stream.ack(step, policy_version=None)

    async def run() -> None:
        acking = asyncio.create_task(stream.aack(step, policy_version=None))
        await asyncio.sleep(0)
        acking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acking
        await asyncio.sleep(0.2)

    asyncio.run(run())
    assert "never retrieved" not in caplog.text


def test_threads_that_take_and_acknowledge_at_once_share_the_steps(store, stream_of):
    put(store, *(f"a{index}" for index in range(40)))
    put(store, *(f"b{index}" for index in range(40)), partition=1)
    end_run(store)
    stream = stream_of()
    steps: list[Step] = []
    refused: list[int] = []

    def take() -> None:
        steps.extend(stream)

    def acknowledge(step: Step) -> None:
        while True:
            try:
                stream.ack(step, policy_version=None)
                return
            except AckRefused as error:
                if "already" in str(error):
                    refused.append(step.number)
                    return
                time.sleep(0.001)  # it is not its turn yet

    run_all(take, [()] * 4)
    run_all(acknowledge, [(step,) for step in steps for _ in range(2)])
    assert sorted(step.number for step in steps) == sorted(refused) == list(range(40))
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 160}


def run_all(work: Callable[..., None], calls: list[tuple[Any, ...]]) -> None:
    threads = [threading.Thread(target=work, args=each) for each in calls]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
        assert not each.is_alive()


# numbers of numpy


def test_settings_and_arguments_of_numpy_are_taken(store, stream_of):
    put(store, "a", "b")
    end_run(store)
    stream = stream_of(
        groups_per_step=np.int64(2), prefetch_bytes=np.int64(10**6), wait_s=np.float32(5), ack_s=np.int64(5),
        missing_reward=np.float32(0), max_staleness=np.int32(9), partitions=np.arange(2),
    )  # fmt: skip
    stream.set_policy_version(np.int64(4))
    step = stream.next_step(timeout_s=np.float32(5))
    assert step is not None
    share = shard(step, np.int64(1), np.int64(2))
    assert share.padded(np.int64(2), np.int32(3), np.int64(0)).total.tolist() == [1.0, 1.0]
    stream.ack(step, policy_version=np.int64(5))
    assert stream.next_step(timeout_s=np.int64(5)) is None
    assert assert_ledger_holds(store, in_flight=0) == {"trained": 4}
    assert len(last_words(store)) == 4


def test_step_of_more_groups_than_a_fetch_takes_forms(store, stream_of, monkeypatch):
    monkeypatch.setattr("rolloutlog.consumers.stream.prefetch.FETCH_RECORDS_MAX", 2)
    put(store, "a", "b", "c", "d", "e")
    end_run(store)
    step = stream_of(groups_per_step=2**70).next_step(timeout_s=5)
    assert step is not None
    assert len(step.batches) == 5


@pytest.mark.parametrize("partitions", [0, "01"])
def test_partitions_that_are_no_list_are_refused(stream_of, partitions):
    with pytest.raises(InvalidSettings, match="partitions: expected some of 0 to 1, got"):
        stream_of(partitions=partitions)


def test_trainer_that_was_interrupted_does_not_say_that_it_waits(store, stream_of, monkeypatch):
    monkeypatch.setattr(work, "TELL_AFTER_S", 0.5)
    stream = stream_of()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        stream.next_step()
    wait_for(lambda: not stream._work._waits)
    assert store.records(ACKS, [0]) == []


def wait_for(met: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not met():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
