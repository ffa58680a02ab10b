"""Which records are stored already, so that none is stored twice.

`Known` goes by an event's identity. `Counted` goes by all bytes of a record and by how often it is there: for imports
that keep what was stored twice.
"""

from collections import Counter
from hashlib import blake2b
from typing import Protocol

from rolloutlog.consumers.importing.contents import Entry, Identity, identity_of
from rolloutlog.consumers.state import Source
from rolloutlog.eventstore.codec import HEADER, parse_header
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.log import Record
from rolloutlog.eventstore.log.port import Headers


class Stored(Protocol):
    """What `loading` asks."""

    events: int

    def add(self, record: Record) -> None:
        """A record that is in the log."""

    def take(self, entry: Entry) -> bool:
        """Whether the entry is stored already, or was taken before; from now on it was."""

    def offset(self, identity: Identity) -> int | None:
        """Where a stored record is, if that is kept."""


class Known:
    """By identity. Memory is that of sources, not of events.

    prefix   takes note only of rollouts whose id begins so; None = of all
    offsets  keep where each record is, for decisions that refer to it
    """

    def __init__(self, prefix: str | None, *, offsets: bool = False) -> None:
        self.events = 0
        self._prefix = prefix
        self._sources: dict[tuple[str, int, str], Source] = {}
        self._others: set[bytes] = set()
        self._offsets: dict[Identity, int] | None = {} if offsets else None

    def add(self, record: Record) -> None:
        identity = record_identity(record.key, record.value, record.headers)
        if self._prefix is not None and not (isinstance(identity, tuple) and identity[0].startswith(self._prefix)):
            return
        if self._is_new(identity):
            self.events += 1
            if self._offsets is not None:
                self._offsets[identity] = record.offset

    def take(self, entry: Entry) -> bool:
        return not self._is_new(entry.identity)

    def offset(self, identity: Identity) -> int | None:
        return None if self._offsets is None else self._offsets.get(identity)

    def _is_new(self, identity: Identity) -> bool:
        if isinstance(identity, bytes):
            new = identity not in self._others
            self._others.add(identity)
            return new
        rollout_id, attempt, source, sequence = identity
        name = (rollout_id, attempt, source)
        known = self._sources.get(name)
        if known is None:
            known = self._sources[name] = Source(source)
        return known.add(sequence)


class Counted:
    """By all bytes of a record."""

    def __init__(self) -> None:
        self.events = 0
        self._counts: Counter[bytes] = Counter()

    def add(self, record: Record) -> None:
        self.events += 1
        self._counts[record_digest(record.key, record.value, record.headers)] += 1

    def take(self, entry: Entry) -> bool:
        digest = record_digest(entry.key, entry.value, entry.headers)
        if not self._counts[digest]:
            return False
        self._counts[digest] -= 1
        return True

    def offset(self, identity: Identity) -> int | None:
        return None


def record_identity(key: bytes | None, value: bytes | None, headers: Headers) -> Identity:
    """The event's identity, as its header says; of a record without a readable one, a digest of its bytes."""
    found = [text for name, text in headers if name == HEADER]
    try:
        if len(found) == 1:
            return identity_of(parse_header(found[0]))
    except InvalidEvent:
        pass
    return record_digest(key, value, headers)


def record_digest(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    digest = blake2b(digest_size=16)
    for part in (key, value, *(each for name, text in headers for each in (name.encode(), text))):
        digest.update(b"\0" if part is None else b"\1" + len(part).to_bytes(8, "little") + part)
    return digest.digest()
