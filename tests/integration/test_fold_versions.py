"""An upgrade to another fold version: settle, stop, go on; nothing is lost or doubled, whatever the new rules say."""

import re

import pytest
from support.building import group_closed, reward
from support.processes import assemble, wait_until
from support.store import Store
from support.workload import new_record, whole_group

from rolloutlog.consumers import fold as fold_module
from rolloutlog.consumers import position as position_module
from rolloutlog.consumers import recovery as recovery_module
from rolloutlog.consumers import settings as settings_module
from rolloutlog.consumers.assembler import Assembler, AssemblerSettings
from rolloutlog.consumers.position import PositionRefused
from rolloutlog.eventstore.log import NewRecord

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow_on_kafka]

EXIT_USAGE, EXIT_STOPPED = 2, 5


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Assemblers of this process are of the next fold version; processes that are started stay as they are."""
    for module in (settings_module, position_module, recovery_module):
        monkeypatch.setattr(module, "FOLD_VERSION", 2)
    return monkeypatch


def assemble_all(store: Store) -> None:
    command = assemble(store.url)
    assert command.finish() == 0, command.stderr


def settle(store: Store) -> None:
    command = assemble(store.url, "--until-settled", until_end=False)
    assert command.finish() == 0, command.stderr


def began(store: Store, group_id: str) -> None:
    """The version of now has read half a group, so that it does not settle before the other half."""
    store.append(whole_group(group_id)[:2])
    assemble_all(store)


def go_on(store: Store) -> None:
    """Assemble to the end, in this process."""
    store.run(Assembler(store.log, AssemblerSettings()).run([0], until_end=True))


def metadata(store: Store) -> str:
    found = store.position(0)
    assert found is not None
    return found.metadata.rpartition(":")[0]


def groups(store: Store) -> list[str]:
    return [batch.group_id for batch in store.batches()]


def ends_late(group_id: str) -> list[NewRecord]:
    """Events of a closed group that the new rules may make something of."""
    late = reward(9, f"{group_id}-r0", scope="rollout", source="judge.00000000000000cc")
    return [new_record(late, key=group_id), new_record(group_closed(group_id), key=group_id)]


def test_assembler_until_settled_goes_on_while_a_group_is_open_and_stops_between_groups(store: Store):
    first, second, third = (whole_group(name, rollouts=2) for name in ("first", "second", "third"))
    store.append(first[:3])
    assemble_all(store)
    command = assemble(store.url, "--until-settled", until_end=False)
    command.wait_for_steps(0, "receive", 5)
    store.append([*first[3:], *second[:2]])
    assert command.finish() == 0, command.stderr
    assert groups(store) == ["first"]
    assert metadata(store) == "1:8:1:s"
    store.append([*second[2:], *third])
    settle(store)
    assert groups(store) == ["first"]  # settled where it was: nothing of the second is read
    assemble_all(store)
    assert groups(store) == ["first", "second", "third"]


def test_next_fold_version_goes_on_where_the_one_before_has_settled(store: Store, next_version, caplog):
    began(store, "first")
    store.append([*whole_group("first")[2:], *whole_group("second")[:2]])
    settle(store)
    store.append(whole_group("second")[2:])
    go_on(store)
    assert groups(store) == ["first", "second"]
    assert len({batch.config_hash for batch in store.batches()}) == 2
    assert "partition 0 of events: fold version 2 goes on from 4 where version 1 left no group open" in caplog.text


def test_next_fold_version_refuses_a_position_with_open_groups_and_changes_nothing(store: Store, next_version):
    began(store, "first")
    before = store.position(0)
    with pytest.raises(PositionRefused, match="expected fold version 2, got 1: groups are open that would be folded"):
        go_on(store)
    assert store.position(0) == before


def test_version_before_takes_a_settled_position_back(store: Store, next_version):
    began(store, "first")
    store.append(whole_group("first")[2:])
    settle(store)
    store.append(whole_group("second"))
    go_on(store)
    store.append(whole_group("third"))
    command = assemble(store.url)
    assert command.finish() == 0, command.stderr
    assert groups(store) == ["first", "second", "third"]
    assert "fold version 1 goes on from" in command.stderr


def test_group_sent_again_after_an_upgrade_is_not_trained_twice(store: Store, next_version):
    began(store, "first")
    store.append(whole_group("first")[2:])
    settle(store)
    store.append([*whole_group("first"), *whole_group("second")])
    go_on(store)
    assert groups(store) == ["first", "second"]


def test_rules_that_would_leave_a_group_open_do_not_publish_it_again(store: Store, next_version):
    began(store, "first")
    store.append(whole_group("first")[2:])
    settle(store)
    next_version.setattr(fold_module, "_close_when_whole", lambda *given: None)
    store.append([*ends_late("first"), *whole_group("second"), *ends_late("second")])
    go_on(store)
    assert groups(store) == ["first", "second"]


def test_restart_after_an_upgrade_passes_the_crossing_again(store: Store, next_version):
    """L is still below it: what is folded again there was closed by the rules before."""
    began(store, "first")
    store.append(whole_group("first")[2:])
    settle(store)
    next_version.setattr(fold_module, "_close_when_whole", lambda *given: None)
    # The group's own closing is cut off, so that nothing but the crossing tells that it is closed.
    next_version.setattr(fold_module, "_close_group_event", _but_complete(fold_module._close_group_event))
    go_on(store)
    assert re.fullmatch(r"1:\d+:2:sx4", metadata(store))
    store.append(ends_late("first"))
    go_on(store)
    assert groups(store) == ["first"]


def _but_complete(original):
    def close(state, header, record, outputs):
        if header.source.startswith("publisher."):
            original(state, header, record, outputs)

    return close


def test_until_settled_and_until_end_together_are_refused(embedded: Store):
    command = assemble(embedded.url, "--until-settled")
    assert command.finish() == EXIT_USAGE
    assert "expected --until-end or --until-settled, got both" in command.stderr


def test_settling_ends_rollouts_of_hosts_that_are_gone(store: Store):
    """Hosts are stopped before an upgrade: what they left open is ended by the limits, as ever."""
    store.append(whole_group("left", rollouts=2)[:3])
    assemble_all(store)
    command = assemble(
        store.url, "--until-settled", until_end=False, idle_s=0.1, grace_s=0.1, retry_s=0.1, group_age_s=0.1
    )
    wait_until(lambda: command.process.poll() is not None, "the limits passed", 60.0)
    assert command.finish() == 0, command.stderr
    assert groups(store) == ["left"]
    assert metadata(store).endswith(":s")
