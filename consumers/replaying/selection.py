"""Which closed groups a replay puts out: by the log time of their closing, by id, or all of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from rolloutlog.consumers.state import Group
from rolloutlog.consumers.times import exact_time
from rolloutlog.eventstore.errors import InvalidSettings


@dataclass(frozen=True)
class Selection:
    """Groups closed within the times; where there are ids, only those named, or with a rollout named.

    from_ns, to_ns  UTC nanoseconds, from <= closing < to; None = no limit
    """

    from_ns: int | None = None
    to_ns: int | None = None
    groups: tuple[str, ...] = ()
    rollouts: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises InvalidSettings for what nothing can meet."""
        if self.from_ns is not None and self.to_ns is not None and self.from_ns >= self.to_ns:
            raise InvalidSettings(
                f"--from and --to: expected a beginning before the end, got {exact_time(self.from_ns)} and "
                f"{exact_time(self.to_ns)}"
            )
        for option, ids in (("--group", self.groups), ("--rollout", self.rollouts)):
            for each in ids:
                if not each or _no_text(each):
                    raise InvalidSettings(f"{option}: expected an id, got {each!r}")

    @property
    def by_id(self) -> bool:
        return bool(self.groups or self.rollouts)

    def wants(self, group: Group, closed_ns: int) -> bool:
        if not self.wants_time(closed_ns):
            return False
        return not self.by_id or bool(self.named_by(group))

    def wants_time(self, closed_ns: int) -> bool:
        if self.from_ns is not None and closed_ns < self.from_ns:
            return False
        return self.to_ns is None or closed_ns < self.to_ns

    def wants_end(self, passed_on_ns: int) -> bool:
        """Whether an end of the run that is passed on then is put out.

        What holds it back is every group that opened before it: only who reads from the beginning knows of all.
        """
        return self.from_ns is None and not self.by_id and self.wants_time(passed_on_ns)

    def named_by(self, group: Group) -> list[str]:
        """Those of the ids asked for that this group has, as `missing` takes them."""
        return self.named(group.group_id, (*group.rollouts, *group.surplus))

    def named(self, group_id: str, rollout_ids: Iterable[str]) -> list[str]:
        """The same of a group that is told by its ids."""
        found = [_rollout(each) for each in rollout_ids if each in self._rollouts]
        return [_group(group_id), *found] if group_id in self._groups else found

    def missing(self, found: set[str]) -> list[str]:
        """The ids asked for that are not among `found`, in words."""
        asked = [*map(_group, self.groups), *map(_rollout, self.rollouts)]
        return [each for each in asked if each not in found]

    @cached_property
    def _groups(self) -> frozenset[str]:
        return frozenset(self.groups)

    @cached_property
    def _rollouts(self) -> frozenset[str]:
        return frozenset(self.rollouts)


def _no_text(given: str) -> bool:
    """Bytes that are no UTF-8, as Python hands them on from a command line."""
    return any("\ud800" <= each <= "\udfff" for each in given)


def _group(group_id: str) -> str:
    return f"group {group_id}"


def _rollout(rollout_id: str) -> str:
    return f"rollout {rollout_id}"
