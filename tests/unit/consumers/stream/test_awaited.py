"""Who a trainer waits for, in words."""

from dataclasses import replace

from rolloutlog.consumers.status import Status
from rolloutlog.consumers.stream.awaited import describe_statuses

NOW_NS = 100_000_000_000
IDLE = Status(
    app="assembler", partition=0, host="a", pid=7, time_ns=NOW_NS, position=9, watermark=9, end=9, open_rollouts=0,
    open_groups=0, oldest_open_ns=None, counts={}, waiting=(),
)  # fmt: skip


def test_partition_whose_groups_are_open_names_what_they_wait_for():
    status = replace(IDLE, open_groups=5, waiting=("group a: x", "group b: y", "group c: z", "group d: w"))
    assert describe_statuses({0: status}, [0], now_ns=NOW_NS) == (
        "partition 0: group a: x; group b: y; group c: z; 5 groups are open in all"
    )


def test_partition_without_an_open_group_says_so():
    assert describe_statuses({0: IDLE}, [0], now_ns=NOW_NS) == "partition 0: no group is open"


def test_partition_without_an_assembler_says_so():
    assert describe_statuses({0: IDLE}, [1], now_ns=NOW_NS) == "partition 1: no assembler has said anything"


def test_assembler_that_fell_silent_is_named():
    text = describe_statuses({0: replace(IDLE, time_ns=NOW_NS - 31_000_000_000)}, [0], now_ns=NOW_NS)
    assert text == "partition 0: no assembler for 31 s (the last was host a, pid 7); no group is open"


def test_assembler_silent_for_less_than_30_s_is_there():
    text = describe_statuses({0: replace(IDLE, time_ns=NOW_NS - 29_000_000_000)}, [0], now_ns=NOW_NS)
    assert text == "partition 0: no group is open"


def test_assembler_that_is_behind_says_by_how_much():
    text = describe_statuses({0: replace(IDLE, position=4)}, [0], now_ns=NOW_NS)
    assert text == "partition 0: the assembler is 5 records behind; no group is open"


def test_of_many_partitions_the_first_are_named():
    text = describe_statuses({}, range(32), now_ns=NOW_NS)
    assert text.endswith("partition 7: no assembler has said anything | and 24 more partitions")


def test_no_partition_is_awaited_when_all_have_ended():
    assert describe_statuses({}, [], now_ns=NOW_NS) == "every partition's run has ended"
