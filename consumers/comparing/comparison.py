"""Two outputs side by side: everything that is said of them, from their rollouts. Pure.

Statistics are over rollouts that are in both outputs, with the same attempt, and ran. Those of one output alone, such
as of a replay of fewer groups, are counted apart. A side's values are those of the rollouts that were emitted there.

Memory    8 bytes a value; a few hundred a task and reward name, `top` examples each; nothing else grows with rollouts
Not here  who is paired with whom: consumers.comparing.pairing; as text: comparing.lines
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rolloutlog.consumers.comparing.advantages import AdvantageResult, AdvantageTally
from rolloutlog.consumers.comparing.endings import EndingResult, EndingTally
from rolloutlog.consumers.comparing.held import HeldReward, HeldRollout
from rolloutlog.consumers.comparing.rewards import RewardResult, RewardTally
from rolloutlog.consumers.comparing.samples import SampleResult, SampleTally
from rolloutlog.consumers.comparing.values import Version

EXAMPLES = 10
NAMES_MAX = 1_000  # names come from anyone: memory is bounded


@dataclass(frozen=True, slots=True)
class Compared:
    """What was found.

    both, before_alone, after_alone  rollouts by where they are; samples of the latter two: `..._samples`
    rollouts                         of `both`, those in statistics
    not_emitted                      of those, how many ended otherwise than as emitted before, and after
    names, unknown                   of rewards that there are, sorted; of those asked for, the ones that are not
    """

    both: int
    rollouts: int
    before_alone: int
    after_alone: int
    before_alone_samples: int
    after_alone_samples: int
    not_emitted: tuple[int, int]
    names: tuple[str, ...]
    unknown: tuple[str, ...]
    rewards: tuple[RewardResult, ...]
    samples: SampleResult
    endings: EndingResult
    advantages: AdvantageResult


class Comparison:
    """Takes in pairs of rollouts, group by group.

    names  of rewards to look at; empty = all. Samples, statuses and advantages are looked at all the same
    top    how many examples are kept of each kind of change
    """

    def __init__(self, *, names: Collection[str] = (), top: int = EXAMPLES) -> None:
        self._names, self._top = frozenset(names), top
        self._both = 0
        self._alone = [0, 0]
        self._alone_samples = [0, 0]
        self._compared = 0
        self._whole: tuple[Counter[Version], Counter[Version]] = (Counter(), Counter())  # those that were emitted
        self._known: set[str] = set()
        self._unknown = set(self._names)
        self._rewards: dict[tuple[str, str], RewardTally] = {}
        self._samples = SampleTally(top)
        self._endings = EndingTally(top)
        self._advantages = AdvantageTally(top)

    def add_pairs(self, pairs: Sequence[tuple[HeldRollout, HeldRollout]]) -> None:
        """A group's rollouts that are in both outputs, as (before, after)."""
        alike = []
        for pair in pairs:
            before, after = pair
            self._both += 1
            self._know(before.names | after.names)
            self._endings.add_status(before, after)
            if before.attempt == after.attempt and before.ran and after.ran:
                alike.append(pair)
                self._add(before, after)
        self._advantages.add(alike)

    def add_alone(self, side: int, rollout: HeldRollout) -> None:
        """A rollout of one output alone. `side`: 0 = before, 1 = after."""
        self._alone[side] += 1
        self._alone_samples[side] += len(rollout.samples)
        self._know(rollout.names)

    def _know(self, names: set[str]) -> None:
        self._unknown -= names
        if len(self._known) < NAMES_MAX:
            self._known |= names

    def _add(self, before: HeldRollout, after: HeldRollout) -> None:
        version = before.policy_version if after.policy_version is None else after.policy_version
        self._compared += 1
        for side, rollout in enumerate((before, after)):
            if rollout.emitted:
                self._whole[side][version] += 1
        values = before.values(), after.values()
        for key in {**values[0], **values[1]}:
            if self._wanted(key[0]):
                tally = self._rewards.get(key)
                if tally is None:
                    tally = self._rewards[key] = RewardTally(*key, self._top)
                tally.add(version, (before, after), values[0].get(key), values[1].get(key))
        self._samples.add(version, before, after)
        self._endings.add_rewards(after.rollout_id, self._looked_at(before), self._looked_at(after))

    def _wanted(self, name: str) -> bool:
        return not self._names or name in self._names

    def _looked_at(self, rollout: HeldRollout) -> list[HeldReward]:
        return [each for each in rollout.rewards if self._wanted(each.name)]

    def result(self) -> Compared:
        return Compared(
            both=self._both,
            rollouts=self._compared,
            before_alone=self._alone[0],
            after_alone=self._alone[1],
            before_alone_samples=self._alone_samples[0],
            after_alone_samples=self._alone_samples[1],
            not_emitted=self._not_emitted(),
            names=tuple(sorted(self._known)),
            unknown=tuple(sorted(self._unknown)),
            rewards=tuple(
                tally.result(*self._whole, self._not_emitted()) for _, tally in sorted(self._rewards.items())
            ),
            samples=self._samples.result(),
            endings=self._endings.result(),
            advantages=self._advantages.result(),
        )

    def _not_emitted(self) -> tuple[int, int]:
        before, after = (self._compared - sum(whole.values()) for whole in self._whole)
        return before, after
