"""Statuses: what a worker says of its partition, and which of several records counts."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from support.building import SECOND_NS, completed, group_closed, started
from support.memory_log import MemoryLog
from unit.consumers.folding import Partition

from rolloutlog.consumers.owners import RECORD, Claim
from rolloutlog.consumers.status import (
    LINE_CHARACTERS_MAX,
    TAIL_RECORDS,
    WAITING_BYTES_MAX,
    Status,
    read_statuses,
    status_key,
    status_of,
    status_record,
)
from rolloutlog.eventstore.codec import encode_record
from rolloutlog.eventstore.events import Event
from rolloutlog.eventstore.log import META, NewRecord

CLAIM = Claim("assembler", "events", 0, "host-1", 71, 1)
STATUS = Status(
    app="assembler",
    partition=0,
    host="host-1",
    pid=71,
    time_ns=5,
    position=12,
    watermark=3,
    end=20,
    open_rollouts=2,
    open_groups=1,
    oldest_open_ns=4,
    counts={"batches": 7},
    waiting=("group g: rollout r is not completed",),
)


def said_of(partition: Partition, **fields: int) -> Status:
    given = {"position": partition.state.position, "end": 20, "time_ns": 5, **fields}
    return status_of(partition.state, CLAIM, counts={"batches": 7}, **given)


def read(records: Sequence[NewRecord], partitions: int | None = None) -> dict[int, Status]:
    async def work() -> dict[int, Status]:
        log = MemoryLog()
        await log.append(records)
        return await read_statuses(log, partitions=partitions)

    return asyncio.run(work())


def claim_record(claim: Claim) -> NewRecord:
    fields = {name: getattr(claim, name) for name in Claim.__slots__}
    return NewRecord(META, 0, claim.key, encode_record(RECORD, fields))


def test_status_of_an_open_group_says_since_when_it_is_open_and_what_it_waits_for():
    partition = Partition()
    partition.at_s = 3.0
    partition.add(started("r", group_size=2))
    partition.at_s = 9.0
    partition.add(started("s", group_size=2))
    found = said_of(partition)
    assert (found.open_rollouts, found.open_groups, found.oldest_open_ns) == (2, 1, 3 * SECOND_NS)
    assert found.waiting == ("group g: rollout r (attempt 0) is not completed; rollout s (attempt 0) is not completed",)
    assert (found.position, found.watermark, found.lag) == (2, 0, 18)


def test_status_of_a_partition_with_nothing_open_has_no_oldest_one():
    partition = Partition()
    partition.add(started("r"), completed(1))
    found = said_of(partition)
    assert (found.open_rollouts, found.open_groups, found.oldest_open_ns, found.waiting) == (0, 0, None, ())


def test_status_of_a_partition_with_outputs_waiting_has_no_watermark_above_its_position():
    partition = Partition()
    partition.at_s = 1.0
    partition.add(started("r"), completed(1), started("s", group_id="h"))
    assert said_of(partition, position=0).watermark == 0


def test_status_of_groups_with_long_names_is_bounded():
    partition = Partition()
    for number in range(20):
        name = f"{number}".ljust(200, "ä")
        for rollout in "abc":
            partition.add(started(name + rollout * 100, group_id=name, group_size=8), key=name)
    found = said_of(partition)
    assert max(map(len, found.waiting)) == LINE_CHARACTERS_MAX
    assert found.waiting[0].endswith(" ...")
    assert len(status_record(found).value or b"") < WAITING_BYTES_MAX + 2_000


def test_status_asked_for_after_every_event_changes_no_output():
    plain, asked = Partition(), Partition()
    events: list[tuple[str, Event]] = [
        ("g", started("r")),
        ("g", completed(1)),
        ("g", started("late")),
        ("g", group_closed("g", "complete")),
        ("h", started("s", group_id="h", group_size=2)),
        ("h", started("t", group_id="h", group_size=2)),
        ("h", completed(1, "s")),
        ("h", completed(1, "t")),
        ("g", started("again")),
        ("g", completed(1, "again")),
    ]
    for index, (key, event) in enumerate(events):
        for partition in (plain, asked):
            partition.at_s = 400.0 * index  # so that closed groups are forgotten on the way
            partition.add(event, key=key)
        said_of(asked)
    assert len(plain.batches) == 3
    assert asked.outputs == plain.outputs
    assert asked.state.watermark() == plain.state.watermark()


def test_status_read_back_is_as_it_was_written():
    assert read([status_record(STATUS)]) == {0: STATUS}


def test_status_read_of_several_is_the_newest_of_each_partition():
    newer, other = replace(STATUS, position=15), replace(STATUS, partition=3)
    assert read([status_record(each) for each in (STATUS, other, newer)]) == {0: newer, 3: other}


def test_status_of_a_fenced_owner_that_goes_on_writing_does_not_count():
    successor = replace(STATUS, host="host-2", position=13)
    records = [claim_record(CLAIM), status_record(STATUS), claim_record(replace(CLAIM, host="host-2")),
               status_record(successor), status_record(replace(STATUS, position=14))]  # fmt: skip
    assert read(records) == {0: successor}


def test_status_of_a_predecessor_counts_until_the_owner_writes_one():
    assert read([claim_record(replace(CLAIM, host="host-2")), status_record(STATUS)]) == {0: STATUS}


def test_status_of_another_app_is_not_the_assemblers():
    assert read([status_record(replace(STATUS, app="replay"))]) == {}


def test_status_that_a_newer_version_wrote_is_passed_over():
    unknown = NewRecord(META, 0, b"status/assembler/0", b"\xc3\x01" + bytes(20))
    assert read([status_record(STATUS), unknown]) == {0: STATUS}


def test_status_that_was_deleted_does_not_count_and_a_later_one_does():
    """As an output's, whose name another one may have."""
    deleted = NewRecord(META, 0, status_key("assembler", 0), None)
    other = replace(STATUS, partition=1)
    assert read([status_record(STATUS), status_record(other), deleted]) == {1: other}
    assert read([status_record(replace(STATUS, position=1)), deleted, status_record(STATUS)]) == {0: STATUS}


def test_status_of_long_ago_is_found_behind_many_others():
    others = [status_record(replace(STATUS, position=number)) for number in range(3 * TAIL_RECORDS)]
    old = replace(STATUS, partition=1)
    assert read([status_record(old), *others], partitions=2) == {
        0: replace(STATUS, position=3 * TAIL_RECORDS - 1),
        1: old,
    }
