"""What `rolloutlog explain` shows, for programs: plain JSON values."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from rolloutlog.consumers.batches import RewardOutcome
from rolloutlog.consumers.explaining.account import Account
from rolloutlog.consumers.explaining.comparison import CallMove, Comparison, RewardMove, Went
from rolloutlog.consumers.explaining.explain import Node, policy_version_of, prompt_tokens, task_of, totals_of, tree
from rolloutlog.consumers.explaining.extra_info_shown import extra_json
from rolloutlog.consumers.explaining.finding import Found, Recorded
from rolloutlog.consumers.explaining.tally import Tally, Totals
from rolloutlog.consumers.times import exact_time
from rolloutlog.eventstore.events import RewardRecorded, Span
from rolloutlog.eventstore.tokens import TOKEN_BYTES


def as_json(account: Account, comparison: Comparison | None = None) -> dict[str, Any]:
    """One rollout: plain JSON values."""
    found = account.found
    batch, result, started = found.batch, found.result, found.started
    sentences, outcomes, totals = account.sentences, account.outcomes, totals_of(found.samples)
    rewards = account.rewards
    return {
        "rollout_id": found.rollout_id,
        "attempt": found.attempt,
        "group_id": found.group_id,
        "task_id": task_of(found),
        "split": result.split if result is not None else started.split if started is not None else None,
        "state": found.state,
        "waits": list(found.words),
        "status": None if result is None else result.status,
        "reason": None if result is None else result.reason,
        "error": None if result is None else result.error,
        "policy_version": policy_version_of(found),
        "batch_id": None if batch is None else batch.batch_id,
        "config_hash": None if batch is None else batch.config_hash,
        "partition": found.partition,
        "closed": None if batch is None else exact_time(batch.closed_ns),
        "batch_offset": None if found.published is None else found.published.offset,
        "first_event": found.first_event,
        "closing_event": None if result is None else result.closing_event,
        "trigger": None if batch is None else batch.trigger,
        "events_cut": found.cut,
        "final": {} if result is None else dict(result.final),
        "metadata": _metadata(found),
        "spans": [
            _span_json(node, totals, account.not_selected)
            for node in tree(found)
            if isinstance(node.recorded.event, Span)
        ],
        "rewards": [
            _reward_json(each, outcomes.get(each.event.id), sentences)
            for each in found.events
            if isinstance(each.event, RewardRecorded)
        ],
        "outcomes": {
            reward_id: _outcome_json(each, sentences, rewards.get(reward_id)) for reward_id, each in outcomes.items()
        },
        "samples": [
            {
                "sample_id": each.sample_id,
                "span_ids": list(each.span_ids),
                "total": each.total,
                "extra_info": extra_json(each.extra_info),
            }
            for each in found.samples
        ],
        "unread": [{"offset": offset, "reason": reason} for offset, reason in found.unread],
        "settings": None if account.settings is None else account.settings.canonical(),
        "settings_exact": account.exact,
        "comparison": None if comparison is None else comparison_json(comparison),
    }


def comparison_json(found: Comparison) -> dict[str, Any]:
    """One rollout's rewards and calls under two settings."""
    return {
        "before": found.before,
        "after": found.after,
        "moved": found.moved,
        "changed": found.changed,
        "faults": list(found.faults),
        "rewards": [_move_json(each) for each in found.rewards],
        "calls": [_call_json(each) for each in found.calls],
    }


def survey_json(found: Tally) -> dict[str, Any]:
    """Many rollouts under two settings."""
    return {
        "before": found.before,
        "after": found.after,
        "rollouts": found.rollouts,
        "changed": found.changed,
        "gone": found.gone,
        "not_completed": found.not_completed,
        "missing": list(found.missing),
        "faulty": found.faulty,
        "fault": found.fault,
        "rewards": {
            name: {
                "count": moves.count,
                "moved": moves.moved,
                "ways": [{"before": way[0], "after": way[1], "count": count} for way, count in moves.ways.items()],
            }
            for name, moves in found.rewards.items()
        },
        "all": _totals_json(found.overall),
        "operations": {name: _totals_json(totals) for name, totals in found.by_operation.items()},
        "agents": {name: _totals_json(totals) for name, totals in found.by_agent.items()},
        "examples": [
            {
                "rollout_id": each.rollout_id,
                "task_id": each.task_id,
                "moved": each.moved,
                "difference": each.difference,
                "before": each.before,
                "after": each.after,
                "words": each.words,
            }
            for each in found.examples
        ],
    }


def _move_json(move: RewardMove) -> dict[str, Any]:
    return {
        "reward_id": move.reward_id,
        "name": move.name,
        "value": move.value,
        "scope": move.scope,
        "moved": move.moved,
        "before": _went_json(move.before),
        "after": _went_json(move.after),
    }


def _went_json(went: Went | None) -> dict[str, Any] | None:
    return None if went is None else {"outcome": went.outcome, "rule": went.rule, "calls": list(went.calls)}


def _call_json(move: CallMove) -> dict[str, Any]:
    return {
        "span_id": move.span_id,
        "agent": move.agent,
        "operation": move.operation,
        "changed": move.changed,
        "before": {"selected": move.selected_before, "total": move.before},
        "after": {"selected": move.selected_after, "total": move.after},
    }


def _totals_json(totals: Totals) -> dict[str, Any]:
    before, after = (
        {
            "calls": totals.calls[side],
            "rewarded": totals.rewarded[side],
            "total": totals.total[side],
            "mean_total": totals.mean(side),
        }
        for side in (0, 1)
    )
    return {"before": before, "after": after}


def _metadata(found: Found) -> Any:
    given = b"" if found.result is None else found.result.metadata
    if found.result is None and found.started is not None:
        given = found.started.metadata
    return json.loads(given or b"{}")


def _span_json(node: Node, totals: Mapping[str, float | None], not_selected: Collection[str]) -> dict[str, Any]:
    span = node.recorded.event
    assert isinstance(span, Span)
    found = {
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "depth": node.depth,
        "kind": span.kind,
        "name": span.name,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "status": span.status,
        "offset": node.recorded.offset,
    }
    if span.kind != "call":
        return found
    return {
        **found,
        "model": span.model,
        "prompt_tokens": prompt_tokens(span),
        "response_tokens": len(span.response_ids or b"") // TOKEN_BYTES,
        "total": totals.get(span.span_id),
        "sampled": span.span_id in totals,
        "selected": span.span_id not in not_selected,
    }


def _reward_json(recorded: Recorded, outcome: RewardOutcome | None, sentences: Mapping[str, str]) -> dict[str, Any]:
    reward = recorded.event
    assert isinstance(reward, RewardRecorded)
    return {
        "reward_id": reward.id,
        "name": reward.name,
        "value": reward.value,
        "scope": reward.scope,
        "parent_id": reward.parent_id,
        "after_call": reward.after_call,
        "target": None if reward.target is None else {reward.target.key: reward.target.value},
        "supersedes": reward.supersedes,
        "extra_info": extra_json(reward.extra_info),
        "offset": recorded.offset,
        "outcome": None if outcome is None else outcome.outcome,
        "explained": sentences.get(reward.id),
    }


def _outcome_json(
    outcome: RewardOutcome, sentences: Mapping[str, str], reward: RewardRecorded | None
) -> dict[str, Any]:
    """`reward`: as it was recorded; None where it is not to be had, and with it its extra info."""
    return {
        "name": outcome.name,
        "value": outcome.value,
        "scope": outcome.scope,
        "outcome": outcome.outcome,
        "rule": outcome.rule,
        "calls": list(outcome.calls),
        "found": list(outcome.found),
        "scorer": outcome.scorer,
        "scorer_version": outcome.scorer_version,
        "offset": outcome.offset,
        "extra_info": None if reward is None else extra_json(reward.extra_info),
        "explained": sentences.get(outcome.reward_id),
    }
