"""Columns: all that an event says, typed; what is no event keeps its bytes and the reason."""

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest
from unit.schemas.make_golden import EVENTS as GOLDEN_EVENTS

from rolloutlog.consumers.archiving.columns import COLUMN_OF, EVENT_COLUMNS, SCHEMA, Seen, table_of
from rolloutlog.eventstore.codec import HEADER, encode_event, header_of
from rolloutlog.eventstore.events import KINDS, Event, GroupClosed, RolloutStarted
from rolloutlog.eventstore.log import Record

TIME_NS = 1_700_000_000_123_456_789


def record_of(event: Event, offset: int = 3, **changes) -> Record:
    key = event.group_id if isinstance(event, RolloutStarted | GroupClosed) else "g-1"
    headers = ((HEADER, header_of(event).text()),)
    record = Record("events", 1, offset, TIME_NS, key.encode(), encode_event(event), headers)
    return record._replace(**changes)


def rows_of(table) -> list[dict]:
    """Rows with times in nanoseconds: Python's own times end at microseconds."""
    kinds = [
        pa.field(each.name, pa.int64() if pa.types.is_timestamp(each.type) else each.type) for each in table.schema
    ]
    return table.cast(pa.schema(kinds)).to_pylist()


def row_of(record: Record) -> dict:
    (row,) = rows_of(table_of([record], Seen()))
    return {name: value for name, value in row.items() if value is not None}


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.record)
def test_every_field_of_every_event_has_a_column(kind):
    fields = {COLUMN_OF.get(field.name, field.name) for field in dataclasses.fields(kind)} - {"target"}
    assert fields <= set(EVENT_COLUMNS)


@pytest.mark.parametrize("event", GOLDEN_EVENTS, ids=lambda event: event.record)
def test_every_event_has_its_envelope_and_kind(event):
    row = row_of(record_of(event))
    assert "refused" not in row
    assert (row["kind"], row["schema"]) == (event.record, f"{event.record}.v1")
    assert (row["rollout_id"], row["attempt"]) == (event.rollout_id, event.attempt)
    assert (row["source"], row["sequence"], row["log_offset"], row["partition"]) == (event.source, event.sequence, 3, 1)


def test_span_gives_tokens_and_logprobs_as_lists_and_texts_as_recorded():
    row = row_of(record_of(next(event for event in GOLDEN_EVENTS if event.record == "Span")))
    assert row["prompt_ids"] == [0, 2**31 - 1]
    assert row["response_ids"] == [7, 8, 9]
    assert row["logprobs"] == [-0.5, -0.25, 0.0]
    assert (row["span_kind"], row["prompt_base"], row["prompt_base_tokens"]) == ("call", "s-1", 70)
    assert row["policy_version_runs"] == [{"policy_version": 3, "tokens": 2}, {"policy_version": None, "tokens": 1}]
    assert row["messages"] == '[{"role":"user","content":"hi"}]'
    assert row["arrays"] == [{"name": "experts", "dtype": "|u1", "shape": [3, 2], "data": bytes(range(6))}]
    assert row["links"] == ["s-1", "s-0"]
    assert (row["log_time"], row["time"]) == (TIME_NS, TIME_NS + 1)
    assert (row["start_time"], row["end_time"]) == (TIME_NS, TIME_NS + 9)


def test_reward_gives_its_link_and_its_identity():
    event = next(event for event in GOLDEN_EVENTS if event.record == "RewardRecorded")
    row = row_of(record_of(dataclasses.replace(event, reward_id=None)))
    assert (row["target_key"], row["target_value"], row["value"]) == ("operation", "check_query", -0.125)
    assert row["reward_id"] == f"{event.source}:{event.sequence}"
    assert row["extra_info"] == '{"acc":{"$nan":1}}'


def test_expiry_gives_what_was_missing():
    row = row_of(record_of(next(event for event in GOLDEN_EVENTS if event.record == "RolloutExpired")))
    assert set(row["missing_events"][0]) == {"source", "first", "last"}
    assert row["as_of"] >= 0


def test_value_that_does_not_decode_keeps_its_bytes_and_the_reason():
    span = record_of(next(event for event in GOLDEN_EVENTS if event.record == "Span"))
    bad = span._replace(value=span.value[:-3])
    seen = Seen()
    (row,) = rows_of(table_of([bad], seen))
    assert (row["refused"], row["kind"], row["rollout_id"]) == ("undecodable", "Span", "r-7")
    assert (row["refused_value"], row["refused_key"], row["refused_header"]) == (bad.value, b"g-1", bad.headers[0][1])
    assert row["refused_why"].startswith("expected a whole Span")
    assert (seen.refused, seen.kinds) == ({"undecodable": 1}, {})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"headers": ()}, "bad_header"),
        ({"headers": ((HEADER, b"x"), (HEADER, b"x"))}, "bad_header"),
        ({"headers": ((HEADER, b"\xff"),)}, "bad_header"),
        ({"key": None}, "key"),
        ({"key": b""}, "key"),
        ({"value": None}, "not_framed"),
        ({"value": b"\xc3\x01" + b"\xee" * 20}, "unknown_fingerprint"),
    ],
)
def test_record_that_is_no_event_is_kept_with_the_reason_for_which_the_fold_refuses_it(changes, reason):
    from rolloutlog.consumers.fold import fold
    from rolloutlog.consumers.outputs import DeadLetter
    from rolloutlog.consumers.settings import FoldSettings
    from rolloutlog.consumers.state import PartitionState

    record = record_of(GOLDEN_EVENTS[0], **changes)
    (dead,) = fold(PartitionState(1, FoldSettings()), record)
    assert isinstance(dead, DeadLetter)
    assert row_of(record)["refused"] == dead.reason == reason
    assert row_of(record)["refused_why"] == dead.detail


def test_times_are_points_in_utc_to_the_nanosecond():
    assert str(SCHEMA.field("log_time").type) == str(SCHEMA.field("time").type) == "timestamp[ns, tz=UTC]"


def test_page_names_every_column():
    page = (Path(__file__).resolve().parents[4] / "docs/archive.md").read_text(encoding="utf-8")
    assert [name for name in SCHEMA.names if f"`{name}`" not in page] == []
