"""What attribution takes and returns.

Entries are the rollout's spans and rewards in log order, which is the order that "earlier" and "last" mean. They are
checked before: by eventstore.checks when decoded, rewards by `check_reward`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

ATTRIBUTED = "attributed"  # counts for the calls named
FINAL = "final"  # belongs to the rollout; reaches calls by the setting `final`
REVISED = "revised"  # a later reward took its place
NO_VERDICT = "no_verdict"  # the value is None
UNRESOLVED = "unresolved"  # the target given leads to no call
AMBIGUOUS = "ambiguous"  # several agents, and nothing says which one is meant
UNATTRIBUTED = "unattributed"  # the policy found no call
FILTERED = "filtered"  # the calls found are not selected; never handed to another call
OUTCOMES = (ATTRIBUTED, FINAL, REVISED, NO_VERDICT, UNRESOLVED, AMBIGUOUS, UNATTRIBUTED, FILTERED)

NO_VALUES: Mapping[str, float] = MappingProxyType({})

RULE_FINAL = "final"
RULE_LINKED = "linked"  # the other rules are named after the policy


class SpanEntry(NamedTuple):  # made for every span and call: a frozen dataclass takes three times as long to make
    """A span as recorded. `token_count` is how many response token ids it has; from 1 on its call was answered."""

    span_id: str
    parent_id: str | None = None
    kind: str = "other"
    name: str = ""
    start_ns: int = 0
    end_ns: int = 0
    response_id: str | None = None
    choice_index: int = 0
    model: str | None = None
    token_count: int = 0
    trainable: bool = True


@dataclass(frozen=True, slots=True)
class RewardEntry:
    """A reward as recorded. `target` is a key of eventstore.rewards.TARGET_KEYS with its value."""

    reward_id: str
    value: float | None = None
    name: str = "reward"
    scope: str = "step"
    time_ns: int = 0
    target: tuple[str, str] | None = None
    parent_id: str | None = None
    after_call: str | None = None
    supersedes: str | None = None


Entry = SpanEntry | RewardEntry


class CallResult(NamedTuple):
    """What a call was given. Values are per reward name; totals are None where nothing reached the call, never 0.

    span_id      the span the call is named after: the first with response token ids
    span_ids     every span of the call, in log order
    turn_index   place among all calls of the rollout except judges', selected or not
    step         reduced step values, unweighted; with a 0.3 policy the one value taken
    final        the rollout's final values that reach this call, unweighted
    step_total   weighted sum of `step`; with a 0.3 policy the value as it is
    final_total  weighted sum of `final`; the same number for every call it reaches
    total        `step_total` + `final_total`, as far as there are any
    reward_ids   step rewards that count for this call, in log order: theirs is the extra info that goes with it
    """

    span_id: str
    span_ids: tuple[str, ...]
    turn_index: int
    selected: bool
    step: Mapping[str, float] = NO_VALUES
    final: Mapping[str, float] = NO_VALUES
    step_total: float | None = None
    final_total: float | None = None
    total: float | None = None
    reward_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where one reward went.

    outcome  one of OUTCOMES
    calls    ids of the calls it counts for, in turn order; empty unless attributed
    rule     "final", "linked" or the policy that found something; None where nothing was found
    found    ids of the calls found, in turn order; empty unless filtered
    """

    outcome: str
    calls: tuple[str, ...] = ()
    rule: str | None = None
    found: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attribution:
    """The result for one rollout.

    calls             selected calls, in turn order
    all_calls         every call except judges', in turn order: `turn_index` and a turn count go by these
    final             the rollout's final values, unweighted: reward name → value, in log order
    outcomes          one per reward: reward id → Outcome, in log order
    final_reward_ids  rewards behind `final` that count for the whole rollout, in log order
    fault             what a policy of the user's own did wrong, with its traceback; None = nothing
    """

    calls: list[CallResult]
    all_calls: list[CallResult]
    final: Mapping[str, float]
    outcomes: Mapping[str, Outcome]
    final_reward_ids: tuple[str, ...] = ()
    fault: str | None = None
