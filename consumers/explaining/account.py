"""The account of one found rollout: what became of each of its rewards, in a sentence each.

Of a published rollout, outcomes are those of its batch, never made anew. A batch names its settings by their hash
alone; they are known when settings at hand have that hash, or give every outcome and total that was recorded. With
settings that are not known, only what the events tell is said. What is not published yet is shown as it stands, by the
settings at hand.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose

from rolloutlog.consumers.attribution import (
    Attribution,
    AttributionSettings,
    Entry,
    Outcome,
    RewardEntry,
    attribute,
    explain_recorded,
)
from rolloutlog.consumers.attribution.reasons import Reasons, names
from rolloutlog.consumers.attribution.revisions import Revisers
from rolloutlog.consumers.batches import RewardOutcome, RolloutResult
from rolloutlog.consumers.closing import reward_entry
from rolloutlog.consumers.explaining.finding import CLOSED, OPEN, UNPUBLISHED, Found
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.events import RewardRecorded

UNDECIDED = (OPEN, CLOSED, UNPUBLISHED)
_NO_POLICY = (None, "final", "linked")


@dataclass(frozen=True, slots=True)
class Account:
    """What is known of a rollout's rewards.

    settings     those that made the record, or give the same; of what is not published, those at hand; None = not known
    exact        the settings are those of the batch, by its hash
    attribution  what they give; None when they are not known or the events are gone
    reasons      for its words; None when the events are gone
    sentences    by reward id
    scored       rewards in the batch that scorers recorded afterwards, by id: those that a replay counted
    """

    found: Found
    settings: AttributionSettings | None = None
    exact: bool = False
    attribution: Attribution | None = None
    reasons: Reasons | None = None
    sentences: Mapping[str, str] = field(default_factory=dict)
    scored: Mapping[str, RewardRecorded] = field(default_factory=dict)

    @property
    def entries(self) -> tuple[Entry, ...] | None:
        """What attribution was given of it, as far as it is known; None when the events are gone."""
        return entries_with(self.found.entries, self.scored)

    @property
    def rewards(self) -> Mapping[str, RewardRecorded]:
        """As they were recorded, by id: those in the events, and those in `scored`."""
        events = (each.event for each in self.found.events)
        return {each.id: each for each in events if isinstance(each, RewardRecorded)} | dict(self.scored)

    @property
    def outcomes(self) -> Mapping[str, RewardOutcome]:
        """What the batch says, by reward id."""
        result = self.found.result
        return {} if result is None else {each.reward_id: each for each in result.outcomes}

    @property
    def not_selected(self) -> frozenset[str]:
        """Calls that are not trained on, as far as the settings are known."""
        calls = () if self.attribution is None else self.attribution.all_calls
        return frozenset(call.span_id for call in calls if not call.selected)


def account_of(
    found: Found, candidates: Sequence[FoldSettings] = (), recorded: Iterable[RewardRecorded] = ()
) -> Account:
    """Give account of a rollout.

    candidates  settings at hand, those that most likely made the record first; the defaults when there are none
    recorded    rewards that scorers recorded for this attempt, in log order: those that its batch has are its rewards
    """
    candidates = candidates or (FoldSettings(),)
    if found.result is not None:
        return _published(found, candidates, _in_batch(found.result, recorded))
    if found.entries is None or found.state not in UNDECIDED:
        return Account(found)
    settings = candidates[0].attribution
    attribution = attribute(found.entries, settings)
    reasons = Reasons(found.entries, settings)
    sentences = sentences_of(attribution, reasons, settings, "not decided yet; as it stands: ")
    return Account(found, settings, False, attribution, reasons, sentences)


def sentences_of(
    attribution: Attribution, reasons: Reasons, settings: AttributionSettings, before: str = ""
) -> dict[str, str]:
    """A sentence for each reward of an attribution, by reward id in log order. `before`: what goes before its words."""
    reached = reached_by_finals(attribution)
    sentences = {}
    for reward_id, outcome in attribution.outcomes.items():
        reward = reasons.reward(reward_id)
        assert reward is not None
        no_call = "no call" + (": final=none" if settings.final == "none" else "")
        words = reasons.words(reward_id, outcome, settings.policy, _reached(reached.get(reward.name, ()), no_call))
        sentences[reward_id] = f"{lead(reward)}: {before}{words}"
    return sentences


def reached_by_finals(attribution: Attribution) -> dict[str, tuple[str, ...]]:
    """Reward name → the calls that the rollout's final value of that name reaches, in turn order."""
    reached: dict[str, list[str]] = {}
    for call in attribution.calls:
        for name in call.final:
            reached.setdefault(name, []).append(call.span_id)
    return {name: tuple(calls) for name, calls in reached.items()}


def reached_samples(found: Found) -> dict[str, tuple[str, ...]]:
    """The same as published: the last call of each sample that carries the value."""
    reached: dict[str, list[str]] = {}
    for sample in found.samples:
        for name in sample.final:
            reached.setdefault(name, []).append(sample.span_ids[-1])
    return {name: tuple(calls) for name, calls in reached.items()}


def lead(reward: RewardEntry) -> str:
    """The beginning of a reward's sentence: `reward s1 (parses 0.2, step)`."""
    value = "no value" if reward.value is None else f"{reward.value:g}"
    return f"reward {reward.reward_id} ({reward.name} {value}, {reward.scope})"


def entries_with(entries: tuple[Entry, ...] | None, scored: Mapping[str, RewardRecorded]) -> tuple[Entry, ...] | None:
    """The entries of the events, with those of scorers' rewards behind them as in a replay."""
    return None if entries is None else (*entries, *map(reward_entry, scored.values()))


def _in_batch(result: RolloutResult, recorded: Iterable[RewardRecorded]) -> dict[str, RewardRecorded]:
    """Those that the batch has. A scorer that isn't deterministic may have recorded something else under the id."""
    by_id = {reward.id: reward for reward in recorded}
    found = {}
    for each in result.outcomes:
        reward = by_id.get(each.reward_id) if each.offset < 0 else None  # its events don't have it
        if reward is not None and (reward.name, reward.value, reward.scope) == (each.name, each.value, each.scope):
            found[reward.id] = reward
    return found


def _published(found: Found, candidates: Sequence[FoldSettings], scored: Mapping[str, RewardRecorded]) -> Account:
    assert found.result is not None
    entries = entries_with(found.entries, scored)
    settings, exact, attribution = _known(found, entries, candidates)
    revisers = _revisers(found.result, entries, scored)
    reasons = None if entries is None else Reasons(entries, settings, revisers)
    policy = settings.policy if settings is not None else _policy(found)
    reached = reached_samples(found)
    not_sampled = "no sample"
    if found.result.status != "emitted":
        not_sampled += f": the rollout ended as {found.result.status}"
    elif settings is not None and settings.final == "none":
        not_sampled += ": final=none"
    sentences = {}
    for each in found.result.outcomes:
        outcome = Outcome(each.outcome, each.calls, each.rule, each.found)
        entry = RewardEntry(each.reward_id, each.value, each.name, each.scope)
        reaches = reached.get(each.name, ())
        if reasons is not None and reasons.reward(each.reward_id) is not None:
            words = reasons.words(each.reward_id, outcome, policy, _reached(reaches, not_sampled))
            sentences[each.reward_id] = f"{lead(entry)}: {words}"
        else:
            sentences[each.reward_id] = explain_recorded(entry, outcome, reaches, revisers)
    return Account(found, settings, exact, attribution, reasons, sentences, scored)


def _revisers(result: RolloutResult, entries: Sequence[Entry] | None, scored: Mapping[str, RewardRecorded]) -> Revisers:
    """Of all rewards that the batch has, in its order. Those that are recorded nowhere have no more to tell."""
    known = {each.id: reward_entry(each) for each in scored.values()}
    known |= {each.reward_id: each for each in entries or () if isinstance(each, RewardEntry)}
    return Revisers(
        known.get(each.reward_id) or RewardEntry(each.reward_id, each.value, each.name, each.scope)
        for each in result.outcomes
    )


def _known(
    found: Found, entries: tuple[Entry, ...] | None, candidates: Sequence[FoldSettings]
) -> tuple[AttributionSettings | None, bool, Attribution | None]:
    batch = found.batch
    for each in candidates:
        if batch is not None and each.config_hash == batch.config_hash:
            attribution = None if entries is None else attribute(entries, each.attribution)
            return each.attribution, True, attribution
    if entries is None:
        return None, False, None
    policy = _policy(found)
    for each in candidates:
        settings = each.attribution if policy is None else replace(each.attribution, policy=policy)
        attribution = attribute(entries, settings)
        if _agrees(found, attribution):
            return settings, False, attribution
    return None, False, None


def _policy(found: Found) -> str | None:
    """The policy by which a reward was decided, as far as any was."""
    assert found.result is not None
    return next((each.rule for each in found.result.outcomes if each.rule not in _NO_POLICY), None)


def _agrees(found: Found, attribution: Attribution) -> bool:
    assert found.result is not None
    recorded = {
        each.reward_id: Outcome(each.outcome, each.calls, each.rule, each.found) for each in found.result.outcomes
    }
    if recorded != dict(attribution.outcomes):
        return False
    totals = {call.span_id: call.total for call in attribution.calls}
    for sample in found.samples:
        if len(sample.span_ids) != 1:
            continue  # of several calls, the sample has their sum
        total = totals.get(sample.span_ids[0])
        if (total is None) != (sample.total is None):
            return False
        if total is not None and sample.total is not None and not isclose(total, sample.total, abs_tol=1e-12):
            return False
    return True


def _reached(calls: Sequence[str], otherwise: str) -> str:
    return names(calls) if calls else otherwise
