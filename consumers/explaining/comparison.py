"""One rollout's rewards under two settings: which of them move, and what that makes of its calls. Pure.

A `Side` is what one of them gives, made anew from the rollout's entries or as its batch has it. A reward moves when it
has another outcome or counts for other calls; another rule that leads to the same calls moves nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rolloutlog.consumers.attribution import Attribution, AttributionSettings
from rolloutlog.consumers.attribution.facts import Facts
from rolloutlog.consumers.attribution.model import ATTRIBUTED, FILTERED, FINAL
from rolloutlog.consumers.explaining.account import Account, reached_by_finals, reached_samples

CLOSE = 1e-12  # totals that differ by less are the same: their terms may come in another order
CALLS_MAX = 3  # named in a cell


@dataclass(frozen=True, slots=True)
class Went:
    """Where a reward went. `calls`: those it counts for, that a final one reaches, or that were found and filtered."""

    outcome: str
    rule: str | None
    calls: tuple[str, ...]

    def text(self) -> str:
        """In a cell of a table: `call c (enclosing)`."""
        more = len(self.calls) - CALLS_MAX
        named = ", ".join(self.calls[:CALLS_MAX]) + (f" and {more} more" if more > 0 else "")
        if self.outcome == ATTRIBUTED:
            return f"{named} ({self.rule})"
        if self.outcome == FINAL:
            return f"final: {named or 'no call'}"
        return f"filtered: {named}" if self.outcome == FILTERED else self.outcome


@dataclass(frozen=True, slots=True)
class Side:
    """What one of the settings gives.

    totals  of the selected calls, by span id
    fault   what a policy of the user's own did wrong; None = nothing
    """

    words: str
    went: Mapping[str, Went]
    totals: Mapping[str, float | None]
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class RewardMove:
    reward_id: str
    name: str
    value: float | None
    scope: str
    before: Went | None
    after: Went | None

    @property
    def moved(self) -> bool:
        one, other = self.before, self.after
        return (one and (one.outcome, one.calls)) != (other and (other.outcome, other.calls))


@dataclass(frozen=True, slots=True)
class CallMove:
    """A call's totals. A call that is not selected has none, and `selected_before` or `selected_after` is False."""

    span_id: str
    agent: str | None
    operation: str | None
    before: float | None
    after: float | None
    selected_before: bool
    selected_after: bool

    @property
    def changed(self) -> bool:
        if self.selected_before != self.selected_after or (self.before is None) != (self.after is None):
            return True
        return self.before is not None and self.after is not None and abs(self.before - self.after) > CLOSE

    @property
    def difference(self) -> float:
        """How far the total moves, with 0 for none."""
        return abs((self.after or 0.0) - (self.before or 0.0))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rewards in log order, calls in turn order. `faults`: of policies of the user's own."""

    before: str
    after: str
    rewards: tuple[RewardMove, ...] = field(default=())
    calls: tuple[CallMove, ...] = field(default=())
    faults: tuple[str, ...] = ()

    @property
    def moved(self) -> int:
        return sum(each.moved for each in self.rewards)

    @property
    def changed(self) -> int:
        return sum(each.changed for each in self.calls)


def compare(facts: Facts, before: Side, after: Side) -> Comparison:
    rewards = tuple(
        RewardMove(
            reward_id, reward.name, reward.value, reward.scope, before.went.get(reward_id), after.went.get(reward_id)
        )
        for reward_id, (_, reward) in facts.rewards.items()
    )
    calls = tuple(
        CallMove(
            span_id=call.span_id,
            agent=call.agent,
            operation=facts.operation(call),
            before=before.totals.get(call.span_id),
            after=after.totals.get(call.span_id),
            selected_before=call.span_id in before.totals,
            selected_after=call.span_id in after.totals,
        )
        for call in facts.calls.turns
    )
    faults = tuple(side.fault for side in (before, after) if side.fault is not None)
    return Comparison(before.words, after.words, rewards, calls, faults)


def side_of(words: str, attribution: Attribution, facts: Facts) -> Side:
    """What an attribution of the rollout's entries gives."""
    reached = reached_by_finals(attribution)
    went = {}
    for reward_id, outcome in attribution.outcomes.items():
        calls = outcome.calls or outcome.found
        if outcome.outcome == FINAL:
            calls = reached.get(facts.rewards[reward_id][1].name, ())
        went[reward_id] = Went(outcome.outcome, outcome.rule, calls)
    totals = {call.span_id: call.total for call in attribution.calls}
    return Side(words, went, totals, attribution.fault)


def recorded_side(account: Account, facts: Facts) -> Side:
    """What stands in the batch, or by now for what is not published: by the settings that gave it, where known."""
    found = account.found
    words = "as it stands" if found.result is None else "recorded"
    if account.attribution is not None:
        return side_of(words, account.attribution, facts)
    if found.result is None:
        return Side(words, {}, {})
    reached = reached_samples(found)
    went = {
        each.reward_id: Went(
            each.outcome,
            each.rule,
            reached.get(each.name, ()) if each.outcome == FINAL else each.calls or each.found,
        )
        for each in found.result.outcomes
    }
    totals: dict[str, float | None] = {}
    for sample in found.samples:
        totals.update(dict.fromkeys(sample.span_ids))  # of several calls, the last one has the sum
        totals[sample.span_ids[-1]] = sample.total
    return Side(words, went, totals)


def settings_words(settings: AttributionSettings) -> str:
    """Settings in words: the policy, and what is not as by default: `policy nearest, final every_call`."""
    default = AttributionSettings().canonical()
    given = {name: value for name, value in settings.canonical().items() if value != default.get(name)}
    given = {"policy": settings.policy, **given}
    given.pop("policy_source", None)  # which edition of the policy it is means nothing to a reader
    parts = []
    for name, value in given.items():
        shown = " ".join(f"{key}={each:g}" for key, each in value.items()) if isinstance(value, dict) else str(value)
        parts.append(f"{name} {shown}")
    return ", ".join(parts)
