"""Forked processes: a publisher, rollouts and attachments from before the fork, used after it."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from rolloutlog.eventstore import EventPublisher, Group, NotOpen, PublisherSettings, emit_reward, forks, open_log
from rolloutlog.eventstore.codec import decode_event, parse_header
from rolloutlog.eventstore.events import (
    Event,
    GroupClosed,
    RewardRecorded,
    RolloutCompleted,
    RolloutStarted,
    SourceEnded,
    Span,
)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def events(tmp_path) -> Iterator[EventPublisher]:
    with EventPublisher.open(f"sqlite:///{tmp_path}/log.db", create=True) as publisher:
        yield publisher


def stored(url: str) -> list[Event]:
    """All events of a log, by partition; each source's numbers are 0, 1, 2 ...

    A start may be stored twice: by a child, and by its parent.
    """

    async def read() -> list[Event]:
        log = await open_log(url)
        reader = await log.reader("events", dict.fromkeys(range(4), 0))
        found, expected = [], {}
        while records := await reader.fetch(wait_s=0.05):
            for record in records:
                header = parse_header(dict(record.headers)["e"])
                if header.kind == "RolloutStarted" and (header.rollout_id, header.source) in expected:
                    continue
                assert header.sequence == expected.setdefault((header.rollout_id, header.source), 0), header
                expected[header.rollout_id, header.source] += 1
                found.append(decode_event(header.kind, record.value))
        await log.close()
        return found

    return asyncio.run(read())


def kinds(url: str, name: str) -> list[str]:
    """Kinds of the events of all sources of a name."""
    return [event.record for event in stored(url) if event.source.rpartition(".")[0] == name]


def in_child(work: Callable[[], object]) -> str:
    """What `work` returned or raised in a forked process, which is killed when it hangs."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode()[:4_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        said = answers.read()
    assert os.waitpid(child, 0)[1] == 0, "killed"
    return said


def closed_after(events: EventPublisher, work: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        result = work()
        events.close()
        return result

    return run


def whole(events: EventPublisher) -> str:
    with events.rollout("t", rollout_id="of-the-child") as rollout:
        rollout.finish(1.0)
    return "done"


USES = {
    "rollout": whole,
    "close_group": lambda events: events.close_group(Group("g", "t")),
    "flush": lambda events: events.flush(),
    "aflush": lambda events: asyncio.run(events.aflush()),
    "close": lambda events: events.close(),
    "aclose": lambda events: asyncio.run(events.aclose()),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("locked", [False, True], ids=["", "while another thread held the locks"])
def test_publisher_is_as_new_in_a_forked_process(events, use, locked):
    """The child has neither the client's thread nor the threads that hold copied locks: it must wait for none."""
    rollout = events.rollout("t", rollout_id="of-the-parent")
    rollout.reward(0.5)
    events.flush()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with events._lock, events._outbox._lock, rollout._lock, events._host.group_count._lock:
            held.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    if locked:
        holder.start()
        held.wait(60)

    def work() -> object:
        USES[use](events)
        if "close" not in use or use == "close_group":
            rollout.reward(0.25)
        events.close()
        return "done"

    said = in_child(work)
    done.set()
    if locked:
        holder.join()
    assert said == "done"
    rollout.finish()
    events.flush()
    found = stored(events.url)
    parents = [event for event in found if event.rollout_id == "of-the-parent" and event.source.startswith("main.")]
    assert [type(event) for event in parents] == [RolloutStarted, RewardRecorded, RolloutCompleted]
    if use == "rollout":
        child = [type(event) for event in found if event.rollout_id == "of-the-child"]
        assert child == [RolloutStarted, RewardRecorded, RolloutCompleted]
    if use == "close_group":
        assert [type(event) for event in found if not event.rollout_id] == [GroupClosed]


def test_forked_process_does_not_send_what_waits_in_its_parent(events):
    events.rollout("t").finish()

    def work() -> object:
        events.flush()
        return events.pending_count

    assert in_child(work) == "0"
    events.flush()
    assert len(stored(events.url)) == 2


def test_rollout_from_before_the_fork_records_from_a_source_of_its_own(events):
    with events.rollout("t") as rollout, rollout.agent("a", span_id="a1"):
        with rollout.call(span_id="c1") as call:
            call.record(prompt_ids=[1], response_ids=[2])

        def work() -> None:
            with rollout.tool("sql"):
                emit_reward(0.5)

        in_child(closed_after(events, work))
        rollout.reward(0.25)
    events.flush()
    assert kinds(events.url, "fork") == ["RewardRecorded", "Span", "SourceEnded"]
    assert kinds(events.url, "main") == ["RolloutStarted", "Span", "RewardRecorded", "Span", "RolloutCompleted"]
    reward = next(event for event in stored(events.url) if event.source.startswith("fork."))
    tool = next(event for event in stored(events.url) if isinstance(event, Span) and event.name == "sql")
    assert (reward.parent_id, reward.after_call, tool.parent_id) == (tool.span_id, "c1", "a1")


def test_start_that_waits_at_the_fork_is_stored_before_what_a_forked_process_records(tmp_path):
    """Else its events would belong to no rollout, and be forgotten."""
    slow = PublisherSettings(linger_s=600.0)
    url = f"sqlite:///{tmp_path}/log.db"
    with EventPublisher.open(url, create=True, settings=slow) as events, events.rollout("t") as rollout:

        def grandchild() -> None:
            closed_after(events, lambda: rollout.reward(0.5))()

        def child() -> None:
            in_child(grandchild)  # before this process has recorded anything
            closed_after(events, lambda: [rollout.reward(0.25), in_child(grandchild)])()

        in_child(child)
        found = [event.record for event in stored(url)]
    assert found == ["RolloutStarted", *["RewardRecorded", "SourceEnded"] * 3]
    assert kinds(url, "main") == ["RolloutStarted", "RolloutCompleted"]


def test_rollout_from_before_the_fork_is_finished_where_it_began(events):
    with events.rollout("t", rollout_id="r-7") as rollout:
        said = in_child(rollout.finish)
        ref_said = in_child(lambda: rollout.ref("judge"))
    assert said.startswith("NotOpen: finish refused: rollout r-7, attempt 0, was begun before this process was forked")
    assert ref_said.startswith("NotOpen: ref 'judge' refused: rollout r-7")
    events.flush()
    assert kinds(events.url, "main") == ["RolloutStarted", "RolloutCompleted"]
    assert kinds(events.url, "fork") == []


@pytest.mark.parametrize("error", [None, KeyError], ids=["", "by an exception"])
def test_block_left_in_a_forked_process_ends_its_source_alone(events, error):
    reader, writer = os.pipe()
    child = None
    with events:
        try:
            with events.rollout("t") as rollout, rollout.agent("a"):
                child = os.fork()
                if not child:
                    signal.alarm(20)
                    rollout.reward(0.5)
                    if error:
                        raise error
        except KeyError:
            os.write(writer, b"raised")
        if not child:
            try:
                rollout.reward(0.5)
            except NotOpen:
                os.write(writer, b"ended")
            events.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 100) == (b"raisedended" if error else b"ended")
    assert kinds(events.url, "fork") == ["RewardRecorded", "SourceEnded"]
    assert kinds(events.url, "main") == ["RolloutStarted", "Span", "RolloutCompleted"]
    assert all(event.status != "error" for event in stored(events.url) if isinstance(event, Span))


def test_block_of_the_parent_takes_nothing_in_a_forked_process(events):
    with events.rollout("t") as rollout, rollout.call() as call:
        said = [in_child(lambda: call.set(rows=3)), in_child(lambda: call.record(prompt_ids=[1], response_ids=[2]))]
        call.record(prompt_ids=[1], response_ids=[2])
    assert [text.partition(":")[0] for text in said] == ["NotOpen", "NotOpen"]
    assert "was entered before this process was forked, and is recorded by the process that entered it" in said[0]


def test_finished_rollout_is_finished_in_a_forked_process_too(events):
    rollout = events.rollout("t")
    rollout.finish()
    assert in_child(lambda: rollout.reward(1.0)).startswith("NotOpen: reward refused")


def test_rollout_that_begins_in_a_forked_process_belongs_to_it(events):
    rollout = events.rollout("t", rollout_id="r-7")

    def work() -> str:
        with rollout:
            rollout.finish(1.0)
        return rollout.ref("judge").rollout_id

    assert in_child(closed_after(events, work)) == "r-7"
    assert kinds(events.url, "main") == ["RolloutStarted", "RewardRecorded", "RolloutCompleted"]


def test_outcome_without_a_name_is_refused_in_a_forked_process(events):
    """Of several forked workers each would revise the others' outcome, and be revised by the parent's."""
    with events.rollout("t") as rollout:
        said = in_child(lambda: rollout.reward(0.5, scope="rollout"))
        in_child(closed_after(events, lambda: [rollout.reward(0.5), rollout.reward(0.5, "worker-1", scope="rollout")]))
    events.flush()
    assert said.startswith("InvalidEvent: RewardRecorded refused: expected a name, since it is not the rollout's own")
    assert kinds(events.url, "fork") == ["RewardRecorded", "RewardRecorded", "SourceEnded"]


def test_attachment_in_a_forked_process_has_a_source_of_its_own_and_the_same_name(events):
    rollout = events.rollout("t")
    ref = rollout.ref("judge", awaited=True)
    with events.attach(ref) as judge:
        in_child(closed_after(events, lambda: judge.reward(0.5, "style")))
        in_child(closed_after(events, judge.end))  # recorded nothing: it is not for this process to end the name
        judge.reward(0.25, "style")
    events.flush()
    ends = [event for event in stored(events.url) if isinstance(event, SourceEnded)]
    assert kinds(events.url, "judge").count("RewardRecorded") == 2
    assert len({event.source for event in ends}) == len(ends) == 2


def work_of_a_worker(events: EventPublisher, rollout, ref: str) -> None:
    rollout.reward(0.5)
    with events.attach(ref):
        emit_reward(0.25, "style")


def test_workers_of_multiprocessing_lose_nothing_and_end_their_sources(events):
    with events.rollout("t") as rollout:
        ref = rollout.ref("worker", awaited=True).text()
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=work_of_a_worker, args=(events, rollout, ref)) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    events.flush()
    assert kinds(events.url, "fork").count("SourceEnded") == 3
    assert sorted(kinds(events.url, "worker")) == ["RewardRecorded"] * 3 + ["SourceEnded"] * 3


def test_forks_of_forks_have_sources_of_their_own(events):
    with events.rollout("t") as rollout:

        def work() -> str:
            rollout.reward(0.5)
            return in_child(closed_after(events, lambda: rollout.reward(0.25)))

        in_child(closed_after(events, work))
    events.flush()
    ends = [event for event in stored(events.url) if isinstance(event, SourceEnded)]
    assert len({event.source for event in ends}) == len(ends) == 2


def test_forked_process_that_ends_without_close_stores_what_it_recorded(tmp_path):
    """And the parent's connection, which it must not close, is whole afterwards."""
    url = f"sqlite:///{tmp_path}/log.db"
    code = (
        "import os, sys\n"
        "from rolloutlog.eventstore import EventPublisher\n"
        f"with EventPublisher.open({url!r}, create=True) as events:\n"
        "    with events.rollout('t') as rollout:\n"
        "        child = os.fork()\n"
        "        rollout.reward(1.0)\n"
        "        if not child:\n"
        "            sys.exit(3)\n"
        "        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3\n"
        "        rollout.reward(1.0)\n"
        "        events.flush()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert kinds(url, "fork") == ["RewardRecorded", "SourceEnded"]
    assert kinds(url, "main") == ["RolloutStarted", "RewardRecorded", "RewardRecorded", "RolloutCompleted"]


def test_forked_process_records_though_the_log_does_not_answer(events):
    """Connecting is the client's matter: recording only queues."""
    path = events.url.removeprefix("sqlite:///")
    rollout = events.rollout("t")
    rollout.reward(1.0)
    events.flush()

    def work() -> str:
        os.rename(path, f"{path}.away")
        rollout.reward(0.5)
        events.close(1.0)
        return "stored"

    said = in_child(work)
    os.rename(f"{path}.away", path)
    assert said.startswith("NotStored: ")
    assert "2 events of rollout" in said
    assert "there is no such file" in said


def test_forks_in_the_middle_of_storing_do_not_hang_their_children(events):
    """SQLite has locks for the whole process: held by a thread that does not come along, they would never be free."""
    stop = threading.Event()
    with events.rollout("t") as rollout:

        def record() -> None:
            while not stop.wait(0.0005):
                rollout.reward(0.5)

        def work() -> str:
            rollout.reward(0.25)
            events.close()
            return "stored"

        recording = [threading.Thread(target=record) for _ in range(3)]
        for thread in recording:
            thread.start()
        said = {in_child(work) for _ in range(25)}
        stop.set()
        for thread in recording:
            thread.join()
    assert said == {"stored"}
    events.flush()
    assert kinds(events.url, "fork").count("SourceEnded") == 25


def test_fork_waits_for_a_gate_only_so_long(monkeypatch):
    monkeypatch.setattr(forks, "GATES_S", 0.1)
    gate = forks.new_gate()
    with gate:
        assert in_child(lambda: "forked") == "forked"
    assert in_child(lambda: "forked") == "forked"
    assert not gate.locked()
