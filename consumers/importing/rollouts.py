"""Content of formats that describe whole rollouts: each becomes the events of one rollout, with ids of its own.

A format gives a parser, which names the place of each rollout in the file and makes either the rollout or the reason
why it is refused. Groups are counted over the good ones, else one would wait for ever for a rollout that was refused.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any, Protocol

from rolloutlog.consumers.importing.contents import Entry, Survey, check_storable, event_entry
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import Event, RolloutStarted

ID_CHARACTERS_MAX = 200  # of a name that ids are made of
SURVEYED_NS = 2**60  # takes as many bytes as a time of today, so that sizes are those of the events that are stored


class Rollout(Protocol):
    """One rollout of a file. `group`: equal for rollouts of one group."""

    @property
    def group(self) -> str: ...

    def events(self, digest: str, *, group_size: int, run_id: str, time_ns: int) -> Iterable[Event]:
        """Its events in order, RolloutStarted first: the same for the same arguments. Raises InvalidEvent."""


Parsed = tuple[str, Rollout | InvalidEvent]


class Rollouts:
    """A file's rollouts.

    parse   reads the file: place and rollout, or why it is refused; the same every time
    digest  of the file and of all that decides what becomes of it
    """

    verbatim = False

    def __init__(self, parse: Callable[[], Iterator[Parsed]], digest: str, *, field: str) -> None:
        self.digest = digest
        self._parse = parse
        self._good = bytearray()  # of each parsed rollout, in order, whether the survey found it good
        self._field = field

    @property
    def prefix(self) -> str:
        return id_prefix(self.digest) + "-"

    def survey(self) -> Survey:
        survey = Survey()
        self._good = bytearray()
        for place, rollout in self._parse():
            self._good.append(False)
            if isinstance(rollout, InvalidEvent):
                survey.refuse(place, rollout)
                continue
            events = 0
            try:
                for event in rollout.events("0" * 32, group_size=1, run_id="", time_ns=SURVEYED_NS):
                    check_storable(event, field=self._field)
                    events += 1
            except InvalidEvent as error:
                survey.refuse(place, error)
                continue
            survey.items += 1
            survey.rollouts += 1
            survey.events += events
            survey.groups[rollout.group] += 1
            self._good[-1] = True
        return survey

    def entries(self, survey: Survey, *, run_id: str, time_ns: int) -> Iterator[Entry]:
        for (_, rollout), good in zip(self._parse(), self._good, strict=False):
            if not good or isinstance(rollout, InvalidEvent):
                continue
            events = list(
                rollout.events(self.digest, group_size=survey.groups[rollout.group], run_id=run_id, time_ns=time_ns)
            )
            started = events[0]
            assert isinstance(started, RolloutStarted)
            key = started.group_id.encode()
            for event in events:
                yield event_entry(event, key)


class Envelope:
    """Envelopes of one source's events, numbered from 0."""

    def __init__(self, rollout_id: str, source: str, time_ns: int, attempt: int = 0) -> None:
        self._rollout_id, self._source, self._time_ns, self._attempt = rollout_id, source, time_ns, attempt
        self._sequence = 0

    def next(self, time_ns: int | None = None) -> dict[str, Any]:
        self._sequence += 1
        return {
            "rollout_id": self._rollout_id,
            "attempt": self._attempt,
            "source": self._source,
            "sequence": self._sequence - 1,
            "time_ns": self._time_ns if time_ns is None else time_ns,
        }


def id_prefix(digest: str) -> str:
    return f"import-{digest[:12]}"


def source_of(digest: str, rollout_id: str, attempt: int = 0) -> str:
    """The source of a rollout that was imported: the same every time."""
    name = f"{digest}/{rollout_id}" + (f"/{attempt}" if attempt else "")
    return f"main.{_digest(name)}"


def short(name: str) -> str:
    """A name as a part of an id: cut, with a digest, where it is long."""
    if len(name) <= ID_CHARACTERS_MAX:
        return name
    return f"{name[: ID_CHARACTERS_MAX - 17]}-{_digest(name)}"


def _digest(name: str) -> str:
    # A name that UTF-8 cannot hold is refused later, by its field.
    return blake2b(name.encode(errors="backslashreplace"), digest_size=8).hexdigest()
