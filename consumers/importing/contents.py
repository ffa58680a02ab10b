"""What a format makes of a file: first a survey of it, then, read anew, the entries to store.

The survey finds what is refused and counts what belongs together before anything is stored. Both readings must find the
same: they are pure, but for reading the file.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rolloutlog.eventstore.checks import check_event, refused
from rolloutlog.eventstore.codec import HEADER, Header, encode_event, header_of
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import Event, GroupClosed, RolloutExpired, Span
from rolloutlog.eventstore.log.port import Headers
from rolloutlog.eventstore.settings import EVENT_BYTES_MAX

REPORTED_MAX = 20

Place = tuple[int, int]  # partition and offset in the log that a file was exported from
Identity = tuple[str, int, str, int] | bytes  # rollout, attempt, source, sequence; a digest of what has no such header


class Entry(NamedTuple):
    """A record to store.

    event       None = it is none: stored as it came
    place       where it stood in the log that it comes from, as far as known
    decision    an event whose `as_of` is an offset there: the place in this log takes its stead
    everywhere  for every partition of the log, at the end, but for those that have one of their own
    """

    key: bytes | None
    value: bytes | None
    headers: Headers
    identity: Identity
    event: Event | None = None
    place: Place | None = None
    decision: GroupClosed | RolloutExpired | None = None
    everywhere: bool = False


@dataclass
class Survey:
    """What a first reading says. `reported`: the first refusals, place and text."""

    items: int = 0
    events: int = 0
    rollouts: int = 0
    groups: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    reported: list[tuple[str, str]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    wanted: set[Place] = field(default_factory=set)

    def refuse(self, place: str, error: InvalidEvent) -> None:
        self.items += 1
        self.refused += 1
        if len(self.reported) < REPORTED_MAX:
            self.reported.append((place, str(error)))


class Content(Protocol):
    """A file of some format.

    digest    of everything that decides what the entries are: the same digest is the same import
    prefix    begins the rollout ids that it makes; None = it may hold events of other logs, stored ones among them
    verbatim  records are stored as they came, also those that are stored already
    """

    @property
    def digest(self) -> str: ...

    @property
    def prefix(self) -> str | None: ...

    @property
    def verbatim(self) -> bool: ...

    def survey(self) -> Survey: ...

    def entries(self, survey: Survey, *, run_id: str, time_ns: int) -> Iterator[Entry]:
        """The entries in the order of the file, without what is refused. `time_ns`: when the import began."""


def event_entry(event: Event, key: bytes, header: Header | None = None) -> Entry:
    """The entry of a checked event. `header`: as it was stored, where it was."""
    header = header_of(event) if header is None else header
    return Entry(key, encode_event(event), ((HEADER, header.text()),), identity_of(header), event)


def identity_of(header: Header) -> Identity:
    return (header.rollout_id, header.attempt, header.source, header.sequence)


def check_storable(event: Event, *, field: str = "messages") -> None:
    """Check an event and its size; a refusal of its size names `field`. Raises InvalidEvent."""
    check_event(event)
    size_bytes = len(encode_event(event))
    if size_bytes > EVENT_BYTES_MAX:
        # the span's id tells the message: call-3 is the fourth
        what = event.span_id if isinstance(event, Span) else event.record
        raise refused(f"events of at most {EVENT_BYTES_MAX} bytes", f"{size_bytes} bytes of {what}", field)
