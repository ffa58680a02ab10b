"""A reward with a target: which calls it names."""

from rolloutlog.consumers.attribution.calls import Call, Calls
from rolloutlog.consumers.attribution.earlier import Earlier
from rolloutlog.consumers.attribution.model import RewardEntry


def linked(reward: RewardEntry, calls: Calls, earlier: Earlier, link_subtree: str) -> list[Call]:
    """The calls that the reward's target leads to, in turn order; empty when it leads to none.

    A span or response of a call means that call, whenever it was recorded; any other span, or an operation by name,
    means what was called beneath it before the reward. A link to a judge's call leads to none.
    """
    assert reward.target is not None
    key, value = reward.target
    if key == "response_id":
        return _counted(calls.by_response(value))
    v = earlier.operation(value, reward.time_ns) if key == "operation" else calls.tree.number.get(value)
    if v is None:
        return []
    call = calls.of_span[v]
    if call is not None:
        return _counted(call)
    if link_subtree == "last":
        return _counted(earlier.last_beneath(v))
    return earlier.all_beneath(v)


def _counted(call: Call | None) -> list[Call]:
    return [] if call is None or call.judge else [call]
