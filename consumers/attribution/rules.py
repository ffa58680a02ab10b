"""Attribute the rewards of one rollout: the rules of docs/rewards.md, the first that applies.

`attribute(entries, settings)` is pure: the same entries in the same order give the same result, live and in replay.
Work grows linearly with spans and rewards, but for a logarithm, whatever the depth of the tree.

Order     0 revised, no verdict; 1 final; 2 linked; 3 the policy; 4 filtered. Each reward ends in exactly one outcome
Not here  which calls become samples, and their extra info: consumers.samples
"""

from collections.abc import Iterable

from rolloutlog.consumers.attribution.amounts import Given, call_results, taken_results
from rolloutlog.consumers.attribution.calls import Call, Calls, in_turn_order
from rolloutlog.consumers.attribution.custom import CustomPolicy, is_custom, load_policy
from rolloutlog.consumers.attribution.earlier import Earlier, after_call, moment
from rolloutlog.consumers.attribution.links import linked
from rolloutlog.consumers.attribution.matching import match
from rolloutlog.consumers.attribution.model import (
    ATTRIBUTED,
    FILTERED,
    FINAL,
    RULE_FINAL,
    RULE_LINKED,
    UNATTRIBUTED,
    UNRESOLVED,
    Attribution,
    CallResult,
    Entry,
    Outcome,
    RewardEntry,
    SpanEntry,
)
from rolloutlog.consumers.attribution.policies import Enclosing
from rolloutlog.consumers.attribution.revisions import set_aside
from rolloutlog.consumers.attribution.select import select
from rolloutlog.consumers.attribution.settings import POLICIES_0_3, AttributionSettings
from rolloutlog.consumers.attribution.tree import SpanTree
from rolloutlog.eventstore.rewards import REWARD_NAME

Placed = tuple[int, RewardEntry]  # position in the log, reward


def attribute(entries: Iterable[Entry], settings: AttributionSettings) -> Attribution:
    """Decide for every reward which calls it counts for, and for every call how much it is given.

    entries  the rollout's spans and rewards in log order, already checked; an id seen before counts for nothing
    Returns  results per call and one outcome per reward; see Attribution
    """
    spans, positions, rewards = _read(entries)
    named = (reward.parent_id for _, reward in rewards if reward.parent_id is not None)
    calls = Calls(SpanTree(spans, named), positions)
    select(calls, settings)
    if settings.policy in POLICIES_0_3:
        return _attribute_as_0_3(calls, rewards, settings)
    aside = set_aside([reward for _, reward in rewards], revise_by_name=True)
    found, fault = _find(calls, positions, [each for each in rewards if each[1].reward_id not in aside], settings)
    outcomes: dict[str, Outcome] = {}
    given: dict[Call, Given] = {}
    final: dict[str, float] = {}
    final_reward_ids: list[str] = []
    for _, reward in rewards:
        if reward.reward_id in aside:
            outcome = Outcome(aside[reward.reward_id])
        elif reward.scope == "rollout":
            outcome = Outcome(FINAL, rule=RULE_FINAL)
            final[reward.name] = _value(reward)
            final_reward_ids.append(reward.reward_id)
        else:
            outcome = _give(reward, found[reward.reward_id], given, settings)
        outcomes[reward.reward_id] = outcome
    results = call_results(calls, given, final, settings)
    return _attribution(results, final, outcomes, tuple(final_reward_ids), fault)


def _read(entries: Iterable[Entry]) -> tuple[list[SpanEntry], list[int], list[Placed]]:
    """Spans, their positions, and rewards, each id once: the first time counts."""
    spans: dict[str, SpanEntry] = {}
    positions: list[int] = []
    rewards: dict[str, Placed] = {}
    for position, entry in enumerate(entries):
        if isinstance(entry, SpanEntry):
            if entry.span_id not in spans:
                spans[entry.span_id] = entry
                positions.append(position)
        elif entry.reward_id not in rewards:
            rewards[entry.reward_id] = (position, entry)
    return list(spans.values()), positions, list(rewards.values())


def _find(
    calls: Calls, positions: list[int], rewards: list[Placed], settings: AttributionSettings
) -> tuple[dict[str, list[Call] | str], str | None]:
    """For each step reward the calls found, selected or not, or the outcome when there are none; and what failed."""
    waiting = []
    for position, reward in rewards:
        if reward.scope == "step":
            after = after_call(calls, reward)
            waiting.append((moment(position, after), position, reward, after))
    if not waiting:
        return {}, None
    earlier = Earlier(calls, positions)
    enclosing = Enclosing(calls, earlier) if settings.policy == "enclosing" else None
    custom = CustomPolicy(load_policy(settings.policy), calls, earlier) if is_custom(settings.policy) else None
    waiting.sort(key=lambda each: each[:2])
    found: dict[str, list[Call] | str] = {}
    for before, position, reward, after in waiting:
        earlier.advance(before)
        if reward.target is not None:
            found[reward.reward_id] = linked(reward, calls, earlier, settings.link_subtree) or UNRESOLVED
        elif enclosing is not None:
            found[reward.reward_id] = enclosing.find(reward, position, after)
        elif custom is not None:
            found[reward.reward_id] = custom.find(reward, after)
        else:
            call = earlier.last() if settings.policy == "nearest" else None
            found[reward.reward_id] = UNATTRIBUTED if call is None else [call]
    return found, None if custom is None else custom.fault


def _give(
    reward: RewardEntry, found: list[Call] | str, given: dict[Call, Given], settings: AttributionSettings
) -> Outcome:
    """Hand a step reward to the selected ones among the calls found. To no other call, if none is."""
    if isinstance(found, str):
        return Outcome(found)
    rule = RULE_LINKED if reward.target is not None else settings.policy
    selected = [call for call in found if call.selected]
    if not selected:
        return Outcome(FILTERED, rule=rule, found=tuple(call.span_id for call in found))
    value = _value(reward)
    if settings.link_subtree == "split":
        value /= len(selected)
    for call in selected:
        given.setdefault(call, Given()).add(reward, value)
    return Outcome(ATTRIBUTED, tuple(call.span_id for call in selected), rule)


def _attribute_as_0_3(calls: Calls, rewards: list[Placed], settings: AttributionSettings) -> Attribution:
    aside = set_aside([reward for _, reward in rewards], revise_by_name=False)
    taken = match(settings.policy, calls, [each for each in rewards if each[1].reward_id not in aside])
    outcomes: dict[str, Outcome] = {}
    taken_by: dict[Call, RewardEntry] = {}
    for _, reward in rewards:
        call = taken.get(reward.reward_id)
        if call is not None:
            taken_by[call] = reward
            outcomes[reward.reward_id] = Outcome(ATTRIBUTED, (call.span_id,), settings.policy)
        else:
            outcomes[reward.reward_id] = Outcome(aside.get(reward.reward_id, UNATTRIBUTED))
    final = {}
    if taken_by:
        final[REWARD_NAME] = _value(taken_by[in_turn_order(taken_by)[-1]])
    return _attribution(taken_results(calls, taken_by), final, outcomes, ())


def _attribution(
    results: list[CallResult],
    final: dict[str, float],
    outcomes: dict[str, Outcome],
    final_reward_ids: tuple[str, ...],
    fault: str | None = None,
) -> Attribution:
    selected = [result for result in results if result.selected]
    return Attribution(selected, results, final, outcomes, final_reward_ids, fault)


def _value(reward: RewardEntry) -> float:
    assert reward.value is not None  # those without a verdict are set aside before
    return reward.value
