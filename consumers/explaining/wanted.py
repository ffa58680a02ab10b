"""The id that a rollout is looked for by, whole or cut, and the ids that match it. Pure.

A whole id goes before ids that begin with the text, those before ids that end with it: ids of an import share a long
beginning and differ in the end.
"""

from rolloutlog.consumers.published import Published
from rolloutlog.eventstore.errors import StoreError

CUT_CHARACTERS_MIN = 4
CANDIDATES_MAX = 6

Place = Published | tuple[int, bytes]  # its batch; or the partition and the key of its events


class RolloutUnknown(StoreError):
    """No rollout has this id, or several begin or end with it; the text says where it was looked for."""


class Matches:
    """Ids that match in one way, and where the first of them stands."""

    def __init__(self) -> None:
        self.ids: dict[str, None] = {}
        self.first: Place | None = None

    def add(self, rollout_id: str, place: Place) -> None:
        self.ids[rollout_id] = None
        if self.first is None:
            self.first = place


class Wanted:
    """The id that is looked for, and the ids that match it so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.needle = text.encode()
        self.published_count = self.started_count = 0
        self._exact, self._beginnings, self._endings = Matches(), Matches(), Matches()

    def take(self, rollout_id: str, place: Place) -> None:
        """Take note of an id, if it matches. Of the same id, the place that was found first stays."""
        if not rollout_id:
            return  # of an event that belongs to none
        if rollout_id == self.text:
            self._exact.add(rollout_id, place)
        elif len(self.text) < CUT_CHARACTERS_MIN:
            return
        elif rollout_id.startswith(self.text):
            self._beginnings.add(rollout_id, place)
        elif rollout_id.endswith(self.text):
            self._endings.add(rollout_id, place)

    @property
    def exact(self) -> bool:
        """The whole id was found: nothing else needs to be looked at."""
        return bool(self._exact.ids)

    @property
    def begins(self) -> bool:
        """An id is this one, or begins with it."""
        return bool(self._exact.ids or self._beginnings.ids)

    def only(self) -> tuple[str, Place] | None:
        """The one that matches, and where it stands; None when none does. Raises RolloutUnknown when several do."""
        for matches, part in ((self._exact, "whole"), (self._beginnings, "beginning"), (self._endings, "ending")):
            if matches.first is None:
                continue
            if len(matches.ids) == 1:
                return next(iter(matches.ids)), matches.first
            named = ", ".join(list(matches.ids)[:CANDIDATES_MAX])
            more = len(matches.ids) - CANDIDATES_MAX
            raise RolloutUnknown(
                f"rollout {self.text}: expected the {part} of one id, got that of {len(matches.ids)}: {named}"
                + (f" and {more} more" if more > 0 else "")
            )
        return None
