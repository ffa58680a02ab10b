"""Bad events end in dead letters as they came, with the reason; what is around them goes on.

One log holds a rollout with each kind of bad event, each followed by one without; it is assembled once.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from support.building import call, completed, reward, started
from support.processes import assemble
from support.store import Store
from support.workload import BAD_KINDS, BadKind, new_record, whole_group

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.origin import HEADER as ORIGIN
from rolloutlog.consumers.origin import origin_of
from rolloutlog.consumers.packing import WHY
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.log import EVENTS, NewRecord, Record

from .conftest import NewUrl

pytestmark = pytest.mark.timeout(120)

PARTITION = 1
BAD_SOURCE = "bad.00000000000000bb"
SCORER = "scorer.00000000000000cc"
WITHOUT_OWNER = ("bad_header", "key")  # whose rollout it is can't be told: none is held responsible


@dataclass
class Assembled:
    """A log after one run. `bad`, `closing`: offset of the bad event, and of its rollout's end, by kind."""

    bad: dict[str, int]
    closing: dict[str, int]
    originals: dict[str, NewRecord]
    letters: list[Record]
    batches: dict[str, Batch]
    summary: str
    stderr: str

    def letter(self, kind: BadKind) -> Record:
        found = [each for each in self.letters if _why(each)["offset"] == self.bad[kind.name]]
        assert len(found) == 1, f"{kind.name}: expected one dead letter, got {len(found)}"
        return found[0]


@pytest.fixture(scope="module")
def assembled(new_url: NewUrl) -> Iterator[Assembled]:
    records: list[NewRecord] = []
    bad, closing, originals = {}, {}, {}
    for kind in BAD_KINDS:
        rollout_id = f"bad-{kind.name}"
        good = whole_group(rollout_id, partition=PARTITION)
        common = {"rollout_id": f"{rollout_id}-r0", "source": BAD_SOURCE}
        event = reward(0, **common) if kind.of == "reward" else call(f"{rollout_id}-bad", 0, **common)
        originals[kind.name] = kind.spoil(new_record(event, key=rollout_id, partition=PARTITION), event)
        bad[kind.name] = len(records) + 2
        closing[kind.name] = len(records) + 4
        records += [*good[:2], originals[kind.name], *good[2:]]
        records += whole_group(f"good-{kind.name}", partition=PARTITION)
    records += _late_superseded_orphan()
    with Store(new_url()) as store:
        offsets = [stored.offset for stored in store.append(records)]
        assert offsets == list(range(len(records)))
        command = assemble(store.url)
        assert command.finish() == 0, command.stderr
        batches = {batch.group_id: batch for batch in store.batches()}
        yield Assembled(bad, closing, originals, store.dead_letters(), batches, command.stdout, command.stderr)


def _late_superseded_orphan() -> list[NewRecord]:
    events = [
        started("twice-r0", group_id="twice", attempts_max=2),
        completed(1, "twice-r0", status="failed"),
        started("twice-r0", group_id="twice", attempts_max=2, attempt=1),
        reward(2, "twice-r0"),
        completed(1, "twice-r0", attempt=1),
        reward(0, "twice-r0", attempt=1, source=SCORER, name="much later"),
    ]
    orphan = new_record(reward(0, "never-started", source=SCORER), key="never-started", partition=PARTITION)
    return [*(new_record(event, key="twice", partition=PARTITION) for event in events), orphan]


def _why(letter: Record) -> dict[str, object]:
    value = dict(letter.headers)[WHY]
    assert value is not None
    found = json.loads(value)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("kind", BAD_KINDS, ids=lambda kind: kind.name)
def test_bad_event_ends_in_dead_letters_as_it_came(assembled: Assembled, kind: BadKind) -> None:
    letter, original = assembled.letter(kind), assembled.originals[kind.name]
    kept = tuple((name, value) for name, value in letter.headers if name not in (WHY, ORIGIN))
    assert (letter.key, letter.value, kept) == (original.key, original.value, original.headers)


@pytest.mark.parametrize("kind", BAD_KINDS, ids=lambda kind: kind.name)
def test_dead_letter_says_why_and_where(assembled: Assembled, kind: BadKind) -> None:
    why = _why(assembled.letter(kind))
    detail = why.pop("detail")
    expected = {"reason": kind.reason, "field": kind.field, "topic": EVENTS, "partition": PARTITION}
    assert why == expected | {"offset": assembled.bad[kind.name]}
    assert isinstance(detail, str)
    assert "expected" in detail
    assert "got" in detail


@pytest.mark.parametrize("kind", BAD_KINDS, ids=lambda kind: kind.name)
def test_dead_letter_names_its_trigger(assembled: Assembled, kind: BadKind) -> None:
    """A span is looked at when its rollout closes; any other event when it is read."""
    offset = assembled.bad[kind.name]
    trigger = offset if kind.of == "reward" else assembled.closing[kind.name]
    config_hash = FoldSettings().config_hash
    assert origin_of(assembled.letter(kind)) == (PARTITION, trigger, offset, config_hash, 0, 1)


@pytest.mark.parametrize("kind", BAD_KINDS, ids=lambda kind: kind.name)
def test_rollout_with_bad_event_is_incomplete_and_the_next_one_is_published(
    assembled: Assembled, kind: BadKind
) -> None:
    bad, good = assembled.batches[f"bad-{kind.name}"], assembled.batches[f"good-{kind.name}"]
    assert [result.status for result in good.rollouts] == ["emitted"]
    assert len(good.samples) == 1
    if kind.reason in WITHOUT_OWNER:
        assert [result.status for result in bad.rollouts] == ["emitted"]
    else:
        assert [result.status for result in bad.rollouts] == ["incomplete"]
        assert kind.reason in (bad.rollouts[0].reason or "")
        assert bad.samples == ()


def test_dead_letters_leave_in_the_order_of_their_triggers(assembled: Assembled) -> None:
    triggers = [origin_of(letter).trigger for letter in assembled.letters]
    assert triggers == sorted(triggers)


def test_late_superseded_and_orphan_events_are_counted_and_no_dead_letters(assembled: Assembled) -> None:
    assert len(assembled.letters) == len(BAD_KINDS)
    assert "events that changed nothing: 1 late, 1 superseded, 1 orphan" in assembled.stderr
    assert f"{len(BAD_KINDS)} dead letters" in assembled.summary
