"""Which reward counts for which call: pure, the same live and in replay.

types      Attribution, AttributionSettings, CallResult, CallView, Entry, Outcome, PolicyView, RewardEntry, SpanEntry,
           OUTCOMES
functions  attribute, explain_recorded, settings_from
"""

from rolloutlog.consumers.attribution.explain import explain_recorded
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
from rolloutlog.consumers.attribution.view import CallView, PolicyView

__all__ = [
    "OUTCOMES",
    "Attribution",
    "AttributionSettings",
    "CallResult",
    "CallView",
    "Entry",
    "Outcome",
    "PolicyView",
    "RewardEntry",
    "SpanEntry",
    "attribute",
    "explain_recorded",
    "settings_from",
]
