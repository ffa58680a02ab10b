"""Events that can't be decoded or are refused: dead letters, and what they do to their rollout."""

import pytest
from support.building import call, completed, floats, group_closed, ids, record, reward, started
from unit.consumers.folding import Partition

from rolloutlog.consumers.outputs import DeadLetter
from rolloutlog.eventstore.events import Event
from rolloutlog.eventstore.log import Record

NAN = float("nan")


def bad(event: Event, *, cut: int = 1) -> Record:
    """The event with a truncated body."""
    entry = record(event, 0)
    assert entry.value is not None
    return entry._replace(value=entry.value[:-cut])


def refused(entry: Record) -> DeadLetter:
    """The dead letter of a record folded alone."""
    partition = Partition()
    partition.add(entry)
    (letter,) = partition.letters
    return letter


def with_bad_span(**settings: str) -> Partition:
    """Two calls, the first of which does not decode."""
    partition = Partition(**settings)
    partition.add(started(), bad(call("a", 1)), call("b", 2), completed(3))
    return partition


def test_fold_of_a_bad_body_makes_a_dead_letter_with_its_own_trigger():
    partition = Partition()
    partition.add(started(), bad(reward(1)))
    assert [(each.trigger, each.reason) for each in partition.letters] == [(1, "undecodable")]


def test_fold_of_a_bad_body_keeps_the_record_as_it_came():
    entry = bad(reward(1))
    partition = Partition()
    partition.add(started(), entry)
    assert partition.letters[0].record == entry._replace(offset=1)


def test_fold_of_a_bad_body_goes_on_with_the_partition():
    partition = Partition()
    partition.add(Record("events", 0, 0, 0, b"g", b"junk", (("e", b"junk"),)), started(), completed(1))
    assert len(partition.batches) == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "not_framed"),
        (b"", "not_framed"),
        (b"\x00\x00\x00\x00\x01rest of a record", "not_framed"),
        (b"\xc3\x01" + b"\x00" * 8 + b"body", "unknown_fingerprint"),
    ],
)
def test_fold_of_a_value_that_is_no_event_names_the_reason(value: bytes | None, reason: str):
    assert refused(record(started(), 0)._replace(value=value)).reason == reason


def test_fold_of_trailing_bytes_names_the_reason():
    entry = record(started(), 0)
    assert refused(entry._replace(value=(entry.value or b"") + b"x")).reason == "trailing_bytes"


def test_fold_of_a_reward_that_is_nan_names_the_reason():
    partition = Partition()
    partition.add(started(), reward(1, value=NAN))
    assert [(each.reason, each.field) for each in partition.letters] == [("value", "$.value")]


def test_fold_of_a_refused_event_says_where_it_was():
    partition = Partition()
    partition.add(started(), reward(1, value=NAN))
    assert partition.letters[0].detail == (
        "RewardRecorded refused: expected a finite number or null, got nan at $.value "
        "(rollout r, attempt 0, offset 0:1)"
    )


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"\xff",
        b"RolloutStarted",
        b"Nonsense/-/0/0/main.00000000000000aa/r",
        b"RolloutStarted/1/0/0/main.00000000000000aa/r",
        b"RolloutStarted/-/-1/0/main.00000000000000aa/r",
        b"RolloutStarted/-/0/-1/main.00000000000000aa/r",
        b"RolloutStarted/-/0/9223372036854775808/main.00000000000000aa/r",
        b"RolloutStarted/-/2147483648/0/main.00000000000000aa/r",
        b"RolloutStarted/-/0/0/main/r",
        b"RolloutStarted/-/0/0/main.00000000000000AA/r",
        b"RolloutStarted/-/0/0/main.00000000000000aa/",
        b"GroupClosed/-/0/0/main.00000000000000aa/r",
    ],
)
def test_fold_of_a_bad_header_makes_a_dead_letter(header: bytes | None):
    assert refused(record(started(), 0)._replace(headers=(("e", header),))).reason == "bad_header"


def test_fold_of_a_record_without_header_makes_a_dead_letter():
    assert refused(record(started(), 0)._replace(headers=())).reason == "bad_header"


def test_fold_of_a_record_with_two_headers_e_makes_a_dead_letter():
    entry = record(started(), 0)
    assert refused(entry._replace(headers=entry.headers * 2)).detail == "event refused: expected one header e, got 2"


def test_fold_of_a_record_with_other_headers_too_is_taken():
    entry = record(started(), 0)
    partition = Partition()
    partition.add(entry._replace(headers=(("trace", b"1"), *entry.headers, ("more", None))))
    assert partition.counts == {"started": 1}


@pytest.mark.parametrize("key", [b"", None])
def test_fold_of_a_record_with_an_empty_key_makes_a_dead_letter(key: bytes | None):
    letter = refused(record(started(), 0)._replace(key=key))
    assert (letter.reason, letter.field) == ("key", "key")


def test_fold_of_a_start_under_another_key_makes_a_dead_letter():
    assert refused(record(started(group_id="g"), 0, key="h")).reason == "key_disagrees"


def test_fold_of_a_closing_under_another_key_makes_a_dead_letter():
    assert refused(record(group_closed("g"), 0, key="h")).reason == "key_disagrees"


@pytest.mark.parametrize(
    ("field", "header"),
    [
        ("$.rollout_id", b"RolloutStarted/-/0/0/main.00000000000000aa/other"),
        ("$.attempt", b"RolloutStarted/-/1/0/main.00000000000000aa/r"),
        ("$.sequence", b"RolloutStarted/-/0/1/main.00000000000000aa/r"),
        ("$.source", b"RolloutStarted/-/0/0/main.00000000000000ab/r"),
    ],
)
def test_fold_of_a_body_that_disagrees_with_its_header_names_the_field(field: str, header: bytes):
    letter = refused(record(started(), 0)._replace(headers=(("e", header),)))
    assert (letter.reason, letter.field) == ("header_disagrees", field)


def test_fold_of_a_body_of_another_kind_than_its_header_makes_a_dead_letter():
    header = b"RolloutCompleted/-/0/1/main.00000000000000aa/r"
    partition = Partition()
    partition.add(started(), record(reward(1), 0)._replace(headers=(("e", header),)))
    assert partition.letters[0].reason == "header_disagrees"


def test_fold_of_a_refused_start_opens_nothing():
    partition = Partition()
    partition.add(bad(started()), completed(1))
    assert partition.counts == {"refused": 1, "orphan": 1}


def test_fold_of_a_refused_event_counts_as_arrived():
    """Nothing waits for it: it will not come again."""
    partition = Partition()
    partition.add(started(), bad(reward(1)), completed(2))
    assert partition.result().closing_event == 2


def test_fold_of_a_refused_event_that_comes_last_closes_the_rollout():
    partition = Partition()
    partition.add(started(), completed(2), bad(reward(1)))
    assert (partition.result().closing_event, [each.trigger for each in partition.letters]) == (2, [2])


def test_fold_of_a_refused_event_puts_its_dead_letter_before_the_batch():
    partition = Partition()
    partition.add(started(), completed(2))
    caused = partition.add(bad(reward(1)))
    assert [type(each).__name__ for each in caused] == ["DeadLetter", "BatchReady", "GroupClosing"]


def test_fold_of_a_refused_event_makes_its_rollout_incomplete_by_name():
    partition = Partition()
    partition.add(started(), call("c", 1), bad(reward(2)), completed(3))
    assert partition.statuses == {"r": "incomplete"}
    assert partition.result().reason == "RewardRecorded at offset 2 refused: undecodable"


def test_fold_of_a_refused_event_leaves_other_rollouts_of_the_group_alone():
    partition = Partition(min_group=1)
    partition.add(started("a", group_size=2), started("b", group_size=2), bad(reward(1, "a")))
    partition.add(completed(2, "a"), completed(1, "b"))
    assert partition.statuses == {"a": "incomplete", "b": "emitted"}


def test_fold_of_a_refused_event_of_a_failed_rollout_leaves_it_failed():
    partition = Partition()
    partition.add(started(), bad(reward(1)), completed(2, status="failed"))
    assert partition.statuses == {"r": "failed"}


def test_fold_of_a_good_event_after_a_refused_one_of_its_identity_counts_a_duplicate():
    partition = Partition()
    partition.add(started(), bad(reward(1)), reward(1))
    assert partition.counts["duplicate"] == 1


def test_fold_of_a_bad_repetition_of_a_good_event_costs_nothing():
    """The first wins; the others' bytes are not looked at."""
    partition = Partition()
    partition.add(started(), reward(1), bad(reward(1)), completed(2))
    assert (partition.letters, partition.statuses) == ([], {"r": "emitted"})


def test_fold_of_bad_events_of_unknown_and_closed_rollouts_counts_them():
    partition = Partition()
    partition.add(bad(reward(1, "unknown")), started(), completed(1), bad(reward(5)))
    assert (partition.letters, partition.counts["orphan"], partition.counts["late"]) == ([], 1, 1)


# Spans, which are decoded when their rollout closes


def test_fold_of_a_bad_span_waits_with_its_dead_letter_for_the_closing():
    partition = Partition()
    assert partition.add(started(), bad(call("a", 1))) == []


def test_fold_of_a_bad_span_makes_a_dead_letter_with_the_closing_event_as_trigger():
    assert [(each.trigger, each.record.offset) for each in with_bad_span().letters] == [(3, 1)]


def test_fold_of_a_bad_span_keeps_key_value_and_headers():
    entry = bad(call("a", 1))
    entry = entry._replace(headers=(*entry.headers, ("trace", b"1")))
    partition = Partition()
    partition.add(started(), entry, completed(2))
    kept = partition.letters[0].record
    assert (kept.key, kept.value, kept.headers) == (b"g", entry.value, entry.headers)


def test_fold_of_a_resent_bad_span_keeps_its_flag():
    entry = bad(call("a", 1))
    flagged = entry._replace(headers=(("e", b"Span/r/0/1/main.00000000000000aa/r"),))
    partition = Partition()
    partition.add(started(), flagged, completed(2))
    assert partition.letters[0].record.headers == flagged.headers


def test_fold_of_a_bad_span_makes_its_rollout_incomplete():
    partition = with_bad_span()
    assert (partition.statuses, partition.batch.samples) == ({"r": "incomplete"}, ())


def test_fold_of_a_bad_span_with_on_incomplete_keep_loses_that_sample_alone():
    partition = with_bad_span(on_incomplete="keep")
    assert partition.statuses == {"r": "emitted"}
    assert [sample.sample_id for sample in partition.batch.samples] == ["r/0/b"]


def test_fold_of_a_bad_span_with_on_incomplete_keep_still_makes_a_dead_letter():
    assert len(with_bad_span(on_incomplete="keep").letters) == 1


def test_fold_of_log_probs_shorter_than_tokens_names_the_reason():
    partition = Partition()
    partition.add(started(), call("a", 1, response_ids=ids(3, 4), logprobs=floats(-0.5)), completed(2))
    assert [each.reason for each in partition.letters] == ["logprobs_length"]


def test_fold_of_a_negative_token_id_names_the_reason():
    partition = Partition()
    partition.add(started(), call("a", 1, response_ids=ids(3, -1)), completed(2))
    assert [each.reason for each in partition.letters] == ["response_ids_range"]


def test_fold_of_a_span_whose_prompt_base_is_unknown_makes_a_dead_letter():
    partition = Partition()
    partition.add(started(), call("a", 1, prompt_base="gone", prompt_base_tokens=2), completed(2))
    assert [(each.reason, each.trigger) for each in partition.letters] == [("prompt_base", 2)]


def test_fold_of_bad_spans_of_a_rollout_that_failed_makes_dead_letters_too():
    partition = Partition()
    partition.add(started(), bad(call("a", 1)), completed(2, status="failed"))
    assert len(partition.letters) == 1


def test_fold_of_bad_spans_of_a_superseded_attempt_makes_no_dead_letters():
    partition = Partition()
    other = {"attempt": 1, "source": "main.00000000000000cc"}
    partition.add(started(attempts_max=2), bad(call("a", 1)), started(attempts_max=2, **other), completed(1, **other))
    assert partition.letters == []


def test_fold_of_bad_spans_of_a_rollout_closed_with_its_group_makes_dead_letters_with_that_trigger():
    partition = Partition()
    partition.add(started(group_size=None), bad(call("a", 1)), group_closed())
    assert [each.trigger for each in partition.letters] == [2]


def test_fold_of_many_faults_names_the_first_three_and_counts_the_others():
    partition = Partition()
    partition.add(started(), *(bad(reward(n)) for n in range(1, 6)), completed(6))
    assert partition.result().reason == (
        "RewardRecorded at offset 1 refused: undecodable; RewardRecorded at offset 2 refused: undecodable; "
        "RewardRecorded at offset 3 refused: undecodable and 2 more"
    )


def test_fold_counts_every_refused_event():
    partition = Partition()
    partition.add(started(), bad(call("a", 1)), bad(reward(2)), completed(3))
    assert partition.counts["refused"] == 2
