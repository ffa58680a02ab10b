"""Logs: the port, and its two implementations, which are loaded only when a URL names them."""

from rolloutlog.eventstore.log.port import (
    ACKS,
    BATCHES,
    DEAD_LETTERS,
    EVENTS,
    META,
    REWARDS,
    Difference,
    Log,
    LogUrl,
    NewRecord,
    Owner,
    Position,
    Range,
    Reader,
    Record,
    Stored,
    TopicSettings,
    parse_url,
)

__all__ = [
    "ACKS",
    "BATCHES",
    "DEAD_LETTERS",
    "EVENTS",
    "META",
    "REWARDS",
    "Difference",
    "Log",
    "LogUrl",
    "NewRecord",
    "Owner",
    "Position",
    "Range",
    "Reader",
    "Record",
    "Stored",
    "TopicSettings",
    "open_log",
    "parse_url",
]


async def open_log(url: str, *, create: bool = False) -> Log:
    """Open the log that `url` names.

    create  make a missing embedded log's file; without it a missing file is `LogMissing`, so that a mistyped path
            does not start an empty log. Kafka topics are made by `topics create` alone.
    """
    parsed = parse_url(url)
    if parsed.scheme == "sqlite":
        from rolloutlog.eventstore.log.sqlite import SqliteLog

        return await SqliteLog.open(url, create=create)
    from rolloutlog.eventstore.log.kafka import KafkaLog

    return await KafkaLog.open(url)
