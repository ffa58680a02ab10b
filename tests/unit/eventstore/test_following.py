"""What a publisher tells hosts of the trainers, on a log in memory."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from rolloutlog.eventstore import InvalidSettings, NotOpen, StillBehind
from rolloutlog.eventstore.acks import StepAcknowledged, ack_records
from rolloutlog.eventstore.log import ACKS, BATCHES, NewRecord


def append(published, records) -> None:
    published.publisher._client.submit(published.log.append(records)).result()


def publish(published, count: int) -> None:
    append(published, [NewRecord(BATCHES, 0, b"g", b"batch")] * count)


def acknowledge(published, version: int, offset: int, reader: str = "trainer") -> None:
    ack = StepAcknowledged(reader, version - 1, version, (), (), {0: offset}, 0)
    append(published, ack_records(ack))


def until(met: Callable[[], bool], deadline_s: float = 5.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_policy_version_before_any_acknowledgement_is_none(published):
    assert published.publisher.policy_version() is None


def test_policy_version_is_the_trainers(published):
    acknowledge(published, 3, 0)
    acknowledge(published, 9, 0, reader="other")
    assert (published.publisher.policy_version(), published.publisher.policy_version("other")) == (3, 9)


def test_policy_version_after_the_first_answer_does_not_wait_for_the_log(published, monkeypatch):
    published.publisher.policy_version()
    acknowledge(published, 3, 0)
    until(lambda: published.publisher.policy_version() == 3)
    monkeypatch.setattr(published.publisher, "_client", None)
    assert published.publisher.policy_version() == 3
    monkeypatch.undo()


def test_acknowledgement_of_a_newer_version_is_passed_over_and_said_once(published, caplog):
    acknowledge(published, 3, 0)
    append(published, [NewRecord(ACKS, 0, b"trainer", b"\xc3\x01" + bytes(20))] * 2)
    assert published.publisher.policy_version() == 3
    (said,) = caplog.messages
    assert "acks 0:1 is passed over, lag and policy version may stand still: expected a known schema" in said
    assert said.endswith("Upgrade rolloutlog here")


def test_lag_is_what_the_trainer_has_not_acknowledged(published):
    publish(published, 5)
    acknowledge(published, 1, 2)
    assert published.publisher.lag() == 3


def test_hold_of_many_threads_ends_for_all_when_the_trainer_acknowledges(published):
    publish(published, 5)
    with ThreadPoolExecutor(8) as pool:
        holding = [pool.submit(published.publisher.hold, 1, 10.0) for _ in range(8)]
        assert not any(each.done() for each in holding)
        acknowledge(published, 1, 4)
        assert [each.result() for each in holding] == [1] * 8


def test_hold_reaches_its_deadline(published):
    publish(published, 5)
    with pytest.raises(StillBehind, match="expected a lag of at most 1, got 5"):
        published.publisher.hold(1, 0.0)


async def test_hold_in_async_code_lets_the_loop_go_on(published):
    publish(published, 5)
    holding = asyncio.create_task(published.publisher.ahold(1))
    ticks = 0
    while ticks < 20:
        await asyncio.sleep(0.001)
        ticks += 1
    assert not holding.done()
    acknowledge(published, 1, 4)
    assert await holding == 1


async def test_hold_in_async_code_can_be_cancelled(published):
    publish(published, 5)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await published.publisher.ahold(1)
    assert await published.publisher.alag() == 5


async def test_policy_version_in_async_code_is_the_trainers(published):
    acknowledge(published, 3, 0)
    assert await published.publisher.apolicy_version() == 3


def test_close_ends_a_hold_of_another_thread(published):
    publish(published, 5)
    told: list[BaseException] = []

    def hold() -> None:
        try:
            published.publisher.hold(1)
        except NotOpen as error:
            told.append(error)

    thread = threading.Thread(target=hold)
    thread.start()
    until(lambda: published.publisher._progress is not None and published.publisher._progress.caught_up)
    published.publisher.close()
    thread.join(5)
    assert [str(each) for each in told] == [
        "log sqlite:///memory.db: the publisher was closed while a trainer was waited for"
    ]


def test_lag_of_a_closed_publisher_is_refused(published):
    published.publisher.close()
    with pytest.raises(NotOpen):
        published.publisher.lag()


def test_publisher_that_is_not_asked_reads_no_acknowledgements(published):
    published.publisher.flush()
    assert published.publisher._progress is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"lag_max": -1}, "lag_max: expected an integer from 0 on, got -1"),
        ({"lag_max": 1.5}, "lag_max: expected an integer from 0 on, got 1.5"),
        ({"lag_max": 1, "timeout_s": -1}, "timeout_s: expected seconds from 0 on, or None, got -1"),
        ({"lag_max": 1, "timeout_s": float("nan")}, "timeout_s: expected seconds from 0 on, or None, got nan"),
        (
            {"lag_max": 1, "reader": ""},
            "reader: expected the name of a trainer, up to 64 letters, digits, _ and -, got ''",
        ),
        (
            {"lag_max": 1, "reader": "my trainer"},
            "reader: expected the name of a trainer, up to 64 letters, digits, _ and -, got 'my trainer'",
        ),
    ],
)
def test_hold_with_an_unusable_argument_names_it(published, arguments, text):
    with pytest.raises(InvalidSettings) as told:
        published.publisher.hold(**arguments)
    assert str(told.value) == text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_lag_in_a_forked_process_is_followed_anew(published):
    publish(published, 5)
    acknowledge(published, 3, 2)
    assert published.publisher.policy_version() == 3
    pid = os.fork()
    if not pid:
        code = 1
        try:
            told = published.publisher.lag(), published.publisher.policy_version()
            code = 0 if told == (3, 3) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert published.publisher.lag() == 3
