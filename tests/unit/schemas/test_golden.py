"""Bytes of every released schema version stay readable, and today's encoder still writes the newest ones."""

from typing import Any

import pytest
from unit.schemas.make_golden import EVENTS, GOLDEN
from unit.schemas.values import with_defaults

from rolloutlog.eventstore.checks import check_event
from rolloutlog.eventstore.codec import decode_event, decode_record, encode_event, encode_record
from rolloutlog.schemas import Schema, newest, versions
from rolloutlog.schemas.release import from_json

VERSIONS = pytest.mark.parametrize("schema", versions(), ids=lambda s: f"{s.name}.v{s.version}")

# What upcasters make of golden bytes, by record and version: where, and the value beside what the defaults give.
UPCAST: dict[tuple[str, int], list[tuple[tuple[str | int, ...], Any]]] = {
    ("TrainingBatch", 1): [(("samples", 0, "final_total"), 1.0)],
}


def stored(schema: Schema) -> bytes:
    return (GOLDEN / f"{schema.name}.v{schema.version}.bin").read_bytes()


def recorded(schema: Schema) -> dict[str, Any]:
    return from_json((GOLDEN / f"{schema.name}.v{schema.version}.json").read_text(encoding="utf-8"))


def expected_today(schema: Schema) -> dict[str, Any]:
    fields = with_defaults(newest(schema.name).parsed, recorded(schema))
    for (*path, last), value in UPCAST.get((schema.name, schema.version), []):
        inner: Any = fields
        for step in path:
            inner = inner[step]
        assert inner[last] != value, "nothing to upcast"
        inner[last] = value
    return fields


@VERSIONS
def test_golden_bytes_of_every_version_decode_to_what_is_recorded(schema):
    assert decode_record(stored(schema)) == (schema.name, expected_today(schema))


@VERSIONS
def test_golden_value_of_every_version_written_today_reads_the_same(schema):
    _, fields = decode_record(stored(schema))
    assert decode_record(encode_record(schema.name, fields)) == (schema.name, fields)


@VERSIONS
def test_encoder_today_gives_the_golden_bytes_of_the_newest_version(schema):
    if schema is newest(schema.name):
        assert encode_record(schema.name, recorded(schema)) == stored(schema)


@VERSIONS
def test_golden_value_of_every_version_sets_every_field(schema):
    assert recorded(schema).keys() == {field["name"] for field in schema.parsed["fields"]}


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.record)
def test_golden_event_passes_its_checks_and_comes_back(event):
    check_event(event)
    decoded = decode_event(event.record, encode_event(event))
    check_event(decoded)
    assert decoded == event


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.record)
def test_golden_event_as_decoded_from_its_bytes_is_the_event(event):
    schema = newest(event.record)
    assert decode_event(event.record, stored(schema)) == event
