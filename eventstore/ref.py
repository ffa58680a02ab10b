"""A reference to a rollout: what other processes attach with.

`rollout.ref(name)` makes one, `events.attach(ref)` uses it. It says which rollout, and where in it: work that is
attached nests below the span that was open where the ref was made, and comes after the last call seen there.
"""

import os
from dataclasses import dataclass
from re import compile as regex
from typing import Any

from rolloutlog.eventstore.checks import INT32_MAX, check_id, check_integer, refused
from rolloutlog.eventstore.errors import InvalidEvent, InvalidSettings
from rolloutlog.eventstore.text_form import pack, unpack

REF_VARIABLE = "ROLLOUTLOG_REF"
REF_HEADER = "x-rolloutlog-ref"

# What other sources of a rollout are called: its own, the assembler's, a publisher's, those of forked processes.
RESERVED_NAMES = ("main", "assembler", "publisher", "fork")

_NAME = regex(r"[A-Za-z0-9_.-]{1,64}")
_FIELDS = 7


@dataclass(frozen=True, slots=True)
class RolloutRef:
    """Names a rollout, and a place in it. Made by `Rollout.ref`; any number of processes may attach with the same one.

    name        of the sources that attach with it
    parent_id   the innermost span that was open where it was made
    after_call  the last call seen there
    """

    run_id: str
    group_id: str
    rollout_id: str
    attempt: int
    name: str
    parent_id: str | None = None
    after_call: str | None = None

    def __post_init__(self) -> None:
        try:
            for field in ("run_id", "group_id", "rollout_id"):
                check_id(getattr(self, field), field)
            check_integer(self.attempt, "attempt", 0, INT32_MAX)
            check_name(self.name)
            for field in ("parent_id", "after_call"):
                if getattr(self, field) is not None:
                    check_id(getattr(self, field), field)
        except InvalidEvent as error:
            error.args = (f"RolloutRef refused: {error}",)
            raise

    def text(self) -> str:
        """As one line of letters, digits and `-_.`, some 300 characters: for variables, headers, command lines."""
        return pack("ref", [getattr(self, field) for field in self.__slots__])

    def __str__(self) -> str:
        return self.text()

    @classmethod
    def parse(cls, text: str) -> "RolloutRef":
        """The ref whose `text` this is. Raises InvalidSettings when it was cut or changed, or has another version."""
        try:
            return cls(*unpack(text, "ref", _FIELDS))
        except InvalidSettings as error:
            error.args = (f"RolloutRef not read: {error}",)
            raise

    def environment(self) -> dict[str, str]:
        """What to add to the environment of a process that attaches: `{"ROLLOUTLOG_REF": ...}`."""
        return {REF_VARIABLE: self.text()}

    def headers(self) -> dict[str, str]:
        """What to add to the headers of a request: `{"x-rolloutlog-ref": ...}`."""
        return {REF_HEADER: self.text()}


def ref_of(given: Any) -> RolloutRef:
    """A ref, or that of a text; None = the environment's. Raises InvalidSettings."""
    if isinstance(given, RolloutRef):
        return given
    if given is not None:
        return RolloutRef.parse(given)
    text = os.environ.get(REF_VARIABLE, "")
    if not text:
        raise InvalidSettings(
            f"no ref: expected a RolloutRef, its text, or one in the environment variable {REF_VARIABLE}, got none; "
            f"start this process with `rollout.ref(name).environment()` in its environment"
        )
    try:
        return RolloutRef.parse(text)
    except InvalidSettings as error:
        error.args = (f"environment variable {REF_VARIABLE}: {error}",)
        raise


def check_name(name: Any) -> None:
    """Check what attached sources are to be called. Raises InvalidEvent."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise refused("a name of 1 to 64 letters, digits and -_.", name, "name")
    if name in RESERVED_NAMES:
        raise refused(f"a name other than {', '.join(RESERVED_NAMES)}", name, "name")
