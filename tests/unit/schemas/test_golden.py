"""Bytes of every released schema version stay readable, and today's encoder still writes the newest ones."""

from typing import Any

import pytest
from unit.schemas.make_golden import EVENTS, GOLDEN, from_json, golden_fields

from rolloutlog.eventstore.checks import check_event
from rolloutlog.eventstore.codec import decode_event, decode_record, encode_event, encode_record
from rolloutlog.schemas import Schema, newest, versions

VERSIONS = pytest.mark.parametrize("schema", versions(), ids=lambda s: f"{s.name}.v{s.version}")


def stored(schema: Schema) -> bytes:
    return (GOLDEN / f"{schema.name}.v{schema.version}.bin").read_bytes()


def with_defaults(schema: Any, value: Any) -> Any:
    """The value as the newest version gives it: fields that were added since have their defaults."""
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "array":
        return [with_defaults(schema["items"], item) for item in value]
    if kind != "record":
        return with_defaults(kind, value) if isinstance(kind, dict) else value
    made = {}
    for field in schema["fields"]:
        if field["name"] in value:
            made[field["name"]] = with_defaults(field["type"], value[field["name"]])
        else:
            made[field["name"]] = field["default"]
    return made


@VERSIONS
def test_golden_bytes_of_every_version_decode(schema):
    expected = from_json((GOLDEN / f"{schema.name}.v{schema.version}.json").read_text(encoding="utf-8"))
    assert decode_record(stored(schema)) == (schema.name, with_defaults(newest(schema.name).parsed, expected))


@VERSIONS
def test_encoder_today_gives_the_golden_bytes(schema):
    if schema is newest(schema.name):
        assert encode_record(schema.name, golden_fields()[schema.name]) == stored(schema)


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.record)
def test_golden_event_passes_its_checks_and_comes_back(event):
    check_event(event)
    decoded = decode_event(event.record, encode_event(event))
    check_event(decoded)
    assert decoded == event


@VERSIONS
def test_schema_documents_every_field_with_its_unit(schema):
    def records(node):
        if isinstance(node, list):
            for each in node:
                yield from records(each)
        elif isinstance(node, dict):
            if node.get("type") == "record":
                yield node
            for key in ("fields", "items", "values", "type"):
                yield from records(node.get(key))

    for record in records(schema.parsed):
        assert record["doc"], record["name"]
        for field in record["fields"]:
            has_unit = field["doc"].count(".") >= 2 or " byte" in field["doc"]
            assert has_unit, f"{record['name']}.{field['name']}: expected meaning and unit"
