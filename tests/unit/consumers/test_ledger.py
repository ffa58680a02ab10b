"""The ledger: every start and every sample is somewhere, and what is nowhere is named."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import batch as batch_with
from support.batches import sample
from support.building import call, completed, reward, started
from unit.consumers.folding import Partition

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.ledger import Cut, Ledger
from rolloutlog.consumers.published import Published
from rolloutlog.eventstore.acks import Ack, Rewound, SampleEnd, StepAcknowledged

UNCUT = Cut(0, 1_000)


def batch_of(group_id: str, *rollout_ids: str, start: int = 0) -> Batch:
    """A published group of completed rollouts with one sample each. It begins at offset `start`, 4 events a rollout."""
    folded = Partition(position=start)
    for rollout_id in rollout_ids:
        folded.add(
            started(rollout_id, group_id=group_id, group_size=len(rollout_ids)),
            call(f"{rollout_id}-c", 1, rollout_id),
            reward(2, rollout_id, scope="rollout"),
            completed(3, rollout_id),
            key=group_id,
        )
    return folded.batch


def published(batch: Batch, offset: int = 0) -> Published:
    return Published(batch.input_partition, offset, offset + 1, 0, 100, batch)


def ledger_of(*starts: tuple[int, str, str], batches: Sequence[Batch] = (), cut: Cut = UNCUT) -> Ledger:
    """A ledger of starts (offset, group, rollout) and of batches, which stand at offsets 0, 1, ..."""
    ledger = Ledger()
    ledger.add_cut(0, cut)
    for offset, group_id, rollout_id in starts:
        ledger.add_start(0, offset, group_id, rollout_id, 0)
    for offset, batch in enumerate(batches):
        ledger.add_published(published(batch, offset))
    return ledger


def ack(step: int, *ends: tuple[str, str], reader: str = "trainer", offset: int | None = None) -> StepAcknowledged:
    offsets = {} if offset is None else {0: offset}
    return StepAcknowledged(reader, step, None, (), tuple(SampleEnd(*end) for end in ends), offsets, 0)


# Rollouts


def test_ledger_of_published_rollouts_counts_their_ends():
    ledger = ledger_of((0, "g", "r1"), (4, "g", "r2"), batches=[batch_of("g", "r1", "r2")])
    found = ledger.rollouts()
    assert (found.started, dict(found.ends), found.open, dict(found.refused)) == (2, {"emitted": 2}, 0, {})
    assert ledger.problems() == []


def test_ledger_of_a_start_without_a_batch_counts_it_as_open():
    found = ledger_of((0, "g", "r1")).rollouts()
    assert (found.started, found.open) == (1, 1)


def test_ledger_of_a_start_after_its_groups_closing_counts_it_as_refused():
    """The assembler appended a GroupClosed at 9, and another one at 11 for the start that it refused."""
    ledger = ledger_of((0, "g", "r1"), (10, "g", "late"), batches=[batch_of("g", "r1")])
    ledger.add_closing("g", 9)
    ledger.add_closing("g", 11)
    assert (ledger.rollouts().open, dict(ledger.rollouts().refused)) == (0, {"late_start": 1})
    assert ledger.problems() == []


def test_ledger_of_a_start_after_its_groups_closing_that_nobody_answered_counts_it_as_open():
    """A group that is forgotten opens again; and a start that is not folded yet may still be refused."""
    ledger = ledger_of((0, "g", "r1"), (10, "g", "again"), batches=[batch_of("g", "r1")])
    ledger.add_closing("g", 9)
    assert (ledger.rollouts().open, dict(ledger.rollouts().refused)) == (1, {})


def test_ledger_of_a_start_that_is_a_dead_letter_counts_it_as_refused():
    ledger = ledger_of((0, "g", "r1"))
    ledger.add_refused(0, 0, "dead_letter")
    assert (ledger.rollouts().open, dict(ledger.rollouts().refused)) == (0, {"dead_letter": 1})


def test_ledger_of_a_refused_start_that_came_again_counts_the_good_one():
    ledger = ledger_of((0, "g", "r1"), (1, "g", "r1"))
    ledger.add_refused(0, 0, "dead_letter")
    assert (ledger.rollouts().started, ledger.rollouts().open) == (1, 1)


def test_ledger_of_a_start_that_came_twice_counts_one_rollout():
    ledger = ledger_of((0, "g", "r1"), (1, "g", "r1"), batches=[batch_of("g", "r1")])
    assert (ledger.rollouts().started, ledger.rollouts().superseded) == (1, 0)


def test_ledger_of_a_second_attempt_counts_the_first_as_superseded():
    ledger = ledger_of((0, "g", "r1"))
    ledger.add_start(0, 5, "g", "r1", 1)
    assert (ledger.rollouts().started, ledger.rollouts().superseded) == (1, 1)


def test_ledger_of_one_rollout_id_in_two_groups_counts_two_rollouts():
    ledger = ledger_of((0, "g1", "r"), (4, "g2", "r"), batches=[batch_of("g1", "r"), batch_of("g2", "r", start=4)])
    assert (ledger.rollouts().started, ledger.rollouts().ends["emitted"]) == (2, 2)
    assert ledger.problems() == []


def test_ledger_of_a_start_that_its_groups_batch_lacks_says_that_it_is_missing():
    ledger = ledger_of((0, "g", "r1"), (2, "g", "lost"), batches=[batch_of("g", "r1")])
    assert ledger.rollouts().missing == 1
    assert ledger.problems() == ["1 rollouts started, but are not among the rollouts of their group: lost (group g)"]


def test_ledger_of_a_result_that_never_started_says_so():
    ledger = ledger_of(batches=[batch_of("g", "r1")])
    assert ledger.problems() == ["1 rollouts are published, but never started: r1 (group g)"]


def test_ledger_of_a_rollout_in_two_batches_says_so():
    ledger = ledger_of((0, "g", "r1"), batches=[batch_of("g", "r1"), batch_of("g", "r1")])
    assert ledger.problems() == ["1 rollouts are published twice: r1 (group g)"]


def test_ledger_of_more_problems_than_it_names_says_how_many_more():
    ledger = ledger_of(batches=[batch_of("g", "a", "b", "c", "d", "e")])
    assert ledger.problems() == [
        "5 rollouts are published, but never started: a (group g), b (group g), c (group g) and 2 more"
    ]


def test_ledger_read_while_the_run_goes_on_takes_no_later_batch_for_an_error():
    """Events were read up to 3; the batch, read after that, came of events above."""
    ledger = ledger_of(batches=[batch_of("g", "r1", start=3)], cut=Cut(0, 3))
    assert (ledger.rollouts().started, ledger.problems()) == (0, [])


def test_ledger_of_starts_that_retention_removed_raises_no_alarm_and_says_so():
    ledger = ledger_of(batches=[batch_of("g", "r1")], cut=Cut(50, 90))
    assert ledger.problems() == []
    assert ledger.history_cut == [
        "events: the oldest are gone in partitions 0; rollouts that started there are not counted"
    ]


def test_ledger_of_batches_that_retention_removed_counts_their_rollouts_apart():
    """Batches are kept for a shorter time than events: the group that began at 0 was published and is gone."""
    ledger = ledger_of((0, "old", "r1"), (20, "g", "r2"), batches=[batch_of("g", "r2", start=20)], cut=Cut(0, 90, 7))
    ledger.add_closing("old", 5)
    found = ledger.rollouts()
    assert (found.cut, found.ends["emitted"], found.open, found.refused.total()) == (1, 1, 0, 0)
    assert ledger.problems() == []
    assert len(ledger.history_cut) == 1


# Samples


SAMPLES = ("r1/0/r1-c", "r2/0/r2-c")


def two_samples() -> Ledger:
    return ledger_of((0, "g", "r1"), (4, "g", "r2"), batches=[batch_of("g", "r1", "r2")])


def test_ledger_of_acknowledged_samples_counts_their_ends():
    ledger = two_samples()
    ledger.add_ack(ack(0, (SAMPLES[0], "trained"), (SAMPLES[1], "stale"), offset=1))
    found = ledger.samples("trainer")
    assert (found.published, dict(found.ends), found.in_flight) == (2, {"trained": 1, "stale": 1}, 0)
    assert ledger.problems() == []


def test_ledger_without_acknowledgements_has_all_samples_in_flight():
    found = two_samples().samples("trainer")
    assert (found.published, dict(found.ends), found.in_flight) == (2, {}, 2)


def test_ledger_of_two_readers_counts_for_each():
    ledger = two_samples()
    ledger.add_ack(ack(0, (SAMPLES[0], "trained"), reader="a"))
    ledger.add_ack(ack(0, (SAMPLES[0], "filtered"), (SAMPLES[1], "trained"), reader="b"))
    assert ledger.readers == ("a", "b")
    assert [ledger.samples(reader).in_flight for reader in ledger.readers] == [1, 0]


def test_ledger_of_a_rewind_takes_back_the_ends_of_later_steps():
    ledger = two_samples()
    ledger.add_ack(ack(0, (SAMPLES[0], "trained"), offset=1))
    ledger.add_ack(ack(1, (SAMPLES[1], "trained"), offset=1))
    ledger.add_ack(Rewound("trainer", 1, {0: 0}, None, 0))
    found = ledger.samples("trainer")
    assert (dict(found.ends), found.in_flight) == ({"trained": 1}, 1)
    assert ledger.problems() == []


def test_ledger_of_a_step_in_several_records_counts_them_all():
    ledger = two_samples()
    ledger.add_ack(ack(0, (SAMPLES[0], "trained")))
    ledger.add_ack(ack(0, (SAMPLES[1], "trained"), offset=1))
    assert ledger.samples("trainer").ends["trained"] == 2


def test_ledger_of_the_end_of_an_unknown_sample_says_so():
    ledger = two_samples()
    ledger.add_ack(ack(0, ("other/0/c", "trained")))
    assert ledger.problems() == ["reader trainer: 1 samples have ended, but were never published: other/0/c"]


def test_ledger_of_the_end_of_a_sample_that_retention_removed_raises_no_alarm():
    ledger = ledger_of(cut=Cut(0, 10, 3))
    ledger.add_ack(ack(0, ("other/0/c", "trained")))
    assert (ledger.problems(), ledger.samples("trainer").cut) == ([], 1)


def test_ledger_of_a_sample_before_the_readers_position_without_an_end_says_so():
    ledger = two_samples()
    ledger.add_ack(ack(0, (SAMPLES[0], "trained"), offset=1))
    assert ledger.problems() == [
        "reader trainer: 1 samples are before what it acknowledged, but have no end: r2/0/r2-c"
    ]


def test_ledger_after_the_load_of_a_checkpoint_on_a_line_that_was_left_has_its_ends_again():
    ledger = Ledger()
    for offset, name in enumerate("abc"):
        ledger.add_published(published(batch_with(name, [sample(name)]), offset))

    def ack(step: int, name: str, end: str, offset: int) -> Ack:
        return StepAcknowledged("trainer", step, None, (), (SampleEnd(name, end),), {0: offset}, 0)

    ledger.add_ack(ack(0, "a", "trained", 1))
    ledger.add_ack(ack(1, "b", "trained", 2))
    ledger.add_ack(Rewound("trainer", 0, {0: 0}, None, 100, 0))
    ledger.add_ack(ack(0, "a", "stale", 1))
    ledger.add_ack(Rewound("trainer", 2, {0: 2}, None, 200, 0))
    assert ledger.samples("trainer").ends == {"trained": 2}
    ledger.add_ack(ack(2, "c", "filtered", 3))
    ledger.add_ack(Rewound("trainer", 1, {0: 1}, None, 300, 100))
    assert ledger.samples("trainer").ends == {"stale": 1}
    ledger.add_ack(Rewound("trainer", 3, {0: 3}, None, 400, 200))
    assert ledger.samples("trainer").ends == {"trained": 2, "filtered": 1}
    assert ledger.problems() == []


def test_ledger_of_a_reader_that_began_with_anothers_checkpoint_counts_what_it_skipped():
    ledger = ledger_of(
        (0, "a", "r1"), (4, "b", "r2"), batches=[batch_of("a", "r1"), batch_of("b", "r2", start=4)]
    )  # fmt: skip
    ledger.add_ack(Rewound("second", 7, {0: 1}, None, 0))
    found = ledger.samples("second")
    assert (found.skipped, found.in_flight, ledger.problems()) == (1, 1, [])
    ledger.add_ack(Rewound("second", 0, {0: 0}, None, 0))
    assert (ledger.samples("second").skipped, ledger.samples("second").in_flight) == (0, 2)


def test_ledger_of_acknowledgements_that_retention_removed_raises_no_alarm_and_says_so():
    ledger = two_samples()
    ledger.acks_cut = True
    ledger.add_ack(ack(5, offset=1))
    assert ledger.problems() == []
    assert ledger.history_cut == ["acks: the oldest are gone; samples that ended there count as in flight"]


ENDS = st.sampled_from(["trained", "stale", "filtered", "rejected"])
ACKS = st.one_of(
    st.builds(
        lambda step, ends: ack(step, *ends.items()),
        st.integers(0, 6),
        st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e"]), ENDS, max_size=4),
    ),
    st.builds(lambda step: Rewound("trainer", step, {}, None, 0), st.integers(0, 6)),
)


def last_words(acks: Sequence[Ack]) -> dict[str, str]:
    """The same, said in another way: an end holds unless a rewind to its step or before it comes after it."""
    words = {}
    for index, each in enumerate(acks):
        if isinstance(each, StepAcknowledged):
            later = acks[index + 1 :]
            if not any(isinstance(other, Rewound) and other.step <= each.step for other in later):
                words.update({sample.sample_id: sample.end for sample in each.samples})
    return words


@settings(max_examples=300, deadline=None)
@given(st.lists(ACKS, max_size=20))
def test_ledger_of_any_steps_and_rewinds_counts_the_last_word_on_each_sample(acks):
    ledger = Ledger()
    rollouts = ("a", "b", "c", "d", "e")
    batch = batch_of("g", *rollouts)
    ledger.add_published(published(batch))
    named = {each: f"{each}/0/{each}-c" for each in rollouts}
    given_acks: list[Ack] = [
        each
        if isinstance(each, Rewound)
        else ack(each.step, *((named[sample.sample_id], sample.end) for sample in each.samples))
        for each in acks
    ]
    for each in given_acks:
        ledger.add_ack(each)
    words = last_words(given_acks)
    found = ledger.samples("trainer")
    assert dict(found.ends) == {end: list(words.values()).count(end) for end in set(words.values())}
    assert found.in_flight == 5 - len(words)
