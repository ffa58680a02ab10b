"""A stream over a replay's output: the same guarantees, an end of its own, and nothing that live readers look at."""

import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace

import pytest
from support.batches import assert_ledger_holds, batch, end_records, last_words
from support.outputs import write_output
from support.store import Store
from unit.consumers.streams import Open, put

from rolloutlog.consumers.replaying.outputs import Output, read_output
from rolloutlog.consumers.status import Status, status_record
from rolloutlog.consumers.stream import output_end
from rolloutlog.consumers.stream.output_end import OutputEnd
from rolloutlog.consumers.trainer import AckRefused, FencedOut, Step, WaitedTooLong
from rolloutlog.eventstore.acks import Rewound, StepAcknowledged, read_said
from rolloutlog.eventstore.errors import InvalidSettings, LogMissing
from rolloutlog.eventstore.log import ACKS, META, NewRecord

pytestmark = pytest.mark.timeout(60)

TOPIC = "output.judged"
END = 10
STATUS = Status(
    app="replay.judged", partition=0, host="h", pid=4711, time_ns=0, position=END, watermark=END, end=END,
    open_rollouts=0, open_groups=0, oldest_open_ns=None, counts={"groups": 2}, waiting=(),
)  # fmt: skip


@pytest.fixture
def output_of(stream_of: Open) -> Open:
    """Open a stream on the output `judged`."""
    return lambda **given: stream_of(output="judged", **given)


def write(store: Store, *groups: str, name: str = "judged", time_ns: int = 5) -> None:
    """An output of a replay that goes to offset 10 of both partitions: groups in partition 0, two samples each."""
    store.run(write_output(store.log, name, [batch(each) for each in groups], ends=(END, END), time_ns=time_ns))


def say(store: Store, *positions: int) -> None:
    """The replay is there, in partitions from 0 on."""
    said = [replace(STATUS, partition=each, position=position) for each, position in enumerate(positions)]
    store.append([status_record(each) for each in said])


def group_ids(step: Step | None) -> list[str]:
    assert step is not None
    return [each.group_id for each in step.batches]


# the end


def test_steps_of_an_output_come_until_all_of_a_complete_replay_is_read(store, output_of):
    put(store, "live")
    write(store, "a", "b", "c")
    say(store, END, END)
    stream, steps = output_of(), []
    assert (stream.output, stream.reader) == ("judged", "trainer")
    for step in stream:
        steps.append((step.number, group_ids(step)))
        stream.ack(step, policy_version=None)
    assert steps == [(0, ["a", "b"]), (1, ["c"])]
    assert assert_ledger_holds(store, in_flight=0, topic=TOPIC) == {"trained": 6}
    assert last_words(store) == {}, "an end of live samples"
    stream.close()
    assert output_of().next_step() is None


def test_stream_over_an_output_without_groups_ends(store, output_of):
    write(store)
    say(store, END, END)
    assert output_of().next_step() is None


def test_stream_waits_for_a_replay_that_goes_on_and_ends_with_it(store, output_of):
    write(store, "a", "b", "c")
    say(store, END, 4)
    stream = output_of()
    assert group_ids(stream.next_step()) == ["a", "b"]
    found: list[Step | None] = []
    waiting = threading.Thread(target=lambda: found.append(stream.next_step()))
    waiting.start()
    waiting.join(1.5)
    assert waiting.is_alive()
    say(store, END, END)
    waiting.join(10)
    assert group_ids(found[0]) == ["c"]
    assert stream.next_step() is None


def test_stream_of_some_partitions_ends_when_those_are_complete(store, output_of):
    write(store, "a", "b")
    say(store, END)
    stream = output_of(partitions=[0])
    assert group_ids(stream.next_step()) == ["a", "b"]
    assert stream.next_step() is None


def test_end_of_a_run_within_an_output_does_not_end_the_stream(store, output_of):
    """History may go on after it: only the replay knows."""
    write(store, "a", "b")
    store.append([each._replace(topic=TOPIC) for each in end_records(2)])
    stream = output_of()
    assert group_ids(stream.next_step()) == ["a", "b"]
    with pytest.raises(WaitedTooLong):
        stream.next_step(timeout_s=1.0)
    say(store, END, END)
    assert stream.next_step() is None


def test_wait_for_a_replay_that_stopped_says_how_far_it_is_and_what_to_do(store, output_of):
    write(store, "a")
    say(store, 4)
    stream = output_of(clock=lambda: 7_000_000_000)
    with pytest.raises(WaitedTooLong) as told:
        stream.next_step(timeout_s=1.0)
    assert "got 1; output judged is not complete: partition 0: at 4 of 10, said 7 s ago by host h, pid 4711 | " in str(
        told.value
    )
    assert str(told.value).endswith(
        "partition 1: no replay has said anything yet; where no replay runs, run `rolloutlog replay --output judged` "
        "again as it was"
    )


def test_partitions_of_which_nothing_was_to_be_read_are_complete(store, stream_of):
    store.run(write_output(store.log, "none", [], first=(5, 5), ends=(5, 5)))
    assert stream_of(output="none").next_step() is None


def test_output_is_not_complete_by_what_was_said_of_an_earlier_one_of_its_name(store, monkeypatch):
    say(store, END, END)
    write(store)
    monkeypatch.setattr(output_end, "LOOK_EVERY_S", 0.0)
    output = store.run(read_output(store.log, "judged"))
    end = OutputEnd(store.log, output)
    assert not store.run(end.is_whole([0]))
    say(store, END - 1)
    store.append([NewRecord(META, 0, b"status/replay.judged/0", b"of a newer version")])
    assert not store.run(end.is_whole([0]))
    say(store, END)
    say(store, 3)
    assert store.run(end.is_whole([0]))
    assert not store.run(end.is_whole([0, 1]))


# names


def test_unknown_output_is_refused_with_those_that_exist(store, stream_of, output_of):
    write(store)
    write(store, name="strict")
    with pytest.raises(InvalidSettings, match="output 'other': expected one of live, judged, strict, got none of that"):
        stream_of(output="other")


@pytest.mark.parametrize("name", ["a.b", "", 7])
def test_name_that_no_output_can_have_is_refused(store, stream_of, name):
    with pytest.raises(InvalidSettings, match="output"):
        stream_of(output=name)


def test_live_is_the_name_of_the_batches_topic(store, stream_of):
    put(store, "a", "b")
    stream = stream_of(output="live")
    stream.ack(stream.next_step(), policy_version=1)
    assert (stream.output, stream.state_dict()["format"]) == (None, 2)
    assert last_words(store) != {}


def test_one_reader_trains_on_live_batches_and_on_outputs_at_once(store, stream_of, output_of):
    put(store, "a", "b", "c", "d")
    for name in ("judged", "strict"):
        write(store, "e", "f", "g", "h", name=name)
    streams = [stream_of(), stream_of(output="judged"), stream_of(output="strict")]
    for number in range(2):
        for stream in streams:
            step = stream.next_step()
            assert step.number == number
            stream.ack(step, policy_version=None)
    keys = Counter(record.key for record in store.records(ACKS, [0]))
    assert keys == {b"trainer": 2, b"trainer.output.judged": 2, b"trainer.output.strict": 2}
    owners = {record.key for record in store.records(META, [0]) if record.key.startswith(b"owner/trainer")}
    assert owners == {
        b"owner/trainer/batches/-1",
        b"owner/trainer.output.judged.5/output.judged/-1",
        b"owner/trainer.output.strict.5/output.strict/-1",
    }


def test_second_stream_of_the_same_reader_and_output_fences_the_first(store, output_of):
    write(store, "a", "b", "c", "d")
    first = output_of()
    step = first.next_step()
    second = output_of()
    with pytest.raises(FencedOut, match=r"reader trainer of output\.judged was taken over by host"):
        first.ack(step, policy_version=None)
    assert group_ids(second.next_step()) == ["a", "b"]


# acknowledgements and checkpoints


def test_acknowledgement_and_rewind_name_the_output(store, output_of):
    write(store, "a", "b")
    stream = output_of()
    state = stream.state_dict()
    assert (state["format"], state["output"], state["reader"]) == (3, "judged.5", "trainer")
    stream.ack(stream.next_step(), policy_version=1)
    stream.load_state_dict(state)
    said = [read_said(record) for record in store.records(ACKS, [0])]
    assert [type(each) for each in said] == [StepAcknowledged, Rewound]
    assert {each.topic for each in said} == {TOPIC}
    assert group_ids(stream.next_step()) == ["a", "b"]


def test_step_of_an_output_not_acknowledged_comes_again_and_what_was_does_not(store, output_of):
    write(store, "a", "b", "c", "d")
    with output_of() as first:
        first.ack(first.next_step(), policy_version=1)
        lost = first.next_step()
    second = output_of()
    step = second.next_step()
    assert (step.number, group_ids(step)) == (1, ["c", "d"])
    with pytest.raises(AckRefused):
        second.ack(lost, policy_version=2)
    second.ack(step, policy_version=2)
    assert assert_ledger_holds(store, in_flight=0, topic=TOPIC) == {"trained": 8}


def test_checkpoint_of_live_batches_is_refused_for_an_output_and_the_other_way_round(store, stream_of, output_of):
    put(store, "a")
    write(store, "a")
    live, output = stream_of(), output_of()
    with pytest.raises(
        InvalidSettings, match=r"expected one of output 'judged\.5', which this stream reads, got one of live"
    ):
        output.load_state_dict(live.state_dict())
    with pytest.raises(InvalidSettings, match=r"expected one of live batches, .* got one of output 'judged\.5'"):
        live.load_state_dict(output.state_dict())


def test_output_that_is_removed_ends_the_stream_on_it(store, output_of):
    write(store, "a", "b")
    stream = output_of()
    stream.ack(stream.next_step(), policy_version=1)
    store.append([NewRecord(META, 0, b"output/judged", None)])
    with pytest.raises(LogMissing, match="output judged: it was removed while this stream read it"):
        stream.next_step()


def test_output_made_anew_under_its_name_is_another_one(store, output_of, monkeypatch):
    """Offsets of the one before would leave batches of the new one out."""
    write(store, "a", "b")
    with output_of() as first:
        first.ack(first.next_step(), policy_version=1)
        state = first.state_dict()
    anew = replace(store.run(read_output(store.log, "judged")), time_ns=6)

    async def read_anew(*_: object) -> Output:
        return anew

    monkeypatch.setattr(output_end, "read_output", read_anew)
    second = output_of()
    assert group_ids(second.next_step()) == ["a", "b"]
    with pytest.raises(InvalidSettings, match=r"expected one of output 'judged\.6', .* got one of output 'judged\.5'"):
        second.load_state_dict(state)


def test_live_stream_loads_nothing_of_replays(store):
    put(store, "a", "b")
    code = (
        "import sys; from rolloutlog.consumers.trainer import BatchStream\n"
        "with BatchStream.open(sys.argv[1], groups_per_step=2, max_staleness=None, missing_reward=0) as stream:\n"
        "    stream.ack(stream.next_step(), policy_version=1)\n"
        "print([name for name in sys.modules if 'replaying' in name or 'output_end' in name])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, store.url], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == "[]"
