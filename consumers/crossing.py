"""Going from one fold version to another within a partition.

A fold version stands for the rules by which events become outputs. The same group must not be folded by two of them:
it would be published twice, or never. So a position is gone on from by another version only where no group is open
across it (`position.Progress.settled`); everything that began below it is out by the rules of the version before.

Crossing  the position at which the rules change. Below it events are folded to remember closed groups, so that late
          starts open nothing. A group that is open at the crossing by the new rules alone was closed by the old ones:
          it is closed here without output
Restart   the crossing is committed with the position until a restart begins above it, and is passed again until then
Not here  what is committed: consumers.position; which positions are gone on from: consumers.recovery
"""

from rolloutlog.consumers.state import ClosedGroup, PartitionState


def cross(state: PartitionState) -> int:
    """Take everything below the state's position as done by the rules before. Returns how many groups that closes."""
    left = list(state.groups.values())
    for group in left:
        del state.groups[group.group_id]
        state.open_rollouts -= group.open_count
        # Nothing is owed to the log: the version before has appended the group's closing.
        state.closed[group.group_id] = ClosedGroup(
            group.first_offset, False, state.now_ns + state.settings.late_window_ns
        )
    state.oldest_open()  # drops what no longer holds
    state.run_ends.clear()  # passed on by the version before: no group held them back
    return len(left)
