"""Agent Lightning 0.3's matching of rewards to calls, over our calls and our tree, for people who move.

It goes by clocks, and it reproduces the original's faults on purpose: a late reward walks back to older calls, the
reward of an agent that is not selected leaks to one that is, a returned reward can vanish.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter

from rolloutlog.consumers.attribution.calls import Call, Calls
from rolloutlog.consumers.attribution.model import RewardEntry
from rolloutlog.consumers.attribution.ranges import Waiting

Item = Call | RewardEntry


def match(policy: str, calls: Calls, rewards: Sequence[tuple[int, RewardEntry]]) -> dict[str, Call]:
    """The call that each reward takes: reward id → call, for those that take one.

    rewards  those that take part, with their position in the log
    """
    selected = [call for call in calls.turns if call.selected]
    if policy == "first_occurrence":
        timed: list[tuple[int, int, Item]] = [(call.named.start_ns, call.recorded, call) for call in selected]
        timed += [(reward.time_ns, position, reward) for position, reward in rewards]
        timed.sort(key=itemgetter(0, 1))  # equal times in log order
        return _walk(item for _, _, item in timed)
    placed: list[tuple[int, str | None, Item]] = [(call.recorded, call.named.parent_id, call) for call in selected]
    placed += [(position, reward.parent_id, reward) for position, reward in rewards]
    placed.sort(key=itemgetter(0))
    siblings: dict[str | None, list[Item]] = {}
    for _, parent_id, item in placed:
        siblings.setdefault(parent_id, []).append(item)
    taken: dict[str, Call] = {}
    for items in siblings.values():
        taken.update(_walk(items))
    return taken


def _walk(items: Iterable[Item]) -> dict[str, Call]:
    """A call joins the list when met; a reward takes the newest one that had ended by its time and is still free."""
    items = list(items)
    waiting = Waiting(sum(isinstance(item, Call) for item in items))
    met: list[Call] = []
    taken: dict[str, Call] = {}
    for item in items:
        if isinstance(item, Call):
            waiting.append(item.named.end_ns)
            met.append(item)
        else:
            index = waiting.take(item.time_ns)
            if index is not None:
                taken[item.reward_id] = met[index]
    return taken
