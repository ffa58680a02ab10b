"""The owner's decisions in time that is moved by hand: downtime, cut networks, quiet partitions, clocks that jump."""

from dataclasses import replace

import pytest
from support.building import MAIN, SECOND_NS, call, completed, expired, reward, started
from unit.consumers.owning import EPOCH_NS, Owner, World

from rolloutlog.consumers.decisions import Expiry, GroupEnd
from rolloutlog.consumers.outputs import BatchReady
from rolloutlog.eventstore.events import RolloutHeartbeat

DAY_S = 86_400.0


def heartbeat(sequence: int, rollout_id: str = "r", time_ns: int = 0) -> RolloutHeartbeat:
    return RolloutHeartbeat(rollout_id=rollout_id, attempt=0, source=MAIN, sequence=sequence, time_ns=time_ns)


def of_one(count: int) -> World:
    """A log with so many running rollouts, each in a group of its own."""
    world = World()
    for index in range(count):
        world.append(started(f"r{index}", group_id=f"g{index}"), key=f"g{index}")
    return world


def beat(world: World, sequence: int, *indexes: int) -> None:
    for index in indexes:
        world.append(heartbeat(sequence, f"r{index}"), key=f"g{index}")


# Quiet partitions


def test_rollout_in_a_partition_without_traffic_expires_after_idle_s():
    world = of_one(1)
    owner = Owner(world)
    assert owner.run(600) == []
    assert owner.run(2) == [Expiry("g0", "r0", 0, "idle", 0)]
    assert owner.statuses == {"r0": "expired"}


def test_rollout_with_heartbeats_alone_runs_until_its_age():
    world = of_one(1)
    owner = Owner(world)
    for minute in range(118):
        world.append(heartbeat(minute + 1, "r0"), key="g0")
        assert owner.run(60, each_s=10) == []
    assert [each.reason for each in owner.run(120 + 600, each_s=10)] == ["age"]
    assert 7_200 <= world.at_s - 600 <= 7_300


def test_rollout_that_never_stops_sending_ends_by_age():
    """Each decision is old when it arrives: the events that came since do not lift it."""
    world = of_one(1)
    owner = Owner(world, age_s=100)
    owner.run(99)
    world.at_s += 3
    decisions = owner.decide()
    assert [each.reason for each in decisions] == ["age"]
    beat(world, 1, 0)
    owner.append(decisions)
    beat(world, 2, 0)
    owner.read()
    owner.commit()
    assert owner.reasons == {"r0": "age"}


def test_decision_that_an_event_overtakes_is_ignored_and_made_again():
    world = of_one(1)
    owner = Owner(world)
    owner.run(599)
    world.at_s += 3
    decisions = owner.decide()
    beat(world, 1, 0)
    owner.append(decisions)
    owner.read()
    assert (owner.state.counts["stale_decision"], owner.state.open_rollouts) == (1, 1)
    assert owner.run(599) == []
    assert [each.reason for each in owner.run(3)] == ["idle"]


def test_decision_that_is_repeated_is_ignored():
    world = of_one(1)
    owner = Owner(world)
    decisions = owner.run(602)
    owner.append(decisions)
    owner.append(decisions)
    owner.read()
    owner.commit()
    assert (len(owner.batches), owner.state.counts["late"]) == (1, 2)


# Downtime


def test_backlog_after_downtime_expires_nothing_that_is_alive():
    """The assembler was away for a day; the hosts' rollouts began in between, and go on when it is back."""
    world = World()
    world.at_s = DAY_S - 3_000
    for index in range(4):
        world.append(started(f"r{index}", group_id=f"g{index}"), key=f"g{index}")
    world.at_s = DAY_S
    owner = Owner(world)
    for sequence in range(1, 6):
        assert owner.run(500, each_s=5) == []
        beat(world, sequence, 0, 1, 2, 3)
    assert owner.state.open_rollouts == 4


def test_rollout_that_is_silent_since_before_a_downtime_gets_idle_s_from_the_end_on():
    world = of_one(1)
    world.at_s = 5_000
    owner = Owner(world)
    assert owner.run(600) == []
    assert [each.reason for each in owner.run(3)] == ["idle"]


def test_rollout_that_is_too_old_after_a_downtime_gets_grace_s_from_the_end_on():
    world = of_one(1)
    world.at_s = DAY_S
    owner = Owner(world)
    owner.turn()
    owner.deciding.hear_log_time(world.log_time_ns)
    assert owner.run(59) == []
    assert [each.reason for each in owner.run(3)] == ["age"]


def test_age_of_a_rollout_counts_over_restarts_where_the_log_says_what_time_it_is():
    """No owner lives for as long as the limit is, and nothing else is written to the partition."""
    world = of_one(1)
    for _ in range(4):
        owner = Owner(world, age_s=2_000, idle_s=1_500)
        owner.turn()
        owner.deciding.hear_log_time(world.log_time_ns)
        assert owner.run(480) == []
    owner = Owner(world, age_s=2_000, idle_s=1_500)
    owner.turn()
    owner.deciding.hear_log_time(world.log_time_ns)
    assert [each.reason for each in owner.run(100)] == ["age"]


def test_nothing_is_decided_before_all_that_was_written_is_read():
    """The beat that shows the rollout alive stands behind what the owner has read."""
    world = of_one(1)
    owner = Owner(world)
    owner.run(590)
    world.append(*[started(f"x{index}", group_id="x", group_size=99) for index in range(50)], key="x")
    beat(world, 1, 0)
    world.at_s += 15
    owner.read(20)
    assert owner.decide() == []
    owner.read(20)
    assert owner.decide() == []
    owner.read()
    assert owner.decide() == []


def test_restart_in_the_middle_of_the_backlog_decides_nothing_below_the_committed_position():
    world = of_one(1)
    owner = Owner(world, committed=(0, 1))
    assert owner.decide() == []
    assert owner.run(600) == []
    assert len(owner.run(3)) == 1


# Hosts that are cut off


def test_cut_network_expires_nothing_at_once():
    world = of_one(8)
    owner = Owner(world)
    for sequence in range(1, 5):
        beat(world, sequence, *range(8))
        assert owner.run(300, each_s=5) == []
    assert owner.run(3_000, each_s=5) == []  # nothing comes through
    beat(world, 5, *range(6))  # it is back; two hosts are not
    decided = owner.run(620, each_s=5)
    assert {(each.rollout_id, each.reason) for each in decided if isinstance(each, Expiry)} == {
        ("r6", "idle"),
        ("r7", "idle"),
    }


def test_cut_network_is_alarmed_with_what_ends_the_rollouts(caplog: pytest.LogCaptureFixture):
    world = of_one(3)
    Owner(world).run(603)
    assert (
        "partition 0: 3 of 3 running rollouts are silent for idle_s (600 s): their hosts are cut off, or all dead. "
        "They get as long again; age_s (7200 s) ends them at the latest, `events.close_group` at once"
    ) in caplog.text


def test_rollouts_of_hosts_that_stay_cut_off_end_by_age():
    world = of_one(3)
    owner = Owner(world)
    assert {each.reason for each in owner.run(7_300, each_s=10)} == {"age"}
    assert owner.state.open_rollouts == 0


def test_half_of_the_rollouts_silent_is_no_cut_network():
    world = of_one(4)
    owner = Owner(world)
    owner.run(300)
    beat(world, 1, 0, 1)
    assert {each.rollout_id for each in owner.run(303) if isinstance(each, Expiry)} == {"r2", "r3"}


def test_rollouts_that_fall_silent_minutes_apart_are_no_cut_network():
    world = World()
    owner = Owner(world)
    for index in range(4):
        world.append(started(f"r{index}", group_id=f"g{index}"), key=f"g{index}")
        owner.run(120, each_s=2)
    assert [each.reason for each in owner.run(600, each_s=2)] == ["idle"] * 4


def test_completed_rollouts_say_nothing_of_a_cut_network():
    """Those that wait for judges are done: their hosts owe no events."""
    world = of_one(2)
    for index in (2, 3, 4):
        events = started(f"r{index}", group_id=f"g{index}"), completed(1, f"r{index}", awaited_names=("judge",))
        world.append(*events, key=f"g{index}")
    owner = Owner(world, grace_s=5_000)
    assert owner.run(700) == []


# Clocks


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
def test_clock_of_a_host_that_jumps_changes_nothing(jump_s: float):
    """Hosts write their own time into events: nothing is told by it."""
    world = World()
    world.append(replace(started("r0", group_id="g0"), time_ns=EPOCH_NS), key="g0")
    owner = Owner(world)
    owner.run(300)
    world.append(heartbeat(1, "r0", time_ns=EPOCH_NS + int((300 + jump_s) * SECOND_NS)), key="g0")
    assert owner.run(600) == []
    assert [each.reason for each in owner.run(3)] == ["idle"]


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
def test_clock_of_the_log_that_jumps_while_an_owner_lives_changes_nothing(jump_s: float):
    """An embedded log's clock is that of a host too."""
    world = of_one(2)
    owner = Owner(world)
    owner.turn()
    owner.deciding.hear_log_time(world.log_time_ns)
    owner.run(300)
    world.log_ahead_s += jump_s
    owner.deciding.hear_log_time(world.log_time_ns)
    beat(world, 1, 0)
    assert owner.run(295) == []
    assert [each.rollout_id for each in owner.run(10) if isinstance(each, Expiry)] == ["r1"]
    assert owner.state.open_rollouts == 1


def test_rollout_started_after_the_logs_clock_jumped_gets_its_whole_age():
    world = World()
    owner = Owner(world, age_s=1_000, idle_s=5_000)
    owner.run(10)
    world.log_ahead_s = -DAY_S
    world.append(started())
    assert owner.run(995, each_s=5) == []
    assert [each.reason for each in owner.run(20)] == ["age"]


# Owners


def test_two_owners_that_decide_the_same_close_a_rollout_once():
    """The older one's transaction was under way when it was fenced."""
    world = of_one(1)
    one, other = Owner(world, idle_s=5), Owner(world, idle_s=5)
    for owner in (one, other):
        owner.turn()
    world.at_s = 7
    second = other.decide()
    first = one.turn()
    other.append(second)
    assert first == second
    reread = Owner(world)
    reread.turn()
    assert (len(reread.batches), reread.state.counts["late"]) == (1, 1)


def test_restart_after_a_decision_gives_the_same_outputs():
    world = of_one(2)
    owner = Owner(world)
    owner.run(590)
    beat(world, 1, 1)
    owner.run(20)
    world.append(call("c", 2, "r1"), completed(3, "r1"), key="g1")
    owner.turn()
    again, restarted = Owner(world), Owner(world, committed=owner.committed)
    for each in (again, restarted):
        each.turn()
    assert again.outputs == owner.outputs
    assert restarted.outputs == []
    assert owner.statuses == {"r0": "expired", "r1": "emitted"}


def test_restart_between_a_decision_and_its_outputs_gives_them_once():
    world = of_one(1)
    owner = Owner(world)
    owner.run(600)
    committed = owner.committed
    world.at_s += 2
    owner.append(owner.decide())  # killed here
    restarted = Owner(world, committed=committed)
    assert restarted.turn() == []
    assert restarted.statuses == {"r0": "expired"}


# Groups


def test_group_whose_host_died_is_published_with_its_survivors():
    world = World()
    world.append(started("a", group_size=2), started("b", group_size=2))
    world.append(call("c", 1, "a"), reward(2, "a", scope="rollout"), completed(3, "a"), call("d", 1, "b"))
    owner = Owner(world)
    decided = owner.run(603)
    assert [(each.reason, each.as_of) for each in decided] == [("idle", 5)]
    assert owner.statuses == {"a": "emitted", "b": "expired"}
    assert [sample.sample_id for sample in owner.batches[0].samples] == ["a/0/c"]


def test_group_whose_last_starts_never_come_is_closed_by_its_age():
    world = World()
    world.append(started("a", group_size=3), completed(1, "a"))
    owner = Owner(world)
    assert owner.run(900) == []
    assert owner.run(3) == [GroupEnd("g", "age", 1)]
    assert (owner.batches[0].closed_reason, owner.statuses) == ("age", {"a": "emitted"})


def test_group_that_its_host_never_closes_is_closed_by_its_age():
    world = World()
    world.append(started("a", group_size=None), completed(1, "a"), started("b", group_size=None))
    owner = Owner(world, idle_s=5_000)
    assert owner.run(903) == [GroupEnd("g", "age", 2)]
    assert owner.reasons == {"a": None, "b": "group_closed"}


def test_age_of_a_group_counts_from_its_first_closing():
    world = World()
    world.append(started("a", group_size=3), started("b", group_size=3))
    owner = Owner(world, idle_s=5_000)
    owner.run(500)
    world.append(completed(1, "a"))
    owner.run(500)
    world.append(completed(1, "b"))
    assert owner.run(400) == []
    assert [each.reason for each in owner.run(5)] == ["age"]


def test_group_closes_by_its_whole_age_though_owners_restart_all_the_time():
    world = World()
    world.append(started("a", group_size=2), completed(1, "a"))
    for _ in range(5):
        owner = Owner(world, age_s=1_000)
        owner.turn()
        owner.deciding.hear_log_time(world.log_time_ns)
        if decided := owner.run(500, each_s=5):
            break
    assert [each.reason for each in decided] == ["age"]
    assert 1_900 <= world.at_s <= 2_500


def test_group_that_a_restart_would_read_again_from_too_far_back_is_closed():
    world = World()
    world.append(started("a", group_id="old", group_size=2), key="old")
    owner = Owner(world, replay_bytes_max=20_000)
    for index in range(60):
        world.append(started(f"r{index}", group_id=f"g{index}"), completed(1, f"r{index}"), key=f"g{index}")
    owner.run(100)
    for index in range(60, 200):
        world.append(started(f"r{index}", group_id=f"g{index}"), completed(1, f"r{index}"), key=f"g{index}")
    assert owner.run(2) == [GroupEnd("old", "replay_bytes", 0)]
    assert owner.batches[-1].closed_reason == "replay_bytes"
    assert owner.state.watermark() > 100


def test_group_that_a_restart_reads_again_counts_the_bytes_from_its_first_event():
    world = World()
    world.append(started("a", group_id="old", group_size=2), key="old")
    for index in range(200):
        world.append(started(f"r{index}", group_id=f"g{index}"), completed(1, f"r{index}"), key=f"g{index}")
    owner = Owner(world, replay_bytes_max=20_000)
    assert [each.reason for each in owner.run(62)] == ["replay_bytes"]


def test_decisions_are_looked_for_once_a_second():
    world = of_one(1)
    owner = Owner(world)
    owner.run(602)
    looked = []
    owner.deciding._decider.look = lambda *given: looked.append(given)  # type: ignore[method-assign,assignment]
    for _ in range(8):
        world.at_s += 0.1
        owner.decide()
    assert looked == []


def test_decision_of_the_log_about_an_unknown_rollout_is_counted():
    world = of_one(1)
    owner = Owner(world)
    world.append(expired(0, "elsewhere"), key="g0")
    owner.read()
    assert owner.state.counts["orphan"] == 1


def test_outputs_of_decisions_name_the_decision_as_their_trigger():
    world = of_one(1)
    owner = Owner(world)
    owner.run(603)
    (output,) = owner.outputs
    assert isinstance(output, BatchReady)
    assert (output.trigger, world.records[1].key) == (1, b"g0")


# Pauses, and clocks that are set back


def test_pause_of_owner_and_hosts_alike_ends_nothing_before_the_hosts_can_speak():
    """A terminal's Ctrl-Z, or a machine that was suspended: what hosts hold comes a moment after the owner goes on."""
    world = World()
    world.append(started("r0", group_id="g0"), completed(1, "r0", awaited_rewards=("judge",)), key="g0")
    world.append(started("r1", group_id="g1"), key="g1")
    world.append(started("r2", group_id="g2", attempts_max=2), key="g2")
    world.append(completed(1, "r2", status="failed"), key="g2")
    world.append(started("r3", group_id="g3", group_size=2), completed(1, "r3"), key="g3")
    owner = Owner(world)
    owner.run(30)
    world.at_s += 3_600
    assert owner.run(59) == []
    beat(world, 1, 1)
    world.append(reward(0, "r0", name="judge", source="judge.00000000000000bb"), key="g0")
    owner.turn()
    assert owner.statuses["r0"] == "emitted"


def test_pause_of_an_owner_gives_no_more_than_each_limit_anew():
    world = of_one(1)
    owner = Owner(world)
    owner.run(500)
    world.at_s += 3_600
    assert owner.run(599) == []
    assert [each.reason for each in owner.run(5)] == ["idle"]


def test_turns_that_always_take_long_are_no_pauses():
    """Else an owner with much to do would never decide."""
    world = of_one(1)
    assert [each.reason for each in Owner(world).run(700, each_s=25)] == ["idle"]


def test_age_goes_on_over_a_pause_where_the_log_says_what_time_it_is():
    world = of_one(1)
    owner = Owner(world)
    for _ in range(2):
        world.at_s += 4_000
        owner.turn()
        owner.deciding.hear_log_time(world.log_time_ns)
    assert owner.run(59) == []
    assert [each.reason for each in owner.run(5)] == ["age"]


def test_rollout_that_began_after_the_logs_clock_was_set_back_is_young_to_the_next_owner():
    world = World()
    world.log_ahead_s = DAY_S
    world.append(started("r0", group_id="g0"), key="g0")
    world.log_ahead_s = 0
    world.append(started("r1", group_id="g1"), key="g1")
    owner = Owner(world)
    owner.turn()
    owner.deciding.hear_log_time(world.log_time_ns)
    assert owner.run(500) == []
