"""The thread of a connection: order, errors, and its end."""

import threading
from concurrent.futures import CancelledError

import pytest

from rolloutlog.eventstore.log.sqlite_thread import WorkThread


class Late(Exception):
    pass


def blocked_thread() -> tuple[WorkThread, threading.Event]:
    """A thread whose work waits for the event."""
    thread, go_on = WorkThread("test", Late), threading.Event()
    began = threading.Event()
    thread.submit(lambda: (began.set(), go_on.wait(60)))
    began.wait(60)
    return thread, go_on


def test_work_is_done_in_order_in_one_thread():
    thread = WorkThread("test", Late)
    done: list[tuple[int, int]] = []
    futures = [thread.submit(lambda n=n: done.append((n, threading.get_ident()))) for n in range(100)]
    for future in futures:
        future.result(60)
    assert [n for n, _ in done] == list(range(100))
    assert len({ident for _, ident in done}) == 1
    thread.end(lambda: None)


def test_error_of_work_goes_to_its_caller_and_the_thread_goes_on():
    thread = WorkThread("test", Late)
    with pytest.raises(ZeroDivisionError):
        thread.submit(lambda: 1 // 0).result(60)
    assert thread.submit(lambda: 5).result(60) == 5
    thread.end(lambda: None)


def test_cancelled_work_that_has_not_begun_is_not_done():
    thread, go_on = blocked_thread()
    done: list[str] = []
    future = thread.submit(lambda: done.append("work"))
    future.cancel()
    go_on.set()
    ended = thread.end(lambda: done.append("last"))
    assert ended is not None
    ended.result(60)
    assert done == ["last"]
    with pytest.raises(CancelledError):
        future.result(0)


def test_end_refuses_at_once_what_has_not_begun_and_what_comes_after():
    thread, go_on = blocked_thread()
    waiting = thread.submit(lambda: 1)
    ended = thread.end(lambda: None)
    assert isinstance(waiting.exception(1), Late)  # while the first work still runs
    with pytest.raises(Late):
        thread.submit(lambda: 2)
    assert ended is not None
    assert not ended.done()
    go_on.set()
    ended.result(60)
    assert thread.end(lambda: None) is None


def test_thread_is_a_daemon_and_ends():
    """A program's end waits for threads that are no daemons: one whose log nobody closed would never end."""
    before = set(threading.enumerate())
    thread = WorkThread("test", Late)
    (made,) = set(threading.enumerate()) - before
    assert made.daemon
    thread.end(lambda: None)
    made.join(60)
    assert not made.is_alive()
