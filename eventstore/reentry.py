"""Refuse to record in the middle of recording, where waiting for the lock would never end.

Python runs signal handlers, and finalizers of abandoned generators with the blocks open in them, in whatever thread and
moment it is: also while this thread holds the lock of a rollout or of the buffer. Letting them in would give one number
to two events, or an event after its rollout's end, so they are refused.
"""

from threading import RLock

from rolloutlog.eventstore.scope import NotOpen


def refuse_reentry(lock: RLock, what: object) -> None:
    """Raise NotOpen, saying `what` is refused, when this thread holds `lock` already. Call it before each `with lock`.

    An RLock knows its owner, and a `with` on it leaves no moment in which an interrupt leaves it locked, as a lock
    written in Python would.
    """
    if lock._is_owned():  # type: ignore[attr-defined]
        raise NotOpen(
            f"{what} refused: this thread is in the middle of recording, and a signal handler or a finalizer "
            "interrupted it; let a signal handler set a flag or raise SystemExit, and record outside of it"
        )
