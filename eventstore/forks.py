"""Forks: a forked process has copies of all objects, and none of the threads and connections behind them.

`count` tells processes apart: an object that keeps the count it was made or last used under sees that a fork came
between. Locks in the copies may be held for ever, by threads that did not come along, so nothing waits for one from
before the fork: publishers are renewed at the fork itself, recorders when they are next used.

Gates keep a fork from coming in the middle of calls into a C library that has locks of its own for the whole process,
as SQLite has: held by a thread that does not come along, they would block every use of the library in the child.
"""

import ctypes
import os
import time
from threading import Lock, RLock, get_ident
from typing import Any, Protocol
from weakref import WeakSet

GATES_S = 1.0  # a fork waits at most so long: a call that takes longer waits for another process, or for a disk

count = 0  # forks between the first process and this one
lock = RLock()  # held while a recorder is renewed


class Renewable(Protocol):
    """Something that a forked process makes anew before any of its code runs."""

    def renew(self) -> None: ...


_renewed: "WeakSet[Renewable]" = WeakSet()
_gates: "WeakSet[Lock]" = WeakSet()
_forking = Lock()
_held: dict[int, list[Lock]] = {}  # by the thread that forks


def renew_after_forks(item: Renewable) -> None:
    """Call `item.renew()` in each process that this one forks, and those that they fork."""
    _renewed.add(item)


def leave_to_parent(item: Any) -> None:
    """Never finalize what belongs to the process before the fork, not even when this one ends.

    Closing the copy of a connection can write to the original's file or socket. So: one reference more than there are.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))


def new_gate() -> Lock:
    """A lock that forks wait for. Its holder calls into one connection of such a library, and does nothing else."""
    gate = Lock()
    _gates.add(gate)
    return gate


def _before_fork() -> None:
    deadline = time.monotonic() + GATES_S
    held = _held[get_ident()] = []
    # One fork at a time: two threads that each hold half of the gates would wait for each other.
    for gate in (_forking, *_gates):
        if gate.acquire(timeout=max(0.0, deadline - time.monotonic())):
            held.append(gate)
        elif gate is _forking:
            return


def _after_fork() -> None:
    for gate in _held.pop(get_ident(), ()):
        gate.release()


def _after_fork_in_child() -> None:
    global count, lock, _forking
    count += 1
    lock, _forking = RLock(), Lock()
    _held.clear()
    _gates.clear()  # of connections that are not used here
    for item in list(_renewed):
        item.renew()


if hasattr(os, "register_at_fork"):  # not where nothing forks
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
