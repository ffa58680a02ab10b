"""The event store: publish what rollouts do, and read it back from a log.

Importing this loads no Kafka client, no pydantic and no event loop; what a log needs is loaded when one is opened.
"""

from rolloutlog.eventstore.attachment import Attachment
from rolloutlog.eventstore.decorators import (
    RolloutFunction,
    agent,
    current_rollout,
    evaluator,
    operation,
    rollout_function,
    tool,
)
from rolloutlog.eventstore.errors import (
    BufferFull,
    Fenced,
    InvalidEvent,
    InvalidSettings,
    LogMissing,
    LogUnavailable,
    NotStored,
    OffsetOutOfRange,
    PartitionCountChanged,
    RecordTooLarge,
    StillBehind,
    StoreError,
)
from rolloutlog.eventstore.group import Group
from rolloutlog.eventstore.log import open_log, parse_url
from rolloutlog.eventstore.publisher import EventPublisher
from rolloutlog.eventstore.recorder import emit_reward
from rolloutlog.eventstore.ref import RolloutRef
from rolloutlog.eventstore.rollout import Rollout
from rolloutlog.eventstore.scope import NotOpen
from rolloutlog.eventstore.settings import PublisherSettings

__all__ = [  # noqa: RUF022 grouped: types, functions, errors
    "Attachment",
    "EventPublisher",
    "Group",
    "PublisherSettings",
    "Rollout",
    "RolloutFunction",
    "RolloutRef",
    "agent",
    "current_rollout",
    "emit_reward",
    "evaluator",
    "open_log",
    "operation",
    "parse_url",
    "rollout_function",
    "tool",
    "BufferFull",
    "Fenced",
    "InvalidEvent",
    "InvalidSettings",
    "LogMissing",
    "LogUnavailable",
    "NotOpen",
    "NotStored",
    "OffsetOutOfRange",
    "PartitionCountChanged",
    "RecordTooLarge",
    "StillBehind",
    "StoreError",
]
