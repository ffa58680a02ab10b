"""What scorers recorded for one rollout afterwards: what counts of it, and what it does to the rollout's rewards. Pure.

Recorded rewards count in replays, behind everything that the rollout's events hold, and not in live assembly. Of each
scorer the version that was recorded last counts alone.

Not here  reading them: consumers.scoring.recorded; the rewards in the rollout's events: account
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rolloutlog.consumers.attribution import AttributionSettings, RewardEntry, attribute
from rolloutlog.consumers.attribution.reasons import Reasons
from rolloutlog.consumers.closing import reward_entry
from rolloutlog.consumers.explaining.account import Account, lead, sentences_of
from rolloutlog.consumers.scoring.recorded import Recorded, RecordedSet, newest_of

GONE = "its events are gone, so that where it goes can't be told"


@dataclass(frozen=True, slots=True)
class Rescored:
    """Rewards recorded for a rollout.

    sets       by where they were recorded, those of older versions too
    before_ns  those recorded before it, UTC nanoseconds; None = all so far
    sentences  reward id → where it goes in a replay, of those that count
    moves      the same for rewards in the rollout's events that go elsewhere than without them
    in_batch   reward ids that the batch shown has: of an output, whose replay counted them
    unread     offset and reason of records that are no rewards
    """

    partition: int
    sets: tuple[RecordedSet, ...]
    before_ns: int | None = None
    sentences: Mapping[str, str] = field(default_factory=dict)
    moves: Mapping[str, str] = field(default_factory=dict)
    in_batch: frozenset[str] = frozenset()
    unread: tuple[tuple[int, str], ...] = ()

    def is_in_batch(self, one: RecordedSet) -> bool:
        return bool(one.rewards) and all(reward.id in self.in_batch for _, reward in one.rewards)

    def replaced_by(self, one: RecordedSet) -> RecordedSet | None:
        """The set of a newer version of its scorer; None = it counts."""
        newest = newest_of(self.sets)[one.scorer]
        return None if newest is one else newest


def rescored_of(
    account: Account, recorded: Recorded, settings: AttributionSettings, before_ns: int | None = None
) -> Rescored:
    """What was recorded for the rollout of an account. `settings`: where those that made its record are not known."""
    found = account.found
    sets = recorded.sets(found.rollout_id, found.attempt)
    counting = [reward_entry(event) for _, event in recorded.of(found.rollout_id, found.attempt)]
    if not counting:
        sentences, moves = dict[str, str](), dict[str, str]()
    elif found.entries is None:
        sentences, moves = {each.reward_id: f"{lead(each)}: {GONE}" for each in counting}, {}
    else:
        sentences, moves = _explained(account, counting, account.settings or settings)
    in_batch = frozenset(account.outcomes)
    return Rescored(found.partition, tuple(sets), before_ns, sentences, moves, in_batch, tuple(recorded.unread))


def _explained(
    account: Account, counting: Sequence[RewardEntry], settings: AttributionSettings
) -> tuple[dict[str, str], dict[str, str]]:
    entries = (*(account.found.entries or ()), *counting)
    live, replayed = attribute(account.found.entries or (), settings), attribute(entries, settings)
    words = sentences_of(replayed, Reasons(entries, settings), settings, "in replays ")
    moves = {
        reward_id: words[reward_id]
        for reward_id, outcome in live.outcomes.items()
        if outcome != replayed.outcomes[reward_id]
    }
    return {each.reward_id: words[each.reward_id] for each in counting}, moves
