"""Which reward counts for which call: pure, the same live and in replay.

types      Attribution, AttributionSettings, CallResult, Entry, Outcome, RewardEntry, SpanEntry, OUTCOMES
functions  attribute, explain, explain_recorded, settings_from
"""

from rolloutlog.consumers.attribution.explain import explain, explain_recorded
from rolloutlog.consumers.attribution.model import (
    OUTCOMES,
    Attribution,
    CallResult,
    Entry,
    Outcome,
    RewardEntry,
    SpanEntry,
)
from rolloutlog.consumers.attribution.rules import attribute
from rolloutlog.consumers.attribution.settings import AttributionSettings, settings_from

__all__ = [
    "OUTCOMES",
    "Attribution",
    "AttributionSettings",
    "CallResult",
    "Entry",
    "Outcome",
    "RewardEntry",
    "SpanEntry",
    "attribute",
    "explain",
    "explain_recorded",
    "settings_from",
]
