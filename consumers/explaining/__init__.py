"""Why a reward went where it did: one rollout for people, and many under other policies.

one   finding (where it stands), account (what its events give anew), explain, explain_json, explain_tables
many  survey (reads), comparison (one rollout under two policies), tally (sums)
both  refolding (a rollout as the fold saw it), columns (tables of text)
"""

from rolloutlog.consumers.explaining.explain import render
from rolloutlog.consumers.explaining.finding import find_rollout

__all__ = ["find_rollout", "render"]
