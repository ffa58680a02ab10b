"""The settings behind a config hash: each assembler writes its own to the meta topic, `settings/{config hash}`.

Batches name their settings by the hash alone. With these records whoever looks at them later, such as `explain` and
`compare`, knows what they were.

Not here  settings of a replay's output, which stand in its own record: consumers.replaying.outputs
"""

import json
from contextlib import aclosing
from typing import Any

from rolloutlog.consumers.attribution import settings_from
from rolloutlog.consumers.attribution.custom import is_custom
from rolloutlog.consumers.settings import FoldSettings, canonical_json
from rolloutlog.eventstore.codec import decode_record, encode_record
from rolloutlog.eventstore.errors import InvalidEvent, InvalidSettings, LogMissing
from rolloutlog.eventstore.log import META, Log, NewRecord
from rolloutlog.eventstore.log.reading import read_all

RECORD = "SettingsUsed"
PREFIX = b"settings/"


def settings_record(settings: FoldSettings, time_ns: int) -> NewRecord:
    """What an assembler writes as it begins. `time_ns`: now."""
    fields = {
        "config_hash": settings.config_hash,
        "settings": canonical_json(settings.canonical()),
        "time_ns": time_ns,
    }
    return NewRecord(META, 0, PREFIX + settings.config_hash.encode(), encode_record(RECORD, fields))


async def read_used(log: Log) -> list[FoldSettings]:
    """Settings that assemblers of this log were started with, newest last; those that cannot be made left out."""
    return [each for each in await _read(log) if each is not None]


async def newest_used(log: Log) -> FoldSettings | None:
    """Those of the assembler that was started last; None where none has said. Raises InvalidSettings."""
    found = await _read(log)
    if found and found[-1] is None:
        raise InvalidSettings(
            f"log {log.url}: expected settings of its assembler that can be made here, got a record of others: with a "
            "policy of its own, or by another version. Say with which settings: --settings FILE, or --policy"
        )
    return found[-1] if found else None


async def _read(log: Log) -> list[FoldSettings | None]:
    found: dict[str, FoldSettings | None] = {}
    try:
        async with aclosing(read_all(log, META)) as records:
            async for record in records:
                if not (record.key or b"").startswith(PREFIX):
                    continue
                try:
                    fields = decode_record(record.value, expected=RECORD)[1]
                except InvalidEvent:
                    continue  # deleted, or not readable to this version
                config_hash, settings = fields["config_hash"], settings_of(fields["settings"])
                found.pop(config_hash, None)
                found[config_hash] = None if settings is None or settings.config_hash != config_hash else settings
    except LogMissing:
        return []
    return list(found.values())


def settings_of(canonical: bytes, *, beyond: str = "") -> FoldSettings | None:
    """Settings from their canonical JSON; None where this version cannot make them.

    None too with a policy of the user's own: no record of a log says which code is run here.
    """
    try:
        fields: dict[str, Any] = json.loads(canonical)
        attribution = fields["attribution"]
        if is_custom(attribution["policy"]):
            return None
        return FoldSettings(
            attribution=settings_from(attribution),
            merge=fields["merge"],
            min_group=fields["min_group"],
            splits=tuple(fields["splits"]),
            on_incomplete=fields["on_incomplete"],
            late_window_s=fields["late_window_s"],
            beyond=beyond,
        )
    except (InvalidSettings, LookupError, TypeError, ValueError, AttributeError):
        return None  # of another version
