"""Events of many rollouts as hosts send them: interleaved, repeated, late, and some of them bad.

`make_workload(seed)` gives records for an empty log. `outputs_of(store)` gives what was published from it in a form
in which two logs can be compared: offsets become ranks among the events that hosts sent, so that neither what the
assembler appends nor the markers of transactions count.
"""

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.origin import HEADER as ORIGIN
from rolloutlog.consumers.origin import origin_of
from rolloutlog.consumers.outputs import GroupClosing, Output
from rolloutlog.consumers.packing import WHY, Packer
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.eventstore.codec import HEADER, encode_event, header_of
from rolloutlog.eventstore.events import Event, PolicyVersionRun, Target
from rolloutlog.eventstore.log import BATCHES, DEAD_LETTERS, EVENTS, NewRecord, Record
from rolloutlog.eventstore.partitioner import partition_of
from support.building import call, completed, ended, floats, group_closed, ids, reward, run_ended, started
from support.store import PARTITIONS, Store, batches_of

ACTIVE_STREAMS = 16  # groups that send at the same time
RUN_KEY = "run/run"
DECIDED_BY = "assembler."  # source of the GroupClosed events that an assembler appends
OFFSET = re.compile(r"offset (\d+:)?(\d+)")

Spoil = Callable[[NewRecord, Event], NewRecord]


def new_record(event: Event, *, key: str, partition: int = 0, resend: bool = False) -> NewRecord:
    """An event as a publisher appends it, unchecked."""
    headers = ((HEADER, header_of(event, resend=resend).text()),)
    return NewRecord(EVENTS, partition, key.encode(), encode_event(event), headers)


def whole_group(
    group_id: str, *, partition: int = 0, rollouts: int = 1, tokens: int = 4, time_ns: int = 0
) -> list[NewRecord]:
    """A group whose rollouts are completed: one call and the reward 1.0 each; 4 events a rollout."""
    records = []
    for index in range(rollouts):
        rollout_id = f"{group_id}-r{index}"
        common = {"time_ns": time_ns}
        events: list[Event] = [
            started(rollout_id, group_id=group_id, group_size=rollouts, **common),
            call(f"{rollout_id}-c", 1, rollout_id, response_ids=ids(*range(tokens)), **common),
            reward(2, rollout_id, scope="rollout", **common),
            completed(3, rollout_id, **common),
        ]
        records += [new_record(event, key=group_id, partition=partition) for event in events]
    return records


# Bad events. Each takes the good record and its event and makes the bad one.


def _changed(event: Event, record: NewRecord, **fields: Any) -> NewRecord:
    return record._replace(value=encode_event(replace(event, **fields)))


def _header(record: NewRecord, part: int, text: str) -> NewRecord:
    (name, value), *rest = record.headers
    assert value is not None
    parts = value.decode().split("/", 5)
    parts[part] = text
    return record._replace(headers=((name, "/".join(parts).encode()), *rest))


def _cut_value(record: NewRecord, keep: int) -> NewRecord:
    assert record.value is not None
    return record._replace(value=record.value[:keep])


def _added(record: NewRecord, data: bytes, at: int | None = None) -> NewRecord:
    assert record.value is not None
    value = record.value
    return record._replace(value=value + data if at is None else value[:at] + data + value[at + len(data) :])


@dataclass(frozen=True)
class BadKind:
    """How a bad event is made of a good one (`of`: span or reward), and the name under which it is refused."""

    name: str
    of: str
    reason: str
    field: str
    spoil: Spoil


BAD_KINDS = (
    BadKind("logprobs_short", "span", "logprobs_length", "$.logprobs",
            lambda record, event: _changed(event, record, logprobs=floats(-0.5))),
    BadKind("logprobs_nan", "span", "logprobs_not_finite", "$.logprobs",
            lambda record, event: _changed(event, record, logprobs=floats(*[float("nan")] * _tokens(event)))),
    BadKind("token_id_negative", "span", "response_ids_range", "$.response_ids",
            lambda record, event: _changed(event, record, response_ids=ids(*[-1] * _tokens(event)))),
    BadKind("span_truncated", "span", "undecodable", "$",
            lambda record, event: _cut_value(record, len(record.value or b"") - 3)),
    BadKind("span_trailing_bytes", "span", "trailing_bytes", "$", lambda record, event: _added(record, b"xyz")),
    BadKind("span_header_disagrees", "span", "header_disagrees", "$.sequence",
            lambda record, event: _changed(event, record, sequence=event.sequence + 40)),
    BadKind("reward_nan", "reward", "value", "$.value",
            lambda record, event: _changed(event, record, value=float("nan"))),
    BadKind("fingerprint_unknown", "reward", "unknown_fingerprint", "$",
            lambda record, event: _added(record, b"\xee" * 8, at=2)),
    BadKind("truncated", "reward", "undecodable", "$",
            lambda record, event: _cut_value(record, len(record.value or b"") - 5)),
    BadKind("trailing_bytes", "reward", "trailing_bytes", "$", lambda record, event: _added(record, b"\x00")),
    BadKind("header_disagrees", "reward", "header_disagrees", "$.source",
            lambda record, event: _changed(event, record, source="other.00000000000000ab")),
    BadKind("sequence_negative", "reward", "bad_header", "e", lambda record, event: _header(record, 3, "-1")),
    BadKind("header_missing", "reward", "bad_header", "e", lambda record, event: record._replace(headers=())),
    BadKind("kind_unknown", "reward", "bad_header", "e", lambda record, event: _header(record, 0, "Nonsense")),
    BadKind("key_empty", "reward", "key", "key", lambda record, event: record._replace(key=b"")),
    BadKind("value_missing", "reward", "not_framed", "$", lambda record, event: record._replace(value=None)),
)  # fmt: skip


def _tokens(event: Event) -> int:
    return len(event.response_ids or b"") // 4  # type: ignore[attr-defined]


# The workload


@dataclass
class Workload:
    """Records in the order in which they are appended, each with its partition; what was put into them, by name."""

    records: list[NewRecord] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


def make_workload(seed: int, *, groups: int = 100, partitions: int = PARTITIONS) -> Workload:
    """Some hundred rollouts in groups, with all that the issue names."""
    rng = random.Random(seed)
    workload = Workload()
    streams = [_Group(rng, workload, f"{seed}-g{index}", index, partitions).records() for index in range(groups)]
    active: list[list[NewRecord]] = []
    while streams or active:
        while streams and len(active) < ACTIVE_STREAMS:
            active.append(streams.pop(0))
        stream = rng.choice(active)
        for _ in range(min(len(stream), rng.randint(1, 3))):
            workload.records.append(stream.pop(0))
        active = [each for each in active if each]
    total = len(workload.records)
    # The first one waits for nothing, early ones for some groups; groups that stay open hold late ones back for good.
    for sequence, at in enumerate((total, total // 2, total // 10, total // 20, total // 40, total // 80, 0)):
        source = f"publisher.{rng.getrandbits(64):016x}"
        event = run_ended(sequence, source=source)
        ends = [new_record(event, key=RUN_KEY, partition=partition) for partition in range(partitions)]
        workload.records[at:at] = ends
        workload.count("run_ended")
    return workload


class _Group:
    """Makes the records of one group, in an order in which they could arrive."""

    def __init__(self, rng: random.Random, workload: Workload, group_id: str, index: int, partitions: int) -> None:
        self.rng = rng
        self.workload = workload
        self.group_id = group_id
        self.index = index
        self.partition = partition_of(group_id.encode(), partitions)
        self.now_ns = time.time_ns()
        self.size = rng.choice([1, 2, 3, 4, 4, None])

    def records(self) -> list[NewRecord]:
        rng = self.rng
        count = self.size or rng.randint(1, 4)
        if self.size and rng.random() < 0.08:
            count += 1
            self.workload.count("surplus")
        elif count > 1 and rng.random() < 0.06:
            count -= 1
            self.workload.count("open_group")
        out = _interleave(rng, [self.rollout(f"{self.group_id}-r{r}", r) for r in range(count)])
        if self.size is None:
            closing = self.stored(group_closed(self.group_id, source=self.source("publisher")))
            early = rng.random() < 0.3
            out.insert(rng.randint(len(out) // 2, len(out)) if early else len(out), closing)
            self.workload.count("closed_by_host")
        if rng.random() < 0.15:  # the group's id used again, and a start sent again much too late
            again = started(f"{self.group_id}-again", group_id=self.group_id, source=self.source("main"), group_size=1)
            out += [self.stored(again), self.stored(completed(1, again.rollout_id, source=again.source))]
            self.workload.count("reused")
        if rng.random() < 0.1:
            late = started(f"{self.group_id}-old", group_id=f"{self.group_id}-old", group_size=1, time_ns=1)
            out.append(self.stored(late, resend=True, key=f"{self.group_id}-old"))
            self.workload.count("stale_start")
        if rng.random() < 0.15:
            orphan = reward(1, f"{self.group_id}-never-started", source=self.source("main"))
            out.insert(rng.randint(0, len(out)), self.stored(orphan))
            self.workload.count("orphan")
        return out

    def rollout(self, rollout_id: str, index: int) -> list[NewRecord]:
        rng = self.rng
        attempts_max = 2 if rng.random() < 0.12 else 1
        out: list[NewRecord] = []
        for attempt in range(attempts_max):
            last = attempt == attempts_max - 1
            tried = self.attempt(rollout_id, attempt, attempts_max, fails=not last or rng.random() < 0.05)
            if out and rng.random() < 0.6:  # an event of the first attempt arrives after the second has begun
                tried.insert(rng.randint(1, len(tried)), out.pop())
                self.workload.count("superseded")
            out += tried
        if (self.index + index) % 6 == 0:
            out = self.with_bad_event(out)
        if rng.random() < 0.1:
            copy = rng.choice(out)
            out.insert(rng.randint(out.index(copy) + 1, len(out)), _resent(copy) if rng.random() < 0.5 else copy)
            self.workload.count("repeated")
        if rng.random() < 0.06:
            late = reward(0, rollout_id, name="late", source=self.source("scorer"), attempt=attempts_max - 1)
            out.append(self.stored(late))
            self.workload.count("late")
        if rng.random() < 0.03:
            del out[rng.randrange(1, len(out))]
            self.workload.count("gap")
        return out

    def attempt(self, rollout_id: str, attempt: int, attempts_max: int, *, fails: bool) -> list[NewRecord]:
        rng = self.rng
        main = self.source("main")
        common = {"rollout_id": rollout_id, "attempt": attempt, "source": main, "time_ns": self.now_ns}
        split = "train" if rng.random() < 0.9 else "val"
        version = rng.choice([None, 0, 3])
        judged = rng.random() < 0.3
        events: list[Event] = [
            started(group_id=self.group_id, group_size=self.size, attempts_max=attempts_max, split=split,
                    policy_version=version, **common)
        ]  # fmt: skip
        turns = rng.randint(1, 3)
        for turn in range(turns):
            span_id = f"{rollout_id}-{attempt}-c{turn}"
            tokens = rng.randint(2, 40)
            events.append(
                call(span_id, len(events), prompt_ids=ids(*range(turn, turn + 20)), model="policy",
                     response_ids=ids(*(rng.randrange(50_000) for _ in range(tokens))),
                     logprobs=floats(*(-rng.random() for _ in range(tokens))), parent_id=f"{rollout_id}-agent",
                     policy_version_runs=(PolicyVersionRun(version, tokens),), **common)
            )  # fmt: skip
            if rng.random() < 0.6:
                target = Target("span_id", span_id) if rng.random() < 0.5 else None
                events.append(reward(len(events), name="step", value=rng.random(), target=target,
                                     parent_id=f"{rollout_id}-agent", **common))  # fmt: skip
            events.append(
                call(f"{span_id}-tool", len(events), name="tool", kind="tool", parent_id=f"{rollout_id}-agent",
                     prompt_ids=None, response_ids=None, **common)
            )  # fmt: skip
        events.append(
            call(f"{rollout_id}-agent", len(events), name="planner", kind="agent", prompt_ids=None, response_ids=None,
                 **common)
        )  # fmt: skip
        events.append(reward(len(events), scope="rollout", value=rng.random(), **common))
        events.append(
            completed(len(events), status="failed" if fails else "completed", error="boom" if fails else None,
                      awaited_names=("judge",) if judged else (), **common)
        )  # fmt: skip
        records = [self.stored(event) for event in events]
        if judged:
            told = {**common, "source": self.source("judge")}
            scored = reward(0, name="judge", value=rng.random(), scope="rollout", scorer="judge", **told)
            verdict = [self.stored(scored), self.stored(ended(1, **told))]
            records = [records[0], *_interleave(rng, [records[1:], verdict])]
            self.workload.count("judged")
        return records

    def with_bad_event(self, records: list[NewRecord]) -> list[NewRecord]:
        """Spoil one event of the rollout, or add a spoilt reward of another source; every kind in turn."""
        kind = BAD_KINDS[self.workload.counts.get("bad", 0) % len(BAD_KINDS)]
        self.workload.count("bad")
        rollout_id, attempt = _rollout_and_attempt(records[0])
        common = {"rollout_id": rollout_id, "attempt": attempt, "source": self.source("bad"), "time_ns": self.now_ns}
        event: Event = reward(0, **common) if kind.of == "reward" else call(f"{rollout_id}-bad", 0, **common)
        bad = kind.spoil(self.stored(event), event)
        return [*records[: (at := self.rng.randint(1, len(records) - 1))], bad, *records[at:]]

    def stored(self, event: Event, *, resend: bool = False, key: str | None = None) -> NewRecord:
        return new_record(event, key=key or self.group_id, partition=self.partition, resend=resend)

    def source(self, name: str) -> str:
        return f"{name}.{self.rng.getrandbits(64):016x}"


def _rollout_and_attempt(record: NewRecord) -> tuple[str, int]:
    value = record.headers[0][1]
    assert value is not None
    _, _, attempt, _, _, rollout_id = value.decode().split("/", 5)
    return rollout_id, int(attempt)


def _resent(record: NewRecord) -> NewRecord:
    return _header(record, 1, "r") if record.headers else record


def _interleave(rng: random.Random, streams: Sequence[list[NewRecord]]) -> list[NewRecord]:
    waiting = [list(stream) for stream in streams if stream]
    out = []
    while waiting:
        stream = rng.choice(waiting)
        out.append(stream.pop(0))
        waiting = [each for each in waiting if each]
    return out


# What was published


@dataclass(frozen=True)
class Published:
    """Outputs of one log by input partition, in the order in which they were published. Offsets are ranks.

    closings  how many GroupClosed events were appended for each group
    ends      ends of the run, each with its trigger, its own event and how many batches stand before it
    """

    batches: dict[int, list[Batch]]
    letters: dict[int, list[Any]]
    closings: dict[str, int]
    ends: dict[int, list[tuple[int, int, int]]]

    @property
    def batch_count(self) -> int:
        return sum(map(len, self.batches.values()))

    @property
    def letter_count(self) -> int:
        return sum(map(len, self.letters.values()))


def outputs_of(store: Store) -> Published:
    """What was published from the store's events."""
    ranks: dict[int, dict[int, int]] = {}
    closings: dict[str, int] = {}
    for record in store.events():
        if _source(record.headers).startswith(DECIDED_BY):
            group_id = (record.key or b"").decode()
            closings[group_id] = closings.get(group_id, 0) + 1
        else:
            of_partition = ranks.setdefault(record.partition, {})
            of_partition[record.offset] = len(of_partition)
    return _published(store.records(BATCHES), store.records(DEAD_LETTERS), closings, ranks)


def outputs_expected(records: Iterable[NewRecord], settings: FoldSettings | None = None) -> Published:
    """What one pass of the fold makes of the events, without any log."""
    settings = settings or FoldSettings()
    by_partition: dict[int, list[NewRecord]] = {}
    for record in records:
        by_partition.setdefault(record.partition, []).append(record)
    outputs: dict[str, list[Record]] = {BATCHES: [], DEAD_LETTERS: []}
    closings: dict[str, int] = {}
    now_ns = time.time_ns()
    for partition, entries in sorted(by_partition.items()):
        state, found = PartitionState(partition, settings), list[Output]()
        for offset, entry in enumerate(entries):
            found += fold(state, Record(EVENTS, partition, offset, now_ns, entry.key, entry.value, entry.headers))
        for output in found:
            if isinstance(output, GroupClosing):
                closings[output.group_id] = closings.get(output.group_id, 0) + 1
        packer = Packer(partition, settings.config_hash, f"{DECIDED_BY}00000000000000ff")
        for new in packer.pack(found, time_ns=now_ns):
            if new.topic in outputs:
                stored = Record(new.topic, partition, len(outputs[new.topic]), now_ns, new.key, new.value, new.headers)
                outputs[new.topic].append(stored)
    ranks = {partition: {i: i for i in range(len(entries))} for partition, entries in by_partition.items()}
    return _published(outputs[BATCHES], outputs[DEAD_LETTERS], closings, ranks)


def assert_same(found: Published, expected: Published, where: str) -> None:
    """Fail with the first difference: triggers and ids first, then everything."""
    for partition in sorted({*expected.batches, *found.batches}):
        mine, theirs = found.batches.get(partition, []), expected.batches.get(partition, [])
        ids_found = [(each.trigger, each.group_id, each.batch_id) for each in mine]
        ids_expected = [(each.trigger, each.group_id, each.batch_id) for each in theirs]
        assert ids_found == ids_expected, f"batches of partition {partition}, {where}"
        for one, other in zip(mine, theirs, strict=True):
            assert one == other, f"batch {one.batch_id} of partition {partition}, {where}"
    for partition in sorted({*expected.letters, *found.letters}):
        assert found.letters.get(partition) == expected.letters.get(partition), (
            f"dead letters of partition {partition}, {where}"
        )
    assert found.ends == expected.ends, f"ends of the run, {where}"
    assert found.closings == expected.closings, f"GroupClosed events, {where}"


def _source(headers: Iterable[tuple[str, bytes | None]]) -> str:
    value = dict(headers).get(HEADER) or b""
    parts = value.decode(errors="replace").split("/", 5)
    return parts[4] if len(parts) == 6 else ""


def _published(
    batches: Sequence[Record],
    letters: Sequence[Record],
    closings: dict[str, int],
    ranks: Mapping[int, Mapping[int, int]],
) -> Published:
    by_partition: dict[int, list[Batch]] = {}
    ends: dict[int, list[tuple[int, int, int]]] = {}
    for batch in batches_of(batches):
        partition = batch.input_partition
        by_partition.setdefault(partition, []).append(_ranked_batch(batch, ranks[partition]))
    before: Counter[int] = Counter()
    for record in batches:
        partition, origin = record.partition, origin_of(record)
        assert origin.partition == partition, "a batch left its partition"
        if record.key == RUN_KEY.encode():
            of_partition = ranks[partition]
            end = of_partition[origin.trigger], of_partition[origin.first_event], before[partition]
            ends.setdefault(partition, []).append(end)
        else:
            before[partition] += origin.part == 0
    found: dict[int, list[Any]] = {}
    for record in letters:
        found.setdefault(record.partition, []).append(_ranked_letter(record, ranks[record.partition]))
    return Published(by_partition, found, closings, ends)


def _ranked_batch(batch: Batch, ranks: Mapping[int, int]) -> Batch:
    """The batch with ranks instead of offsets, and without the log's own time."""
    rollouts = tuple(
        replace(
            each,
            first_event=ranks[each.first_event],
            closing_event=ranks[each.closing_event],
            reason=_ranked_text(each.reason, ranks),
            outcomes=tuple(replace(outcome, offset=ranks[outcome.offset]) for outcome in each.outcomes),
        )
        for each in batch.rollouts
    )
    return replace(
        batch,
        trigger=ranks[batch.trigger],
        first_event=ranks[batch.first_event],
        rollouts=rollouts,
        reason=_ranked_text(batch.reason, ranks),
        closed_ns=0,
    )


def _ranked_letter(record: Record, ranks: Mapping[int, int]) -> Any:
    headers = dict(record.headers)
    origin = origin_of(record)
    why = json.loads(headers[WHY] or b"")
    why["offset"] = ranks[why["offset"]]
    why["detail"] = _ranked_text(why["detail"], ranks)
    kept = tuple((name, value) for name, value in record.headers if name not in (WHY, ORIGIN))
    ranked = origin._replace(trigger=ranks[origin.trigger], first_event=ranks[origin.first_event])
    return ranked, why, record.key, record.value, kept


def _ranked_text(text: str | None, ranks: Mapping[int, int]) -> str | None:
    if text is None:
        return None
    return OFFSET.sub(lambda found: f"offset {found[1] or ''}{ranks.get(int(found[2]), found[2])}", text)
