"""What a restart needs: L, evidence of closings, and outputs that are out already."""

import pytest
from support.building import call, completed, group_closed, record, started
from unit.consumers.folding import Partition

from rolloutlog.consumers import closing
from rolloutlog.eventstore.log import Record

WINDOW_S = 600  # the default


def test_watermark_of_a_new_partition_is_its_position():
    assert Partition(position=7).state.watermark() == 7


def test_watermark_without_groups_is_the_position():
    partition = Partition()
    partition.add(call(), call())
    assert partition.state.watermark() == 2


def test_watermark_is_the_first_event_of_the_oldest_open_group():
    partition = Partition()
    partition.add(call())
    partition.add(started(group_size=2))
    partition.add(started("x", group_id="h"), key="h")
    assert partition.state.watermark() == 1


def test_watermark_moves_to_the_next_open_group_when_the_oldest_is_settled():
    partition = Partition()
    partition.add(started())
    partition.add(started("x", group_id="h"), key="h")
    partition.add(completed(1), group_closed(reason="complete"))
    assert partition.state.watermark() == 1


def test_watermark_stays_at_a_published_group_until_its_closing_is_read_back():
    """A restart above the start and below the closing would open the group again."""
    partition = Partition()
    partition.add(started(), completed(1))
    assert partition.state.watermark() == 0


def test_watermark_after_the_closing_is_read_back_is_that_closing():
    partition = Partition()
    partition.add(started(), completed(1), group_closed(reason="complete"))
    assert partition.state.watermark() == 2


def test_watermark_passes_the_closing_after_the_window():
    partition = Partition()
    partition.add(started(), completed(1), group_closed(reason="complete"))
    partition.at_s = WINDOW_S
    partition.add(call("c", 1, "unknown"))
    assert partition.state.watermark() == 4


def test_watermark_stays_at_an_unread_closing_after_the_window_too():
    partition = Partition()
    partition.add(started(), completed(1))
    partition.at_s = 10 * WINDOW_S
    partition.add(call("c", 1, "unknown"))
    assert partition.state.watermark() == 0


def test_watermark_stays_at_the_closing_while_a_refused_starts_own_is_unread():
    partition = Partition()
    partition.add(started(), completed(1), group_closed(reason="complete"), started("late"))
    partition.at_s = 10 * WINDOW_S
    partition.add(call("c", 1, "unknown"))
    assert partition.state.watermark() == 2


def test_watermark_moves_to_the_newest_closing():
    partition = Partition()
    partition.add(started(), completed(1), group_closed(reason="complete"), started("late"))
    partition.add(group_closed(reason="complete", sequence=1))
    assert partition.state.watermark() == 4


def test_watermark_stays_at_a_host_closing_before_any_start():
    partition = Partition()
    partition.add(call("c", 1, "unknown"), group_closed(), call("c", 1, "unknown"))
    assert partition.state.watermark() == 1


def test_watermark_of_a_group_id_used_again_is_its_new_first_event():
    partition = Partition()
    partition.add(started(), completed(1), group_closed(reason="complete"))
    partition.at_s = WINDOW_S
    partition.add(started("new"))
    assert partition.state.watermark() == 3


def test_fold_below_the_position_read_puts_nothing_out():
    partition = Partition(emit_from=2)
    partition.add(started(), completed(1))
    assert partition.outputs == []


def test_fold_at_the_position_read_puts_out_again():
    partition = Partition(emit_from=1)
    partition.add(started(), completed(1))
    assert [each.trigger for each in partition.outputs] == [1, 1]


def test_fold_below_the_position_read_repeats_no_dead_letter():
    partition = Partition(emit_from=1)
    partition.add(Record("events", 0, 0, 0, b"g", b"junk", (("e", b"junk"),)))
    assert partition.outputs == []


def test_fold_of_a_group_begun_below_the_position_read_publishes_it_whole():
    partition = Partition(emit_from=3)
    partition.add(started("a", group_size=2), started("b", group_size=2), call("c", 1, "a"), completed(2, "a"))
    partition.add(call("c", 1, "b"), completed(2, "b"))
    assert [sample.sample_id for sample in partition.batch.samples] == ["a/0/c", "b/0/c"]


def test_fold_of_a_rollout_closed_below_the_position_read_repeats_none_of_its_dead_letters():
    entry = record(call("c", 1, "a"), 0)
    partition = Partition(emit_from=4)
    partition.add(started("a", group_size=2), entry._replace(value=b"junk"), completed(2, "a"))
    partition.add(started("b", group_size=2), completed(1, "b"))
    assert (partition.letters, partition.statuses) == ([], {"a": "incomplete", "b": "group_dropped"})


def test_fold_below_the_position_read_decodes_no_span(monkeypatch: pytest.MonkeyPatch):
    """A restart takes as long as reading: groups that are out need no samples."""

    def settle(*args: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(closing, "settle", settle)
    partition = Partition(emit_from=9)
    partition.add(started("a", group_size=2), call("c", 1, "a"), completed(2, "a"))
    partition.add(started("b", group_size=2), completed(1, "b"))
    assert partition.state.groups == {}


def test_fold_below_the_position_read_counts_nothing():
    partition = Partition(emit_from=9)
    partition.add(started("a"), completed(1, "a"), completed(1, "a"))
    assert not partition.state.counts


def test_fold_decodes_each_rollout_once(monkeypatch: pytest.MonkeyPatch):
    settled = []

    original = closing.settle

    def settle(rollout, *others):
        settled.append(rollout.rollout_id)
        return original(rollout, *others)

    monkeypatch.setattr(closing, "settle", settle)
    partition = Partition(emit_from=3)
    partition.add(started("a", group_size=2), call("c", 1, "a"), completed(2, "a"))
    partition.add(started("b", group_size=2), completed(1, "b"))
    assert settled == ["b", "a"]


def test_fold_after_a_restart_at_the_watermark_still_refuses_starts_of_a_closed_group():
    before = Partition()
    before.add(started(), completed(1), group_closed(reason="complete"))
    after = Partition(position=before.state.watermark(), emit_from=3)
    after.add(group_closed(reason="complete"), started("late"))
    assert after.counts == {"group_reused": 1}


def test_fold_after_a_restart_makes_the_same_batch_id():
    def folded(emit_from: int) -> str:
        partition = Partition(emit_from=emit_from)
        partition.add(started(), call(), completed(2))
        return partition.batch.batch_id

    assert folded(0) == folded(2)


def test_fold_keeps_the_highest_log_time_as_its_clock():
    partition = Partition()
    partition.at_s = 5
    partition.add(call())
    partition.at_s = 3
    partition.add(call())
    assert partition.state.now_ns == 5_000_000_000


def test_fold_moves_the_position_past_the_record():
    partition = Partition(position=7)
    partition.add(call())
    assert partition.state.position == 8
