"""Finding a rollout: in the batches, in the events, by the beginning of its id, and what is said when it is nowhere."""

import asyncio
from collections.abc import Callable

import pytest
from support.building import SECOND_NS, call, completed, reward, started
from support.memory_log import MemoryLog

from rolloutlog.consumers.explaining.finding import (
    CLOSED,
    OPEN,
    PUBLISHED,
    REFUSED,
    SURPLUS,
    UNPUBLISHED,
    UNSTARTED,
    Found,
    find_rollout,
)
from rolloutlog.consumers.explaining.wanted import RolloutUnknown
from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.outputs import Output
from rolloutlog.consumers.packing import Packer
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.eventstore.codec import HEADER, encode_event, header_of
from rolloutlog.eventstore.errors import OffsetOutOfRange
from rolloutlog.eventstore.events import Event, GroupClosed, RolloutStarted
from rolloutlog.eventstore.log import EVENTS, NewRecord, Reader

Entry = tuple[str, Event]  # key, event


def new_record(event: Event, *, key: str = "g", resend: bool = False) -> NewRecord:
    return NewRecord(EVENTS, 0, key.encode(), encode_event(event), ((HEADER, header_of(event, resend=resend).text()),))


def log_of(
    *records: NewRecord,
    published: int | None = None,
    log_time_ns: Callable[[], int] = lambda: 0,
    settings: FoldSettings | None = None,
) -> MemoryLog:
    """A log of these events. `published`: how many of them the assembler has folded; None = all."""

    async def fill() -> MemoryLog:
        log = MemoryLog(partitions=1, log_time_ns=log_time_ns)
        await log.append(records)
        state = PartitionState(0, settings or FoldSettings())
        outputs: list[Output] = []
        for record in log.events[:published]:
            outputs += fold(state, record)
        await log.append(Packer(0, state.settings.config_hash, "assembler.00000000000000dd").pack(outputs, time_ns=0))
        return log

    return asyncio.run(fill())


def found(log: MemoryLog, rollout_id: str) -> Found:
    return asyncio.run(find_rollout(log, rollout_id))


def whole(rollout_id: str, **fields: object) -> list[NewRecord]:
    """A whole rollout of a group of one: 4 events."""
    key = str(fields.get("group_id", "g"))
    events = [started(rollout_id, **fields), call("c", 1, rollout_id), reward(2, rollout_id), completed(3, rollout_id)]
    return [new_record(event, key=key) for event in events]


def test_published_rollout_comes_with_its_result_its_samples_and_its_events():
    log = log_of(*whole("other", group_id="h"), *whole("rollout-1"))
    it = found(log, "rollout-1")
    assert (it.state, it.attempt, it.group_id, it.first_event, it.words) == (PUBLISHED, 0, "g", 4, ())
    assert it.result is not None
    assert it.result.status == "emitted"
    assert [sample.sample_id for sample in it.samples] == ["rollout-1/0/c"]
    assert [(each.offset, each.event.record) for each in it.events] == [
        (4, "RolloutStarted"),
        (5, "Span"),
        (6, "RewardRecorded"),
        (7, "RolloutCompleted"),
    ]
    assert it.published is not None
    assert it.published.offset == 1


def test_rollout_of_a_group_comes_with_its_own_samples_alone():
    events = [started("a-1", group_size=2), call("c", 1, "a-1"), completed(2, "a-1"),
              started("b-1", group_size=2), call("c", 1, "b-1"), completed(2, "b-1")]  # fmt: skip
    it = found(log_of(*map(new_record, events)), "b-1")
    assert [sample.sample_id for sample in it.samples] == ["b-1/0/c"]


def test_rollout_is_found_by_the_beginning_of_its_id():
    assert found(log_of(*whole("abcdef")), "abcd").rollout_id == "abcdef"


def test_rollout_whose_whole_id_begins_another_one_is_the_one_that_is_meant():
    log = log_of(*whole("abcd-2", group_id="h"), *whole("abcd"))
    assert found(log, "abcd").rollout_id == "abcd"


def test_rollout_by_a_beginning_that_several_share_is_refused_and_names_them():
    log = log_of(*whole("abcd-1"), *whole("abcd-2", group_id="h"))
    with pytest.raises(RolloutUnknown, match="expected the beginning of one id, got that of 2: abcd-1, abcd-2"):
        found(log, "abcd")


def test_rollout_is_found_by_the_end_of_its_id():
    log = log_of(*whole("import-2a13-0-20", group_id="h"), *whole("import-2a13-0-21"))
    assert found(log, "0-21").rollout_id == "import-2a13-0-21"


def test_open_rollout_is_found_by_the_end_of_its_id():
    log = log_of(*whole("import-2a13-0-20", group_id="h"), new_record(started("import-2a13-0-21")))
    it = found(log, "0-21")
    assert (it.rollout_id, it.state) == ("import-2a13-0-21", OPEN)


def test_id_that_begins_so_goes_before_ids_that_end_so():
    log = log_of(*whole("1-abcd", group_id="h"), *whole("2-abcd", group_id="i"), *whole("abcd-3"))
    assert found(log, "abcd").rollout_id == "abcd-3"


@pytest.mark.parametrize("rollout_id", ["abcd", "abcd-3"], ids=["whole", "beginning"])
def test_open_rollout_whose_id_begins_so_goes_before_a_published_one_that_ends_so(rollout_id: str):
    log = log_of(*whole("1-abcd", group_id="h"), new_record(started(rollout_id)))
    assert found(log, "abcd").rollout_id == rollout_id


def test_rollout_by_an_end_that_several_share_is_refused_and_names_them():
    log = log_of(*whole("1-abcd", group_id="h"), new_record(started("2-abcd")))
    with pytest.raises(RolloutUnknown, match="expected the ending of one id, got that of 2: 1-abcd, 2-abcd"):
        found(log, "abcd")


def test_rollout_by_fewer_characters_than_four_is_not_guessed():
    with pytest.raises(RolloutUnknown, match="may be cut to its first or last 4 characters or more"):
        found(log_of(*whole("abcdef")), "abc")


def test_empty_id_is_not_that_of_events_that_belong_to_no_rollout():
    envelope = {"rollout_id": "", "attempt": 0, "source": "publisher.0123456789abcdef", "sequence": 0, "time_ns": 1}
    closed = GroupClosed(**envelope, group_id="g", reason="requested", as_of=None)
    with pytest.raises(RolloutUnknown, match="may be cut to its first or last 4 characters or more"):
        found(log_of(*whole("abcdef"), new_record(closed)), "")


def test_rollout_that_is_nowhere_is_refused_and_says_how_many_were_looked_at():
    log = log_of(*whole("abcdef"), new_record(started("open", group_id="h"), key="h"))
    with pytest.raises(RolloutUnknown) as raised:
        found(log, "nothing")
    assert "expected one of 1 published rollouts or of 2 starts in the events, got none" in str(raised.value)


def test_open_rollout_says_what_it_waits_for():
    it = found(log_of(new_record(started("open-1")), new_record(call("c", 2, "open-1"))), "open-1")
    assert (it.state, it.words) == (OPEN, ("(attempt 0) is not completed",))
    assert len(it.events) == 2


def test_open_rollout_with_a_missing_event_says_which():
    it = found(log_of(new_record(started("open-1")), new_record(completed(4, "open-1"))), "open-1")
    assert it.words == ("(attempt 0) misses events 1-3 of main.00000000000000aa",)


def test_closed_rollout_of_an_open_group_says_what_the_group_waits_for():
    events = [started("done", group_size=2), completed(1, "done"), started("other", group_size=2)]
    it = found(log_of(*map(new_record, events)), "done")
    assert it.state == CLOSED
    assert it.words == ("closed as completed; waits for its group g: rollout other (attempt 0) is not completed",)


def test_rollout_of_a_whole_group_that_no_assembler_has_seen_says_so():
    it = found(log_of(*whole("rollout-1"), published=0), "rollout-1")
    assert (it.state, it.words) == (
        UNPUBLISHED,
        ("its group is closed since offset 3; no assembler has published it so far",),
    )


def test_surplus_rollout_of_an_open_group_says_so():
    it = found(log_of(new_record(started("first")), new_record(started("second"))), "second")
    assert it.state == SURPLUS
    assert it.words[0].startswith("beyond its group's size; waits for its group g: rollout first")


def test_start_of_a_closed_group_is_refused_and_says_so():
    it = found(log_of(*whole("rollout-1"), new_record(started("late-1"))), "late-1")
    assert (it.state, it.words) == (REFUSED, ("its group was closed before it started",))


def test_start_that_was_sent_again_too_late_is_refused_and_says_so():
    log = log_of(new_record(started("rollout-1", time_ns=0), resend=True), log_time_ns=lambda: 601 * SECOND_NS)
    it = found(log, "rollout-1")
    assert it.state == REFUSED
    assert "sent again so late" in it.words[0]


def test_start_that_cannot_be_read_is_refused_and_says_why():
    good = new_record(started("rollout-1"))
    it = found(log_of(good._replace(value=b"nothing")), "rollout-1")
    assert it.state == REFUSED
    assert it.words[0].startswith("its start cannot be read: ")
    assert it.unread[0][0] == 0


def test_events_without_a_start_are_found_and_say_so():
    assert found(log_of(new_record(call("c", 1, "rollout-1"))), "rollout-1").state == UNSTARTED


def test_events_of_superseded_attempts_and_repeated_ones_are_left_out():
    events = [started("r-00", attempts_max=2), call("old", 1, "r-00"), started("r-00", attempt=1, attempts_max=2),
              call("new", 1, "r-00", attempt=1), call("new", 1, "r-00", attempt=1)]  # fmt: skip
    it = found(log_of(*map(new_record, events)), "r-00")
    assert it.attempt == 1
    assert [each.offset for each in it.events] == [2, 3]
    assert isinstance(it.events[0].event, RolloutStarted)


def test_published_rollout_whose_events_retention_removed_comes_without_them(monkeypatch):
    log = log_of(*whole("rollout-1"))
    read = log.reader

    async def reader(topic: str, offsets: dict[int, int]) -> Reader:
        if topic == EVENTS:
            raise OffsetOutOfRange("offset 0 is gone")
        return await read(topic, offsets)

    monkeypatch.setattr(log, "reader", reader)
    it = found(log, "rollout-1")
    assert (it.cut, it.events, it.entries) == (True, (), None)
    assert it.result is not None
    assert len(it.result.outcomes) == 1
