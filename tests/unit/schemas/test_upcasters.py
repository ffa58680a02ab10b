"""What older versions meant: random values of each of them, translations of changes of meaning, and the mechanism."""

import json
from collections.abc import Iterator
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.schemas.make_golden import GOLDEN
from unit.schemas.values import any_value, with_defaults

from rolloutlog import schemas
from rolloutlog.eventstore.codec import MARKER, decode_record
from rolloutlog.eventstore.errors import InvalidEvent, UnknownSchema
from rolloutlog.schemas import Schema, newest, upcasters, versions
from rolloutlog.schemas.release import from_json


def written(schema: Schema, fields: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, schema.parsed, fields)
    return MARKER + schema.fingerprint + out.getvalue()


@pytest.mark.parametrize("schema", versions(), ids=lambda s: f"{s.name}.v{s.version}")
@given(data=st.data())
def test_any_value_of_a_version_decodes_to_the_newest_version(schema, data):
    value = data.draw(any_value(schema.parsed))
    now = newest(schema.name)
    expected = with_defaults(now.parsed, deepcopy(value))
    assert decode_record(written(schema, value)) == (
        schema.name,
        upcasters.upcast(schema.name, schema.version, now.version, expected),
    )


# What is translated


def batch_v1(**sample: Any) -> dict[str, Any]:
    """What final_total becomes of a v1 sample."""
    value = from_json((GOLDEN / "TrainingBatch.v1.json").read_text(encoding="utf-8"))
    value["samples"][0] |= sample
    (schema,) = [each for each in versions() if (each.name, each.version) == ("TrainingBatch", 1)]
    (read,) = decode_record(written(schema, value))[1]["samples"]
    assert isinstance(read, dict)
    return read


@pytest.mark.parametrize(
    ("sample", "final_total"),
    [
        ({"total": 1.0, "step": {}, "final": {"reward": 1.0}}, 1.0),
        ({"total": 0.5, "step": {}, "final": {"reward": 1.0}}, 0.5),  # a weight of 0.5
        ({"total": 1.5, "step": {"format": 0.5}, "final": {"reward": 1.0}}, 1.0),
        ({"total": 0.1 + 0.2 + 0.7, "step": {"a": 0.1, "b": 0.2}, "final": {"reward": 0.7}}, 0.7),
        ({"total": 0.5, "step": {"format": 0.5}, "final": {}}, None),
        ({"total": None, "step": {}, "final": {}}, None),
        ({"total": 1.25, "step": {"format": 0.5}, "final": {"reward": 1.0}}, None),  # of weights nobody knows
    ],
)
def test_batch_of_v1_has_what_is_of_final_values_in_its_total(sample, final_total):
    assert batch_v1(**sample)["final_total"] == final_total


def test_batch_of_v2_is_read_as_it_was_written():
    value = from_json((GOLDEN / "TrainingBatch.v2.json").read_text(encoding="utf-8"))
    value["samples"][0] |= {"step": {}, "final_total": None}
    assert decode_record(written(newest("TrainingBatch"), value))[1]["samples"][0]["final_total"] is None


# The mechanism, with a record that is not shipped


def version(number: int, *fields: dict[str, Any]) -> tuple[str, str]:
    record = {"type": "record", "namespace": "rolloutlog", "name": "Pause", "doc": "A pause.", "fields": list(fields)}
    return f"Pause.v{number}.avsc", json.dumps(record)


LENGTH = {"name": "length", "type": "long", "doc": "How long. v1: seconds; since v2 milliseconds."}
REASON = {"name": "reason", "type": "string", "default": "", "doc": "Why. Text, no unit."}
PLANNED = {
    "name": "planned",
    "type": ["null", "boolean"],
    "default": None,
    "doc": "Foreseen; null = unknown. Yes or no.",
}


@pytest.fixture
def pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Schema]]:
    """Three versions of a record: v2 has milliseconds where v1 had seconds, v3 tells plans by its reason."""
    for name, text in (version(1, LENGTH), version(2, LENGTH, REASON), version(3, LENGTH, REASON, PLANNED)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    shipped, own = versions(), schemas.read_folder(tmp_path)
    monkeypatch.setattr(schemas, "versions", lambda: shipped + own)

    def to_milliseconds(fields: dict[str, Any]) -> None:
        fields["length"] *= 1000

    def tell_plans(fields: dict[str, Any]) -> None:
        fields["planned"] = {"update": True}.get(fields["reason"])

    monkeypatch.setitem(upcasters.UPCASTERS, ("Pause", 1), to_milliseconds)
    monkeypatch.setitem(upcasters.UPCASTERS, ("Pause", 2), tell_plans)
    _forget()
    yield list(own)
    _forget()


def _forget() -> None:
    for kept in (schemas.newest, schemas._index):
        kept.cache_clear()


def test_upcasters_are_applied_from_the_written_version_to_the_newest(pauses):
    v1, v2, v3 = pauses
    decoded = {
        "v1": decode_record(written(v1, {"length": 3}))[1],
        "v2": decode_record(written(v2, {"length": 3, "reason": "update"}))[1],
        "v3": decode_record(written(v3, {"length": 3, "reason": "update", "planned": False}))[1],
    }
    assert decoded == {
        "v1": {"length": 3000, "reason": "", "planned": None},
        "v2": {"length": 3, "reason": "update", "planned": True},
        "v3": {"length": 3, "reason": "update", "planned": False},
    }


def test_upcaster_that_fails_makes_the_record_invalid_and_nothing_else(pauses, monkeypatch):
    def fails(fields: dict[str, Any]) -> None:
        raise KeyError("reason")

    monkeypatch.setitem(upcasters.UPCASTERS, ("Pause", 2), fails)
    with pytest.raises(InvalidEvent, match="expected a whole Pause"):
        decode_record(written(pauses[1], {"length": 3, "reason": "x"}))


def test_record_of_a_newer_version_says_to_upgrade(pauses):
    value = written(pauses[2], {"length": 3, "reason": "", "planned": None})
    _forget()
    schemas.versions = lambda: tuple(versions.__wrapped__())  # as the program before the version was added
    with pytest.raises(
        UnknownSchema, match=r"got fingerprint [0-9a-f]{16}: written by a newer version\? Upgrade rollo"
    ):
        decode_record(value)


def test_upcasters_are_registered_for_versions_that_were_followed_by_another():
    for record, number in upcasters.UPCASTERS:
        assert 1 <= number < newest(record).version, f"{record}.v{number}"
