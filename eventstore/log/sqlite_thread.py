"""A thread that does one connection's work, one piece after another.

A daemon, so that it takes work to the very end of a process: threads of an executor end before the threads of the
program, which may still record. Work that has not begun when the thread is told to end is refused at once.
"""

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

T = TypeVar("T")

Item = tuple["Future[Any]", Callable[[], Any]]


class WorkThread:
    """Any thread may hand it work. `refusal` makes the error of work that comes too late."""

    def __init__(self, name: str, refusal: Callable[[], Exception]) -> None:
        self._refusal = refusal
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._lock = Lock()
        self._ended = False
        Thread(target=_serve, args=(self._queue,), name=name, daemon=True).start()

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Call `work` after all that was submitted before. Raises the refusal after `end`."""
        future: Future[T] = Future()
        with self._lock:
            if self._ended:
                raise self._refusal()
            self._queue.put((future, work))
        return future

    def end(self, last: Callable[[], None]) -> "Future[None] | None":
        """Refuse what has not begun, call `last` after what has, and end the thread. None when it was ended before."""
        future: Future[None] = Future()
        with self._lock:
            if self._ended:
                return None
            self._ended = True
            refused = self._take_all()
            self._queue.put((future, last))
            self._queue.put(None)
        for waiting in refused:
            if waiting.set_running_or_notify_cancel():
                waiting.set_exception(self._refusal())
        return future

    def _take_all(self) -> "list[Future[Any]]":
        taken: list[Future[Any]] = []
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                return taken
            assert item is not None  # comes last
            taken.append(item[0])


def _serve(queue: "SimpleQueue[Item | None]") -> None:
    while (item := queue.get()) is not None:
        _do(*item)
        del item  # while this waits, it must not keep the last result


def _do(future: "Future[Any]", work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
