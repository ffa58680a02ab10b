"""Opening, closing and what happens when the log does not answer, on a log in memory."""

import asyncio
import signal
import subprocess
import sys
import time
from itertools import pairwise
from statistics import median

import pytest
from support.memory_log import MemoryLog

from rolloutlog.eventstore import (
    BufferFull,
    EventPublisher,
    Group,
    InvalidSettings,
    LogMissing,
    LogUnavailable,
    NotOpen,
    NotStored,
    PartitionCountChanged,
    PublisherSettings,
)
from rolloutlog.eventstore.codec import decode_event, parse_header
from rolloutlog.eventstore.events import GroupClosed, RolloutCompleted, RolloutStarted
from rolloutlog.eventstore.topics import create_topics

URL = "sqlite:///memory.db"


def opener_of(log):
    async def opener(url: str, create: bool) -> MemoryLog:
        return log

    return opener


def unavailable(records) -> None:
    raise LogUnavailable("no answer in 5 s")


def kinds_at(url: str) -> list[str]:
    """Kinds of the events in an embedded log, which holds at most one rollout."""

    async def read() -> list[str]:
        from rolloutlog.eventstore import open_log

        log = await open_log(url)
        reader = await log.reader("events", dict.fromkeys(range(4), 0))
        records = await reader.fetch(wait_s=1.0)
        await log.close()
        return [decode_event(parse_header(dict(r.headers)["e"]).kind, r.value).record for r in records]

    return asyncio.run(read())


def test_open_without_url_or_variable_says_what_is_expected(monkeypatch):
    monkeypatch.delenv("ROLLOUTLOG_LOG", raising=False)
    with pytest.raises(InvalidSettings, match="expected a URL, or one in the environment variable ROLLOUTLOG_LOG"):
        EventPublisher.open()


def test_open_takes_the_url_from_the_environment(monkeypatch):
    monkeypatch.setenv("ROLLOUTLOG_LOG", "sqlite:///from-environment.db")
    seen = []

    async def opener(url: str, create: bool) -> MemoryLog:
        seen.append((url, create))
        raise LogMissing("no")

    with pytest.raises(LogMissing):
        EventPublisher.open(opener=opener)
    assert seen == [("sqlite:///from-environment.db", False)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"url": 5}, "url: expected text such as 'sqlite:///run.db', got 5"),
        ({"settings": {}}, "settings: expected PublisherSettings(name=value, ...), got {}"),
        ({"settings": {"linger_s": 1}}, "settings: expected PublisherSettings(name=value, ...), got {'linger_s': 1}"),
        ({"partitions": 0}, "partitions: expected an integer from 1 on, got 0"),
        ({"partitions": "4"}, "partitions: expected an integer from 1 on, got '4'"),
        ({"partitions": True}, "partitions: expected an integer from 1 on, got True"),
        ({"url": "run.db"}, "log URL 'run.db': expected sqlite:///relative.db"),
    ],
)
def test_open_with_a_bad_argument_is_refused_by_name(arguments, text):
    with pytest.raises(InvalidSettings) as caught:
        EventPublisher.open(**{"url": URL, "create": True} | arguments, opener=opener_of(MemoryLog()))
    assert text in str(caught.value)


@pytest.mark.parametrize("timeout_s", ["1", -1, True, float("nan")])
@pytest.mark.parametrize("use", ["flush", "close"])
def test_flush_and_close_with_a_bad_time_are_refused_by_name(published, use, timeout_s):
    with pytest.raises(InvalidSettings, match="timeout_s: expected seconds from 0 on, got"):
        getattr(published.publisher, use)(timeout_s)


def test_open_of_a_missing_file_says_both_ways_to_make_it(tmp_path):
    with pytest.raises(LogMissing) as caught:
        EventPublisher.open(f"sqlite:///{tmp_path}/none.db")
    assert "there is no such file; check the path, or make a new log with `rolloutlog topics create" in str(
        caught.value
    )
    assert str(caught.value).endswith("or open the publisher with `create=True`")


def test_open_with_create_of_a_kafka_log_uses_its_topics_as_they_are():
    """One program for both logs: nothing but the URL changes."""
    log, asked = MemoryLog(), []
    asyncio.run(create_topics(log))

    async def opener(url: str, create: bool) -> MemoryLog:
        asked.append((url, create))
        return log

    EventPublisher.open("kafka://h:9092/p", create=True, opener=opener).close()
    assert asked == [("kafka://h:9092/p", False)]


def test_open_with_create_of_a_kafka_log_without_run_says_how_to_create_it():
    with pytest.raises(LogMissing, match=r"create it with `rolloutlog topics create`$"):
        EventPublisher.open("kafka://h:9092/p", create=True, opener=opener_of(MemoryLog()))


def test_open_of_a_log_without_run_says_how_to_create_it():
    log = MemoryLog()
    with pytest.raises(
        LogMissing, match="its topics hold no run yet; create it with `rolloutlog topics create`, or open"
    ):
        EventPublisher.open(URL, opener=opener_of(log))
    assert log.closed


def test_open_of_a_log_with_another_partition_count_publishes_nothing():
    log = MemoryLog(partitions=4)
    asyncio.run(create_topics(log))
    log.count = 8
    with pytest.raises(PartitionCountChanged, match=r"expected 4 partitions of events, as run \w{32} was created with"):
        EventPublisher.open(URL, opener=opener_of(log))


def test_open_without_answer_raises_at_its_deadline():
    async def opener(url: str, create: bool) -> MemoryLog:
        await asyncio.sleep(60)
        raise AssertionError

    with pytest.raises(LogUnavailable, match=r"expected an answer within 0\.05 s, got none"):
        EventPublisher.open(URL, opener=opener, settings=PublisherSettings(open_deadline_s=0.05))


def test_close_group_publishes_its_closing_under_its_key(published):
    for group in (Group("g-1", "t"), Group("g-2", "t")):
        published.publisher.close_group(group)
    closed = published.of(GroupClosed)
    assert {(e.group_id, e.reason, e.as_of, e.rollout_id, e.attempt) for e in closed} == {
        ("g-1", "requested", None, "", 0),
        ("g-2", "requested", None, "", 0),
    }
    assert {record.key for record in published.log.events} == {b"g-1", b"g-2"}
    assert sorted(e.sequence for e in closed) == [0, 1]
    assert {e.source.partition(".")[0] for e in closed} == {"publisher"}


def test_buffer_that_is_full_refuses_the_event_and_takes_no_number(make_published):
    published = make_published(memory_bytes_max=5_000)
    published.log.before = unavailable
    rollout = published.publisher.rollout("t", rollout_id="r-7")
    recorded = 0

    def record_until_full() -> None:
        nonlocal recorded
        while recorded < 100:
            rollout.reward(1.0)
            recorded += 1

    with pytest.raises(BufferFull, match="RewardRecorded of rollout r-7, attempt 0, not recorded: expected at most 50"):
        record_until_full()
    published.log.before = lambda records: None
    published.publisher.flush()
    rollout.reward(1.0)
    assert len(published.events()) == 1 + recorded + 1  # the start, and no gap


def test_dead_log_does_not_slow_recording_down(make_published):
    published = make_published()
    published.log.before = unavailable
    begin = time.perf_counter()
    with published.publisher.rollout("t") as rollout:
        for _ in range(500):
            rollout.reward(1.0)
    assert time.perf_counter() - begin < 2.0
    assert published.publisher.pending_count == 502
    assert published.publisher.pending_bytes > 502 * 100


def test_close_at_its_deadline_says_what_is_lost(make_published):
    published = make_published()
    published.log.before = unavailable
    with published.publisher.rollout("t", rollout_id="r-7"):
        pass
    with pytest.raises(NotStored) as caught:
        published.publisher.close(0.05)
    assert "2 events of rollout r-7 (2) are not stored; the log's last answer was LogUnavailable" in str(caught.value)
    assert str(caught.value).endswith("the publisher is closed: what is not stored is lost")
    assert published.log.closed
    published.publisher.close()  # told once


def test_close_of_a_block_that_raises_does_not_hide_the_exception(make_published, caplog):
    published = make_published(close_deadline_s=0.05)
    published.log.before = unavailable

    def work():
        with published.publisher as events, events.rollout("t"):
            raise KeyError("k")

    with pytest.raises(KeyError) as caught:
        work()
    assert any("are not stored" in note for note in caught.value.__notes__)
    assert "are not stored" in caplog.text


def test_close_ends_recording_by_name(published):
    rollout = published.publisher.rollout("t", rollout_id="r-7")
    rollout.reward(1.0)
    published.publisher.close()
    with pytest.raises(NotOpen, match="of rollout r-7, attempt 0, not recorded: the publisher is closed"):
        rollout.reward(1.0)
    with pytest.raises(NotOpen, match="the log client of this publisher has stopped"):
        published.publisher.flush()


async def test_async_with_flushes_and_closes_without_blocking_the_loop(published):
    published.log.gate.clear()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while ticks < 5:
            ticks += 1
            await asyncio.sleep(0.001)
        published.publisher._client.call_soon(published.log.gate.set)

    ticking = asyncio.create_task(tick())
    async with published.publisher as events:
        async with events.rollout("t"):
            pass
        await events.aflush()
        assert ticks == 5
        assert events.pending_count == 0
    await ticking
    assert published.log.closed


async def test_aflush_that_is_cancelled_leaves_the_publisher_usable(published):
    published.log.gate.clear()
    published.publisher.rollout("t").finish()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await published.publisher.aflush()
    published.publisher._client.call_soon(published.log.gate.set)
    await published.publisher.aflush()
    assert published.publisher.pending_count == 0


async def test_aclose_that_is_cancelled_goes_on_and_a_later_close_waits_for_it(published):
    published.log.gate.clear()
    published.publisher.rollout("t").finish()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await published.publisher.aclose()
    published.publisher._client.call_soon(published.log.gate.set)
    await published.publisher.aclose()
    assert published.publisher.pending_count == 0
    assert published.log.closed


def test_rollout_that_begins_after_a_slow_clock_was_noticed_is_corrected(published):
    early = published.publisher.rollout("t", rollout_id="r-1")
    published.log._log_time_ns = lambda: published.now_ns + 3_600_000_000_000
    early.reward(1.0)
    published.publisher.flush()
    early.finish()
    published.publisher.rollout("t", rollout_id="r-2").finish()
    times = {(event.rollout_id, type(event)): event.time_ns for event in published.events()}
    assert times["r-1", RolloutCompleted] == published.now_ns
    assert times["r-2", RolloutStarted] == published.now_ns + 3_600_000_000_000


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_at_any_moment_leave_no_gap_and_no_number_twice(published):
    """Ctrl-C can come between queueing an event and counting it."""

    class Interrupt(BaseException):
        pass

    def interrupt(number, frame):
        raise Interrupt

    rollout = published.publisher.rollout("t")
    rollout.reward(0.0)
    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        interrupted, end = 0, time.monotonic() + 3.0
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + interrupted % 50 * 0.000007)
                for _ in range(1_000):
                    rollout.reward(1.0)
            except Interrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    published.publisher.flush()
    sequences = [parse_header(dict(record.headers)["e"]).sequence for record in published.log.events]
    assert sequences[0] == 0
    assert {b - a for a, b in pairwise(sequences)} == {1}
    assert interrupted > 100
    print(f"{interrupted} interrupts in {len(sequences)} events")


def test_process_that_forgets_to_close_stores_its_events_and_says_so(tmp_path):
    code = (
        "from rolloutlog.eventstore import EventPublisher\n"
        f"events = EventPublisher.open('sqlite:///{tmp_path}/log.db', create=True)\n"
        "with events.rollout('t') as rollout:\n"
        "    rollout.finish(1.0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "the publisher was not closed; closing it now" in ended.stderr
    assert kinds_at(f"sqlite:///{tmp_path}/log.db") == ["RolloutStarted", "RewardRecorded", "RolloutCompleted"]


THREADS_AT_EXIT = {
    "thread": "threading.Thread(target=work).start()",
    "pool": "ThreadPoolExecutor(1).submit(work)",
    "waiting thread": "threading.Thread(target=lambda: (threading.main_thread().join(), work())).start()",
    "thread of a thread": "threading.Thread(target=lambda: threading.Thread(target=work).start()).start()",
}


@pytest.mark.parametrize("start", THREADS_AT_EXIT)
def test_threads_that_still_record_when_the_program_ends_lose_nothing(tmp_path, start):
    url = f"sqlite:///{tmp_path}/log.db"
    code = (
        "import threading, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from rolloutlog.eventstore import EventPublisher\n"
        f"events = EventPublisher.open({url!r}, create=True)\n"
        "def work():\n"
        "    with events.rollout('t') as rollout:\n"
        "        time.sleep(0.3)\n"
        "        rollout.finish(1.0)\n"
        f"{THREADS_AT_EXIT[start]}\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "Traceback" not in ended.stderr
    assert kinds_at(url) == ["RolloutStarted", "RewardRecorded", "RolloutCompleted"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_of_multiprocessing_that_forgets_to_close_stores_its_events(tmp_path, method):
    url = f"sqlite:///{tmp_path}/log.db"
    (tmp_path / "child.py").write_text(
        "import multiprocessing\n"
        "from rolloutlog.eventstore import EventPublisher\n"
        "def work():\n"
        f"    events = EventPublisher.open({url!r}, create=True)\n"
        "    with events.rollout('t') as rollout:\n"
        "        rollout.finish(1.0)\n"
        "if __name__ == '__main__':\n"
        f"    child = multiprocessing.get_context({method!r}).Process(target=work)\n"
        "    child.start()\n"
        "    child.join()\n"
    )
    subprocess.run([sys.executable, tmp_path / "child.py"], timeout=60, check=True)
    assert kinds_at(url) == ["RolloutStarted", "RewardRecorded", "RolloutCompleted"]


def test_import_loads_no_heavy_package():
    heavy = ("pydantic", "rich", "click", "aiokafka", "asyncio", "fastavro", "sqlite3", "pandas", "torch")
    code = f"import sys, rolloutlog.eventstore; print([name for name in {heavy!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"


def test_import_takes_at_most_two_and_a_half_times_numpy():
    """In processor time, by the middle one of several pairs taken in turns: the rest of the machine must not decide."""

    def run_s(module: str) -> float:
        code = f"import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
        return float(subprocess.check_output([sys.executable, "-c", code]))

    ratio = median(run_s("rolloutlog.eventstore") / run_s("numpy") for _ in range(11))
    print(f"rolloutlog.eventstore / numpy: {ratio:.2f}")
    assert ratio <= 2.5


def test_end_run_publishes_one_end_to_each_partition(published):
    published.publisher.end_run()
    published.publisher.flush()
    ends = [(each.partition, each.key, decode_event("RunEnded", each.value).run_id) for each in published.log.events]
    run_id = published.publisher.run_id
    assert ends == [(partition, f"run/{run_id}".encode(), run_id) for partition in range(4)]


def test_end_run_comes_after_what_was_recorded_before(published):
    with published.publisher.rollout("task") as rollout:
        rollout.finish()
    published.publisher.end_run()
    published.publisher.flush()
    kinds = [[parse_header(dict(each.headers)["e"]).kind for each in published.log.records.get(("events", p), ())]
             for p in range(4)]  # fmt: skip
    assert {tuple(each) for each in kinds} == {
        ("RunEnded",),
        ("RolloutStarted", "RolloutCompleted", "RunEnded"),
    }


def test_end_run_twice_numbers_its_events_on(published):
    published.publisher.end_run()
    published.publisher.end_run()
    published.publisher.flush()
    headers = [parse_header(dict(each.headers)["e"]) for each in published.log.events]
    assert sorted(header.sequence for header in headers) == list(range(8))


def test_end_run_of_a_closed_publisher_is_refused(published):
    published.publisher.close()
    with pytest.raises(NotOpen, match="RunEnded"):
        published.publisher.end_run()
