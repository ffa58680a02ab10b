"""What a replay did, counted after commits; processes send theirs to the one that started them."""

from collections import Counter
from dataclasses import dataclass, field

from rolloutlog.consumers.batches import Batch


@dataclass(frozen=True, slots=True)
class ScoreFailure:
    """A rollout that a scorer gave no verdict on."""

    group_id: str
    rollout_id: str
    attempt: int
    scorer: str
    reason: str


@dataclass
class Summary:
    """Of one or several partitions.

    counts           groups, samples, samples_without_reward, rollouts_{status}, and answers of scorers: answered,
                     failed, cached, recorded; refused: of all events read, and spans of the groups; unscored:
                     that a scorer failed for
    asked            answers of scorers by scorer and how they were got
    rewards          of the groups' rollouts by outcome
    without_samples  groups without samples by reason
    found            ids asked for that were found, in words
    open_*           still open where reading ended
    groups_out       groups that the output holds, of all who worked on it
    unscored_out     rollouts in it that a scorer failed for
    groups_ahead     read, and not out yet
    partitions_read  how many were read to their ends, so that the groups in them are known
    stopped          it was told to stop before its end
    """

    counts: Counter[str] = field(default_factory=Counter)
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    rewards: Counter[str] = field(default_factory=Counter)
    without_samples: Counter[str] = field(default_factory=Counter)
    failures: list[ScoreFailure] = field(default_factory=list)
    found: set[str] = field(default_factory=set)
    open_rollouts: int = 0
    open_groups: int = 0
    groups_out: int = 0
    unscored_out: int = 0
    groups_ahead: int = 0
    partitions_read: int = 0
    stopped: bool = False

    def add(self, other: "Summary") -> None:
        self.counts.update(other.counts)
        self.asked.update(other.asked)
        self.rewards.update(other.rewards)
        self.without_samples.update(other.without_samples)
        self.failures += other.failures
        self.found |= other.found
        self.open_rollouts += other.open_rollouts
        self.open_groups += other.open_groups
        self.groups_out += other.groups_out
        self.unscored_out += other.unscored_out
        self.groups_ahead += other.groups_ahead
        self.partitions_read += other.partitions_read
        self.stopped |= other.stopped

    def take(self, batch: Batch) -> None:
        """Count a batch."""
        counts = self.counts
        counts["groups"] += 1
        counts["samples"] += len(batch.samples)
        counts["samples_without_reward"] += sum(each.total is None for each in batch.samples)
        if batch.reason is not None:
            self.without_samples[batch.reason] += 1
        for result in batch.rollouts:
            counts[f"rollouts_{result.status}"] += 1
            self.rewards.update(each.outcome for each in result.outcomes)
