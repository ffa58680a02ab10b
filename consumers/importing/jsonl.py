"""Our events as JSON lines: what `export jsonl` writes, and what is written by hand.

Of an export, each event comes back with the same bytes, in the order of the file. What only held in the log that it
comes from is left out or moved, so that the new log's assembler makes the same samples:

- `GroupClosed` with reason `complete` says that an assembler published the group there; the new one says so itself
- a decision (`RolloutExpired`, `GroupClosed` with `as_of`) is as of an offset there: it is moved to where that event is
- a `RolloutStarted` that was sent again counted by its age when it was stored, not by its age now: its flag `r` goes
- a `RunEnded` stands in every partition: at the end, in each of the new log's
- what is stored twice is stored once

With `verbatim` none of this is done.

Of a line that is written by hand, what has a default may be left out, also `attempt`, `source`, `sequence`, `time_ns`,
and `log`: `Filler` says what takes its place.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from rolloutlog.consumers.importing.chat import parse_object
from rolloutlog.consumers.importing.contents import Entry, Place, Survey, event_entry
from rolloutlog.consumers.importing.event_json import (
    EVENT,
    LOG,
    LOG_FIELDS,
    RAW,
    header_for,
    parse_fields,
    parse_headers,
    parse_key,
)
from rolloutlog.consumers.importing.filling import Filler
from rolloutlog.consumers.importing.inputs import Input, Line, joined_digest
from rolloutlog.consumers.importing.json_values import to_text
from rolloutlog.consumers.importing.known import record_identity
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.checks import check_agreement, check_integer, refused
from rolloutlog.eventstore.codec import HEADER, RESEND, parse_header
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import (
    COMPLETE,
    Event,
    GroupClosed,
    RolloutExpired,
    RolloutStarted,
    RunEnded,
)
from rolloutlog.eventstore.log import EVENTS, NewRecord
from rolloutlog.eventstore.log.limits import record_size
from rolloutlog.eventstore.settings import EVENT_BYTES_MAX, RECORD_OVERHEAD_BYTES

LATE_WINDOW_NS = FoldSettings().late_window_ns  # how old a start may be that is sent again
RECORD_BYTES_MAX = EVENT_BYTES_MAX + RECORD_OVERHEAD_BYTES
CLOSINGS = "closings of the other log's assembler"


class Parsed(NamedTuple):
    """One line, as it is written. `fields` None = a raw record."""

    kind: str
    fields: dict[str, Any] | None
    log: Mapping[str, Any]
    value: bytes | None


def parse_line(text: bytes) -> Parsed:
    """Read one line. Raises InvalidEvent naming the field, what was expected and what came."""
    given = parse_object(text, unique=True)
    log = given.pop(LOG, None)
    log = {} if log is None else log
    if not isinstance(log, dict):
        raise refused("an object", log, LOG)
    for name in log:
        if name not in LOG_FIELDS:
            raise refused(f"one of {', '.join(LOG_FIELDS)}", name, f"{LOG}.{name}")
    for name in ("partition", "offset", "time_ns"):
        if log.get(name) is not None:
            check_integer(log[name], f"{LOG}.{name}", 0, 2**63 - 1)
    if RAW not in given:
        kind = given.pop(EVENT, None)
        return Parsed(str(kind), parse_fields(kind, given), log, None)
    raw = given.pop(RAW)
    if given:
        raise refused(f"{RAW} and {LOG} alone", next(iter(given)), "")
    if not isinstance(raw, dict) or "value" not in raw:
        raise refused("an object with a value", raw, RAW)
    return Parsed(RAW, None, log, None if raw["value"] is None else to_text(raw["value"], f"{RAW}.value"))


class JsonLines:
    """A file of JSON lines. `verbatim`: every record as it stood in the log that it comes from."""

    prefix = None

    def __init__(self, file: Input, *, verbatim: bool) -> None:
        self.verbatim = verbatim
        self._file = file
        self._file_digest = file.digest()
        # Not the file's own: other formats would take it for imported, although they make something else of it.
        self.digest = joined_digest([self._file_digest, "jsonl --everything" if verbatim else "jsonl"])

    def survey(self) -> Survey:
        survey = Survey()
        rollouts: set[tuple[str, str]] = set()
        sizes: Counter[str] = Counter()

        def started(event: RolloutStarted) -> None:
            if (event.group_id, event.rollout_id) not in rollouts:
                rollouts.add((event.group_id, event.rollout_id))
                sizes[event.group_id] += 1

        filler = Filler(self._file_digest, None, run_id="", time_ns=0)
        for line, found in self._entries(filler, started):
            if isinstance(found, InvalidEvent):
                survey.refuse(line.place, found)
                continue
            survey.items += 1
            if found is None:
                survey.left_out[CLOSINGS] += 1
                continue
            survey.events += 1
            if found.decision is not None and found.decision.as_of is not None and found.place is not None:
                survey.wanted.add((found.place[0], found.decision.as_of))
        survey.groups, survey.rollouts = sizes, len(rollouts)
        return survey

    def entries(self, survey: Survey, *, run_id: str, time_ns: int) -> Iterator[Entry]:
        filler = Filler(self._file_digest, survey.groups, run_id=run_id, time_ns=time_ns)
        for _, found in self._entries(filler, lambda event: None):
            if isinstance(found, Entry):
                yield found

    def _entries(
        self, filler: Filler, started: Callable[[RolloutStarted], None]
    ) -> Iterator[tuple[Line, Entry | InvalidEvent | None]]:
        """Of each line the entry, why it is refused, or None where it is left out."""
        for line in self._file.lines():
            try:
                if line.fault is not None:
                    raise line.fault
                parsed = parse_line(line.text)
                entry = self._entry(line, parsed, filler)
                if isinstance(entry.event, RolloutStarted):
                    started(entry.event)
                left_out = isinstance(entry.event, GroupClosed) and entry.event.reason == COMPLETE
                yield line, None if left_out and not self.verbatim else entry
            except InvalidEvent as error:
                yield line, error

    def _entry(self, line: Line, parsed: Parsed, filler: Filler) -> Entry:
        log = parsed.log
        key = parse_key(log.get("key"))
        place = _place(log)
        headers = None if log.get("headers") is None else parse_headers(log["headers"])
        if parsed.fields is None:
            headers = () if headers is None else headers
            entry = Entry(key, parsed.value, headers, record_identity(key, parsed.value, headers), place=place)
            _check_size(entry)
            return entry
        event, key = filler.event(line, parsed.kind, parsed.fields, key)
        header = header_for(event, log.get("flags"))
        if headers is not None:
            found = [value for name, value in headers if name == HEADER]
            if len(found) != 1:
                raise refused("one header e", f"{len(found)} of them", f"{LOG}.headers")
            header = parse_header(found[0])
        check_agreement(header, event, key)
        entry = event_entry(event, key, header)
        if headers is not None:
            entry = entry._replace(headers=headers)
        _check_size(entry)
        return entry._replace(place=place) if self.verbatim else _renewed(entry, event, place, log)


def _renewed(entry: Entry, event: Event, place: Place | None, log: Mapping[str, Any]) -> Entry:
    """The entry as it holds in another log."""
    if isinstance(event, RunEnded):
        return entry._replace(place=place, everywhere=True)
    if isinstance(event, RolloutExpired | GroupClosed) and event.as_of is not None:
        return entry._replace(place=place, decision=event)
    if isinstance(event, RolloutStarted) and log.get("time_ns") is not None:
        header = parse_header(dict(entry.headers)[HEADER])
        if header.resend and log["time_ns"] - event.time_ns <= LATE_WINDOW_NS:
            flags = header.flags.replace(RESEND, "") or "-"
            text = header._replace(flags=flags).text()
            headers = tuple((name, text if name == HEADER else value) for name, value in entry.headers)
            return entry._replace(place=place, headers=headers)
    return entry._replace(place=place)


def _place(log: Mapping[str, Any]) -> Place | None:
    if log.get("partition") is None or log.get("offset") is None:
        return None
    return (log["partition"], log["offset"])


def _check_size(entry: Entry) -> None:
    size_bytes = record_size(NewRecord(EVENTS, 0, entry.key, entry.value, entry.headers))
    if size_bytes > RECORD_BYTES_MAX:
        raise InvalidEvent(
            f"expected at most {RECORD_BYTES_MAX} bytes with key and headers, got {size_bytes} at $", reason="size"
        )
