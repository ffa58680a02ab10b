"""Scorers of a user's own: functions that judge a rollout again. docs/scorers.md.

for scorers  CallView, Reward, RewardView, RolloutView, SpanView, scorer
for replay   Cache, Failure, LoadedScorer, Recorded, Scored, Scoring, ScoringLimits
functions    add_failures, add_rewards, cache_path, load_scorer, recorded_names, records_of, view_of
"""

from rolloutlog.consumers.scoring.cache import Cache, cache_path
from rolloutlog.consumers.scoring.limits import ScoringLimits
from rolloutlog.consumers.scoring.loading import LoadedScorer, load_scorer, scorer
from rolloutlog.consumers.scoring.parts import CallView, RewardView, SpanView
from rolloutlog.consumers.scoring.recorded import Recorded
from rolloutlog.consumers.scoring.recorded_names import recorded_names
from rolloutlog.consumers.scoring.results import Failure, add_failures, add_rewards, records_of
from rolloutlog.consumers.scoring.reward import Reward
from rolloutlog.consumers.scoring.scoring import Scored, Scoring
from rolloutlog.consumers.scoring.view import RolloutView, view_of

__all__ = [
    "Cache",
    "CallView",
    "Failure",
    "LoadedScorer",
    "Recorded",
    "Reward",
    "RewardView",
    "RolloutView",
    "Scored",
    "Scoring",
    "ScoringLimits",
    "SpanView",
    "add_failures",
    "add_rewards",
    "cache_path",
    "load_scorer",
    "recorded_names",
    "records_of",
    "scorer",
    "view_of",
]
