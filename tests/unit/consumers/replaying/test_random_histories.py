"""Replays of random histories: what is in an output is what live assembly published of the same groups, byte for byte.

Events come as a workload makes them, over hours of log time; a clock may be set back. Assemblers are killed at any step
and started again, at once or long after the events; decisions end what waits. Replays are made between, of everything,
of times and of ids, in shares, killed and gone on with. What they put out is told by what is published in the end.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.building import SECOND_NS, expired, group_closed
from support.simulated_log import SimulatedLog
from support.store import batches_of
from support.workload import RUN_KEY, make_workload, new_record

from rolloutlog.consumers.assembler import Assembler, AssemblerSettings
from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.origin import origin_of
from rolloutlog.consumers.replaying import job as jobs
from rolloutlog.consumers.replaying.job import NothingSelected, Wish, plan, run_share
from rolloutlog.consumers.replaying.outputs import Output
from rolloutlog.consumers.replaying.selection import Selection
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.eventstore.events import Event
from rolloutlog.eventstore.log import BATCHES, EVENTS, Record
from rolloutlog.eventstore.topics import create_topics

PARTITIONS = range(2)
GROUPS = 24
SEEDS, SEEDS_SLOW = 6, 200
NEVER_S = 1e6  # of real time: a seed is to mean the same each time


class Killed(Exception):
    """As SIGKILL at the beginning of a step."""


class History:
    """A log that grows, its assemblers and its replays. `until`: ends of the events when an output was made."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.now_ns = time.time_ns()
        self.log = SimulatedLog(lambda: self.now_ns, gap=self.rng.choice([0, 1]), records_max=self._records_max)
        self.fold = FoldSettings(late_window_s=self.rng.choice([60.0, 600.0, 5_000.0]))
        self.pace_s = self.rng.choice([1, 30, 120])
        self.set_back = self.rng.random() < 0.3
        self.events = make_workload(seed, groups=GROUPS, partitions=len(PARTITIONS)).records
        self.outputs: list[Output] = []
        self.empty: list[tuple[Selection, list[int]]] = []
        self.until: dict[str, list[int]] = {}

    def _records_max(self) -> int:
        return self.rng.choice([1, 3, 20, 2_000])

    async def run(self) -> None:
        rng = self.rng
        await create_topics(self.log, partitions=len(PARTITIONS), run_id="run")
        late = rng.random() < 0.4  # all is assembled at the end
        while self.events:
            self.grow(rng.randint(20, 200))
            if rng.random() < 0.4:
                self.decide()
            if not late and rng.random() < 0.6:
                await self.assemble()
            if rng.random() < 0.25:
                await self.replay(self.any_selection())
        self.decide()
        self.now_ns += rng.choice([0, 100, 5_000, 100_000]) * SECOND_NS
        await self.assemble()
        for selection in (Selection(), *(self.any_selection() for _ in range(4))):
            await self.replay(selection)

    def grow(self, count: int) -> None:
        rng = self.rng
        for record in self.events[:count]:
            self.now_ns += int(rng.expovariate(1 / self.pace_s) * SECOND_NS)
            if rng.random() < 0.01:
                self.now_ns += rng.choice([600, 4_000, 8_000]) * SECOND_NS
            if self.set_back and rng.random() < 0.004:
                self.now_ns -= rng.choice([4_000, 20_000]) * SECOND_NS
            self.log.store([record])
        del self.events[:count]

    def decide(self) -> None:
        """End something that is open in each partition, as its owner would who knows all of it."""
        rng = self.rng
        for partition in PARTITIONS:
            state = PartitionState(partition, self.fold, settles=False)
            for record in self.log.records(EVENTS):
                if record.partition == partition:
                    fold(state, record)
            if not state.groups or rng.random() < 0.4:
                continue
            group = rng.choice(list(state.groups.values()))
            source = f"assembler.{rng.getrandbits(64):016x}"
            open_ = [each for each in group.rollouts.values() if each.closed is None]
            event: Event
            if open_ and rng.random() < 0.7:
                attempt = (rollout := rng.choice(open_)).attempt
                fields = {"source": source, "attempt": attempt.number, "reason": rng.choice(["idle", "age", "grace"])}
                event = expired(attempt.newest_offset, rollout.rollout_id, **fields)
            else:
                event = group_closed(group.group_id, rng.choice(["idle", "age"]), source=source,
                                     as_of=group.newest_offset)  # fmt: skip
            self.log.store([new_record(event, key=group.group_id, partition=partition)])

    async def assemble(self) -> None:
        rng = self.rng
        while True:
            settings = AssemblerSettings(
                fold=self.fold, commit_events=rng.choice([1, 7, 2_000]), commit_interval_s=rng.choice([0.0, NEVER_S]),
                dead_letters_in_row=10**9, dead_letters_share=1.0,
            )  # fmt: skip
            assembler = Assembler(self.log, settings, clock=lambda: self.now_ns, on_step=self.killer(0.6, 200))
            try:
                await assembler.run(PARTITIONS, until_end=True)
            except Killed:
                self.now_ns += SECOND_NS
            else:
                return

    async def replay(self, selection: Selection) -> None:
        rng, name = self.rng, f"output-{len(self.outputs)}"
        until = self.until[name] = [self.log.end_of((EVENTS, partition)) for partition in PARTITIONS]
        while True:
            commit_bytes = rng.choice([1, 2_000, 2**23])
            wish = Wish(self.log.url, name, self.fold, selection, commit_bytes=commit_bytes)
            try:
                job = await plan(wish, clock=lambda: self.now_ns)
            except NothingSelected:
                self.empty.append((selection, until))
                return
            workers, stop = rng.choice([1, 1, 2]), asyncio.Event()
            step = self.killer(1.0, 60, stop.set) if rng.random() < 0.25 else self.killer(0.6, 60)
            shares = [job.partitions[worker::workers] for worker in range(workers)]
            try:
                done = await asyncio.gather(*(run_share(job, share, stop=stop, step=step) for share in shares))
            except Killed:
                continue
            if not any(each.stopped for each in done):
                self.outputs.append(job.output)
                return

    def killer(
        self, often: float, steps_max: int, instead: Callable[[], None] | None = None
    ) -> Callable[[int, str], None]:
        """Kills at a random step, or does something else then."""
        left = self.rng.randint(1, steps_max) if self.rng.random() < often else 0

        def step(partition: int, name: str) -> None:
            nonlocal left
            left -= 1
            if left == 0 and instead is None:
                raise Killed
            if left == 0 and instead is not None:
                instead()

        return step

    def any_selection(self) -> Selection:
        rng = self.rng
        times = sorted(rng.sample(self.log.records(EVENTS), 2), key=lambda record: record.log_time_ns)
        begin, end = times[0].log_time_ns, times[1].log_time_ns + 1
        group_ids = tuple(sorted({f"{self.seed}-g{rng.randrange(GROUPS)}" for _ in range(rng.randint(1, 3))}))
        rollout_ids = (f"{self.seed}-g{rng.randrange(GROUPS)}-r{rng.randrange(3)}",)
        return rng.choice([
            Selection(), Selection(from_ns=begin), Selection(to_ns=end), Selection(begin, end), Selection(begin, end),
            Selection(groups=group_ids), Selection(groups=group_ids, rollouts=rollout_ids),
            Selection(begin, end, groups=group_ids),
        ])  # fmt: skip

    def expected(self, chosen: Selection, until: list[int]) -> list[Record]:
        """What is published of the chosen groups, of events that were there when the output was made."""
        live = self.log.records(BATCHES)
        groups = {(each.input_partition, each.trigger, each.group_id): each for each in batches_of(live)}
        closed_ns = {(each.partition, each.offset): each.log_time_ns for each in self.log.records(EVENTS)}

        def wanted(record: Record) -> bool:
            partition, trigger, *_ = origin_of(record)
            if trigger >= until[partition] or not chosen.wants_time(closed_ns[partition, trigger]):
                return False
            if record.key == RUN_KEY.encode():
                return chosen.from_ns is None and not chosen.by_id
            batch = groups[partition, trigger, (record.key or b"").decode()]
            named = {each.rollout_id for each in batch.rollouts} & {*chosen.rollouts}
            return not chosen.by_id or batch.group_id in chosen.groups or bool(named)

        return [record for record in live if wanted(record)]

    def without_refused(self, output: Output, expected: Sequence[Record]) -> list[Record]:
        """What is in an output, without what the docstring of consumers.replaying.bounds leaves open."""
        found, same = self.log.records(output.topic), set(stored(expected))
        if not self.set_back or output.selection.from_ns is None:
            return found
        before = {(each.partition, each.key): origin_of(each).trigger for each in reversed(self.log.records(BATCHES))}
        refused = [
            each
            for each, new in zip(found, stored(found), strict=True)
            if new not in same and before.get((each.partition, each.key), origin_of(each).trigger) < new[2].trigger
        ]
        return [each for each in found if each not in refused]


def stored(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    return [(each.partition, each.key, origin_of(each), each.value, each.headers) for each in records]


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"SEED={seed}")
    history = History(seed)

    async def opened(url: str, **given: Any) -> SimulatedLog:
        return history.log

    monkeypatch.setattr(jobs, "open_log", opened)
    asyncio.run(history.run())
    for output in history.outputs:
        wanted = history.expected(output.selection, history.until[output.name])
        expected = stored(wanted)
        found = stored(history.without_refused(output, wanted))
        assert [each[:3] for each in found] == [each[:3] for each in expected], f"seed {seed}: {output}"
        assert found == expected, f"seed {seed}: {output}"
    for selection, until in history.empty:
        assert not history.expected(selection, until), f"seed {seed}: {selection}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_replays_of_a_random_history_put_out_what_live_assembly_did(seed: int, monkeypatch: pytest.MonkeyPatch):
    check(seed, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_replays_of_many_random_histories_put_out_what_live_assembly_did(monkeypatch: pytest.MonkeyPatch):
    first = int(os.environ.get("SEED", "100"))
    for seed in range(first, first + SEEDS_SLOW):
        check(seed, monkeypatch)
