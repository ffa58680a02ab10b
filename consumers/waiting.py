"""What open groups wait for, in words for people: the first question when samples do not come."""

from collections.abc import Iterator

from rolloutlog.consumers.state import Attempt, Group, PartitionState, Rollout
from rolloutlog.eventstore.events import FAILED

ROLLOUTS_SHOWN = 4
NAMES_SHOWN = 4


def describe_open(state: PartitionState, *, groups_max: int) -> list[str]:
    """A line for each of the oldest `groups_max` open groups of a partition."""
    lines: list[str] = []
    for group in state.groups.values():
        if len(lines) == groups_max:
            break
        lines.append(f"group {group.group_id}: {'; '.join(_group(group))}")
    return lines


def _group(group: Group) -> Iterator[str]:
    started = len(group.rollouts)
    if group.size is None:
        yield f"{started} rollouts started, its host has not closed it"
    elif started < group.size:
        yield f"{started} of {group.size} rollouts started"
    waiting = [rollout for rollout in group.rollouts.values() if rollout.closed is None]
    for rollout in waiting[:ROLLOUTS_SHOWN]:
        yield f"rollout {rollout.rollout_id} {describe_rollout(rollout)}"
    if len(waiting) > ROLLOUTS_SHOWN:
        yield f"and {len(waiting) - ROLLOUTS_SHOWN} more rollouts"


def describe_rollout(rollout: Rollout) -> str:
    """What an open rollout waits for."""
    attempt = rollout.attempt
    number = f"(attempt {attempt.number}) "
    if attempt.expired is not None:
        return f"{number}expired ({attempt.expired}), waits for attempt {attempt.number + 1}"
    if attempt.completed is None:
        return f"{number}is not completed"
    missing = ", ".join(_missing(attempt))
    if not missing and attempt.completed.status == FAILED:
        return f"{number}failed, waits for attempt {attempt.number + 1}"
    return f"{number}misses {missing}"


def _missing(attempt: Attempt) -> list[str]:
    found = []
    for source in attempt.sources.values():
        found += [f"events {first}-{last} of {source.id}" for first, last in source.gaps()[:NAMES_SHOWN]]
    if attempt.awaited is not None:
        found += [f"the end of {name}" for name in attempt.awaited.missing_names()[:NAMES_SHOWN]]
        found += [f"reward {name}" for name in sorted(attempt.awaited.rewards)[:NAMES_SHOWN]]
    return found
