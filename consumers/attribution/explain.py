"""One sentence for where a reward went when its rollout's events are gone, and only what its batch says is known.

Not here  the same with the events: attribution.reasons
"""

from collections.abc import Sequence

from rolloutlog.consumers.attribution.model import Outcome, RewardEntry
from rolloutlog.consumers.attribution.reasons import names
from rolloutlog.consumers.attribution.revisions import Revisers


def explain_recorded(
    reward: RewardEntry, outcome: Outcome, reached: Sequence[str], revisers: Revisers | None = None
) -> str:
    """What became of a reward, e.g. `reward s1 (parses 0.2, step): attributed to call c by rule enclosing`.

    reached   the calls whose samples carry the reward as a final value
    revisers  of the rollout's rewards, as far as they are known
    """
    if outcome.outcome == "revised":
        words = (revisers or Revisers(())).words(reward)
    else:
        words = _words(reward, outcome, reached)
    value = "no value" if reward.value is None else f"{reward.value:g}"
    return f"reward {reward.reward_id} ({reward.name} {value}, {reward.scope}): {words}"


def _words(reward: RewardEntry, outcome: Outcome, reached: Sequence[str]) -> str:
    match outcome.outcome:
        case "attributed":
            return f"attributed to {names(outcome.calls)} by rule {outcome.rule}"
        case "final":
            return f"final, it belongs to the rollout and reaches {names(reached) if reached else 'no sample'}"
        case "no_verdict":
            return "no_verdict, its scorer gave none, so it counts for nothing"
        case "unresolved":
            target = "its target" if reward.target is None else f"its target {reward.target[0]} {reward.target[1]!r}"
            return f"unresolved, {target} leads to no call that can be rewarded"
        case "ambiguous":
            return "ambiguous, it has no parent and the calls have several agents; give it a target or a parent"
        case "filtered":
            return f"filtered, rule {outcome.rule} found {names(outcome.found)}, not selected; handed to no other call"
        case _:
            return "unattributed, no call was found"
