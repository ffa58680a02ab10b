"""The log port: what everything above needs from a log, and no more.

A log is a set of topics; a topic is a fixed number of partitions; a partition is an ordered run of records. Each record
has an offset (rising, with gaps allowed) and a log time (set by the log at append, never by a host's clock, never
falling within a partition). Nothing above this module knows which log it runs on. `tests/log` holds one test for each
promise here and runs it for every log.

append    stores records of one partition in order, all of them or an error; after `LogUnavailable` they may be stored
own       fences: after it returns, a transaction of any older owner of (app, topic, partition) stores nothing; an app's
          owner of a whole topic fences the one before, whatever its topic, and no owner of a partition
commit    one transaction: all its records and its positions become visible together, or none ever does
read      returns only committed records, in offset order
drop      only topics of outputs, `output.NAME`: a log's own topics are never removed

Not here  what a record means: eventstore.codec; which records to write: consumers
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_letters, digits
from typing import NamedTuple, Protocol, runtime_checkable

from rolloutlog.eventstore.errors import InvalidSettings

EVENTS, BATCHES, DEAD_LETTERS, ACKS, META, REWARDS = "events", "batches", "dead-letters", "acks", "meta", "rewards"

OUTPUT_PREFIX = "output."  # of the topics of outputs, which alone can be dropped

NONE_OFFSET = -1  # Kafka's way of saying that nothing was committed
PREFIX_CHARACTERS = frozenset(ascii_letters + digits + "._-")  # what a Kafka topic's name may hold

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One stored record. `log_time_ns`: UTC nanoseconds at append."""

    topic: str
    partition: int
    offset: int
    log_time_ns: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class NewRecord(NamedTuple):
    """A record to append. `topic` is a short name such as `events`; the log adds its prefix."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Stored(NamedTuple):
    """Where an appended record is now."""

    offset: int
    log_time_ns: int


class Position(NamedTuple):
    """A committed position: `offset` is where reading starts again, `metadata` at most 100 ASCII characters."""

    offset: int
    metadata: str


class Range(NamedTuple):
    """Offsets of a partition.

    first    the first readable one
    end      above every committed record that no open transaction stands before: a reader gets so far at once
    written  above every record, those of open transactions included; never below `end`
    """

    first: int
    end: int
    written: int


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What a topic is created with and checked against.

    retention_s      seconds; None = kept for ever
    cleanup          `delete` or `compact`
    record_bytes_max upper limit of one record with key and headers, in bytes
    """

    name: str
    partitions: int
    retention_s: int | None
    record_bytes_max: int
    cleanup: str = "delete"


@dataclass(frozen=True, slots=True)
class Difference:
    """A topic setting that is not as wanted. `found` is None where the topic itself is missing."""

    topic: str
    setting: str
    expected: str
    found: str | None


class Reader(Protocol):
    """Reads one topic's partitions by hand, without a group. Used by one task at a time."""

    async def fetch(self, *, wait_s: float, records_max: int = 2_000) -> list[Record]:
        """Return the next committed records, in offset order within a partition; empty after `wait_s` without any.

        Raises OffsetOutOfRange when the wanted offset is below the first one or above the end; LogUnavailable after
        the log's deadline.
        """

    def position(self, partition: int) -> int:
        """The offset the next fetch reads from: above the last returned record, past markers where known."""

    async def seek(self, partition: int, offset: int) -> None:
        """Read from `offset` next."""

    async def close(self) -> None: ...


class Owner(Protocol):
    """The only writer of the outputs and positions of one input partition, or of a whole topic, until it is fenced."""

    async def positions(self) -> Mapping[int, Position]:
        """The last committed positions by partition; one without an entry never had any.

        An unreadable answer is an error, never taken for none.
        """

    async def commit(self, records: Sequence[NewRecord], positions: Mapping[int, Position]) -> None:
        """Store `records` and `positions` in one transaction; returns when it is stored. Other positions stay.

        Raises Fenced when a newer owner exists; InvalidSettings for a position that is unusable or of a partition that
        is not this owner's; RecordTooLarge. Nothing is stored then. LogUnavailable when the result is unknown: this
        owner is then unusable, take a new one with `own`, whose `positions` tell.
        """

    async def close(self) -> None:
        """Leave without a trace: an open transaction is aborted. Never raises."""


@runtime_checkable
class Log(Protocol):
    """An opened log. Safe for use by several tasks of one event loop."""

    url: str

    async def create(self, topics: Iterable[TopicSettings]) -> list[str]:
        """Create the topics that are missing and return their names; existing ones stay as they are."""

    async def drop(self, topic: str, *, app: str) -> bool:
        """Remove the topic of an output with its records, and all positions of `app`; returns whether it was there.

        A topic that is created under its name afterwards is empty. Fence the owners of `app` before: one that was not
        fenced gets an error, never the topic again. Raises InvalidSettings for any other topic: nothing is removed.
        """

    async def differences(self, topics: Iterable[TopicSettings]) -> list[Difference]:
        """Where the stored topics differ from `topics`; empty when all is as wanted."""

    async def partitions(self, topic: str) -> int:
        """The topic's partition count. Raises LogMissing when there is no such topic."""

    async def append(self, records: Sequence[NewRecord]) -> list[Stored]:
        """Store records outside of any transaction, in order within each partition; returns once all are stored.

        Raises RecordTooLarge before anything is stored; LogUnavailable when some may be stored.
        """

    async def ranges(self, topic: str, partitions: Iterable[int]) -> Mapping[int, Range]:
        """First readable and end offset of each partition. A reader at `end` has seen every record committed by now."""

    async def offsets_at(self, topic: str, partitions: Iterable[int], time_ns: int) -> Mapping[int, int]:
        """Of each partition the offset from which a reader gets just the records with a log time of `time_ns` or later.

        It is that of the first such record, or of what stands before it and is none; at most the `end` of `ranges`.
        """

    async def reader(self, topic: str, offsets: Mapping[int, int]) -> Reader:
        """Read `topic` from these offsets, one entry a partition. An offset below the first one fails at `fetch`."""

    async def own(self, app: str, topic: str, partition: int | None) -> Owner:
        """Become the owner of the input partition for `app`, fencing any older one, and only then read positions.

        With None: of the topic as a whole. Its positions are those of `app` in the topic, whoever committed them; an
        app uses owners of partitions or of a whole topic, not both.
        """

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LogUrl:
    """A parsed log URL. `path` for sqlite; `servers` and `prefix` for kafka.

    `sqlite:///relative.db`, `sqlite:////absolute.db`, `kafka://host:port[,host:port]/prefix`; a `?name=value` part
    holds the log's own settings, e.g. `security_protocol=SASL_SSL`.
    """

    scheme: str
    path: str = ""
    servers: tuple[str, ...] = ()
    prefix: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


def parse_url(url: str) -> LogUrl:
    """Parse a log URL. Raises InvalidSettings naming what is expected; its text shows no option and no user part."""
    expected = "expected sqlite:///relative.db, sqlite:////absolute.db or kafka://host:port[,host:port]/prefix"
    shown = repr(_without_secrets(url))
    scheme, separator, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    options = {}
    for pair in filter(None, query.split("&")):
        name, equals, value = pair.partition("=")
        if not equals or not name:
            lacking = "a value" if name else "a name"
            raise InvalidSettings(f"log URL {shown}: {expected}; got option {name!r} without {lacking}")
        options[name] = value
    if separator and scheme == "sqlite":
        if not rest.startswith("/") or len(rest) < 2:
            raise InvalidSettings(f"log URL {shown}: {expected}; got no file path")
        return LogUrl("sqlite", path=rest[1:], options=options)
    if separator and scheme == "kafka":
        hosts, _, prefix = rest.partition("/")
        servers = tuple(filter(None, hosts.split(",")))
        if not servers or not all(_is_host_port(server) for server in servers):
            raise InvalidSettings(f"log URL {shown}: {expected}; got servers {hosts.rpartition('@')[2]!r}")
        if not prefix or not all(c in PREFIX_CHARACTERS for c in prefix):
            raise InvalidSettings(f"log URL {shown}: {expected}; got prefix {prefix!r} (letters, digits, . _ - only)")
        return LogUrl("kafka", servers=servers, prefix=prefix, options=options)
    raise InvalidSettings(f"log URL {shown}: {expected}")


def _without_secrets(url: str) -> str:
    """The URL as it may be shown: a password has no place in it, but may have been put there."""
    plain, query, _ = url.partition("?")
    scheme, separator, rest = plain.partition("://")
    user, at, hosts = rest.rpartition("@")
    return f"{scheme}{separator}{'...@' if at and user else at}{hosts}{'?...' if query else ''}"


def _is_host_port(server: str) -> bool:
    host, _, port = server.rpartition(":")
    return bool(host) and "@" not in host and port.isdigit() and 0 < int(port) < 65536
