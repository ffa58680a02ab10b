"""The publisher on the embedded log: several processes, killed ones among them."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from rolloutlog.eventstore import EventPublisher, LogMissing, NotStored, PartitionCountChanged, open_log
from rolloutlog.eventstore.checks import check_agreement, check_event
from rolloutlog.eventstore.codec import decode_event, parse_header
from rolloutlog.eventstore.events import Event, RewardRecorded, RolloutCompleted, RolloutStarted, Span
from rolloutlog.eventstore.log import EVENTS
from rolloutlog.eventstore.partitioner import partition_of
from rolloutlog.eventstore.prompts import PromptRestore
from rolloutlog.eventstore.topics import create_topics, topic_settings

HOST = """
import sys, time
from rolloutlog.eventstore import EventPublisher

url, rollouts, calls, linger = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
with EventPublisher.open(url, create=True) as events:
    print(events.run_id, flush=True)
    for index in range(rollouts):
        with events.rollout("task", policy_version=index) as rollout, rollout.agent("planner"):
            prompt = list(range(200))
            for turn in range(calls):
                with rollout.call() as call:
                    call.record(prompt_ids=prompt, response_ids=[turn], logprobs=[-0.5])
                prompt += [turn, 1]
                if linger:
                    time.sleep(0.001)
            rollout.finish(float(index))
"""


def host(url: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOST, url, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/log.db"


def stored(url: str) -> list[Event]:
    """All events, checked as a consumer does, each source's numbers without gaps in log order."""

    async def read() -> list[Event]:
        log = await open_log(url)
        partitions = await log.partitions(EVENTS)
        reach = await log.ranges(EVENTS, range(partitions))
        events, expected = [], Counter[tuple[str, str]]()
        reader = await log.reader(EVENTS, {p: reach[p].first for p in reach})
        while any(reader.position(p) < reach[p].end for p in reach):
            for record in await reader.fetch(wait_s=1.0):
                header = parse_header(dict(record.headers)["e"])
                event = decode_event(header.kind, record.value)
                check_event(event)
                check_agreement(header, event, record.key)
                assert record.partition == partition_of(record.key or b"", partitions)
                assert event.sequence == expected[event.rollout_id, event.source], "a gap"
                expected[event.rollout_id, event.source] += 1
                events.append(event)
        await reader.close()
        await log.close()
        return events

    return asyncio.run(read())


def test_publisher_stores_what_a_rollout_did(url):
    prompt = list(range(500))
    with EventPublisher.open(url, create=True) as events:
        group = events.group("airline-3", size=1)
        with events.rollout(group=group) as rollout:
            for turn in range(10):
                with rollout.call(model="policy") as call:
                    call.record(prompt_ids=prompt, response_ids=[turn, turn])
                prompt = [*prompt, turn, turn, 9]
            rollout.reward(0.25, name="format")
            rollout.finish(1.0)
        events.close_group(group)
    found = stored(url)
    assert Counter(event.record for event in found) == {
        "RolloutStarted": 1, "Span": 10, "RewardRecorded": 2, "RolloutCompleted": 1, "GroupClosed": 1,
    }  # fmt: skip
    restore, calls = PromptRestore(), [event for event in found if isinstance(event, Span)]
    for call in calls:
        restore.add(call)
    assert len(restore.prompt(calls[-1])) == 4 * (500 + 9 * 3)
    assert sum(len(call.prompt_ids or b"") for call in calls) == 4 * (500 + 9)


def test_open_of_a_missing_log_says_so_and_makes_none(url, tmp_path):
    with pytest.raises(LogMissing):
        EventPublisher.open(url)
    assert list(tmp_path.iterdir()) == []


def test_open_of_a_log_with_topics_and_no_run_is_refused(url):
    async def only_topics() -> None:
        log = await open_log(url, create=True)
        await log.create(topic_settings(partitions=4))
        await log.close()

    asyncio.run(only_topics())
    with pytest.raises(LogMissing, match="its topics hold no run yet"):
        EventPublisher.open(url)


def test_open_with_another_partition_count_than_the_logs_is_refused(url):
    EventPublisher.open(url, create=True, partitions=2).close()
    with pytest.raises(PartitionCountChanged, match="expected 8 partitions of events, got 2"):
        EventPublisher.open(url, create=True, partitions=8)
    with EventPublisher.open(url) as events:
        assert events.partitions == 2


def test_topics_made_by_create_are_as_wanted(url):
    async def differences() -> list[object]:
        log = await open_log(url, create=True)
        await create_topics(log)
        found = await log.differences(topic_settings(partitions=4))
        await log.close()
        return list(found)

    assert asyncio.run(differences()) == []


def test_processes_that_create_and_publish_at_once_share_one_run_and_lose_nothing(url):
    hosts = [host(url, 10, 5) for _ in range(3)]
    runs = {each.communicate(timeout=120)[0].strip() for each in hosts}
    assert [each.returncode for each in hosts] == [0, 0, 0]
    assert len(runs) == 1
    found = stored(url)
    assert len(found) == 3 * 10 * (1 + 5 + 1 + 1 + 1)
    assert {event.run_id for event in found if isinstance(event, RolloutStarted)} == runs
    assert len({event.rollout_id for event in found if isinstance(event, RolloutCompleted)}) == 30


def test_killed_process_leaves_the_beginning_of_its_events_and_no_gap(url):
    for attempt in range(4):
        victim = host(url, 1_000, 20, "linger")
        assert victim.stdout is not None
        victim.stdout.readline()
        time.sleep(0.1 + 0.13 * attempt)
        victim.send_signal(signal.SIGKILL)
        assert victim.wait(30) == -signal.SIGKILL
    found = stored(url)  # checks that every source's numbers run from 0 without gaps
    ended = {event.rollout_id for event in found if isinstance(event, RolloutCompleted)}
    started = {event.rollout_id for event in found if isinstance(event, RolloutStarted)}
    assert started > ended, "expected rollouts that were cut off"
    assert {event.rollout_id for event in found if isinstance(event, RewardRecorded)} >= ended
    assert host(url, 1, 1).wait(60) == 0  # the log is as good as before
    assert len(stored(url)) == len(found) + 5


def test_close_while_another_process_holds_the_lock_ends_at_its_deadline(url):
    events = EventPublisher.open(url, create=True)
    blocker = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with events.rollout("task") as rollout:
        rollout.finish(1.0)
    start = time.monotonic()
    with pytest.raises(NotStored, match="3 events of rollout"):
        events.close(0.5)
    assert time.monotonic() - start < 3.0
    blocker.close()
    assert stored(url) == []


def test_events_that_a_locked_log_did_not_take_at_once_are_not_marked_as_sent_again(url):
    """A mark would make the fold refuse the starts of a host whose clock is behind, though they are stored once."""
    with EventPublisher.open(f"{url}?busy_timeout_s=0.2", create=True) as events:
        blocker = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with events.rollout("task") as rollout:
            rollout.finish(1.0)
        with pytest.raises(NotStored, match="locked by another process"):
            events.flush(1.0)
        blocker.close()

    async def flags() -> set[str]:
        log = await open_log(url)
        reader = await log.reader(EVENTS, dict.fromkeys(range(4), 0))
        found = {parse_header(dict(record.headers)["e"]).flags for record in await reader.fetch(wait_s=1.0)}
        await log.close()
        return found

    assert asyncio.run(flags()) == {"-"}


async def test_async_hosts_share_a_publisher(url):
    async def work(events: EventPublisher, index: int) -> None:
        async with events.rollout("task", rollout_id=f"r-{index}") as rollout:
            for _ in range(3):
                async with rollout.call() as call:
                    await asyncio.sleep(0.001)
                    call.record(prompt_ids=[1], response_ids=[2])
            rollout.finish(float(index))

    async with EventPublisher.open(url, create=True) as events:
        await asyncio.gather(*(work(events, index) for index in range(50)))
        await events.aflush()
        assert events.pending_count == 0
    found = await asyncio.to_thread(stored, url)
    assert Counter(event.rollout_id for event in found) == {f"r-{index}": 6 for index in range(50)}


def test_terminated_host_completes_its_rollout_as_failed(url):
    """SIGINT becomes KeyboardInterrupt: block and publisher end as they should."""
    victim = host(url, 1, 20_000, "linger")
    assert victim.stdout is not None
    victim.stdout.readline()
    time.sleep(0.2)
    victim.send_signal(signal.SIGINT)
    victim.wait(30)
    ends = [event for event in stored(url) if isinstance(event, RolloutCompleted)]
    assert [(end.status, end.error) for end in ends if end.status != "completed"] == [("failed", "KeyboardInterrupt")]
    assert os.path.exists(url.removeprefix("sqlite:///"))
