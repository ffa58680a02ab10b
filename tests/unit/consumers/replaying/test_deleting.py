"""Outputs that are deleted: whole, with whoever writes them fenced, and their names free again."""

import pytest
from support.store import Store
from unit.consumers.replaying.test_outputs import output

from rolloutlog.consumers.owners import Claim
from rolloutlog.consumers.replaying.deleting import delete_output
from rolloutlog.consumers.replaying.outputs import (
    OutputGone,
    create_output,
    is_there,
    list_outputs,
    lock_of,
    read_output,
)
from rolloutlog.consumers.replaying.share import Share
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.status import Status, read_statuses, status_record
from rolloutlog.eventstore.errors import Fenced, InvalidSettings
from rolloutlog.eventstore.log import EVENTS, META, NewRecord, Position


def status(partition: int) -> NewRecord:
    return status_record(Status("replay.judged", partition, "h", 1, 0, 9, 9, 9, 0, 0, None, {"groups": 3}, ()))


def test_deleted_output_is_not_listed_and_another_one_stays(store: Store):
    for name in ("judged", "kept"):
        store.run(create_output(store.log, output(name)))
    store.run(delete_output(store.log, "judged"))
    assert [each.name for each in store.run(list_outputs(store.log))] == ["kept"]
    assert not store.run(is_there(store.log, output()))
    assert store.run(is_there(store.log, output("kept")))


def test_output_made_under_a_deleted_name_begins_anew(store: Store):
    """Its own record counts, its positions are none, and nobody takes the old one's statuses for its."""
    store.run(create_output(store.log, output()))
    owner = store.run(store.log.own("replay.judged", EVENTS, 1))
    store.run(owner.commit([NewRecord("output.judged", 1, b"g", b"old"), status(1)], {1: Position(9, "")}))
    store.run(delete_output(store.log, "judged"))
    again = output(time_ns=8, scorers=())
    assert store.run(create_output(store.log, again)) == again
    assert store.run(read_output(store.log, "judged")) == again
    assert store.records("output.judged", [0, 1]) == []
    assert store.run(read_statuses(store.log, app="replay.judged")) == {}
    assert store.run(store.run(store.log.own("replay.judged", EVENTS, 1)).positions()) == {}


def test_replay_that_runs_while_its_output_is_deleted_stores_nothing_more(store: Store):
    store.run(create_output(store.log, output()))
    owner = store.run(store.log.own("replay.judged", EVENTS, 0))
    store.run(delete_output(store.log, "judged"))
    with pytest.raises(Fenced):
        store.run(owner.commit([NewRecord("output.judged", 0, b"g", b"late")], {0: Position(5, "")}))
    assert not store.run(is_there(store.log, output()))


def test_replay_that_begins_after_its_output_was_deleted_is_refused_by_name(store: Store):
    planned = store.run(create_output(store.log, output(first=(0, 0), ends=(1, 1))))
    store.run(delete_output(store.log, "judged"))

    async def replay() -> None:
        await Share(store.log, store.log, planned, FoldSettings()).run([0, 1])

    with pytest.raises(OutputGone, match="output judged: it was deleted after this replay was planned; nothing was st"):
        store.run(replay())
    store.run(create_output(store.log, output(first=(0, 0), ends=(1, 1), time_ns=8)))
    with pytest.raises(OutputGone):
        store.run(replay())
    assert store.records("output.judged", [0, 1]) == []


def test_deleting_says_in_the_log_who_it_was(store: Store):
    store.run(create_output(store.log, output()))
    store.run(delete_output(store.log, "judged", clock=lambda: 77))
    keys = {record.key for record in store.records(META, [0])}
    assert Claim("replay.judged", EVENTS, 1, "h", 1, 77).key in keys


def test_deleting_that_was_broken_off_is_carried_on(store: Store):
    store.run(create_output(store.log, output()))
    store.run(store.log.drop("output.judged", app="replay.judged"))
    store.run(delete_output(store.log, "judged"))
    assert store.run(list_outputs(store.log)) == []


def test_deleting_what_is_no_output_is_refused_by_name(store: Store):
    store.run(create_output(store.log, output()))
    with pytest.raises(InvalidSettings, match="output 'other': expected one of judged, got another"):
        store.run(delete_output(store.log, "other"))
    with pytest.raises(InvalidSettings, match="this one stands for what was assembled live"):
        store.run(delete_output(store.log, "live"))


def test_output_created_again_while_it_is_deleted_is_not_half_there(store: Store, monkeypatch: pytest.MonkeyPatch):
    """Who comes in between finds the old record, so that the deletion is refused and nothing new is taken away."""
    made = store.run(create_output(store.log, output()))
    drop = store.log.drop

    async def overtaken(topic: str, *, app: str) -> bool:
        dropped = await drop(topic, app=app)
        assert await create_output(store.log, output(time_ns=8)) == made
        return dropped

    monkeypatch.setattr(store.log, "drop", overtaken)
    with pytest.raises(Fenced, match=lock_of("judged")):
        store.run(delete_output(store.log, "judged"))
    monkeypatch.undo()
    store.run(delete_output(store.log, "judged"))
    assert store.run(list_outputs(store.log)) == []
