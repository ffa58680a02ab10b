"""A group: the rollouts of one task that are compared with each other."""

import logging
from collections import OrderedDict
from dataclasses import dataclass
from threading import RLock

from rolloutlog.eventstore.checks import INT32_MAX, check_id, check_integer, plain_integer
from rolloutlog.eventstore.errors import InvalidEvent, InvalidSettings
from rolloutlog.eventstore.text_form import pack, unpack

ROLLOUTS_COUNTED_MAX = 16_384  # ids of started rollouts a publisher remembers: some megabytes

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Group:
    """What rollouts are put into. `EventPublisher.group` makes one with a fresh id, for one use.

    Processes that share a group hand on its `text`. Raises InvalidEvent naming a field that is wrong.

    task_id  the task (dataset input) all its rollouts work on
    size     how many rollouts it will have; None = open until `EventPublisher.close_group`
    """

    group_id: str
    task_id: str
    size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", plain_integer(self.size))
        try:
            check_id(self.group_id, "group_id")
            check_id(self.task_id, "task_id")
            if self.size is not None:
                check_integer(self.size, "size", 1, INT32_MAX)
        except InvalidEvent as error:
            hint = "; give none for a group that is open until `close_group`" if error.field == "$.size" else ""
            error.args = (f"Group refused: {error}{hint}",)
            raise

    def text(self) -> str:
        """As one line of letters, digits and `-_.`: for variables, headers, command lines."""
        return pack("group", [self.group_id, self.task_id, self.size])

    @classmethod
    def parse(cls, text: str) -> "Group":
        """The group whose `text` this is. Raises InvalidSettings when it was cut or changed, or has another version."""
        try:
            return cls(*unpack(text, "group", 3))
        except InvalidSettings as error:
            error.args = (f"Group not read: {error}",)
            raise


class GroupCount:
    """Counts the rollouts of each group that this process started, to say when there are more than announced.

    Any thread may use it. Of many groups the oldest are forgotten, which costs no more than a warning.
    """

    def __init__(self, rollouts_max: int = ROLLOUTS_COUNTED_MAX) -> None:
        self._rollouts_max = rollouts_max
        self._groups: OrderedDict[str, set[str]] = OrderedDict()
        self._count = 0
        self._lock = RLock()  # a signal handler that interrupts it makes the count wrong by one at worst

    def start(self, group: Group, rollout_id: str) -> None:
        """A rollout of the group started, perhaps with a further attempt. Warns of a group's first one too many."""
        if group.size is None or group.group_id == rollout_id:  # a rollout without a group is one of its own
            return
        with self._lock:
            started = self._groups.setdefault(group.group_id, set())
            if rollout_id in started:
                return
            started.add(rollout_id)
            self._count += 1
            number = len(started)
            while self._groups and self._count > self._rollouts_max:
                _, forgotten = self._groups.popitem(last=False)
                self._count -= len(forgotten)
        if number == group.size + 1:
            _logger.warning(
                "group %s of task %s was announced with size %d, and rollout %s is one more: it will count as surplus, "
                "or be refused when the group is closed, and is not trained on; further ones are not named",
                group.group_id,
                group.task_id,
                group.size,
                rollout_id,
            )
