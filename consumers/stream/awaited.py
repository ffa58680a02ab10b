"""Who a trainer waits for, in words: what assemblers said last of the partitions that a stream reads."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from rolloutlog.eventstore.errors import StoreError
from rolloutlog.eventstore.log import Log

if TYPE_CHECKING:
    from rolloutlog.consumers.status import Status

SILENT_S = 30.0  # assemblers say where they are every few seconds
LINES_SHOWN = 3  # of a partition
PARTITIONS_SHOWN = 8

_SECOND_NS = 1_000_000_000


async def describe_awaited(log: Log, partitions: Collection[int], count: int, clock: Callable[[], int]) -> str:
    """One line for the partitions that are awaited. `count`: of the log; `clock`: UTC nanoseconds."""
    from rolloutlog.consumers.status import read_statuses  # not needed until something is missing

    try:
        statuses = await read_statuses(log, partitions=count)
    except StoreError as error:
        return f"what assemblers do could not be read: {error}"
    return describe_statuses(statuses, partitions, now_ns=clock())


def describe_statuses(statuses: "Mapping[int, Status]", partitions: Collection[int], *, now_ns: int) -> str:
    """As `describe_awaited`, of these statuses."""
    shown = sorted(partitions)[:PARTITIONS_SHOWN]
    lines = [f"partition {p}: {'; '.join(_partition(statuses.get(p), now_ns))}" for p in shown]
    if len(partitions) > len(shown):
        lines.append(f"and {len(partitions) - len(shown)} more partitions")
    return " | ".join(lines) or "every partition's run has ended"


def _partition(status: "Status | None", now_ns: int) -> Iterator[str]:
    if status is None:
        yield "no assembler has said anything"
        return
    silent_s = (now_ns - status.time_ns) / _SECOND_NS
    if silent_s > SILENT_S:
        yield f"no assembler for {silent_s:.0f} s (the last was host {status.host}, pid {status.pid})"
    if status.position < status.end:
        yield f"the assembler is {status.end - status.position} records behind"
    yield from status.waiting[:LINES_SHOWN]
    if status.open_groups > min(len(status.waiting), LINES_SHOWN):
        yield f"{status.open_groups} groups are open in all"
    if not status.open_groups:
        yield "no group is open"
