"""Limits that are the same on every log."""

from collections.abc import Collection, Mapping

from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log.port import OUTPUT_PREFIX, NewRecord, Position

METADATA_CHARS_MAX = 100  # of a position; Kafka's driver does not survive metadata that a broker refuses


def record_size(record: NewRecord) -> int:
    """Bytes that count against `record_bytes_max`: key, value, and the names and values of all headers."""
    headers = sum(len(name.encode()) + len(value or b"") for name, value in record.headers) if record.headers else 0
    return len(record.key or b"") + len(record.value or b"") + headers


def owned_name(topic: str, partition: int | None) -> str:
    """What an owner owns, for errors."""
    return f"all of {topic}" if partition is None else f"{topic}/{partition}"


def check_droppable(topic: str) -> None:
    """Raises InvalidSettings for a topic that is not of an output."""
    if not topic.startswith(OUTPUT_PREFIX) or topic == OUTPUT_PREFIX:
        raise InvalidSettings(
            f"topic {topic}: expected one of an output, {OUTPUT_PREFIX}NAME: no other is dropped; nothing was changed"
        )


def check_positions(owner: str, positions: Mapping[int, Position], owned: Collection[int]) -> None:
    """Raises InvalidSettings for a position that is unusable, or of a partition that is not among `owned`."""
    for partition, position in positions.items():
        if partition not in owned:
            expected = " or ".join(map(str, owned)) if len(owned) < 3 else f"0 to {len(owned) - 1}"
            raise InvalidSettings(
                f"{owner}: expected positions of partition {expected}, got one of {partition}; nothing was stored"
            )
        check_position(position)


def check_position(position: Position) -> None:
    """Raises InvalidSettings for an offset below 0, or metadata that is no short ASCII text."""
    if position.offset < 0:
        raise InvalidSettings(f"position: expected an offset from 0, got {position.offset}; nothing was stored")
    if len(position.metadata) > METADATA_CHARS_MAX or not position.metadata.isascii():
        raise InvalidSettings(
            f"position {position.offset}: expected metadata of at most {METADATA_CHARS_MAX} ASCII characters, "
            f"got {len(position.metadata)}: {position.metadata!r}; nothing was stored"
        )
