"""The demo's processes: their failures are told with what they wrote, and none of them is left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import wait_until

from rolloutlog.consumers.demo.children import ChildFailed, Children
from rolloutlog.consumers.demo.policy import first_weights
from rolloutlog.consumers.demo.weights import save_weights

LEAVES_AT_ONCE = """
import os, sys
from pathlib import Path
from rolloutlog.consumers.demo.children import Children
children = Children(Path(sys.argv[1]))
children.start("assembler", "assemble", sys.argv[2])
print(children._running["assembler"].pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    from rolloutlog.eventstore import EventPublisher

    url = f"sqlite:///{tmp_path}/log.db"
    EventPublisher.open(url, create=True).close()
    return url


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_child_that_fails_is_told_with_what_it_wrote(tmp_path: Path):
    with Children(tmp_path) as children:
        children.start("host-0", "nonsense", "sqlite:///none.db")
        with pytest.raises(ChildFailed) as failed:
            children.wait("host-0", timeout_s=30)
    assert "host-0 ended with exit code 1; host-0 wrote this:\n  role: expected host" in str(failed.value)


def test_child_takes_no_file_of_the_folder_it_is_started_in_for_a_module(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
):
    """`python -m` would, and the demo is run anywhere."""
    (tmp_path / "selectors.py").write_text("raise SystemExit('the wrong file')")
    monkeypatch.chdir(tmp_path)
    with Children(tmp_path) as children:
        children.start("host-0", "nonsense", url)
        with pytest.raises(ChildFailed, match="role: expected host, assemble or train"):
            children.wait("host-0", timeout_s=30)


def test_child_that_does_not_end_in_time_is_told_by_name(tmp_path: Path, url: str):
    with Children(tmp_path) as children:
        children.start("assembler", "assemble", url)
        with pytest.raises(ChildFailed, match=r"assembler did not end within 0 s"):
            children.wait("assembler", timeout_s=0)


def test_wait_for_a_child_ends_when_another_one_fails(tmp_path: Path, url: str):
    with Children(tmp_path) as children:
        children.start("assembler", "assemble", url)
        children.start("trainer", "nonsense", url)
        with pytest.raises(ChildFailed, match="trainer ended with exit code 1"):
            children.wait("assembler", timeout_s=30)


def test_children_are_all_ended_when_the_block_is_left_by_an_error(tmp_path: Path, url: str):
    children = Children(tmp_path)

    def interrupted() -> None:
        with children:
            children.start("assembler", "assemble", url)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert children._running["assembler"].poll() is not None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_child_ends_when_the_process_that_started_it_is_killed(tmp_path: Path, url: str):
    parent = subprocess.Popen(
        [sys.executable, "-c", LEAVES_AT_ONCE, str(tmp_path), url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    parent.communicate()
    wait_until(lambda: not is_running(pid), "the end of the child")


def test_child_that_is_told_to_stop_while_it_starts_ends_with_0(tmp_path: Path, url: str):
    save_weights(tmp_path, 0, first_weights())
    with Children(tmp_path) as children:
        children.start("host-0", "host", url, str(tmp_path), "0", "7")
        children.stop("host-0")
        children.wait("host-0", timeout_s=30)
    assert (tmp_path / "host-0.log").read_text() == ""


def test_written_tells_what_each_process_wrote(tmp_path: Path):
    with Children(tmp_path) as children:
        children.start("host-0", "nonsense", "sqlite:///none.db")
        children.start("host-1", "nonsense", "sqlite:///none.db")
        for name in ("host-0", "host-1"):
            with pytest.raises(ChildFailed):
                children.wait(name, timeout_s=30)
        wait_until(lambda: children.written().count("got 'nonsense'") == 2, "what both wrote")
        assert children.written().startswith("; host-0 wrote this:\n  role: expected")
        assert "; host-1 wrote this:\n  role: expected" in children.written()
