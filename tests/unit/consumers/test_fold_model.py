"""A model of the assembler's offsets, against one uninterrupted pass.

A random log grows while an assembler folds it, commits (outputs, L, P in one transaction, with GroupClosed events
appended to the log itself) and is restarted at any moment, in the middle of a cycle too. What it published must equal
what one uninterrupted pass over the finished log puts out, triggers included, and no group may be published twice.
When the ends of the run come out is told by when groups are open, without the fold's own bookkeeping of them.

The assembler decides what waits for too long, at random moments. Decisions come at once, later, twice, and from one
that was replaced. Half of the logs go on until nothing waits any more: the limits alone must bring that about.
"""

import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import cast

import pytest
from support.building import (
    MAIN,
    SECOND_NS,
    call,
    completed,
    ended,
    expired,
    group_closed,
    ids,
    record,
    reward,
    run_ended,
    started,
)
from unit.consumers.owning import finish

from rolloutlog.consumers.deciding import Deciding
from rolloutlog.consumers.decisions import Decision
from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.limits import Limits
from rolloutlog.consumers.outputs import BatchReady, DeadLetter, GroupClosing, Output, RunEnding
from rolloutlog.consumers.packing import Packer
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.eventstore.events import AGE, GRACE, GROUP_REASONS, IDLE
from rolloutlog.eventstore.log import EVENTS, Log, NewRecord, Range, Record

WINDOW_S = 50.0
SETTINGS = FoldSettings(late_window_s=WINDOW_S)
JUDGE = "judge.00000000000000bb"
OTHER = "main.00000000000000cc"
RUN = "run/run"


@dataclass
class Model:
    """The log, what was published from it, and the committed position. Log time and owners' clocks go alike."""

    random: random.Random
    limits: Limits
    log: list[Record] = field(default_factory=list)
    now_ns: int = 0
    offset: int = 0
    published: list[Output] = field(default_factory=list)
    committed: tuple[int, int] = (0, 0)
    restarts: int = 0
    decided: int = 0

    def append(self, entry: Record, step_ns: int) -> None:
        self.now_ns += step_ns
        self.offset += 1 + (self.random.random() < 0.1)  # offsets have gaps
        self.log.append(entry._replace(offset=self.offset, log_time_ns=self.now_ns))

    def store(self, records: Iterable[NewRecord]) -> None:
        for new in records:
            step = self.random.choice([0, SECOND_NS])
            self.append(Record(EVENTS, 0, 0, 0, new.key, new.value, new.headers), step)

    async def ranges(self, topic: str, partitions: Iterable[int]) -> Mapping[int, Range]:
        end = self.log[-1].offset + 1 if self.log else 0
        return {0: Range(0, end, end)}


class Owner:
    """The assembler of the partition, from its start on."""

    def __init__(self, model: Model) -> None:
        watermark, position = model.committed
        self.model = model
        self.state = PartitionState(0, SETTINGS, position=watermark, emit_from=position)
        self.outputs: list[Output] = []
        self.packer = Packer(0, SETTINGS.config_hash, "assembler.00000000000000ff")
        self.deciding = Deciding(cast(Log, model), 0, model.limits, lambda: model.now_ns / SECOND_NS)

    @property
    def unread(self) -> list[Record]:
        return [entry for entry in self.model.log if entry.offset >= self.state.position]

    def read(self, count: int) -> None:
        for entry in self.unread[:count]:
            self.outputs += fold(self.state, entry)
            self.deciding.read(entry)

    def commit(self) -> None:
        if self.state.position >= self.state.emit_from:
            commit(self.model, self.state, self.packer, self.outputs)
            self.outputs = []

    def decide(self) -> list[Decision]:
        decisions = finish(self.deciding.due(self.state))
        self.model.decided += len(decisions)
        return decisions

    def append(self, decisions: list[Decision]) -> None:
        self.model.store(self.packer.pack_decisions(decisions, time_ns=0))


def make_events(rng: random.Random) -> list[Record]:
    """Records of some groups in an order in which hosts could send them, with faults. Offsets and times come later."""
    streams: list[list[Record]] = []
    for g in range(rng.randint(1, 4)):
        group, size = f"g{g}", rng.choice([1, 2, 2, 3, None])
        for r in range(rng.randint(1, 4)):
            streams.append(make_rollout(rng, group, f"{group}-r{r}", size))
        if size is None or rng.random() < 0.1:
            streams.append([record(group_closed(group), 0, key=group)] * rng.randint(1, 2))
        if rng.random() < 0.2:
            streams.append([record(group_closed(group, reason="age", as_of=rng.randint(0, 60)), 0, key=group)])
    if rng.random() < 0.3:  # closed by several hosts before anything of it began, which comes late
        closes = [record(group_closed("early"), 0, key="early")] * rng.randint(1, 3)
        streams.append([*closes, *make_rollout(rng, "early", "early-r0", 1)])
    if rng.random() < 0.3:
        streams.append([Record(EVENTS, 0, 0, 0, b"g0", rng.randbytes(8), ((("e", rng.randbytes(4))),))])
    for host in range(rng.choice([0, 1, 1, 2, 4])):  # one end of the run a host, at any time; the same again too
        event = run_ended(source=f"publisher.00000000000000{host:02x}")
        streams.append([record(event, 0, key=RUN)] * rng.choice([1, 1, 2]))
    return interleave(rng, streams)


def make_rollout(rng: random.Random, group: str, name: str, size: int | None) -> list[Record]:
    attempts_max = rng.choice([1, 1, 2])
    out: list[Record] = []
    for attempt in range(rng.randint(1, attempts_max)):
        source = rng.choice([MAIN, MAIN, OTHER])
        common = {"rollout_id": name, "attempt": attempt, "source": source}
        judged = rng.random() < 0.3
        body = [started(sequence=0, group_id=group, group_size=size, attempts_max=attempts_max, **common)]
        for sequence in range(1, rng.randint(2, 4)):
            if rng.random() < 0.6:
                body.append(call(f"{name}-{sequence}", sequence, response_ids=ids(*range(rng.randint(1, 3))), **common))
            else:
                body.append(reward(sequence, value=rng.random(), scope=rng.choice(["step", "rollout"]), **common))
        body.append(
            completed(
                len(body),
                status=rng.choice(["completed", "completed", "failed"]),
                awaited_names=("judge",) if judged else (),
                **common,
            )
        )
        records = [record(event, 0, key=group) for event in body]
        judge = []
        if judged:
            told = {"rollout_id": name, "attempt": attempt, "source": JUDGE}
            judge = [record(reward(0, name="judge", **told), 0, key=group), record(ended(1, **told), 0, key=group)]
        records = interleave(rng, [records, judge[: rng.choice([2, 2, 1])]])
        if rng.random() < 0.15:
            records.insert(rng.randint(1, len(records)), record(expired(rng.randint(0, 60), name, attempt=attempt),
                                                                0, key=group))  # fmt: skip
        out += records
    out = [spoil(rng, each) for each in out]
    for _ in range(rng.choice([0, 0, 1, 3])):  # resends and duplicates, also of starts, also late
        out.insert(rng.randint(0, len(out)), resent(rng, rng.choice(out)))
    if rng.random() < 0.2:
        del out[rng.randrange(len(out))]  # an event that never comes
    return out


def spoil(rng: random.Random, entry: Record) -> Record:
    if rng.random() < 0.04 and entry.value:
        return entry._replace(value=rng.choice([entry.value[:-1], entry.value + b"x", b"", rng.randbytes(12)]))
    return entry


def resent(rng: random.Random, entry: Record) -> Record:
    (name, value), *rest = entry.headers
    assert value is not None
    if rng.random() < 0.5:
        value = value.replace(b"/-/", b"/r/", 1)
    return entry._replace(headers=((name, value), *rest))


def interleave(rng: random.Random, streams: list[list[Record]]) -> list[Record]:
    streams = [list(stream) for stream in streams if stream]
    out = []
    while streams:
        stream = rng.choice(streams)
        out.append(stream.pop(0))
        streams = [each for each in streams if each]
    return out


def make_limits(rng: random.Random) -> Limits:
    """Limits of about the length of a log: some logs are over before anything is due, in some all is due."""
    return Limits(
        idle_s=rng.choice([5, 60, 400]),
        age_s=rng.choice([60, 500, 5_000]),
        grace_s=rng.choice([2, 50]),
        retry_s=rng.choice([5, 100]),
        group_age_s=rng.choice([20, 200, 2_000]),
        replay_bytes_max=rng.choice([500, 2**31, 2**31]),
    )


def run_with_restarts(model: Model, waiting: list[Record]) -> None:
    """Let hosts append, an assembler fold, commit and decide, and restart it at random, until everything is read."""
    rng = model.random
    waiting = list(waiting)
    if rng.random() < 0.3:  # a backlog
        while waiting:
            model.append(waiting.pop(0), step_ns(rng))
    owner, held, restart_share = Owner(model), list[Decision](), rng.choice([0.02, 0.15, 0.15])
    while True:
        if waiting and rng.random() < 0.5:
            model.append(waiting.pop(0), step_ns(rng))
        owner.read(rng.randint(0, 6))
        restart = rng.random() < restart_share
        if rng.random() < 0.5:
            owner.commit()
        if rng.random() < 0.4:
            held = decide(owner, held)
        if restart:
            held = replaced(owner, held)
            owner = Owner(model)
        if not waiting and not owner.unread and not owner.outputs and owner.state.position >= owner.state.emit_from:
            if rng.random() < 0.5 or model.restarts > 30:
                break
            owner = Owner(model)
            model.restarts += 1
    if rng.random() < 0.5:
        wait_for_limits(owner)


def decide(owner: Owner, held: list[Decision]) -> list[Decision]:
    """Decide and append it, or hold it back, to append it at another time. Returns what is held back now."""
    model, rng = owner.model, owner.model.random
    model.now_ns += step_ns(rng)
    decisions = owner.decide()
    if rng.random() < 0.2:
        return [*held, *decisions]
    if rng.random() < 0.7:  # as the assembler does: outputs first
        owner.commit()
    owner.append(decisions * rng.choice([1, 1, 2]))
    if held and rng.random() < 0.5:
        owner.append(held)
        return []
    return held


def replaced(owner: Owner, held: list[Decision]) -> list[Decision]:
    """Another owner takes over; what this one decides from what it knows may still arrive."""
    owner.model.restarts += 1
    return [*held, *owner.decide()] if owner.model.random.random() < 0.3 else held


def wait_for_limits(owner: Owner) -> None:
    """No host sends anything any more: limits alone close all that is open."""
    model, limits = owner.model, owner.model.limits
    longest_s = limits.open_s_max + limits.grace_s + 60
    until_ns = model.now_ns + int(longest_s * SECOND_NS)
    while owner.state.groups or owner.unread:
        assert model.now_ns < until_ns, f"still open after {longest_s} s: {owner.state.groups}"
        owner.read(1_000)
        owner.commit()
        owner.append(owner.decide())
        if not owner.unread:
            model.now_ns += 2 * SECOND_NS
    owner.read(1_000)
    owner.commit()
    assert not owner.state.run_ends


def commit(model: Model, state: PartitionState, packer: Packer, outputs: list[Output]) -> None:
    watermark = state.watermark()
    firsts = [group.first_offset for group in state.groups.values()]
    assert watermark <= min(firsts, default=state.position), "L passed an open group"
    assert state.position >= model.committed[1], "P fell"
    model.store(packer.pack([each for each in outputs if isinstance(each, GroupClosing)], time_ns=model.now_ns))
    model.published += [each for each in outputs if not isinstance(each, GroupClosing)]
    model.committed = (watermark, state.position)


def step_ns(rng: random.Random) -> int:
    return rng.choice([0, 0, SECOND_NS, SECOND_NS, 10 * SECOND_NS, int(WINDOW_S * 0.9) * SECOND_NS, 70 * SECOND_NS])


def uninterrupted(log: list[Record]) -> list[Output]:
    state, outputs = PartitionState(0, SETTINGS), []
    for entry in log:
        outputs += fold(state, entry)
    return [each for each in outputs if not isinstance(each, GroupClosing)]


def run_endings(log: list[Record]) -> list[tuple[int, int]]:
    """Trigger and offset of each end of the run that is to come out, from the offsets at which groups open and close.

    An end waits for the groups that are open when it comes: the last of their closings is its trigger.
    """
    state = PartitionState(0, SETTINGS)
    waiting: list[tuple[int, set[int]]] = []
    found: list[tuple[int, int]] = []
    for entry in log:
        fold(state, entry)
        still_open = {group.first_offset for group in state.groups.values()}
        if entry.key == RUN.encode():
            waiting.append((entry.offset, still_open))
        waiting = [(offset, groups & still_open) for offset, groups in waiting]
        found += [(entry.offset, offset) for offset, groups in waiting if not groups]
        waiting = [(offset, groups) for offset, groups in waiting if groups]
    return found


def assert_run_ends(outputs: list[Output], expected: list[tuple[int, int]], where: str) -> None:
    found = [(each.trigger, each.offset) for each in outputs if isinstance(each, RunEnding)]
    assert found == expected, f"{where}: the run ends at {found}"
    for one, other in pairwise(outputs):
        if one.trigger == other.trigger and isinstance(one, RunEnding):
            assert isinstance(other, RunEnding), f"{where}: {one} before {other}"


def comparable(outputs: list[Output]) -> list[object]:
    """Outputs without what a restart may not know: a span's log time is not kept."""
    return [
        replace(each, record=each.record._replace(log_time_ns=0)) if isinstance(each, DeadLetter) else each
        for each in outputs
    ]


def check_seed(seed: int) -> Model:
    rng = random.Random(seed)
    model = Model(rng, make_limits(rng))
    run_with_restarts(model, make_events(model.random))
    assert comparable(model.published) == comparable(uninterrupted(model.log)), f"seed {seed}"
    assert_run_ends(model.published, run_endings(model.log), f"seed {seed}")
    triggers = [each.trigger for each in model.published]
    assert triggers == sorted(triggers), f"seed {seed}: outputs left out of trigger order"
    return model


def seeds(count: int) -> range:
    start = int(os.environ.get("SEED", "0"))
    return range(start, start + count)


def check(count: int) -> None:
    batches = letters = restarts = ends = ends_held_back = decided = 0
    closed: Counter[str] = Counter()
    for seed in seeds(count):
        model = check_seed(seed)
        groups = [each.batch.group_id for each in model.published if isinstance(each, BatchReady)]
        twice = {group for group in groups if groups.count(group) > 1}
        assert not twice or reopened(model, twice), f"seed {seed}: {twice} published twice"
        batches += len(groups)
        letters += sum(isinstance(each, DeadLetter) for each in model.published)
        restarts += model.restarts
        decided += model.decided
        closed.update(each.batch.closed_reason for each in model.published if isinstance(each, BatchReady))
        closed.update(
            re.split("[,;]", result.reason or "")[0]
            for each in model.published
            if isinstance(each, BatchReady)
            for result in each.batch.rollouts
            if result.status == "expired"
        )
        run_ends = [each for each in model.published if isinstance(each, RunEnding)]
        ends += len(run_ends)
        ends_held_back += sum(each.trigger > each.offset for each in run_ends)
    print(
        f"{count} logs: {batches} batches, {letters} dead letters, {restarts} restarts, {ends} ends of the run, "
        f"{ends_held_back} of them held back; {decided} decisions; closed: {dict(closed)}"
    )
    assert all(closed[reason] > count / 100 for reason in (*GROUP_REASONS, IDLE, AGE, GRACE))
    assert decided > count / 2
    assert batches > count / 2
    assert letters > 0
    assert restarts > count / 2
    assert count / 2 < ends
    assert count / 10 < ends_held_back < ends


def reopened(model: Model, groups: set[str]) -> bool:
    """Whether a second batch holds only rollouts started after the group had been forgotten: a new use of its id."""
    for group in groups:
        batches = [each.batch for each in model.published if isinstance(each, BatchReady)]
        for earlier, later in pairwise(batch for batch in batches if batch.group_id == group):
            first = next(entry for entry in model.log if entry.offset == later.first_event)
            if first.log_time_ns - earlier.closed_ns < SETTINGS.late_window_ns:
                return False
    return True


def test_fold_restarted_anywhere_puts_out_what_one_pass_does():
    check(400)


@pytest.mark.slow
def test_fold_restarted_anywhere_in_5000_logs_puts_out_what_one_pass_does():
    check(5_000)
