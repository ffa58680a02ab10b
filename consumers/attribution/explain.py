"""One sentence for where a reward went, for people who look for a reward that is missing."""

from collections.abc import Sequence

from rolloutlog.consumers.attribution.model import Outcome, RewardEntry
from rolloutlog.consumers.attribution.settings import POLICIES_0_3, AttributionSettings

_IDS_MAX = 5  # named in a sentence; a link to a whole tree can find thousands of calls

_REACHES = {"last_call": "the last selected call", "every_call": "every selected call", "none": "no call"}
_NOTHING_FOUND = {
    "enclosing": "no earlier call lies beneath its parent or what encloses that, up to the nearest agent",
    "nearest": "no call was recorded before it",
    "none": "policy none leaves every step reward without a target aside",
}


def explain(reward: RewardEntry, outcome: Outcome, settings: AttributionSettings) -> str:
    """What became of a reward and why, e.g. `reward s1 (reward 0.2, step): attributed to call c by rule enclosing`."""
    return _sentence(reward, _words(reward, outcome, _REACHES[settings.final], _nothing_found(settings.policy)))


def explain_recorded(reward: RewardEntry, outcome: Outcome, reached: Sequence[str]) -> str:
    """The same for an outcome that was read back, whose settings are not known any more.

    reached  the calls whose samples carry the reward as a final value
    """
    return _sentence(reward, _words(reward, outcome, _calls(reached) if reached else "no sample", "no call was found"))


def _sentence(reward: RewardEntry, words: str) -> str:
    value = "no value" if reward.value is None else f"{reward.value:g}"
    return f"reward {reward.reward_id} ({reward.name} {value}, {reward.scope}): {words}"


def _words(reward: RewardEntry, outcome: Outcome, reaches: str, nothing_found: str) -> str:
    match outcome.outcome:
        case "attributed":
            return f"attributed to {_calls(outcome.calls)} by rule {outcome.rule}"
        case "final":
            return f"final, it belongs to the rollout and reaches {reaches}"
        case "revised":
            return "revised, a later reward took its place"
        case "no_verdict":
            return "no_verdict, its scorer gave none, so it counts for nothing"
        case "unresolved":
            target = "its target" if reward.target is None else f"its target {reward.target[0]} {reward.target[1]!r}"
            return f"unresolved, {target} leads to no call that can be rewarded"
        case "ambiguous":
            return "ambiguous, it has no parent and the calls have several agents; give it a target or a parent"
        case "filtered":
            return f"filtered, rule {outcome.rule} found {_calls(outcome.found)}, not selected; handed to no other call"
        case _:
            return f"unattributed, {nothing_found}"


def _nothing_found(policy: str) -> str:
    if policy in POLICIES_0_3:
        return f"no selected call that had ended and was still free was left for it (policy {policy})"
    return _NOTHING_FOUND.get(policy, f"policy {policy} named no call for it")


def _calls(span_ids: Sequence[str]) -> str:
    named = ", ".join(span_ids[:_IDS_MAX])
    more = len(span_ids) - _IDS_MAX
    return ("call " if len(span_ids) == 1 else "calls ") + named + (f" and {more} more" if more > 0 else "")
