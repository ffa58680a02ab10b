"""Which versions may follow one another: all that are shipped do, and every incompatible change is refused by name."""

import re
from copy import deepcopy
from typing import Any

import pytest

from rolloutlog.schemas.compatibility import faults, own_faults, reading_faults
from rolloutlog.schemas.release import FOLDER, read_raw, record_faults

RAW = read_raw(FOLDER)
RECORDS = sorted({stem.partition(".")[0] for stem in RAW})


@pytest.mark.parametrize("record", RECORDS)
def test_every_shipped_version_reads_all_older_ones_and_is_documented(record: str):
    assert record_faults(RAW, record) == []


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "doc": f"The {name}. Text, no unit.", **more}


def record(*fields: dict[str, Any], name: str = "Pause") -> dict[str, Any]:
    return {"type": "record", "namespace": "rolloutlog", "name": name, "doc": "A pause.", "fields": list(fields)}


KIND = {"type": "enum", "name": "Kind", "doc": "Which.", "symbols": ["A", "B"]}
HASH = {"type": "fixed", "name": "Hash", "doc": "Of it.", "size": 8}
PLACE = record(field("partition", "int"), field("offset", "long"), name="Place")
OLD = record(
    field("count", "int"),
    field("length", "long"),
    field("name", "string"),
    field("ratio", "float"),
    field("note", ["null", "string"], default=None),
    field("kind", KIND),
    field("hash", HASH),
    field("places", {"type": "array", "items": PLACE}),
    field("again", {"type": "map", "values": "Place"}),
    field("of", ["null", "long", "Kind"], default=None),
    field("at", {"type": "long", "logicalType": "timestamp-micros"}),
)


def changed(**fields: Any) -> dict[str, Any]:
    """OLD with other types or whole fields; None removes one."""
    new = deepcopy(OLD)
    new["fields"] = [
        each if each["name"] not in fields else _with(each, fields[each["name"]])
        for each in new["fields"]
        if fields.get(each["name"], each) is not None
    ]
    new["fields"] += [value for name, value in fields.items() if name not in {each["name"] for each in OLD["fields"]}]
    return new


def _with(old: dict[str, Any], new: Any) -> dict[str, Any]:
    is_field = isinstance(new, dict) and "doc" in new and new["type"] not in ("enum", "fixed")
    return new if is_field else {**old, "type": new}


def places(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": record(*fields, name="Place")}


PARTITION, OFFSET = field("partition", "int"), field("offset", "long")
REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("field_without_default", "$.reason", changed(reason=field("reason", "string"))),
    ("field_without_default", "$.places[].why", changed(places=places(PARTITION, OFFSET, field("why", "int")))),
    ("field_removed", "$.length", changed(length=None)),
    ("field_removed", "$.note", changed(note=None)),
    ("field_removed", "$.places[].partition", changed(places=places(OFFSET))),
    ("field_renamed", "$.length", changed(length={**field("length", "long"), "name": "duration"})),
    ("field_renamed", "$.length", changed(length=field("length_ms", "long", aliases=["length"]))),
    ("type_changed", "$.count", changed(count="string")),
    ("type_changed", "$.length", changed(length="int")),
    ("type_changed", "$.length", changed(length="double")),  # Avro does, and loses what is above 2**53
    ("type_changed", "$.ratio", changed(ratio="long")),
    ("type_changed", "$.count", changed(count="float")),
    ("type_changed", "$.places[].offset", changed(places=places(PARTITION, field("offset", "string")))),
    ("type_changed", "$.again[]", changed(again={"type": "map", "values": "long"})),
    ("type_changed", "$.places", changed(places={"type": "map", "values": "int"})),
    ("type_changed", "$.at", changed(at={"type": "long", "logicalType": "timestamp-millis"})),
    ("type_changed", "$.at", changed(at="long")),
    ("renamed", "$", {**deepcopy(OLD), "name": "Break"}),
    ("renamed", "$.kind", changed(kind={**KIND, "name": "Sort"})),
    ("size_changed", "$.hash", changed(hash={**HASH, "size": 16})),
    ("symbol_removed", "$.kind", changed(kind={**KIND, "symbols": ["A"]})),
    ("symbol_order", "$.kind", changed(kind={**KIND, "symbols": ["B", "A"]})),
    ("symbol_order", "$.kind", changed(kind={**KIND, "symbols": ["B", "C", "A"]})),
    ("branch_removed", "$.of", changed(of=["null", "long"])),
    ("branch_removed", "$.note", changed(note=field("note", "string", default=""))),
    ("branch_removed", "$.count", changed(count=["null", "string"])),
    ("branch_order", "$.of", changed(of=["null", "Kind", "long"])),
    ("branch_order", "$.note", changed(note=["string", "null"])),
    ("default_changed", "$.note", changed(note=field("note", ["null", "string"], default="none"))),
    ("default_removed", "$.note", changed(note=field("note", ["null", "string"]))),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "where", "newer"), REFUSED, ids=[f"{r}-{i}" for i, (r, _, _) in enumerate(REFUSED)])
def test_incompatible_change_is_refused_by_name_and_field(reason: str, where: str, newer: dict[str, Any]):
    assert (reason, where) in [each[:2] for each in reading_faults(OLD, newer)]


def test_default_of_another_type_is_a_changed_one():
    older, newer = record(field("a", "double", default=0)), record(field("a", "double", default=False))
    assert [each.reason for each in reading_faults(older, newer)] == ["default_changed"]


@pytest.mark.parametrize(
    "newer",
    [
        OLD,
        changed(reason=field("reason", "string", default="")),
        changed(places=places(field("partition", "int"), OFFSET, field("reason", ["null", "int"], default=None))),
        changed(count="long"),
        changed(count="double"),
        changed(ratio="double"),
        changed(name=["null", "string"]),
        changed(of=["null", "long", "Kind", "string"]),
        changed(kind={**KIND, "symbols": ["A", "B", "C"]}),
        changed(count=field("count", "int", default=0)),
        {**OLD, "fields": OLD["fields"][:6][::-1] + OLD["fields"][6:]},
    ],
)
def test_change_that_keeps_every_value_is_allowed(newer: dict[str, Any]):
    assert reading_faults(OLD, newer) == []


def test_type_that_holds_itself_is_compared_once():
    tree = record(field("children", {"type": "array", "items": "rolloutlog.Pause"}))
    grown = record(field("children", {"type": "array", "items": "Pause"}), field("weight", "int"))
    assert [each[:2] for each in reading_faults(tree, grown)] == [("field_without_default", "$.weight")]


@pytest.mark.parametrize(
    ("reason", "where", "doc"),
    [
        ("doc_missing", "$.a", None),
        ("doc_missing", "$.a", ""),
        ("unit_missing", "$.a", "How long."),
        ("unit_missing", "$.a", "How long"),
        ("default_invalid", "$.a", {"doc": "How long. Seconds.", "default": None}),
        ("default_invalid", "$.a", {"doc": "How long. Seconds.", "default": True}),
        ("default_invalid", "$.a", {"doc": "How long. Seconds.", "default": "0"}),
        ("default_invalid", "$.a", {"doc": "How long. Seconds.", "default": None, "type": ["long", "null"]}),
    ],
)
def test_field_without_meaning_unit_or_right_default_is_refused_by_name(reason: str, where: str, doc: Any):
    bare = {"name": "a", "type": "long"} | (doc if isinstance(doc, dict) else {} if doc is None else {"doc": doc})
    assert [each[:2] for each in own_faults(record(bare))] == [(reason, where)]


def test_nested_record_and_enum_without_doc_are_refused_by_name():
    inner = record(field("b", {"type": "enum", "name": "Kind", "symbols": ["A"]}), name="Inner")
    inner.pop("doc")
    found = own_faults(record(field("a", ["null", {"type": "map", "values": inner}])))
    assert [each[:2] for each in found] == [("doc_missing", "$.a[]"), ("doc_missing", "$.a[].b")]


def test_versions_are_checked_each_against_every_older_one():
    """v3 takes v1's default back: it reads v2, but of v1 it makes something else."""
    v1, v2, v3 = (record(field("a", "long", **more)) for more in ({"default": 0}, {}, {"default": 1}))
    texts = [f"{each.reason} {each.text.partition(':')[0]}" for each in faults({1: v1, 2: v2, 3: v3})]
    assert texts == ["default_removed v1 to v2", "default_changed v1 to v3"]


def test_version_that_was_left_out_is_named():
    assert [each.reason for each in faults({1: OLD, 3: OLD})] == ["version_missing"]


def test_fault_says_field_reason_and_versions():
    (fault,) = faults({1: record(field("a", "long")), 2: record()})
    assert (
        str(fault) == "$.a: field_removed: v1 to v2: a field stays for ever: its doc may say that it is written no more"
    )


def test_docs_and_docstring_name_every_reason():
    source = (FOLDER / "compatibility.py").read_text(encoding="utf-8")
    head, _, code = source.partition('"""\n\nfrom')
    reasons = set(re.findall(r'Fault\(\s*"(\w+)"', code))
    reasons |= {"branch_removed", "symbol_removed", "symbol_order"}  # made of two words
    page = (FOLDER.parent / "docs/schemas.md").read_text(encoding="utf-8")
    for reason in reasons:
        assert f"`{reason}`" in head, reason
        assert f"`{reason}`" in page, reason
    assert {reason for reason, _, _ in REFUSED} <= reasons
