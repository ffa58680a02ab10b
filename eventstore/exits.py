"""The end of a process: publishers that nobody closed are closed then, and say what is lost."""

import atexit
import logging
import sys
import threading
from functools import cache
from typing import Protocol

_logger = logging.getLogger(__name__)


class Closable(Protocol):
    """A publisher. `is_forked`: it was opened by the process that this one was forked from, and closed there."""

    url: str
    is_forked: bool

    @property
    def pending_count(self) -> int: ...

    def close(self) -> None: ...


_open: set[Closable] = set()


def close_at_exit(publisher: Closable) -> None:
    """Close it when the process ends. Called after its log's client was opened; see `_register`."""
    _open.add(publisher)
    _register()


def closed(publisher: Closable) -> None:
    """It is closed: nothing is left to do."""
    _open.discard(publisher)


def _close_unless_recording() -> None:
    """Called before Python waits for the program's threads. They may still record: `atexit` then closes after them."""
    own = (threading.main_thread(), threading.current_thread())
    others = any(not thread.daemon and thread not in own for thread in threading.enumerate())
    # To wait for them here could take for ever: some wait until the main thread has ended, which it does after this.
    if not others or _is_multiprocessing_child():
        _close_all()


def _is_multiprocessing_child() -> bool:
    """Whether this process ends without calling `atexit`."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


def _close_all() -> None:
    """Store what publishers that nobody closed still hold, and say what is lost."""
    for publisher in list(_open):
        if publisher.pending_count and not publisher.is_forked:  # closing it is not the forked code's business
            _logger.warning("log %s: the publisher was not closed; closing it now", publisher.url)
        try:
            publisher.close()
        except Exception as error:
            _logger.error("%s", error)


@cache
def _register() -> None:
    """Once, after a log client was opened: what is registered last runs first.

    Without other threads, publishers close while the pools still run that their log's client may need to connect.
    """
    atexit.register(_close_all)
    threading._register_atexit(_close_unless_recording)  # type: ignore[attr-defined]
