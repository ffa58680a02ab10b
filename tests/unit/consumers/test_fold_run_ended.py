"""The end of the run: when a partition passes it on to its batches."""

from support.building import SECOND_NS, call, completed, group_closed, record, run_ended, started
from unit.consumers.folding import Partition

from rolloutlog.consumers.outputs import BatchReady, DeadLetter, GroupClosing, RunEnding
from rolloutlog.consumers.packing import Packer
from rolloutlog.eventstore.codec import decode_event
from rolloutlog.eventstore.log import BATCHES, Record

RUN = "run/run"


def end(partition: Partition, sequence: int = 0) -> None:
    partition.add(run_ended(sequence), key=RUN)


def test_fold_of_run_ended_without_open_groups_passes_it_on_at_once():
    partition = Partition()
    partition.add(started(), completed(1))
    end(partition)
    assert partition.run_endings == [(2, 2)]


def test_fold_of_run_ended_with_an_open_group_waits_for_its_closing():
    partition = Partition()
    partition.add(started())
    end(partition)
    assert partition.run_endings == []
    partition.add(completed(1))
    assert partition.run_endings == [(2, 1)]


def test_fold_passes_run_ended_on_after_the_batch_it_waited_for():
    partition = Partition()
    partition.add(started())
    end(partition)
    caused = partition.add(completed(1))
    assert [type(each) for each in caused] == [BatchReady, GroupClosing, RunEnding]


def test_fold_of_run_ended_waits_for_the_last_of_the_open_groups():
    partition = Partition()
    for group in ("g", "h", "i"):
        partition.add(started(group, group_id=group), key=group)
    end(partition)
    for group in ("i", "g", "h"):
        partition.add(completed(1, group), key=group)
    assert partition.run_endings == [(6, 3)]


def test_fold_of_run_ended_waits_for_no_group_that_opens_after_it():
    partition = Partition()
    partition.add(started("r", group_id="g"))
    end(partition)
    partition.add(started("x", group_id="h"), key="h")
    partition.add(completed(1))
    assert partition.run_endings == [(3, 1)]


def test_fold_of_two_run_ended_passes_each_on_when_nothing_before_it_is_open():
    partition = Partition()
    partition.add(started("r", group_id="g"))
    end(partition)
    partition.add(started("x", group_id="h"), key="h")
    end(partition, sequence=1)
    partition.add(completed(1))
    partition.add(completed(1, "x"), key="h")
    assert partition.run_endings == [(4, 1), (5, 3)]


def test_fold_of_run_ended_waits_for_rollouts_of_a_group_that_started_after_it():
    """The group was opened before; it closes as a whole."""
    partition = Partition()
    partition.add(started("a", group_size=2))
    end(partition)
    partition.add(completed(1, "a"), started("b", group_size=2))
    assert partition.run_endings == []
    partition.add(completed(1, "b"))
    assert partition.run_endings == [(4, 1)]


def test_fold_passes_run_ended_on_when_a_host_closes_the_last_open_group():
    partition = Partition()
    partition.add(started())
    end(partition)
    partition.add(group_closed())
    assert partition.run_endings == [(2, 1)]


def test_fold_passes_run_ended_on_when_a_group_turns_out_to_be_published_before():
    partition = Partition()
    partition.add(started())
    end(partition)
    partition.add(group_closed(reason="complete"))
    assert partition.run_endings == [(2, 1)]


def test_fold_passes_run_ended_on_when_a_refused_event_closes_the_last_open_group():
    partition = Partition()
    partition.add(started(), completed(2))
    end(partition)
    caused = partition.add(record(call(), 0)._replace(key=b"g", headers=(("e", b"RewardRecorded/-/0/1/"
                                                     b"main.00000000000000aa/r"),), value=b"junk"))  # fmt: skip
    assert [type(each) for each in caused] == [DeadLetter, BatchReady, GroupClosing, RunEnding]


def test_fold_of_a_group_id_used_again_after_run_ended_is_not_waited_for():
    partition = Partition()
    partition.add(started(), completed(1), group_closed(reason="complete"))
    partition.add(started("x", group_id="h"), key="h")
    end(partition)
    partition.at_s = 600
    partition.add(started("new"))
    partition.add(completed(1, "x"), key="h")
    assert partition.run_endings == [(6, 4)]


def test_fold_below_the_position_read_passes_no_run_ended_on():
    partition = Partition(emit_from=2)
    end(partition)
    end(partition, sequence=1)
    assert partition.run_endings == []


def test_fold_restarted_passes_a_run_ended_from_below_the_position_on_at_its_trigger():
    partition = Partition(emit_from=2)
    partition.add(started())
    end(partition)
    partition.add(completed(1))
    assert partition.run_endings == [(2, 1)]


def test_watermark_stays_below_a_run_ended_that_is_held_back():
    partition = Partition()
    partition.add(started())
    end(partition)
    partition.add(call("c", 1, "unknown"))
    assert partition.state.watermark() == 0


def test_watermark_is_not_held_by_a_run_ended_that_was_passed_on():
    partition = Partition()
    end(partition)
    assert partition.state.watermark() == 1


def test_fold_counts_ends_of_the_run_read_and_passed_on():
    partition = Partition()
    end(partition)
    partition.add(started())
    end(partition, sequence=1)
    assert (partition.counts["run_ended"], partition.counts["run_ended_passed_on"]) == (2, 1)


def test_fold_of_run_ended_without_a_key_makes_a_dead_letter():
    partition = Partition()
    partition.add(run_ended(), key="")
    assert ([each.reason for each in partition.letters], partition.run_endings) == (["key"], [])


def test_fold_keeps_no_trace_of_closed_groups_for_the_end_of_the_run():
    partition = Partition()
    for index in range(100):
        partition.add(started(group_id=f"g{index}"), completed(1), key=f"g{index}")
    assert not partition.state.opened


def test_packer_writes_the_end_of_the_run_under_the_run_in_the_batches_partition():
    event = run_ended(3, time_ns=5 * SECOND_NS)
    packed = Packer(2, "c0" * 16, "assembler.00000000000000ff").pack([RunEnding(9, 7, event)], time_ns=1)
    assert [(each.topic, each.partition, each.key) for each in packed] == [(BATCHES, 2, b"run/run")]
    assert packed[0].headers == (("o", f"2/9/7/{'c0' * 16}/0/1".encode()),)
    assert decode_event("RunEnded", packed[0].value) == event


def test_fold_of_run_ended_of_another_run_passes_it_on_as_it_is():
    """Which run the log belongs to stands in meta, which the fold does not read."""
    partition = Partition()
    partition.add(run_ended(run_id="other"), key="run/other")
    assert [each.event.run_id for each in partition.outputs if isinstance(each, RunEnding)] == ["other"]


def test_fold_of_a_run_ended_that_is_refused_passes_nothing_on():
    partition = Partition()
    partition.add(Record("events", 0, 0, 0, RUN.encode(), b"junk", record(run_ended(), 0).headers))
    assert (len(partition.letters), partition.run_endings) == (1, [])
