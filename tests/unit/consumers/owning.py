"""A log and owners of its one partition, on clocks that the test moves by hand."""

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, cast

from support.building import SECOND_NS, record

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.deciding import Deciding
from rolloutlog.consumers.decisions import Decision
from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.limits import Limits
from rolloutlog.consumers.outputs import BatchReady, GroupClosing, Output
from rolloutlog.consumers.packing import Packer
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.eventstore.events import Event
from rolloutlog.eventstore.log import EVENTS, Log, NewRecord, Range, Record

EPOCH_NS = 1_700_000_000 * SECOND_NS


class World:
    """One partition of a log.

    at_s       seconds of the only real time
    log_ahead_s  how far the log's clock is ahead of it
    """

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.at_s = 0.0
        self.log_ahead_s = 0.0

    @property
    def log_time_ns(self) -> int:
        return EPOCH_NS + int((self.at_s + self.log_ahead_s) * SECOND_NS)

    @property
    def end(self) -> int:
        return len(self.records)

    def append(self, *events: Event, key: str = "g") -> None:
        self.store(record(event, 0, key=key) for event in events)

    def store(self, records: Iterable[Record | NewRecord]) -> None:
        for each in records:
            if each.topic == EVENTS:
                self.records.append(
                    Record(EVENTS, 0, self.end, self.log_time_ns, each.key, each.value, tuple(each.headers))
                )

    async def ranges(self, topic: str, partitions: Iterable[int]) -> Mapping[int, Range]:
        return {each: Range(0, self.end, self.end) for each in partitions}


class Owner:
    """Folds and decides as the assembler does. Its monotonic clock is the world's time.

    committed  L and P
    outputs    published by it
    decided    all that it has decided
    """

    def __init__(self, world: World, *, committed: tuple[int, int] = (0, 0), **limits: Any) -> None:
        self.world = world
        self.committed = committed
        self.state = PartitionState(0, FoldSettings(min_group=1), position=committed[0], emit_from=committed[1])
        self.deciding = Deciding(cast(Log, world), 0, Limits(**limits), lambda: world.at_s)
        self.packer = Packer(0, self.state.settings.config_hash, "assembler.00000000000000ff")
        self.outputs: list[Output] = []
        self.decided: list[Decision] = []
        self._waiting: list[Output] = []

    def read(self, count: int | None = None) -> None:
        """Fold up to the end of the log, or so many records."""
        for entry in self.world.records[self.state.position :][:count]:
            self._waiting += fold(self.state, entry)
            self.deciding.read(entry)

    def commit(self) -> None:
        if self.state.position < self.state.emit_from:
            return
        outputs, self._waiting = self._waiting, []
        closings = [each for each in outputs if isinstance(each, GroupClosing)]
        self.outputs += [each for each in outputs if not isinstance(each, GroupClosing)]
        self.committed = (self.state.watermark(), self.state.position)
        self.world.store(self.packer.pack(closings, time_ns=0))

    def decide(self) -> list[Decision]:
        """One turn of deciding; what is due is returned, and not appended."""
        return finish(self.deciding.due(self.state))

    def append(self, decisions: Iterable[Decision]) -> None:
        self.world.store(self.packer.pack_decisions(decisions, time_ns=0))

    def turn(self) -> list[Decision]:
        """What the assembler does in a second: read, commit, decide, append. Twice, so that the end is asked for."""
        found: list[Decision] = []
        for _ in range(2):
            self.read()
            self.commit()
            decisions = self.decide()
            self.append(decisions)
            found += decisions
        self.read()
        self.commit()
        self.decided += found
        return found

    def run(self, seconds: float, each_s: float = 1.0) -> list[Decision]:
        """Turns, while the time goes on. Returns what they decided."""
        found, until = [], self.world.at_s + seconds
        while self.world.at_s < until:
            self.world.at_s += each_s
            found += self.turn()
        return found

    @property
    def batches(self) -> list[Batch]:
        return [each.batch for each in self.outputs if isinstance(each, BatchReady)]

    @property
    def statuses(self) -> dict[str, str]:
        return {each.rollout_id: each.status for batch in self.batches for each in batch.rollouts}

    @property
    def reasons(self) -> dict[str, str | None]:
        return {each.rollout_id: each.reason for batch in self.batches for each in batch.rollouts}


def finish(work: Coroutine[Any, Any, list[Decision]]) -> list[Decision]:
    """Run what never really waits, without a loop."""
    while True:
        try:
            work.send(None)
        except StopIteration as ended:
            return cast(list[Decision], ended.value)
