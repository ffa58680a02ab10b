"""Two assemblers on one partition: the newer one goes on, the older one stores nothing more and ends."""

import socket

import pytest
from support.processes import Command, assemble, wait_until
from support.store import Store
from support.workload import assert_same, make_workload, outputs_expected, outputs_of, whole_group

pytestmark = pytest.mark.timeout(120)

EXIT_FENCED = 4
FEED_RECORDS = 60
STEPS_BETWEEN_FEEDS = 4


def _live(store: Store, *arguments: str, **settings: object) -> Command:
    """An assembler that runs until it is stopped, and notices within a moment that it was fenced."""
    return assemble(store.url, *arguments, until_end=False, position_interval_s=0.2, **settings)


def _published(store: Store) -> list[str]:
    return [batch.group_id for batch in store.batches()]


def test_older_assembler_when_fenced_exits_4_and_names_its_successor(store: Store) -> None:
    older = _live(store, "--partitions", "0")
    store.append(whole_group("before"))
    wait_until(lambda: _published(store) == ["before"], "the first group published")
    newer = _live(store, "--partitions", "0")
    newer.wait_for_steps(0, "receive")
    assert older.finish() == EXIT_FENCED
    assert f"taken over by host {socket.gethostname()}, pid {newer.pid}" in older.stderr
    store.append(whole_group("after"))
    wait_until(lambda: len(_published(store)) > 1, "the second group published")
    newer.terminate()
    assert newer.finish() == 0, newer.stderr
    assert_same(outputs_of(store), outputs_expected([*whole_group("before"), *whole_group("after")]), "after fencing")


def test_older_assembler_fenced_in_the_middle_of_its_work_leaves_nothing_out_or_twice(store: Store) -> None:
    records = make_workload(11, groups=80).records
    expected = outputs_expected(records)
    half, rest = len(records) // 2, len(records) * 3 // 4
    older = _live(store, commit_events=20, commit_interval_s=0.005)
    store.append(records[:half])
    wait_until(lambda: bool(store.batches()), "the older assembler at work")
    newer = _live(store)
    fed = half
    while fed < rest and not newer.steps:
        store.append(records[fed : fed + FEED_RECORDS])
        fed += FEED_RECORDS
        at_work = len(older.steps) + STEPS_BETWEEN_FEEDS
        wait_until(lambda steps=at_work: len(older.steps) > steps or bool(newer.steps), "the older one at work")
    newer.wait_for_steps(0, "claim")
    store.append(records[fed:])
    assert older.finish() == EXIT_FENCED, older.stderr
    assert f"pid {newer.pid}" in older.stderr
    wait_until(lambda: len(store.batches()) >= expected.batch_count, "all groups published")
    newer.terminate()
    assert newer.finish() == 0, newer.stderr
    assert_same(outputs_of(store), expected, "older assembler fenced at work")
    by_newer = int(newer.stdout.partition(" ")[0])
    print(f"{expected.batch_count - by_newer} batches by the older assembler, {by_newer} by the newer")
    assert 0 < by_newer < expected.batch_count


def test_assemblers_started_at_once_leave_one_that_publishes_everything_once(store: Store) -> None:
    """Each could take a partition from the other, so that none would be left."""
    store.append(whole_group("early"))
    started = [_live(store) for _ in range(3)]

    def running() -> list[Command]:
        return [command for command in started if command.process.poll() is None]

    wait_until(lambda: len(running()) <= 1, "two of three fenced")
    (survivor,) = running()
    assert [command.finish() for command in started if command is not survivor] == [EXIT_FENCED, EXIT_FENCED]
    store.append(whole_group("later"))
    wait_until(lambda: len(_published(store)) >= 2, "both groups published")
    survivor.terminate()
    assert survivor.finish() == 0, survivor.stderr
    assert sorted(_published(store)) == ["early", "later"]
