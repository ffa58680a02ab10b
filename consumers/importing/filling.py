"""Events of lines that were written by hand: what they leave out is filled in, the same every time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rolloutlog.consumers.importing.event_json import LOG, group_key, make_event
from rolloutlog.consumers.importing.inputs import Line
from rolloutlog.consumers.importing.rollouts import source_of
from rolloutlog.eventstore.checks import refused
from rolloutlog.eventstore.events import WITHOUT_ROLLOUT, Event, RolloutStarted, RunEnded, Span

STEP_NS = 1_000  # lines without a time are a microsecond apart, in their order


@dataclass
class _Rollout:
    """What a file's lines have said of a rollout's attempt."""

    key: bytes | None = None
    source: str | None = None
    next: dict[str, int] = field(default_factory=dict)


class Filler:
    """Makes events of lines, filling in what is left out.

    attempt           0
    source            that of the attempt's start before it in the file, else one made of the file's digest
    sequence          the next one of its source in the file
    time_ns           the import's beginning and the line's number
    start_ns, end_ns  of a span: its time
    span_id, name     of a span: its kind and sequence; its kind
    run_id            the log's run
    group_id          of a start: the rollout's id, a group of one
    group_size        of a start that does not give it: how many rollouts of the file are in its group; null is none
    task_id           of a start: the group's id
    log.key           the group of the rollout's start before it in the file
    """

    def __init__(self, digest: str, sizes: Mapping[str, int] | None, *, run_id: str, time_ns: int) -> None:
        self._digest, self._sizes, self._run_id, self._time_ns = digest, sizes, run_id, time_ns
        self._rollouts: dict[tuple[str, int], _Rollout] = {}
        self._keys: dict[str, bytes] = {}

    def event(self, line: Line, kind: str, given: dict[str, Any], key: bytes | None) -> tuple[Event, bytes]:
        """The event of a line, and its key. A line that is refused takes no number."""
        fields = dict(given)
        if kind in WITHOUT_ROLLOUT:
            fields.setdefault("rollout_id", "")
        fields.setdefault("attempt", 0)
        name = (fields.get("rollout_id"), fields["attempt"])
        known = self._rollouts.get(name) if _is_name(name) else None  # type: ignore[arg-type]
        known = _Rollout() if known is None else known
        if "source" not in fields:
            fields["source"] = known.source or self._source(kind, name)
        if "sequence" not in fields and isinstance(fields["source"], str):
            fields["sequence"] = known.next.get(fields["source"], 0)
        fields.setdefault("time_ns", self._time_ns + line.number * STEP_NS)
        if kind == Span.record:
            _fill_span(fields)
        elif kind in (RolloutStarted.record, RunEnded.record):
            fields.setdefault("run_id", self._run_id)
            if kind == RolloutStarted.record:
                self._fill_start(fields)
        event = make_event(kind, fields)
        key = self._key(event, key)
        self._take(event, key)
        return event, key

    def _key(self, event: Event, key: bytes | None) -> bytes:
        if key is None:
            key = group_key(event) or self._keys.get(event.rollout_id)
        if key is None and isinstance(event, RunEnded):
            key = f"run/{event.run_id}".encode()
        if not key:
            raise refused(
                "the group's id as key, or the rollout's RolloutStarted before it in the file",
                "neither",
                f"{LOG}.key",
                quote=False,
            )
        return key

    def _take(self, event: Event, key: bytes) -> None:
        name = (event.rollout_id, event.attempt)
        known = self._rollouts.setdefault(name, _Rollout())
        known.next[event.source] = max(known.next.get(event.source, 0), event.sequence + 1)
        if isinstance(event, RolloutStarted):
            known.source = known.source or event.source
            self._keys.setdefault(event.rollout_id, key)

    def _source(self, kind: str, name: tuple[Any, Any]) -> str:
        rollout_id, attempt = name
        source = source_of(self._digest, str(rollout_id), attempt if type(attempt) is int else 0)
        return source.replace("main.", "publisher.", 1) if kind in WITHOUT_ROLLOUT else source

    def _fill_start(self, fields: dict[str, Any]) -> None:
        if "group_id" not in fields:
            fields["group_id"] = fields.get("rollout_id")
            fields.setdefault("group_size", 1)
        fields.setdefault("task_id", fields["group_id"] if isinstance(fields["group_id"], str) else "-")
        if "group_size" not in fields:
            group_id = fields["group_id"]
            known = self._sizes is not None and isinstance(group_id, str)
            fields["group_size"] = self._sizes.get(group_id) if known and self._sizes is not None else 1


def _is_name(name: tuple[Any, Any]) -> bool:
    return isinstance(name[0], str) and type(name[1]) is int


def _fill_span(fields: dict[str, Any]) -> None:
    fields.setdefault("start_ns", fields["time_ns"])
    fields.setdefault("end_ns", fields["start_ns"])
    if isinstance(fields.get("kind"), str):
        fields.setdefault("name", fields["kind"])
        fields.setdefault("span_id", f"{fields['kind']}-{fields.get('sequence')}")
