"""Whether a new version of a record reads the bytes of the older ones, and gives the very values that were written.

Pure, on schemas as they stand in their files. The rules are stricter than Avro's: a value must come through unchanged,
a field keeps its name for ever, and everything has a doc with its unit.

Reading   `reading_faults(older, newer)`: faults by which bytes of `older` would not read as `newer`
Alone     `own_faults(schema)`: what is wrong with one version by itself: docs, units, defaults
All       `faults(by_version)`: all versions of one record, each against every older one

Reasons   `renamed`, `field_renamed`, `field_removed`, `field_without_default`, `default_changed`, `default_removed`,
          `type_changed`, `branch_removed`, `branch_order`, `symbol_removed`, `symbol_order`, `size_changed`,
          `version_missing`; alone `doc_missing`, `unit_missing`, `default_invalid`
Not here  a change of meaning that the types do not show: no program sees it; schemas.upcasters translate one
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

NAMED = ("record", "enum", "fixed")
# Of Avro's promotions those that keep every value: long to double, int to float and bytes to string do not.
PROMOTIONS = {("int", "long"), ("int", "double"), ("float", "double"), ("string", "bytes")}
# How JSON has a default of a type; a name that is defined elsewhere is not looked at.
DEFAULTS: dict[str, type | tuple[type, ...]] = {
    "null": type(None), "boolean": bool, "int": int, "long": int, "float": (int, float), "double": (int, float),
    "string": str, "bytes": str, "enum": str, "fixed": str, "array": list, "map": dict, "record": dict,
}  # fmt: skip
MISSING = object()


class Fault(NamedTuple):
    """What is wrong. `reason`: its short stable name; `field`: where, such as `$.samples[].total`."""

    reason: str
    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}: {self.text}"


def faults(by_version: Mapping[int, Mapping[str, Any]]) -> list[Fault]:
    """Of all versions of one record, version to schema. The text says between which versions a fault is."""
    found = []
    for version in range(1, max(by_version, default=0)):
        if version not in by_version:
            found.append(Fault("version_missing", "$", f"expected versions from 1 without gaps, got no v{version}"))
    for version, schema in sorted(by_version.items()):
        found += [each._replace(text=f"v{version}: {each.text}") for each in own_faults(schema)]
        for older in (each for each in sorted(by_version) if each < version):
            pair = f"v{older} to v{version}"
            found += [each._replace(text=f"{pair}: {each.text}") for each in reading_faults(by_version[older], schema)]
    return found


def reading_faults(older: Mapping[str, Any], newer: Mapping[str, Any]) -> list[Fault]:
    """Why bytes of `older` would not read as `newer`, or not as what was written. Empty = they do."""
    return list(_Pair(older, newer).compare(older, newer, "$"))


def own_faults(schema: Mapping[str, Any]) -> list[Fault]:
    """What is wrong with one version by itself.

    Types and fields without a doc; fields whose doc says no unit, which is a second sentence (`Meaning. Unit.`), or
    what its bytes are; defaults that are no value of their field's type.
    """
    return list(_alone(schema, "$"))


class _Pair:
    """Two schemas with the types that each has named so far."""

    def __init__(self, older: Any, newer: Any) -> None:
        self._older, self._newer = dict(_named(older)), dict(_named(newer))
        self._seen: set[tuple[str, str]] = set()

    def compare(self, older: Any, newer: Any, at: str) -> Iterator[Fault]:
        older, newer = self._older.get(_text(older), older), self._newer.get(_text(newer), newer)
        if isinstance(older, list) or isinstance(newer, list):
            yield from self._unions(older, newer, at)
            return
        kind, new_kind = _kind(older), _kind(newer)
        if (kind, new_kind) in PROMOTIONS and _logical(older) == _logical(newer):
            return
        if kind != new_kind or _logical(older) != _logical(newer):
            yield Fault("type_changed", at, f"expected {_told(older)}, got {_told(newer)}: no value may change by it")
        elif kind in NAMED:
            yield from self._same_kind(older, newer, at)
        elif kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            yield from self.compare(older[inner], newer[inner], f"{at}[]")

    def _same_kind(self, older: Any, newer: Any, at: str) -> Iterator[Fault]:
        pair = (_full_name(older), _full_name(newer))
        if pair in self._seen:
            return  # a type that holds itself
        self._seen.add(pair)
        if _short(older) != _short(newer):
            yield Fault("renamed", at, f"expected {_short(older)}, got {_short(newer)}")
        if older["type"] == "enum":
            yield from _order(older["symbols"], newer["symbols"], at, "symbol")
        elif older["type"] == "fixed" and older["size"] != newer["size"]:
            yield Fault("size_changed", at, f"expected {older['size']} bytes, got {newer['size']}")
        elif older["type"] == "record":
            yield from self._fields(older["fields"], newer["fields"], at)

    def _fields(self, older: list[Any], newer: list[Any], at: str) -> Iterator[Fault]:
        had, has = ({field["name"]: field for field in fields} for fields in (older, newer))
        renamed = _renamed(older, newer)
        for name, field in had.items():
            where = f"{at}.{name}"
            if name in renamed:
                yield Fault(
                    "field_renamed", where, f"expected {name}, got {renamed[name]}: its old bytes would be lost"
                )
            elif name not in has:
                yield Fault(
                    "field_removed", where, "a field stays for ever: its doc may say that it is written no more"
                )
            else:
                yield from _defaults(field, has[name], where)
                yield from self.compare(field["type"], has[name]["type"], where)
        for name, field in has.items():
            if name not in had and name not in renamed.values() and "default" not in field:
                yield Fault("field_without_default", f"{at}.{name}", "older bytes lack it: what is it then?")

    def _unions(self, older: Any, newer: Any, at: str) -> Iterator[Fault]:
        had, has = ([self._branch(each) for each in (side if isinstance(side, list) else [side])]
                    for side in (older, newer))  # fmt: skip
        # By place: a default is of the first branch, and tools tell branches by their number.
        taken = [each if each in has else _promoted(each, has) for each in had]
        for name, new_name in zip(had, taken, strict=True):
            if new_name is None or not isinstance(newer, list):
                yield Fault("branch_removed", at, f"expected {name} among {', '.join(has)}")
                return
        if taken != [each for each in has if each in taken]:
            yield Fault("branch_order", at, f"expected the order {', '.join(had)}, got {', '.join(has)}")
        old_branches = older if isinstance(older, list) else [older]
        for branch, new_name in zip(old_branches, taken, strict=True):
            yield from self.compare(branch, newer[has.index(str(new_name))], at)

    def _branch(self, branch: Any) -> str:
        resolved = self._older.get(_text(branch), self._newer.get(_text(branch), branch))
        return _short(resolved) if _kind(resolved) in NAMED else _kind(resolved)


def _defaults(older: Any, newer: Any, at: str) -> Iterator[Fault]:
    before, now = older.get("default", MISSING), newer.get("default", MISSING)
    if before is MISSING or (type(before) is type(now) and before == now):
        return
    if now is MISSING:
        yield Fault("default_removed", at, f"expected {before!r}, got none: bytes from before the field lack it")
    else:
        yield Fault(
            "default_changed", at, f"expected {before!r}, got {now!r}: what was read from old bytes would change"
        )


def _order(older: list[str], newer: list[str], at: str, what: str) -> Iterator[Fault]:
    removed = [each for each in older if each not in newer]
    if removed:
        yield Fault(f"{what}_removed", at, f"expected {', '.join(older)}, got no {', '.join(removed)}")
    elif [each for each in newer if each in older] != older:
        yield Fault(f"{what}_order", at, f"expected the order {', '.join(older)}, got {', '.join(newer)}")


def _renamed(older: list[Any], newer: list[Any]) -> dict[str, str]:
    """Old name to new: by an alias, or a field gone and one of the same type and doc come."""
    names, new_names = {field["name"] for field in older}, {field["name"] for field in newer}
    found = {}
    for field in (each for each in older if each["name"] not in new_names):
        for other in (each for each in newer if each["name"] not in names):
            same = (field["type"], field.get("doc")) == (other["type"], other.get("doc"))
            if field["name"] in other.get("aliases", ()) or same:
                found[field["name"]] = other["name"]
    return found


def _alone(schema: Any, at: str) -> Iterator[Fault]:
    if isinstance(schema, list):
        for branch in schema:
            yield from _alone(branch, at)
    elif isinstance(schema, dict):
        kind = schema.get("type")
        if kind in NAMED and not schema.get("doc"):
            yield Fault("doc_missing", at, f"expected a doc of {kind} {schema['name']}")
        if kind == "record":
            for field in schema["fields"]:
                yield from _field_alone(field, f"{at}.{field['name']}")
        elif kind not in NAMED:
            yield from _alone(kind, at)
            yield from _alone(schema.get("items", schema.get("values")), f"{at}[]")


def _field_alone(field: Any, at: str) -> Iterator[Fault]:
    doc = field.get("doc", "")
    if not doc:
        yield Fault("doc_missing", at, "expected a doc: what it is, and its unit")
    elif doc.count(".") < 2 and " byte" not in doc:
        yield Fault("unit_missing", at, f"expected meaning and unit, a sentence each, got {doc!r}")
    if "default" in field and not _fits(field["default"], field["type"]):
        yield Fault("default_invalid", at, f"expected a {_told(field['type'])}, got {field['default']!r}")
    yield from _alone(field["type"], at)


def _fits(default: Any, schema: Any) -> bool:
    """Whether it may be the default of that type: of a union, of its first branch."""
    if isinstance(schema, list):
        return _fits(default, schema[0])
    python = DEFAULTS.get(_kind(schema))
    if isinstance(default, bool):
        return python is bool
    return python is None or isinstance(default, python)


def _named(schema: Any) -> Iterator[tuple[str, Any]]:
    """Named types of a schema, by every name that may stand for them."""
    if isinstance(schema, list):
        for each in schema:
            yield from _named(each)
    elif isinstance(schema, dict):
        if schema.get("type") in NAMED:
            yield schema["name"], schema
            yield _full_name(schema), schema
        for key in ("fields", "items", "values", "type"):
            yield from _named(schema.get(key))


def _promoted(name: str, among: list[str]) -> str | None:
    return next((each for each in among if (name, each) in PROMOTIONS), None)


def _kind(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else schema
    return _kind(kind) if isinstance(kind, dict) else str(kind)


def _logical(schema: Any) -> Any:
    return schema.get("logicalType") if isinstance(schema, dict) else None


def _short(schema: Any) -> str:
    return str(schema["name"]).rpartition(".")[2]


def _full_name(schema: Any) -> str:
    name, space = str(schema["name"]), schema.get("namespace")
    return name if "." in name or not space else f"{space}.{name}"


def _text(schema: Any) -> str:
    return schema if isinstance(schema, str) else ""


def _told(schema: Any) -> str:
    if isinstance(schema, list):
        return _told(schema[0])
    logical = _logical(schema)
    return f"{_kind(schema)} ({logical})" if logical else _kind(schema)
