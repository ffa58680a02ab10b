"""Header `o` of every output: where it comes from.

`input partition/trigger/first-event offset/config hash/part/parts`, text. With it readers tell settings apart, replay
knows where a group begins, and an assembler without a committed position knows what is out already.
"""

from typing import NamedTuple

from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.log import Record

HEADER = "o"


class Origin(NamedTuple):
    partition: int
    trigger: int
    first_event: int
    config_hash: str
    part: int = 0
    parts: int = 1

    def text(self) -> bytes:
        return "/".join(map(str, self)).encode()


def origin_of(record: Record) -> Origin:
    """Read header `o`. Raises InvalidEvent when there is none or it is not as expected."""
    value = dict(record.headers).get(HEADER) or b""
    parts = value.decode(errors="replace").split("/")
    try:
        partition, trigger, first, config_hash, part, count = parts
        return Origin(int(partition), int(trigger), int(first), config_hash, int(part), int(count))
    except ValueError:
        raise InvalidEvent(
            f"output refused: expected partition/trigger/first/hash/part/parts, got {value!r} in header o "
            f"(topic {record.topic}, offset {record.partition}:{record.offset})",
            reason="bad_origin",
            field=HEADER,
        ) from None
