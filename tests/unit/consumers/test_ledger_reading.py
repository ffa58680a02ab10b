"""The ledger of whole runs in memory: it holds for any of them, at any moment, and agrees with the fold."""

import asyncio
import random
from dataclasses import replace

import pytest
from support.building import group_closed
from support.memory_log import MemoryLog
from support.workload import make_workload, new_record, whole_group
from unit.consumers.test_ledger import ack

from rolloutlog.consumers.fold import fold
from rolloutlog.consumers.ledger import Ledger
from rolloutlog.consumers.ledger_reading import read_ledger, why_of
from rolloutlog.consumers.outputs import Output
from rolloutlog.consumers.packing import Packer
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.state import PartitionState
from rolloutlog.eventstore.acks import ack_records
from rolloutlog.eventstore.log import DEAD_LETTERS, EVENTS, NewRecord, Record

NOW_NS = 1_700_000_000_000_000_000


class Run:
    """An assembler of one log in memory, moved on by hand."""

    def __init__(self) -> None:
        self.log = MemoryLog(log_time_ns=lambda: NOW_NS)
        self.states = [PartitionState(partition, FoldSettings()) for partition in range(4)]
        self.packers = [Packer(each, FoldSettings().config_hash, "assembler.00000000000000dd") for each in range(4)]

    def append(self, records: list[NewRecord]) -> None:
        asyncio.run(self.log.append(records))

    def assemble(self) -> None:
        """Fold what is new in each partition and publish what comes of it."""
        for state, packer in zip(self.states, self.packers, strict=True):
            outputs: list[Output] = []
            for record in self.log.records.get((EVENTS, state.partition), [])[state.position :]:
                outputs += fold(state, record)
            if outputs:
                self.append(packer.pack(outputs, time_ns=NOW_NS))

    @property
    def open_count(self) -> int:
        """Rollouts of open groups that were started, however far they are."""
        groups = [group for state in self.states for group in state.groups.values()]
        return sum(len(group.rollouts) + len(group.surplus) for group in groups)

    def ledger(self, **settings: object) -> Ledger:
        return asyncio.run(read_ledger(self.log, **settings))  # type: ignore[arg-type]


def assert_adds_up(ledger: Ledger) -> None:
    found = ledger.rollouts()
    ends = found.ends.total() + found.refused.total() + found.open + found.missing + found.cut
    assert found.started == ends
    assert ledger.problems() == []


@pytest.mark.parametrize("seed", range(12))
def test_ledger_of_a_run_adds_up_at_any_moment_and_agrees_with_the_fold(seed: int):
    workload = make_workload(seed, groups=25)
    rng = random.Random(seed)
    records, run = list(workload.records), Run()
    while records:
        count = rng.randint(1, 80)
        run.append(records[:count])
        del records[:count]
        if rng.random() < 0.3:
            assert_adds_up(run.ledger())  # what is appended, but not folded yet, is open
        run.assemble()
        ledger = run.ledger()
        assert_adds_up(ledger)
        assert ledger.rollouts().open == run.open_count
    assert run.ledger().rollouts().ends.total() > 20


def test_ledger_tells_its_progress_by_topic():
    run, told = Run(), []
    run.append([*whole_group("g"), *whole_group("h", partition=1)])
    run.assemble()
    run.ledger(on_progress=lambda topic, done, total: told.append((topic, done, total)))
    ends = {topic: (done, total) for topic, done, total in told}
    assert ends == {"acks": (0, 0), "events": (10, 10), "dead-letters": (0, 0), "batches": (2, 2)}


def test_ledger_of_one_reader_leaves_others_out():
    run = Run()
    run.append([*ack_records(ack(0, reader="a")), *ack_records(ack(0, reader="b"))])
    assert run.ledger(reader="b").readers == ("b",)
    assert run.ledger().readers == ("a", "b")


def test_ledger_leaves_acknowledgements_of_outputs_out():
    """Samples of an output have the ids of live ones, and are none of those that were published."""
    run = Run()
    run.append([*whole_group("g"), *ack_records(replace(ack(0), topic="output.judged"))])
    run.assemble()
    ledger = run.ledger()
    assert (ledger.readers, ledger.problems()) == ((), [])
    assert ledger.samples("trainer").in_flight == ledger.samples("trainer").published > 0


def test_ledger_of_a_lost_batch_says_that_its_rollouts_are_missing():
    run = Run()
    run.append([*whole_group("h"), *whole_group("g", rollouts=2)])
    run.assemble()
    del run.log.records["batches", 0][1]
    ledger = run.ledger()
    assert ledger.rollouts().missing == 2
    assert ledger.problems() == [
        "2 rollouts started, but are not among the rollouts of their group: g-r0 (group g), g-r1 (group g)"
    ]


def test_ledger_of_a_start_after_its_host_closed_the_group_counts_it_as_refused():
    run = Run()
    run.append([new_record(group_closed("g"), key="g"), *whole_group("g")])
    run.assemble()
    assert dict(run.ledger().rollouts().refused) == {"late_start": 1}
    assert_adds_up(run.ledger())


@pytest.mark.parametrize(
    "headers",
    [(), (("why", None),), (("why", b"nothing"),), (("why", b"[1]"),), (("why", b'{"a": 1}'),)],
    ids=["none", "null", "no_json", "no_object", "no_reason"],
)
def test_dead_letter_that_does_not_say_why_has_an_unknown_reason(headers):
    assert why_of(Record(DEAD_LETTERS, 0, 0, 0, b"g", b"", headers))["reason"] == "unknown"


def test_dead_letter_whose_record_had_a_header_why_has_the_assemblers():
    headers = (("why", b'{"reason": "theirs"}'), ("why", b'{"reason": "ours"}'))
    assert why_of(Record(DEAD_LETTERS, 0, 0, 0, b"g", b"", headers))["reason"] == "ours"
