"""Settings of a publisher."""

from dataclasses import dataclass, fields

from rolloutlog.eventstore.errors import InvalidSettings

KIB, MIB = 1024, 1024 * 1024

EVENT_BYTES_MAX = 8 * MIB
RECORD_OVERHEAD_BYTES = 64 * KIB  # key, headers and framing of a record beside its value


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """What a publisher is opened with. Sizes in bytes, times in seconds.

    memory_bytes_max    events that wait for the log; beyond it recording raises BufferFull
    event_bytes_max     upper limit of one event's value; beyond it recording raises RecordTooLarge
    open_deadline_s     for connecting and reading the run
    close_deadline_s    for `flush` and `close` when they are given no time of their own
    linger_s            how long the first event waits for others, so that they are stored together
    append_bytes_max    of events stored together
    append_events_max   how many events are stored together
    retry_s_min         pause after the log gave no answer; doubles up to
    retry_s_max         this
    heartbeat_s         between two heartbeats of a rollout that records nothing else; 0 = a block sends none by itself
    """

    memory_bytes_max: int = 64 * MIB
    event_bytes_max: int = EVENT_BYTES_MAX
    open_deadline_s: float = 30.0
    close_deadline_s: float = 10.0
    linger_s: float = 0.01
    append_bytes_max: int = 4 * MIB
    append_events_max: int = 2_000
    retry_s_min: float = 0.1
    retry_s_max: float = 5.0
    heartbeat_s: float = 20.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value, number = getattr(self, each.name), int if each.type is int else (int, float)
            if isinstance(value, bool) or not isinstance(value, number) or not 0 <= value < float("inf"):
                kind = "an integer" if each.type is int else "a number"
                raise InvalidSettings(f"publisher setting {each.name}: expected {kind} from 0 on, got {value!r}")
        for name in ("memory_bytes_max", "event_bytes_max", "append_bytes_max", "append_events_max"):
            if getattr(self, name) < 1:
                raise InvalidSettings(f"publisher setting {name}: expected at least 1, got {getattr(self, name)!r}")
