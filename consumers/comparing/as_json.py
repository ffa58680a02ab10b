"""A comparison as plain values for JSON: every number there is, and the examples that were kept.

Names of fields: `a` and `b` stand for the two outputs, in the order in which they were given; null = none.
"""

from dataclasses import asdict
from typing import Any

from rolloutlog.consumers.comparing.advantages import AdvantageResult
from rolloutlog.consumers.comparing.comparison import Compared
from rolloutlog.consumers.comparing.endings import EndingResult
from rolloutlog.consumers.comparing.rewards import Change, RewardResult
from rolloutlog.consumers.comparing.samples import SampleResult
from rolloutlog.consumers.comparing.sides import Side, Sides
from rolloutlog.consumers.comparing.spread import Spread
from rolloutlog.consumers.comparing.values import Spreads


def comparison_json(found: Compared, sides: Sides) -> dict[str, Any]:
    differences = sides.differences()
    return {
        "a": _side(sides.before),
        "b": _side(sides.after),
        "settings_differ": not sides.alike,
        "settings": None if differences is None else [
            {"name": name, "a": before, "b": after} for name, before, after in differences
        ],
        "rollouts": {
            "both": found.both,
            "compared": found.rollouts,
            "only_a": found.before_alone,
            "only_b": found.after_alone,
            "repeated": sides.repeated,
            "not_emitted": {"a": found.not_emitted[0], "b": found.not_emitted[1]},
        },
        "rewards": [_reward(each) for each in found.rewards],
        "samples": _samples(found.samples, found.before_alone_samples, found.after_alone_samples),
        "advantages": _advantages(found.advantages),
        "statuses": _statuses(found.endings),
        "outcomes": _outcomes(found.endings),
    }  # fmt: skip


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "topic": side.topic,
        "batches": side.batches,
        "rollouts": side.rollouts,
        "refused_records": side.refused,
        "config_hashes": dict(side.hashes.most_common()),
        "settings": side.settings,
        "scorers": list(side.scorers),
        "selection": side.selection or None,
        "percent": side.percent,
    }


def _reward(found: RewardResult) -> dict[str, Any]:
    return {
        "name": found.name,
        "kind": found.kind,
        **_spreads(found.spreads),
        "not_emitted": {"a": found.not_emitted[0], "b": found.not_emitted[1]},
        "changed": found.changed,
        "gained": found.gained,
        "lost": found.lost,
        "tasks": [
            {
                "task_id": each.task_id,
                "a": {"mean": each.before, "count": each.before_count},
                "b": {"mean": each.after, "count": each.after_count},
                "difference": each.difference,
            }
            for each in found.tasks
        ],
        "changed_most": [_change(each) for each in found.largest],
    }


def _change(change: Change) -> dict[str, Any]:
    by = change.by
    return {
        "rollout_id": change.rollout_id,
        "attempt": change.attempt,
        "group_id": change.group_id,
        "task_id": change.task_id,
        "a": change.before,
        "b": change.after,
        "difference": change.difference,
        "reward_id": None if by is None else by.reward_id,
        "scorer": None if by is None else by.scorer,
        "scorer_version": None if by is None else by.scorer_version,
    }


def _spreads(found: Spreads) -> dict[str, Any]:
    bins = found.histogram
    return {
        "a": _spread(found.before),
        "b": _spread(found.after),
        "difference": found.difference,
        "histogram": None if bins is None else {
            "exact": bins.exact,
            "edges": list(bins.edges),
            "a": list(bins.before),
            "b": list(bins.after),
        },
        "policy_versions": [
            {
                "policy_version": each.policy_version,
                "a": {**_spread(each.before), "histogram": list(each.bins[0])},
                "b": {**_spread(each.after), "histogram": list(each.bins[1])},
            }
            for each in found.versions
        ],
    }  # fmt: skip


def _spread(found: Spread) -> dict[str, Any]:
    return {
        "count": found.count,
        "without": found.without,
        "mean": found.mean,
        "std": found.std,
        "min": found.least,
        "max": found.greatest,
    }


def _samples(found: SampleResult, only_a: int, only_b: int) -> dict[str, Any]:
    return {
        "both": found.both,
        "total_changed": found.changed,
        "total": _spreads(found.totals),
        "changed_most": [
            {"sample_id": each.sample_id, "task_id": each.task_id, "a": each.before, "b": each.after,
             "difference": each.difference} for each in found.largest
        ],
        **{
            f"only_{side}": {
                "count": found.alone[at],
                "why": found.why[at],
                "examples": [asdict(each) for each in found.examples[at]],
            }
            for at, side in enumerate("ab")
        },
        "of_rollouts_only_a": only_a,
        "of_rollouts_only_b": only_b,
    }  # fmt: skip


def _advantages(found: AdvantageResult) -> dict[str, Any]:
    return {
        "groups": found.groups,
        "rollouts": found.rollouts,
        "reordered_groups": found.reordered,
        "flipped_groups": found.flipped,
        "flipped_rollouts": found.flips,
        "flat_only_a": found.flat_before,
        "flat_only_b": found.flat_after,
        "changed_most": [
            {"group_id": each.group_id, "task_id": each.task_id, "flipped_rollouts": each.flips,
             "rollouts": list(each.rollouts), "a": list(each.before), "b": list(each.after)} for each in found.largest
        ],
    }  # fmt: skip


def _statuses(found: EndingResult) -> dict[str, Any]:
    return {
        "changed": [{"a": before, "b": after, "count": count} for (before, after), count in found.statuses.items()],
        "other_attempt": found.attempts,
        "examples": [
            {
                "rollout_id": each.rollout_id,
                "task_id": each.task_id,
                **{
                    side: {"status": each.statuses[at], "reason": each.reasons[at], "attempt": each.attempts[at]}
                    for at, side in enumerate("ab")
                },
            }
            for each in found.status_examples
        ],
    }


def _outcomes(found: EndingResult) -> dict[str, Any]:
    return {
        "both": found.rewards,
        "changed": [
            {"name": name, "a": before, "b": after, "count": count}
            for (name, before, after), count in found.outcomes.items()
        ],
        "examples": [
            {"rollout_id": each.rollout_id, "reward_id": each.reward_id, "name": each.name, "value": each.value,
             "a": each.before, "b": each.after} for each in found.outcome_examples
        ],
        **{
            f"only_{side}": [
                {"name": name, "scorer": scorer, "scorer_version": version, "count": count}
                for (name, scorer, version), count in found.alone[at].items()
            ]
            for at, side in enumerate("ab")
        },
    }  # fmt: skip
