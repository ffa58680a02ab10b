"""A group: the rollouts of one task that are compared with each other."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """What rollouts are put into. `EventPublisher.group` makes one with a fresh id, for one use.

    task_id  the task (dataset input) all its rollouts work on
    size     how many rollouts it will have; None = open until `EventPublisher.close_group`
    """

    group_id: str
    task_id: str
    size: int | None = None
