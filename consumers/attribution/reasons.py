"""Why a reward went where it did, and what would have to change for one that counts for no call, from its own rollout.

`Reasons(entries, settings).words(reward_id, outcome)` gives what follows the colon of a sentence. Ids and names are
those of the rollout, so that what is proposed can be copied.

Not here  the same without the rollout's events: attribution.explain
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from operator import attrgetter, itemgetter

from rolloutlog.consumers.attribution.calls import Call
from rolloutlog.consumers.attribution.facts import Facts
from rolloutlog.consumers.attribution.model import RULE_LINKED, Entry, Outcome, RewardEntry
from rolloutlog.consumers.attribution.revisions import Revisers
from rolloutlog.consumers.attribution.select import select
from rolloutlog.consumers.attribution.settings import POLICIES_0_3, AttributionSettings
from rolloutlog.consumers.attribution.tree import NONE

NAMES_MAX = 5  # named in a sentence; a link to a whole tree can find thousands of calls

_RULES_0_3 = "Agent Lightning 0.3's matching: the newest selected call that had ended by its time and was still free"


class Reasons:
    """Says why, rollout by rollout.

    settings  those that made the outcomes; None = not known, only what the events tell is said
    revisers  that know more rewards than the entries hold; None = those of the entries
    """

    def __init__(
        self, entries: Iterable[Entry], settings: AttributionSettings | None, revisers: Revisers | None = None
    ) -> None:
        self._facts = Facts(entries)
        self._settings = settings
        if settings is not None:
            select(self._facts.calls, settings)
        self._revisers = revisers or Revisers(reward for _, reward in self._facts.rewards.values())

    @property
    def facts(self) -> Facts:
        return self._facts

    def reward(self, reward_id: str) -> RewardEntry | None:
        found = self._facts.rewards.get(reward_id)
        return None if found is None else found[1]

    def words(self, reward_id: str, outcome: Outcome, policy: str | None, reaches: str) -> str:
        """What became of a reward and why.

        policy   that decided, where it is known
        reaches  the calls that a final reward reaches, in words
        """
        reward = self._facts.rewards[reward_id][1]
        match outcome.outcome:
            case "attributed":
                return f"attributed to {names(outcome.calls)} by rule {outcome.rule}: {self._rule(reward, outcome)}"
            case "revised":
                return self._revisers.words(reward)
            case "no_verdict":
                return "no_verdict, the scorer gave None, which counts for nothing: emit another once there is a value"
            case "unresolved":
                return f"unresolved: {self._unresolved(reward)}"
            case "ambiguous":
                return f"ambiguous: {self._ambiguous()}"
            case "filtered":
                return f"filtered by {self._filtered(outcome)}; handed to no other call"
            case "unattributed":
                return f"unattributed: {self._unattributed(reward, policy)}"
            case _:
                return f"final, it belongs to the rollout and reaches {reaches}"

    # Counted

    def _rule(self, reward: RewardEntry, outcome: Outcome) -> str:
        call = self._facts.calls.by_span(outcome.calls[0])
        if outcome.rule == RULE_LINKED:
            return self._linked(reward, outcome, call)
        if outcome.rule == "nearest":
            return "the last call recorded before it"
        if outcome.rule in POLICIES_0_3:
            return _RULES_0_3
        if outcome.rule != "enclosing" or call is None:
            return "chosen by that policy"
        if reward.parent_id is None:
            return "it has no parent, and the last earlier call is meant since all calls have one agent or none"
        return self._enclosing(self._facts.tree.number[reward.parent_id], call)

    def _linked(self, reward: RewardEntry, outcome: Outcome, call: Call | None) -> str:
        key, value = reward.target or ("", "")
        v = self._facts.tree.number.get(value)
        if key == "response_id" or (key == "span_id" and v is not None and self._facts.calls.of_span[v] is call):
            return f"its target names that call, {key} {value!r}"
        where = f"operation {value}" if key == "operation" or v is None else f"{self._facts.name(v)}, span {value!r}"
        if len(outcome.calls) == 1:
            return f"the last earlier call beneath its target, {where}"
        split = ", divided evenly" if self._settings is not None and self._settings.link_subtree == "split" else ""
        return f"the earlier calls beneath its target, {where}{split}"

    def _enclosing(self, start: int, call: Call) -> str:
        facts = self._facts
        if facts.calls.of_span[start] is call:
            return "it was emitted in that call"
        for v in facts.up_from(start):
            if facts.calls.of_span[v] is call:
                return "it was emitted in a block within that call"
            if facts.holds(v, call):
                place = "where it was emitted" if v == start else "around where it was emitted"
                return f"the last earlier call beneath {facts.name(v)}, {place}"
        return "the last call that its emitter had seen (after_call)"

    # Not counted

    def _unresolved(self, reward: RewardEntry) -> str:
        key, value = reward.target or ("", "")
        facts = self._facts
        if key == "response_id":
            return self._unresolved_response(value)
        if key == "operation":
            return self._unresolved_operation(reward, value)
        v = facts.tree.number.get(value)
        if v is None or v >= len(facts.tree.spans):
            return f"no span has span_id {value!r}; {self._known_calls()}"
        if facts.calls.of_span[v] is not None or facts.judged(v):
            return f"{facts.name(v)} belongs to a judge (beneath an evaluator), whose calls are not rewarded"
        return f"no call beneath {facts.name(v)} was recorded before it; {self._later_beneath(v)}"

    def _unresolved_response(self, value: str) -> str:
        facts = self._facts
        if facts.calls.by_response(value) is not None:
            return f"the call with response_id {value!r} is a judge's (beneath an evaluator), and is not rewarded"
        if value in self._bare:
            return (
                f"span {self._bare[value]} has response_id {value!r}, but no response token ids, so it is no call: "
                "record them there, or in a gateway under the same response id"
            )
        recorded = self._response_ids
        if not recorded:
            return f"no call has response_id {value!r} or any other: record it with call.record(response_id=...)"
        return f"no call has response_id {value!r}; response ids recorded: {_some(recorded)}"

    def _unresolved_operation(self, reward: RewardEntry, name: str) -> str:
        of_name = self._operations.get(name)
        if of_name is None:
            return f"no operation is named {name!r}; operations recorded: {_some(list(self._operations)) or 'none'}"
        v = of_name.newest(reward.time_ns, self._facts.moment(reward.reward_id))
        if v is None:
            return f"no operation {name!r} had begun before it; emit it after, or link it by span_id"
        return f"no call beneath the newest operation {name!r} was recorded before it; {self._later_beneath(v)}"

    @cached_property
    def _operations(self) -> "dict[str, _Operations]":
        found: dict[str, list[tuple[int, int]]] = {}
        for v, span in enumerate(self._facts.tree.spans):
            if span.kind == "operation":
                found.setdefault(span.name, []).append((span.start_ns, v))
        return {name: _Operations(each, self._facts.positions) for name, each in found.items()}

    @cached_property
    def _response_ids(self) -> list[str]:
        return list(dict.fromkeys(c.named.response_id for c in self._facts.counted if c.named.response_id))

    @cached_property
    def _bare(self) -> dict[str, str]:
        """Response id → span, of spans that are no call."""
        tree, of_span = self._facts.tree, self._facts.calls.of_span
        return {
            span.response_id: span.span_id
            for span, call in zip(tree.spans, of_span[: len(tree.spans)], strict=True)
            if span.response_id and call is None
        }

    def _later_beneath(self, v: int) -> str:
        call = self._facts.any_beneath(v)
        if call is None:
            return f"none is beneath it at all; {self._known_calls()}"
        return f"{call.span_id} came later: link that, {self._link(call)}"

    def _ambiguous(self) -> str:
        agents = sorted(each for each in self._facts.calls.agents if each is not None)
        found = _and(agents) + (", and some have none" if None in self._facts.calls.agents else "")
        return (
            f"it has no parent, and the calls have {'agents' if len(agents) > 1 else 'agent'} {found}; emit it inside "
            "an agent's block or give it a target"
        )

    def _filtered(self, outcome: Outcome) -> str:
        facts, settings = self._facts, self._settings
        call = facts.calls.by_span(outcome.found[0]) if outcome.found else None
        if call is None:
            return f"the settings: {names(outcome.found)} found, not selected"
        more = f" (and {len(outcome.found) - 1} more)" if len(outcome.found) > 1 else ""
        found = f"the call found was {call.span_id}{more}"
        operations = facts.operations(call)
        if any(facts.tree.spans[v].trainable is False for v in call.spans):
            return f"trainable=false: {found}, which was recorded so"
        if settings is None:
            where = [f"agent {call.agent}" if call.agent else "", f"in operation {operations[0]}" if operations else ""]
            place = "".join(f", {each}" for each in where if each)
            return f"the assembler's settings, which are not at hand (--settings FILE): {found}{place}"
        if _matches(settings.exclude_agent, call.agent):
            return f"exclude_agent={settings.exclude_agent}: {found}, of agent {call.agent}"
        for operation in operations:
            if _matches(settings.exclude_operation, operation):
                return f"exclude_operation={settings.exclude_operation}: {found}, in operation {operation}"
        if settings.agent is not None and not _matches(settings.agent, call.agent):
            return f"agent={settings.agent}: {found}, {f'of agent {call.agent}' if call.agent else 'of no agent'}"
        if settings.model is not None and not _matches(settings.model, call.model):
            return f"model={settings.model}: {found}, {f'of model {call.model}' if call.model else 'without a model'}"
        if settings.operation is not None and not any(_matches(settings.operation, each) for each in operations):
            many = "s" if len(operations) > 1 else ""
            inside = f"in operation{many} {_some(operations)}" if operations else "in no operation"
            return f"operation={settings.operation}: {found}, {inside}"
        return f"the settings: {found}, not selected"

    def _unattributed(self, reward: RewardEntry, policy: str | None) -> str:
        facts = self._facts
        if not facts.counted:
            return self._no_calls()
        if policy == "none":
            return f"policy none counts targets and finals alone; {self._link_last(reward)}"
        if policy in POLICIES_0_3:
            return (
                f"no selected call that had ended by its time was still free (policy {policy}); policy enclosing goes "
                "by where it was emitted, and gives a call any number of rewards"
            )
        if policy is not None and policy not in ("enclosing", "nearest"):
            return f"policy {policy} chose no call; {self._link_last(reward)}"
        before = facts.moment(reward.reward_id)
        if facts.last_before(before) is None:
            first = self._proposed[0]
            return (
                "no call was recorded before it; emit it after its call, or link it, e.g. to the first one after it, "
                f"with {self._link(first)}"
            )
        if policy is None:
            return f"the policy chose no call; {self._link_last(reward)}"
        if reward.parent_id is None:
            return self._link_last(reward)
        return self._beneath_nothing(reward, facts.tree.number[reward.parent_id])

    def _beneath_nothing(self, reward: RewardEntry, v: int) -> str:
        facts = self._facts
        around = ""
        if facts.judged(v) and (judge := facts.outermost_evaluator(v)) != NONE:
            if facts.tree.parent[judge] == NONE:
                return (
                    f"it was emitted in {facts.name(judge)}, which stands in no block: open that inside the agent's, "
                    f"or link the reward, e.g. with {self._link(self._last(reward))}"
                )
            v, around = facts.tree.parent[judge], f", around {facts.name(judge)}"
        where = facts.name(v)
        if v >= len(facts.tree.spans) and not around:
            where = f"its parent {reward.parent_id!r} (never recorded)"
        agent = facts.agent_above(v)
        if agent == v:
            above = ""
        elif agent != NONE:
            above = f" or what is around that, up to {facts.name(agent)}"
        else:
            above = "" if facts.tree.parent[v] == NONE else " or what is around that, up to the top"
        leaves = "" if agent == NONE else ", whose block a reward leaves by a target alone"
        said = f"no call was recorded before it beneath {where}{around}{above}{leaves}"
        later = facts.any_beneath(v if agent == NONE else agent)
        if later is not None and later.recorded >= facts.moment(reward.reward_id):
            return f"{said}; {later.span_id} came later: emit it after that, or link it with {self._link(later)}"
        return f"{said}; {self._link_last(reward)}"

    def _no_calls(self) -> str:
        spans = self._facts.tree.spans
        if self._facts.calls.every:
            return "every call of the rollout is a judge's (beneath an evaluator); open the policy's outside of it"
        bare = sum(span.kind == "call" for span in spans)
        if bare:
            return (
                f"the rollout has no call: none of its spans of kind call ({bare}) has response token ids; record "
                "them there, or in a gateway under the same response id"
            )
        return "the rollout has no call: record the policy's answers, with `rollout.call()` and its `record`"

    @cached_property
    def _proposed(self) -> list[Call]:
        """The calls that a link may propose, as they were recorded: the selected ones where there are any."""
        counted = self._facts.counted
        return [call for call in counted if self._settings is None or call.selected] or list(counted)

    def _last(self, reward: RewardEntry) -> Call:
        """The last call before a reward that a link may propose, else the first one after it."""
        before = self._facts.moment(reward.reward_id)
        index = bisect_left(self._proposed, before, key=attrgetter("recorded"))
        return self._proposed[max(0, index - 1)]

    def _link_last(self, reward: RewardEntry) -> str:
        call, before = self._last(reward), self._facts.moment(reward.reward_id)
        nearest = self._facts.last_before(before) is call
        selected = "selected " if call.selected and self._settings is not None and not nearest else ""
        which = f"the last {selected}call before it" if call.recorded < before else f"a {selected}call after it"
        agent = f" of agent {call.agent}" if call.agent else ""
        return f"link it, e.g. to {which}{agent}, with {self._link(call)}"

    def _link(self, call: Call) -> str:
        unselected = self._settings is not None and not call.selected
        return f"target={{'span_id': {call.span_id!r}}}" + (", though that is not selected" if unselected else "")

    def _known_calls(self) -> str:
        counted = self._facts.counted
        if not counted:
            return self._no_calls()
        return f"the calls are {_some([call.span_id for call in counted[: NAMES_MAX + 1]], len(counted))}"


class _Operations:
    """The operations of one name.

    placed  start and number of each, in log order
    """

    def __init__(self, placed: list[tuple[int, int]], positions: Sequence[int]) -> None:
        self._recorded = [positions[v] for _, v in placed]
        self._newest = list(accumulate(placed, max))  # of those so far
        self._by_start = sorted(placed)

    def newest(self, time_ns: int, before: int) -> int | None:
        """The one that began last, of those that began by a time or were recorded before a position."""
        begun = bisect_right(self._by_start, time_ns, key=itemgetter(0))
        recorded = bisect_left(self._recorded, before)
        candidates = self._by_start[:begun][-1:] + self._newest[:recorded][-1:]
        return max(candidates)[1] if candidates else None


def names(span_ids: Sequence[str]) -> str:
    """`call a`, `calls a, b and 3 more`."""
    return ("call " if len(span_ids) == 1 else "calls ") + _some(span_ids)


def _some(texts: Sequence[str], count: int | None = None) -> str:
    more = (len(texts) if count is None else count) - NAMES_MAX
    return ", ".join(texts[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _and(texts: Sequence[str]) -> str:
    if len(texts) > NAMES_MAX:
        return _some(texts)
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


def _matches(pattern: str | None, name: str | None) -> bool:
    return pattern is not None and name is not None and re.search(pattern, name) is not None
