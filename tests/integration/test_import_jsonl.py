"""`rolloutlog export jsonl` and `import jsonl`: from one log into another, and by hand."""

import asyncio
import errno
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from integration.test_import import KILLED, Commands, Line, line, records, shared_data, written
from support.building import (
    SECOND_NS,
    call,
    completed,
    expired,
    record,
    reward,
    run_ended,
    started,
)

from rolloutlog.consumers.importing import loading
from rolloutlog.eventstore.errors import InvalidSettings, LogUnavailable
from rolloutlog.eventstore.events import Event, GroupClosed, RolloutExpired
from rolloutlog.eventstore.log import BATCHES, DEAD_LETTERS, EVENTS, NewRecord, Record, open_log
from rolloutlog.eventstore.partitioner import partition_of
from rolloutlog.eventstore.topics import create_topics


@pytest.fixture
def one(tmp_path: Path) -> Commands:
    """The log that is exported from."""
    (tmp_path / "one").mkdir()
    return Commands(tmp_path / "one")


@pytest.fixture
def two(tmp_path: Path) -> Commands:
    """The log that is imported into."""
    (tmp_path / "two").mkdir()
    return Commands(tmp_path / "two")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def store(commands: Commands, entries: Sequence[Event | NewRecord], *, partitions: int = 4, key: str = "g") -> None:
    """Append events or records, in their order, to a log that is made when it is missing."""

    async def append() -> None:
        log = await open_log(commands.url, create=True)
        try:
            await create_topics(log, partitions=partitions)
            await log.append([each if isinstance(each, NewRecord) else new(each, key, partitions) for each in entries])
        finally:
            await log.close()

    asyncio.run(append())


def new(event: Event, key: str = "g", partitions: int = 4, *, resend: bool = False) -> NewRecord:
    made = record(event, 0, key=key, resend=resend)
    return NewRecord(EVENTS, partition_of(key.encode(), partitions), made.key, made.value, made.headers)


def pair(*, first: Sequence[Event] = (), second: Sequence[Event] = ()) -> list[Event]:
    """A group of two rollouts; what comes after the first's and the second's call."""
    return [
        started("r", 0, group_size=2),
        started("s", 0, group_size=2),
        call("c", 1, "r"),
        call("c", 1, "s"),
        *(first or [reward(2, "r", scope="rollout"), completed(3, "r")]),
        *(second or [reward(2, "s", scope="rollout", value=0.0), completed(3, "s")]),
    ]


def export(commands: Commands, file: Path, *arguments: str) -> list[Line]:
    done = commands.run("export", "jsonl", str(file), *arguments)
    assert done.exit_code == 0, done.stderr
    return [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]


def load(commands: Commands, file: Path, *arguments: str) -> str:
    done = commands.run("import", "jsonl", str(file), *arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def stored(commands: Commands, topic: str = EVENTS) -> list[tuple[Any, ...]]:
    """Partition, key, value and headers of all records."""
    return [(each.partition, each.key, each.value, each.headers) for each in records(commands.url, topic)]


# From one log into another


def test_imported_log_holds_the_same_bytes_and_gives_the_same_dump(one: Commands, two: Commands, file: Path):
    one.load(written(file.with_name("m.jsonl"), *(line(task, trial) for task in "abc" for trial in range(3))))
    events, dump = stored(one), one.dump_all()
    export(one, file)
    said = load(two, file)
    assert stored(two) == events
    assert two.dump_all() == dump
    assert said == (
        "36 events added, 0 were there, of 9 rollouts in 3 groups; left out: 3 closings of the other log's assembler; "
        "0 lines refused\n"
    ).replace("36", str(len(events)))


@pytest.mark.parametrize("partitions", [1, 3, 8])
def test_import_into_a_log_of_another_partition_count_gives_the_same_samples(
    one: Commands, two: Commands, file: Path, partitions: int
):
    one.load(written(file.with_name("m.jsonl"), *(line(task, trial) for task in "abcd" for trial in range(2))))
    dump = one.dump_all()
    export(one, file)
    two.run("topics", "create", "--partitions", str(partitions))
    load(two, file)

    def by_id(samples: list[Line]) -> list[Line]:
        return sorted(samples, key=lambda sample: str(sample["sample_id"]))

    assert by_id(two.dump_all()) == by_id(dump)
    assert {partition for partition, *_ in stored(two)} <= set(range(partitions))


def test_import_again_adds_nothing(one: Commands, two: Commands, file: Path):
    store(one, pair())
    export(one, file)
    load(two, file)
    before = records(two.url, EVENTS)
    assert load(two, file) == "events.jsonl was imported before: 2 rollouts; nothing added\n"
    assert records(two.url, EVENTS) == before


def test_import_into_the_log_that_was_exported_adds_nothing(one: Commands, file: Path):
    store(one, pair())
    export(one, file)
    assert load(one, file).startswith("0 events added, 8 were there")
    assert len(records(one.url, EVENTS)) == 8


def test_exports_that_overlap_store_each_event_once(one: Commands, two: Commands, file: Path):
    store(one, pair())
    export(one, file, "--to", "5")
    load(two, file)
    export(one, file, "--from", "3")
    assert load(two, file).startswith("3 events added, 2 were there")
    assert sorted(stored(two), key=str) == sorted(stored(one), key=str)


def test_export_of_an_import_is_the_export_but_for_log_times_and_offsets(one: Commands, two: Commands, file: Path):
    store(one, pair())
    whole = export(one, file)
    load(two, file)
    again = export(two, file)
    for each in [*whole, *again]:
        del each["log"]["time_ns"]
    assert again == whole


def cut_off_after_one_append(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(loading, "APPEND_RECORDS", 3)
    flush, left = loading.Writer.flush, 1

    async def cut(writer: loading.Writer) -> None:
        nonlocal left
        if left == 0:
            raise LogUnavailable("cut off")
        left -= 1
        await flush(writer)

    patched.setattr(loading.Writer, "flush", cut)


def test_import_cut_off_goes_on_where_it_was(one: Commands, two: Commands, file: Path, monkeypatch: pytest.MonkeyPatch):
    store(one, pair())
    events = stored(one)
    export(one, file)
    with monkeypatch.context() as patched:
        cut_off_after_one_append(patched)
        with pytest.raises(LogUnavailable):
            two.run("import", "jsonl", str(file))
    assert 0 < len(stored(two)) < len(events)
    load(two, file)
    assert stored(two) == events


def test_import_of_tau_bench_killed_half_way_gives_the_same_dump(one: Commands, two: Commands, file: Path):
    assert one.load(shared_data()).exit_code == 0
    dump = one.dump_all()
    export(one, file)
    arguments = ["12", "import", "jsonl", str(file), "--log", two.url]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert 0 < len(records(two.url, EVENTS)) < 973
    load(two, file)
    assert two.dump_all() == dump


# What only held in the other log


def as_of(event: Event) -> int:
    assert isinstance(event, RolloutExpired | GroupClosed)
    assert event.as_of is not None
    return event.as_of


def test_decision_is_moved_to_the_event_that_it_was_made_about(one: Commands, two: Commands, file: Path):
    """The expired rollout would else stay open, and with it its group."""
    store(one, [started("x", 0, group_id="other"), completed(1, "x")], key="other", partitions=1)
    store(one, pair(second=[expired(5, "s")]), partitions=1)
    one.assemble()
    export(one, file, "--group", "g")
    two.run("topics", "create", "--partitions", "1")
    assert "decisions" not in load(two, file)
    two.assemble()
    rollouts = [json.loads(text) for text in two.run("batches", "rollouts").stdout.splitlines()]
    assert {each["rollout_id"]: each["status"] for each in rollouts} == {"r": "group_dropped", "s": "expired"}


def test_decision_about_an_event_that_is_not_in_the_file_is_left_out(one: Commands, two: Commands, file: Path):
    store(one, pair(second=[expired(3, "s")]), partitions=1)
    export(one, file)
    kept = [text for text in file.read_bytes().splitlines(keepends=True) if json.loads(text)["log"]["offset"] != 3]
    written(file, *kept, end=b"")
    two.run("topics", "create", "--partitions", "1")
    assert "left out: 1 decisions about events that are not in the file" in load(two, file)


def test_decision_of_an_import_that_goes_on_is_moved_too(
    one: Commands, two: Commands, file: Path, monkeypatch: pytest.MonkeyPatch
):
    store(one, [started("x", 0, group_id="other")], key="other", partitions=1)
    store(one, pair(second=[expired(4, "s")]), partitions=1)
    export(one, file, "--group", "g")
    two.run("topics", "create", "--partitions", "1")
    with monkeypatch.context() as patched:
        flush, left = loading.Writer.flush, 1

        async def cut(writer: loading.Writer) -> None:
            nonlocal left
            if left == 0:
                raise LogUnavailable("cut off")
            left -= 1
            await flush(writer)

        patched.setattr(loading.Writer, "flush", cut)
        patched.setattr(loading, "APPEND_RECORDS", 4)
        with pytest.raises(LogUnavailable):
            two.run("import", "jsonl", str(file))
    assert "decisions" not in load(two, file)
    decisions = [each for each in records(two.url, EVENTS) if b"RolloutExpired" in (each.headers[0][1] or b"")]
    assert len(decisions) == 1
    assert json.loads(two.run("export", "jsonl", "-").stdout.splitlines()[-1])["as_of"] == 3


def test_start_that_was_sent_again_in_time_still_opens_its_rollout(one: Commands, two: Commands, file: Path):
    """By its age now it would count as too old."""
    first, *rest = pair()
    store(one, [new(first, resend=True), *rest])
    lines = export(one, file)
    assert lines[0]["log"]["flags"] == "r"
    for each in lines:
        each["log"]["time_ns"] = each["time_ns"] + 5 * SECOND_NS
    written(file, *(json.dumps(each).encode() for each in lines))
    load(two, file)
    assert len(two.dump_all()) == 2


def test_event_that_was_stored_twice_is_stored_once(one: Commands, two: Commands, file: Path):
    store(one, [*pair(), completed(3, "s")])
    export(one, file)
    assert load(two, file).startswith("8 events added, 1 were there")


def test_refused_event_is_imported_too_and_keeps_its_rollout_incomplete(one: Commands, two: Commands, file: Path):
    bad = new(call("c", 1, "s"))
    events = pair()
    store(one, [*events[:3], bad._replace(value=b"junk"), *events[4:]])
    dump = one.dump_all()
    export(one, file)
    load(two, file)
    assert two.dump_all() == dump
    rollouts = [json.loads(text) for text in two.run("batches", "rollouts").stdout.splitlines()]
    assert [each["status"] for each in rollouts] == ["group_dropped", "incomplete"]
    assert [each[2] for each in stored(two, DEAD_LETTERS)] == [b"junk"]


def test_record_without_key_or_header_is_imported_as_it_was(one: Commands, two: Commands, file: Path):
    store(one, [NewRecord(EVENTS, 2, None, None, (("n", None),)), NewRecord(EVENTS, 3, b"\xff", b"", ())])
    export(one, file)
    load(two, file)
    assert [each[1:] for each in stored(two)] == [(None, None, (("n", None),)), (b"\xff", b"", ())]


@pytest.mark.parametrize("partitions", [1, 4, 6])
def test_end_of_the_run_reaches_every_partition_of_the_new_log(
    one: Commands, two: Commands, file: Path, partitions: int
):
    ends = [new(run_ended(n))._replace(partition=n, key=b"run/run") for n in range(4)]
    store(one, [*ends[:1], *pair(), *ends[1:]])
    export(one, file)
    two.run("topics", "create", "--partitions", str(partitions))
    load(two, file)
    two.assemble()
    last = {each.partition: each for each in records(two.url, BATCHES)}
    assert {partition: each.key for partition, each in last.items()} == dict.fromkeys(range(partitions), b"run/run")
    assert len({each[3] for each in stored(two) if each[1] == b"run/run"}) == partitions


def test_everything_keeps_every_record_as_it_was(one: Commands, two: Commands, file: Path):
    store(one, [*pair(second=[expired(3, "s")]), completed(3, "s"), completed(3, "s")])
    one.assemble()
    export(one, file)
    load(two, file, "--everything")
    assert stored(two) == stored(one)
    assert "was imported before" in load(two, file, "--everything")


# Files


def test_export_and_import_of_a_compressed_file(one: Commands, two: Commands, tmp_path: Path):
    store(one, pair())
    packed = tmp_path / "events.jsonl.gz"
    assert one.run("export", "jsonl", str(packed)).stdout.endswith("events.jsonl.gz: 8 events\n")
    assert len(gzip.decompress(packed.read_bytes()).splitlines()) == 8
    load(two, packed)
    assert stored(two) == stored(one)


def test_import_of_a_compressed_file_that_was_cut_off_takes_what_is_there(one: Commands, two: Commands, tmp_path: Path):
    one.load(written(tmp_path / "m.jsonl", *(line("a", trial, turns=5) for trial in range(20))))
    packed = tmp_path / "events.jsonl.gz"
    one.run("export", "jsonl", str(packed))
    packed.write_bytes(packed.read_bytes()[:-200])
    done = two.run("import", "jsonl", str(packed))
    assert done.exit_code == 1
    assert "expected gzip data to its end, got damaged or cut off data" in done.stderr
    assert len(stored(two)) > 0


def test_export_to_and_import_from_standard_streams(one: Commands, two: Commands):
    store(one, pair())
    command = [sys.executable, "-m", "rolloutlog"]
    exported = subprocess.run([*command, "export", "jsonl", "-", "--log", one.url], capture_output=True, check=True)
    done = subprocess.run(
        [*command, "import", "jsonl", "-", "--log", two.url], input=exported.stdout, capture_output=True, check=True
    )
    assert done.stdout.startswith(b"8 events added")
    assert stored(two) == stored(one)


def test_export_that_fails_leaves_the_file_as_it_was(one: Commands, file: Path, monkeypatch: pytest.MonkeyPatch):
    store(one, pair())
    file.write_text("before")

    def fail(record: Record) -> str:
        raise LogUnavailable("gone")

    monkeypatch.setattr("rolloutlog.consumers.cli.export.record_line", fail)
    with pytest.raises(LogUnavailable):
        one.run("export", "jsonl", str(file))
    assert file.read_text() == "before"
    assert [each.name for each in file.parent.glob("*.part")] == []


def test_export_to_a_disk_that_is_full_names_the_file_and_leaves_no_part(
    one: Commands, file: Path, monkeypatch: pytest.MonkeyPatch
):
    store(one, pair())

    def fail(record: Record) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rolloutlog.consumers.cli.export.record_line", fail)
    with pytest.raises(OSError, match=r"No space left on device: '.*events.jsonl'"):
        one.run("export", "jsonl", str(file))
    assert list(file.parent.glob(f"{file.name}*")) == []


def test_export_to_a_link_that_leads_to_itself_is_refused(one: Commands, file: Path):
    store(one, pair())
    file.symlink_to(file)
    with pytest.raises(InvalidSettings, match="expected a file, or a name for one, got a link that leads to itself"):
        one.run("export", "jsonl", str(file))


def test_export_takes_the_longest_name_that_a_file_may_have(one: Commands, file: Path):
    store(one, pair())
    assert len(export(one, file.with_name("x" * 255))) == 8


def test_export_takes_partitions_offsets_groups_and_rollouts(one: Commands, file: Path):
    store(one, pair())
    store(one, [started("x", 0, group_id="h"), completed(1, "x")], key="h")
    partition = partition_of(b"g", 4)
    assert partition != partition_of(b"h", 4)

    def exported(*arguments: str) -> list[tuple[str, int]]:
        return [(each["rollout_id"], each["sequence"]) for each in export(one, file, *arguments)]

    assert exported("--group", "h") == [("x", 0), ("x", 1)]
    assert exported("--rollout", "s") == [("s", 0), ("s", 1), ("s", 2), ("s", 3)]
    assert exported("--rollout", "s", "--group", "h", "--from", "1") == [("x", 1), *[("s", n) for n in range(4)]] or (
        exported("--rollout", "s", "--group", "h", "--from", "1") == [*[("s", n) for n in range(4)], ("x", 1)]
    )
    assert exported("--partitions", str(partition), "--from", "2", "--to", "4") == [("r", 1), ("s", 1)]


def test_export_by_log_time_takes_what_was_stored_since(one: Commands, file: Path):
    store(one, pair())
    assert len(export(one, file, "--from", "-1h")) == 8
    assert len(export(one, file, "--to", "-1h")) == 0
    assert len(export(one, file, "--from", "2020-01-01", "--to", "2020-01-02T00:00Z")) == 0


@pytest.mark.parametrize("text", ["yesterday", "2020-01-01T00:00", "-5", "9" * 30])
def test_export_refuses_a_bound_that_is_none(one: Commands, file: Path, text: str):
    store(one, pair())
    with pytest.raises(InvalidSettings, match=r"--from: an offset, or a time: expected ISO 8601"):
        one.run("export", "jsonl", str(file), f"--from={text}")


# Lines written by hand


def hand(*lines: dict[str, Any]) -> list[bytes]:
    return [json.dumps(each).encode() for each in lines]


BY_HAND = hand(
    {"event": "RolloutStarted", "rollout_id": "a", "group_id": "g"},
    {"event": "RolloutStarted", "rollout_id": "b", "group_id": "g"},
    {"event": "Span", "rollout_id": "a", "kind": "call", "prompt_ids": [1, 2], "response_ids": [3]},
    {"event": "Span", "rollout_id": "b", "kind": "call", "prompt_ids": [1, 2], "response_ids": [4, 5]},
    {"event": "RewardRecorded", "rollout_id": "a", "value": 1, "scope": "rollout"},
    {"event": "RolloutCompleted", "rollout_id": "a"},
    {"event": "RolloutCompleted", "rollout_id": "b"},
)


def test_lines_by_hand_need_no_envelope_and_count_their_group(two: Commands, file: Path):
    load(two, written(file, *BY_HAND))
    samples = two.dump_all()
    assert [(each["sample_id"], each["response_ids"], each["total"]) for each in samples] == [
        ("a/0/call-1", [3], 1.0),
        ("b/0/call-1", [4, 5], None),
    ]


def test_lines_by_hand_of_one_rollout_alone_are_a_group_of_one(two: Commands, file: Path):
    lines = hand(
        {"event": "RolloutStarted", "rollout_id": "a"},
        {"event": "Span", "rollout_id": "a", "kind": "call", "prompt_ids": [], "response_ids": [3]},
        {"event": "RolloutCompleted", "rollout_id": "a"},
    )
    load(two, written(file, *lines))
    assert [(each["group_id"], each["response_ids"]) for each in two.dump_all()] == [("a", [3])]


def test_lines_by_hand_cut_off_get_the_same_identities_again(
    two: Commands, file: Path, monkeypatch: pytest.MonkeyPatch
):
    written(file, *BY_HAND)
    with monkeypatch.context() as patched:
        cut_off_after_one_append(patched)
        with pytest.raises(LogUnavailable):
            two.run("import", "jsonl", str(file))
    load(two, file)
    assert len(stored(two)) == 7
    assert len(two.dump_all()) == 2


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"nonsense", "line 8 refused: expected a JSON object, got text that is none"),
        (b"\xff\xfe", "line 8 refused: expected a JSON object, got text that is none"),
        (b"[" * 100_000, "line 8 refused: expected a JSON object, got text that is none"),
        (b"[1]", "line 8 refused: expected a JSON object, got list at $"),
        (b'{"event":"Span","rollout_id":"z","kind":"tool"}', "the rollout's RolloutStarted before it in the file"),
        (b'{"event":"Span","rollout_id":"a","kind":"spam"}', "line 8 refused: Span refused: expected one of agent"),
        (b'{"event":"SourceEnded","rollout_id":["a"]}', "at $.rollout_id"),
        (b'{"event":"SourceEnded","rollout_id":"a","source":["a"],"sequence":1}', "at $.source"),
        (b'{"event":"RolloutStarted","rollout_id":"x","group_id":[1]}', "at $.group_id"),
        (b'{"event":"RolloutStarted","rollout_id":"\\ud800"}', "expected text that UTF-8 can hold"),
        (b'{"event":"SourceEnded","rollout_id":"a","log":{"flags":"?"}}', "expected flags of letters, or -, got '?'"),
        (b'{"event":"RolloutStarted","rollout_id":"x","group_id":"h","log":{"key":"g"}}', "expected the key to be"),
    ],
)
def test_line_that_is_refused_is_named_and_the_rest_imported(two: Commands, file: Path, bad: bytes, said: str):
    done = two.run("import", "jsonl", str(written(file, *BY_HAND, bad)))
    assert done.exit_code == 1
    assert said in done.stderr
    assert len(two.dump_all()) == 2


def test_empty_file_adds_nothing_and_a_folder_is_refused(two: Commands, file: Path):
    assert load(two, written(file)).startswith("0 events added")
    done = two.run("import", "jsonl", str(file.parent))
    assert done.exit_code == 2
    assert "is a directory" in done.stderr


def test_a_pipe_is_refused_and_standard_input_named(two: Commands, tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidSettings, match="give - and send it to standard input"):
        two.run("import", "jsonl", str(pipe))
