"""What the embedded log promises beyond the port: its file."""

import asyncio
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rolloutlog.eventstore.errors import InvalidSettings, LogMissing, LogUnavailable, OffsetOutOfRange, StoreError
from rolloutlog.eventstore.log import (
    BATCHES,
    EVENTS,
    NewRecord,
    Position,
    TopicSettings,
    filesystem,
    open_log,
    sqlite,
    sqlite_file,
    sqlite_watch,
)
from rolloutlog.eventstore.log.filesystem import mount_of, refuse_network_file_system
from rolloutlog.eventstore.log.sqlite import SqliteLog, SqliteReader
from rolloutlog.eventstore.log.sqlite_records import read

WRITER = Path(__file__).with_name("writer.py")
MIB = 1024 * 1024


def url_of(path: Path, options: str = "") -> str:
    return f"sqlite:///{path}{options}"


async def make_log(path: Path, options: str = "", **more) -> SqliteLog:
    log = await SqliteLog.open(url_of(path, options), create=True, **more)
    await log.create([TopicSettings(EVENTS, 2, None, 8 * MIB), TopicSettings(BATCHES, 2, None, 8 * MIB)])
    return log


def event(value: bytes, partition: int = 0) -> NewRecord:
    return NewRecord(EVENTS, partition, b"key", value)


def make_file(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


async def count(log: SqliteLog, topic: str = EVENTS) -> int:
    found = (await log.ranges(topic, [0]))[0]
    return found.end - found.first


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


# the path


async def test_open_of_missing_file_names_the_command_that_makes_it(path: Path):
    with pytest.raises(LogMissing, match=r"log\.db: there is no such file.*rolloutlog topics create --log sqlite:///"):
        await open_log(url_of(path))
    assert content(path) is None


async def test_open_in_missing_directory_names_it(tmp_path: Path):
    with pytest.raises(InvalidSettings, match=r"expected an existing directory, .*nowhere is none"):
        await open_log(url_of(tmp_path / "nowhere" / "log.db"), create=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x" * 300, "File name too long"),
        ("/".join(["x" * 200] * 30), "expected a path of at most 504 bytes"),
        ("a\0b", "embedded null byte"),
        ("a\ud800b", "surrogates not allowed"),
    ],
    ids=["long name", "long path", "NUL", "surrogate"],
)
@pytest.mark.parametrize("create", [False, True])
def test_open_of_a_path_that_no_file_can_have_is_refused(tmp_path: Path, name: str, expected: str, create: bool):
    with pytest.raises(InvalidSettings, match=expected):
        asyncio.run(open_log(f"sqlite:///{tmp_path}/{name}", create=create))
    assert list(tmp_path.iterdir()) == []


async def test_open_of_the_longest_path_works(tmp_path: Path):
    left = sqlite_file.PATH_BYTES_MAX - len(os.fsencode(tmp_path)) - 2
    directory = tmp_path / ("d" * (left - left // 2))
    directory.mkdir()
    await (await make_log(directory / ("f" * (left // 2)))).close()
    with pytest.raises(InvalidSettings, match="expected a path of at most 504 bytes, got 505"):
        await make_log(directory / ("f" * (left // 2 + 1)))


async def test_open_of_a_directory_is_refused(tmp_path: Path):
    with pytest.raises(InvalidSettings, match="expected a file, got a directory"):
        await open_log(url_of(tmp_path), create=True)


async def test_open_of_relative_path_stays_with_its_file_when_the_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    log = await open_log("sqlite:///here.db", create=True)
    await log.create([TopicSettings(EVENTS, 1, None, 1000)])
    monkeypatch.chdir("/")
    reader = await log.reader(EVENTS, {0: 0})
    await log.append([event(b"a")])
    assert [record.value for record in await reader.fetch(wait_s=5)] == [b"a"]
    await log.close()
    assert (tmp_path / "here.db").exists()


async def test_open_of_path_with_odd_characters_uses_that_path(tmp_path: Path):
    path = tmp_path / "100% #ü log.db"
    await (await make_log(path)).close()
    assert path.exists()


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite:///a.db?mode=ro", "sqlite:///a.db?busy_timeout_s=x"])
async def test_open_of_unusable_url_says_what_is_expected(url: str):
    with pytest.raises(InvalidSettings, match="expected"):
        await open_log(url, create=True)


# file systems

MOUNTS = r"""
/dev/root / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
filer:/home /home nfs4 rw,vers=4.2 0 0
/dev/sdb1 /home/local xfs rw 0 0
user@host:/ /mnt/my\040disk fuse.sshfs rw 0 0
/dev/sdc1 /data ext4 rw 0 0
weka /data lustre rw 0 0
portal /run/user/doc fuse.portal rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/log.db", "nfs4"),
        ("/home/local/log.db", "xfs"),
        ("/homestead/log.db", "ext4"),
        ("/tmp/log.db", "tmpfs"),
        ("/mnt/my disk/log.db", "fuse.sshfs"),
        ("/data/log.db", "lustre"),
    ],
)
def test_mount_of_path_is_the_innermost_and_last(path: str, kind: str):
    mount = mount_of(path, MOUNTS)
    assert mount is not None
    assert mount.kind == kind


@pytest.mark.parametrize(
    "kind",
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "lustre",
        "glusterfs",
        "beegfs",
        "gpfs",
        "fuse.sshfs",
    ],
)
def test_network_file_system_is_refused_by_name(kind: str):
    with pytest.raises(InvalidSettings, match=rf"got {kind} \(mounted on /\).*local disk, or a kafka:// log"):
        refuse_network_file_system("/x/log.db", f"server:/ / {kind} rw 0 0")


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "apfs", "fuse.portal", "fuseblk"])
def test_local_file_system_is_accepted(kind: str):
    refuse_network_file_system("/x/log.db", f"/dev/sda / {kind} rw 0 0")


def test_file_system_without_mount_table_is_accepted():
    refuse_network_file_system("/x/log.db", "")


def test_read_mounts_where_there_is_no_table_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(filesystem, "MOUNTS_FILE", str(tmp_path / "none"))
    assert filesystem.read_mounts() == ""


async def test_open_on_network_file_system_makes_no_file(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite_file, "read_mounts", lambda: "server:/ / nfs4 rw 0 0")
    with pytest.raises(InvalidSettings, match="got nfs4"):
        await open_log(url_of(path), create=True)
    assert content(path) is None


# what is in the file


@pytest.mark.parametrize("create", [False, True])
async def test_open_of_a_file_that_is_no_database_leaves_it_alone(path: Path, create: bool):
    make_file(path, b"step,reward\n" * 1000)
    with pytest.raises(InvalidSettings, match="got a file that is no SQLite database"):
        await open_log(url_of(path), create=create)
    assert content(path) == b"step,reward\n" * 1000


@pytest.mark.parametrize("create", [False, True])
async def test_open_of_another_programs_database_leaves_it_alone(path: Path, create: bool):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE cookies (name TEXT)")
    connection.close()
    before = content(path)
    with pytest.raises(InvalidSettings, match="another program's SQLite database"):
        await open_log(url_of(path), create=create)
    assert content(path) == before


async def test_open_of_newer_format_says_to_upgrade(path: Path):
    await (await make_log(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(StoreError, match=r"expected format 1, got 2; a newer rolloutlog wrote it: upgrade"):
        await open_log(url_of(path), create=True)


async def test_open_of_empty_file_without_create_is_log_missing(path: Path):
    make_file(path, b"")
    with pytest.raises(LogMissing, match="the file is empty"):
        await open_log(url_of(path))


async def test_open_with_create_finishes_a_creation_that_broke_off(path: Path):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    log = await make_log(path)
    assert await log.partitions(EVENTS) == 2
    await log.close()


async def test_open_of_a_damaged_file_says_so(path: Path):
    log = await make_log(path)
    await log.append([event(b"x" * 1000) for _ in range(1000)])
    await log.close()
    with path.open("r+b") as file:
        file.seek(2 * sqlite_file.PAGE_BYTES)
        file.write(b"\xaa" * 20 * sqlite_file.PAGE_BYTES)
    log = await SqliteLog.open(url_of(path), create=False)
    with pytest.raises(StoreError, match=r"log\.db: damaged"):
        await log.append([event(b"a")])
    await log.close()


async def test_new_file_has_wal_and_pages_of_16_kib(path: Path):
    await (await make_log(path)).close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA page_size").fetchone() == (16_384,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.parametrize(("options", "level"), [("", 2), ("?synchronous=full", 2), ("?synchronous=normal", 1)])
async def test_synchronous_is_full_unless_the_url_says_otherwise(path: Path, options: str, level: int):
    log = await make_log(path, options)
    assert await log._database.run(lambda c: c.execute("PRAGMA synchronous").fetchone()) == (level,)
    await log.close()


def test_creation_by_several_processes_at_once_makes_one_log(path: Path):
    writers = [
        subprocess.Popen(
            [sys.executable, str(WRITER), "create", url_of(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
        writer.stdin = None
    made = [writer.communicate(timeout=60)[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 6
    assert sorted(name for names in made for name in names) == ["batches", "dead-letters", "events"]


# faults


async def test_append_on_full_disk_stores_nothing_and_works_again_with_space(path: Path):
    log = await make_log(path)
    await log.append([event(b"before")])
    (pages,) = await log._database.run(lambda c: c.execute("PRAGMA page_count").fetchone())
    await log._database.run(lambda c: c.execute(f"PRAGMA max_page_count={pages + 5}").fetchall())
    with pytest.raises(LogUnavailable, match="disk full; nothing of this request was stored; free space") as error:
        await log.append([event(b"x" * 100_000) for _ in range(10)])
    assert error.value.retriable
    assert not error.value.maybe_stored
    assert await count(log) == 1
    await log._database.run(lambda c: c.execute("PRAGMA max_page_count=1000000").fetchall())
    await log.append([event(b"x" * 100_000) for _ in range(10)])
    assert await count(log) == 11
    await log.close()


def run_python(program: str, *arguments: str, timeout_s: float = 60) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments], capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_append_that_the_system_breaks_off_half_way_leaves_earlier_records(path: Path):
    program = """
        import asyncio, resource, sys
        from rolloutlog.eventstore.errors import LogUnavailable
        from rolloutlog.eventstore.log import NewRecord, TopicSettings, open_log

        async def main():
            log = await open_log(sys.argv[1], create=True)
            await log.create([TopicSettings("events", 1, None, 1 << 20)])
            await log.append([NewRecord("events", 0, None, b"before")])
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
            try:
                await log.append([NewRecord("events", 0, None, b"x" * 100_000) for _ in range(50)])
            except LogUnavailable as error:
                print("maybe stored:", error.maybe_stored, error)
            print("after the fault:", await log.ranges("events", [0]))
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            await log.append([NewRecord("events", 0, None, b"after")])
            reader = await log.reader("events", {0: 0})
            print([record.value for record in await reader.fetch(wait_s=5)])
            await log.close()

        asyncio.run(main())
    """
    fault, after, records = run_python(program, url_of(path)).splitlines()
    assert fault.startswith("maybe stored: True")
    assert "reading or writing failed" in fault
    assert after == "after the fault: {0: Range(first=0, end=1, written=1)}"
    assert records == "[b'before', b'after']"


def test_log_that_this_user_may_not_write_says_so():
    program = """
        import asyncio, os, sys
        from pathlib import Path
        from rolloutlog.eventstore.errors import LogUnavailable
        from rolloutlog.eventstore.log import NewRecord, TopicSettings, open_log
        from rolloutlog.eventstore.log.sqlite import SqliteLog

        async def main():
            path = Path(sys.argv[1])
            log = await open_log(f"sqlite:///{path}", create=True)
            await log.create([TopicSettings("events", 1, None, 1 << 20)])
            await log.close()
            path.chmod(0o444)
            path.parent.chmod(0o555)
            if os.geteuid() == 0:
                os.setuid(65534)
            try:
                log = await open_log(f"sqlite:///{path}")
                await log.append([NewRecord("events", 0, None, b"a")])
            except LogUnavailable as error:
                print(error)

        asyncio.run(main())
    """
    with tempfile.TemporaryDirectory() as directory:
        inner = Path(directory, "log")
        inner.mkdir()
        os.chmod(directory, 0o755)
        output = run_python(program, str(inner / "log.db"))
        inner.chmod(0o755)
    assert "log.db: not writable; expected a file and a directory this user can write" in output


async def test_append_while_another_process_holds_the_lock_is_unavailable_and_works_after(path: Path):
    log = await make_log(path, "?busy_timeout_s=0.2")
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(LogUnavailable, match=r"locked by another process for more than 0\.2 s; nothing"):
        await log.append([event(b"a")])
    blocker.execute("ROLLBACK")
    blocker.close()
    await log.append([event(b"b")])
    assert await count(log) == 1
    await log.close()


async def test_append_waits_for_a_lock_that_is_released_in_time(path: Path):
    log = await make_log(path)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    append = asyncio.create_task(log.append([event(b"a")]))
    done, _ = await asyncio.wait([append], timeout=0.2)
    assert not done
    blocker.execute("ROLLBACK")
    blocker.close()
    assert [place.offset for place in await append] == [0]
    await log.close()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock, as another process would."""
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    yield
    blocker.execute("ROLLBACK")
    blocker.close()


async def test_append_that_finds_the_log_locked_says_that_nothing_was_stored(path: Path):
    log = await make_log(path, "?busy_timeout_s=0.5")
    start = time.monotonic()
    with locked(path), pytest.raises(LogUnavailable, match=r"locked by another process for more than 0\.5 s") as error:
        await log.append([event(b"a")])
    assert 0.5 <= time.monotonic() - start < 5.0
    assert not error.value.maybe_stored
    assert await count(log) == 0
    await log.close()


async def test_close_while_the_log_is_locked_ends_all_calls_at_once(path: Path):
    log = await make_log(path)
    with locked(path):
        calls = [asyncio.create_task(log.append([event(b"a")])) for _ in range(5)]
        await asyncio.sleep(0.1)
        start = time.monotonic()
        await log.close()
        running, *waiting = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - start < 2.0
    assert isinstance(running, LogUnavailable)
    assert "locked by another process, and closed meanwhile; nothing of this request was stored" in str(running)
    assert not running.maybe_stored
    assert {str(error).partition(": ")[2] for error in waiting} == {"this log or reader is closed"}
    log = await SqliteLog.open(url_of(path), create=False)
    assert await count(log) == 0
    await log.close()


async def test_calls_cancelled_while_the_log_is_locked_store_nothing_and_end_soon(path: Path):
    log = await make_log(path)
    with locked(path):
        calls = [asyncio.create_task(log.append([event(b"a")])) for _ in range(5)]
        await asyncio.sleep(0.1)
        for call in calls:
            call.cancel()
        start = time.monotonic()
        assert await count(log) == 0  # its turn comes when they have ended
        assert time.monotonic() - start < 2.0
    await log.append([event(b"b")])
    assert await count(log) == 1
    await log.close()


async def test_open_cancelled_while_the_file_is_locked_ends_soon(path: Path):
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    opening = asyncio.create_task(SqliteLog.open(url_of(path), create=True))
    await asyncio.sleep(0.1)
    start = time.monotonic()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert time.monotonic() - start < 2.0
    blocker.close()


async def test_many_writers_all_get_their_turn(path: Path):
    logs = [await make_log(path) for _ in range(8)]

    async def write(log: SqliteLog) -> float:
        longest_s = 0.0
        for _ in range(25):
            start = time.monotonic()
            await log.append([event(b"x" * 10_000) for _ in range(20)])
            longest_s = max(longest_s, time.monotonic() - start)
        return longest_s

    longest_s = await asyncio.gather(*map(write, logs))
    assert await count(logs[0]) == 8 * 25 * 20
    assert max(longest_s) < 20.0
    for log in logs:
        await log.close()


async def test_owner_after_unavailable_commit_refuses_and_a_new_one_works(path: Path):
    log = await make_log(path, "?busy_timeout_s=0.2")
    owner = await log.own("app", EVENTS, 0)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(LogUnavailable, match="locked"):
        await owner.commit([event(b"a")], {0: Position(1, "")})
    blocker.execute("ROLLBACK")
    blocker.close()
    with pytest.raises(
        StoreError, match="result of an earlier commit is unknown; nothing was stored; take a new owner"
    ):
        await owner.commit([event(b"a")], {0: Position(1, "")})
    owner = await log.own("app", EVENTS, 0)
    assert await owner.positions() == {}
    await owner.commit([event(b"a")], {0: Position(1, "")})
    assert await count(log) == 1
    await log.close()


async def test_owner_after_a_cancelled_commit_refuses(path: Path):
    log = await make_log(path)
    owner = await log.own("app", EVENTS, 0)
    commit = asyncio.create_task(owner.commit([event(b"a")], {0: Position(1, "")}))
    await asyncio.sleep(0)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    with pytest.raises(StoreError, match="take a new owner"):
        await owner.commit([event(b"b")], {0: Position(2, "")})
    await log.close()


async def test_commit_by_closed_owner_stores_nothing(path: Path):
    log = await make_log(path)
    owner = await log.own("app", EVENTS, 0)
    await owner.close()
    with pytest.raises(StoreError, match="it is closed; nothing was stored"):
        await owner.commit([event(b"a")], {0: Position(1, "")})
    assert await count(log) == 0
    await log.close()


async def test_fenced_names_who_took_over(path: Path):
    log = await make_log(path, clock=lambda: 1_700_000_000_000_000_000)
    old = await log.own("app", EVENTS, 1)
    await log.own("app", EVENTS, 1)
    with pytest.raises(
        StoreError,
        match=rf"owner of events/1 for app: expected epoch 1, got 2: host .*, pid {os.getpid()} took over at "
        rf"2023-11-14T22:13:20\+00:00; nothing of this transaction was stored",
    ):
        await old.commit([], {1: Position(1, "")})
    await log.close()


async def test_whole_topic_owner_fenced_names_who_took_over(path: Path):
    log = await make_log(path, clock=lambda: 1_700_000_000_000_000_000)
    old = await log.own("app", EVENTS, None)
    await log.own("app", EVENTS, None)
    with pytest.raises(
        StoreError,
        match=rf"owner of all of events for app: expected epoch 1, got 2: host .*, pid {os.getpid()} took over at "
        rf"2023-11-14T22:13:20\+00:00; nothing of this transaction was stored",
    ):
        await old.commit([], {1: Position(1, "")})
    await log.close()


async def test_append_after_close_says_closed(path: Path):
    log = await make_log(path)
    await log.close()
    with pytest.raises(StoreError, match="this log or reader is closed"):
        await log.append([event(b"a")])


def test_log_used_after_a_fork_says_to_open_it_again(path: Path):
    """Without the check the child would wait for ever for a thread that it does not have."""
    program = """
        import asyncio, os, sys
        from rolloutlog.eventstore.errors import StoreError
        from rolloutlog.eventstore.log import TopicSettings, open_log

        log = asyncio.run(open_log(sys.argv[1], create=True))
        asyncio.run(log.create([TopicSettings("events", 1, None, 1 << 20)]))
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            asyncio.run(log.close())
        else:
            try:
                asyncio.run(log.partitions("events"))
            except StoreError as error:
                print(error, flush=True)
            os._exit(0)
    """
    assert "before a fork; open it again here" in run_python(program, url_of(path))


@pytest.mark.parametrize("again", [False, True])
async def test_file_removed_while_open_is_an_error(path: Path, again: bool):
    log = await make_log(path)
    reader = await log.reader(EVENTS, {0: 0})
    owner = await log.own("app", EVENTS, 0)
    for file in path.parent.iterdir():
        file.unlink()
    if again:
        await (await make_log(path)).close()
    expected = "another file was put in its place" if again else "it was removed while it was open"
    with pytest.raises(LogMissing, match=expected):
        await log.append([event(b"a")])
    with pytest.raises(LogMissing, match=expected):
        await owner.commit([event(b"a")], {0: Position(1, "")})
    with pytest.raises(LogMissing, match=expected):
        await reader.fetch(wait_s=10)
    await log.close()


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
async def test_file_beside_the_log_removed_while_open_is_an_error(path: Path, suffix: str, replaced: bool):
    """SQLite writes on into the file that nobody else sees; without the check all would seem to be stored."""
    log = await make_log(path)
    reader = await log.reader(EVENTS, {0: 0})
    owner = await log.own("app", EVENTS, 0)
    assert await reader.fetch(wait_s=0) == []
    beside = path.with_name(path.name + suffix)
    beside.rename(path.with_name("moved"))  # and not removed: the next file would often get its number
    if replaced:
        beside.touch()
    expected = rf"log\.db{suffix}: {'another file was put in its place' if replaced else 'it was removed'} while it was"
    with pytest.raises(LogMissing, match=expected):
        await log.append([event(b"a")])
    with pytest.raises(LogMissing, match=expected):
        await owner.commit([event(b"a")], {0: Position(1, "")})
    with pytest.raises(LogMissing, match=expected):
        await reader.fetch(wait_s=10)
    await log.close()


async def test_file_beside_a_log_behind_a_link_is_looked_for_where_it_is(path: Path, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(path)
    log = await make_log(link)
    await log.append([event(b"a")])
    (tmp_path / "log.db-wal").unlink()
    with pytest.raises(LogMissing, match=r"log\.db-wal: it was removed"):
        await log.append([event(b"a")])
    await log.close()


def test_process_whose_wal_was_replaced_leaves_the_records_of_others_when_it_ends(path: Path):
    """On closing, SQLite would write its own old pages over theirs and remove their files."""
    program = """
        import asyncio, sys
        from rolloutlog.eventstore.errors import LogMissing
        from rolloutlog.eventstore.log import NewRecord, open_log

        async def main():
            log = await open_log(sys.argv[1])
            reader = await log.reader("events", {0: 0})
            await log.append([NewRecord("events", 0, None, b"lost") for _ in range(10)])
            print("ready", flush=True)
            sys.stdin.readline()
            try:
                await log.append([NewRecord("events", 0, None, b"lost")])
            except LogMissing:
                print("told")
            await log.close()

        asyncio.run(main())
    """

    async def others(values: list[bytes]) -> list[bytes | None]:
        log = await make_log(path)
        await log.append([event(value) for value in values])
        reader = await log.reader(EVENTS, {0: 0})
        found = [record.value for record in await reader.fetch(wait_s=0)]
        await log.close()
        return found

    asyncio.run(others([b"before"]))
    first = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), url_of(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "ready\n"
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink()
    assert asyncio.run(others([b"kept"] * 3)) == [b"before", b"kept", b"kept", b"kept"]
    assert first.communicate("\n", timeout=60)[0] == "told\n"
    assert first.returncode == 0
    assert asyncio.run(others([])) == [b"before", b"kept", b"kept", b"kept"]


# waiting


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions of every query of a fetch."""
    seen: list[int] = []

    def count_and_read(topic, wanted, *more):
        seen.extend(partition for partition, _ in wanted)
        return read(topic, wanted, *more)

    monkeypatch.setattr(sqlite, "read", count_and_read)
    return seen


async def test_fetch_that_times_out_again_queries_nothing(path: Path, reads: list[int]):
    log = await make_log(path)
    readers = [await log.reader(EVENTS, {0: 0, 1: 0}) for _ in range(5)]
    for reader in readers:
        assert await reader.fetch(wait_s=0) == []
    reads.clear()
    for _ in range(3):
        assert await asyncio.gather(*(reader.fetch(wait_s=0.2) for reader in readers)) == [[]] * 5
    assert reads == []
    await log.close()


async def test_record_wakes_only_the_readers_of_its_partition(path: Path, reads: list[int]):
    log = await make_log(path)
    readers = [await log.reader(EVENTS, {partition: 0}) for partition in (0, 1)]
    for reader in readers:
        assert await reader.fetch(wait_s=0) == []
    reads.clear()
    fetches = [asyncio.create_task(reader.fetch(wait_s=1.0)) for reader in readers]
    await asyncio.sleep(0.1)
    await log.append([event(b"a", 1)])
    assert [[record.value for record in found] for found in await asyncio.gather(*fetches)] == [[], [b"a"]]
    assert reads == [1]
    await log.close()


async def test_file_is_looked_at_only_while_a_fetch_waits(path: Path):
    log = await make_log(path)
    reader = await log.reader(EVENTS, {0: 0})
    assert await reader.fetch(wait_s=0) == []
    assert await reader.fetch(wait_s=0.3) == []
    await asyncio.sleep(0.1)
    looks = log._watch._begun
    assert 2 <= looks <= 12  # the pauses grow
    await asyncio.sleep(0.3)
    assert log._watch._begun == looks
    await log.close()


@pytest.mark.parametrize("by", ["the same log object", "another one"])
async def test_record_reaches_a_fetch_that_waits_within_the_longest_pause(path: Path, by: str):
    log = await make_log(path)
    writer = log if by == "the same log object" else await make_log(path)
    reader = await log.reader(EVENTS, {0: 0})
    delays_s = []
    for number in range(20):
        assert await reader.fetch(wait_s=0) == []
        fetch = asyncio.create_task(reader.fetch(wait_s=10))
        await asyncio.sleep(0.15 + 0.003 * number)  # until the pauses are at their longest
        start = time.monotonic()
        await writer.append([event(b"a")])
        assert len(await fetch) == 1
        delays_s.append(time.monotonic() - start)
    assert statistics.median(delays_s) < sqlite_watch.POLL_S_MAX + 0.01
    await writer.close()
    await log.close()


@pytest.mark.parametrize("wait_s", [0.0, 1e-9, 0.001, 0.06, 5.0])
async def test_fetch_after_an_empty_one_finds_what_was_stored_before_it_however_short_its_wait(
    path: Path, wait_s: float
):
    log = await make_log(path)
    other, reader = await log.reader(EVENTS, {1: 0}), await log.reader(EVENTS, {0: 0})
    assert await other.fetch(wait_s=0) == []
    waiting = asyncio.create_task(other.fetch(wait_s=60))  # the watch is in a long pause
    for number in range(5):
        assert await reader.fetch(wait_s=0) == []
        await asyncio.sleep(0.13)
        await log.append([event(b"%d" % number)])
        assert [record.value for record in await reader.fetch(wait_s=wait_s)] == [b"%d" % number]
    waiting.cancel()
    await log.close()


async def test_fetch_that_waits_learns_that_its_offset_was_cut_off(path: Path):
    log = await make_log(path)
    reader = await log.reader(EVENTS, {0: 0})
    assert await reader.fetch(wait_s=0) == []
    fetch = asyncio.create_task(reader.fetch(wait_s=10))
    await asyncio.sleep(0.1)
    with sqlite3.connect(path) as other:  # at one moment, as when a reader slept through both
        other.execute("UPDATE partitions SET first_offset = 7, next_offset = 7 WHERE topic = 'events'")
    other.close()
    with pytest.raises(OffsetOutOfRange, match="expected an offset from 7 to 7, got 0"):
        await fetch
    await log.close()


@pytest.mark.parametrize("what", ["reader", "log"])
async def test_fetch_that_waits_when_it_is_closed_says_so(path: Path, what: str):
    log = await make_log(path)
    reader = await log.reader(EVENTS, {0: 0})
    assert await reader.fetch(wait_s=0) == []
    fetch = asyncio.create_task(reader.fetch(wait_s=60))
    await asyncio.sleep(0.1)
    await (reader if what == "reader" else log).close()
    with pytest.raises(StoreError, match="this log or reader is closed"):
        await asyncio.wait_for(fetch, 5)
    await log.close()


def test_log_used_in_one_event_loop_after_another_waits_in_each(path: Path):
    async def step(log: SqliteLog | None, reader: SqliteReader | None) -> tuple[SqliteLog, SqliteReader]:
        log = log or await make_log(path)
        reader = reader or await log.reader(EVENTS, {0: 0})
        assert await reader.fetch(wait_s=0.1) == []
        fetch = asyncio.create_task(reader.fetch(wait_s=10))
        await asyncio.sleep(0.1)
        await log.append([event(b"a")])
        assert len(await fetch) == 1
        assert await reader.fetch(wait_s=0.1) == []
        asyncio.create_task(reader.fetch(wait_s=10))  # noqa: RUF006 cancelled with its loop
        await asyncio.sleep(0.1)
        return log, reader

    made = asyncio.run(step(None, None))
    made = asyncio.run(step(*made))
    asyncio.run(made[0].close())


# time, trimming, reading


async def test_clock_set_back_does_not_make_log_time_fall(path: Path):
    times = iter([100, 50, 100, 101])
    log = await make_log(path, clock=lambda: next(times))
    stored = [(await log.append([event(b"a")]))[0].log_time_ns for _ in range(4)]
    assert stored == [100, 100, 100, 101]
    await log.close()


async def test_log_time_is_kept_for_each_partition(path: Path):
    times = iter([100, 50])
    log = await make_log(path, clock=lambda: next(times))
    await log.append([event(b"a", 0)])
    assert [place.log_time_ns for place in await log.append([event(b"b", 0), event(b"c", 1)])] == [100, 50]
    await log.close()


@pytest.mark.parametrize(("before_offset", "left"), [(0, (0, 5)), (3, (3, 5)), (5, (5, 5)), (99, (5, 5)), (-1, (0, 5))])
async def test_trim_leaves_the_records_from_the_offset_on(path: Path, before_offset: int, left: tuple[int, int]):
    log = await make_log(path)
    await log.append([event(b"%d" % i) for i in range(5)])
    await log.append([event(b"other", 1)])
    assert (await log.trim(EVENTS, 0, before_offset))[:2] == left
    assert {p: found[:2] for p, found in (await log.ranges(EVENTS, [0, 1])).items()} == {0: left, 1: (0, 1)}
    reader = await log.reader(EVENTS, {0: left[0]})
    assert [record.offset for record in await reader.fetch(wait_s=0)] == list(range(*left))
    assert [place.offset for place in await log.append([event(b"next")])] == [5]
    await log.close()


async def test_trim_never_moves_back(path: Path):
    log = await make_log(path)
    await log.append([event(b"a") for _ in range(5)])
    await log.trim(EVENTS, 0, 4)
    assert (await log.trim(EVENTS, 0, 2))[:2] == (4, 5)
    await log.close()


async def test_fetch_of_large_records_is_bounded_in_bytes(path: Path):
    log = await make_log(path)
    for partition in (0, 1):
        await log.append([event(bytes(3 * MIB), partition) for _ in range(10)])
    reader = await log.reader(EVENTS, {0: 0, 1: 0})
    seen = []
    while len(seen) < 20:
        records = await reader.fetch(wait_s=0)
        assert 1 <= len(records) <= 7
        seen += records
    assert {record.partition for record in seen[:6]} == {0, 1}
    await log.close()


async def test_fetch_gives_all_room_to_the_partition_that_has_records(path: Path):
    log = await make_log(path)
    await log.append([event(b"a") for _ in range(100)])
    reader = await log.reader(EVENTS, {0: 0, 1: 0})
    assert len(await reader.fetch(wait_s=0, records_max=100)) == 100
    await log.close()


async def test_fetch_reads_all_partitions_at_one_moment(path: Path):
    """A commit that touches two partitions is seen in both or in neither, although they are two queries."""
    log = await make_log(path)
    writer = await SqliteLog.open(url_of(path), create=False)
    owner = await writer.own("app", EVENTS, 0)
    stop = False

    async def write() -> int:
        n = 0
        while not stop:
            await owner.commit([event(b"a", 0), event(b"a", 1)], {0: Position(n, "")})
            n += 1
        return n

    writing = asyncio.create_task(write())
    reader = await log.reader(EVENTS, {0: 0, 1: 0})
    deadline = time.monotonic() + 10
    while reader.position(0) < 500 and time.monotonic() < deadline:
        await reader.fetch(wait_s=1)
        assert reader.position(0) == reader.position(1)
    stop = True
    assert await writing >= 500
    await writer.close()
    await log.close()


async def test_close_leaves_no_thread(path: Path):
    before = set(threading.enumerate())
    log = await make_log(path)
    await log.reader(EVENTS, {0: 0})
    await log.close()
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - before:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_import_of_the_log_loads_neither_a_broker_client_nor_settings_or_screen_libraries():
    program = """
        import sys
        import rolloutlog.eventstore.log.sqlite
        print(sorted({"aiokafka", "pydantic", "rich", "click"} & set(sys.modules)))
    """
    assert run_python(program) == "[]\n"
