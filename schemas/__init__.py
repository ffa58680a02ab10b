"""Avro schemas of everything the log holds, one record a file, every released version for ever.

`{Record}.v{N}.avsc` is version N of a record. A released file never changes: a new version is a new file, a changed
meaning a new record or field name. `golden/` holds bytes of every version, which tests decode with today's code.

Fingerprints are CRC-64-AVRO of the canonical form (Avro specification, "Single-object encoding"). The canonical form
leaves out documentation and defaults: two versions that differ only there would share a fingerprint, so loading
refuses.
"""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

__all__ = ["Schema", "by_fingerprint", "newest", "versions"]


@dataclass(frozen=True, slots=True)
class Schema:
    """One version of one record. `fingerprint`: the 8 bytes of the single-object header."""

    name: str
    version: int
    parsed: Any
    fingerprint: bytes


@cache
def versions() -> tuple[Schema, ...]:
    """All versions of all records, by name and version."""
    # Loaded with the first schema, not with the package: trainers and hosts wait for every import.
    from importlib.resources import files

    from fastavro import parse_schema
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    found = []
    for file in files(__name__).iterdir():
        if file.name.endswith(".avsc"):
            name, _, version = file.name.removesuffix(".avsc").partition(".v")
            raw = json.loads(file.read_text(encoding="utf-8"))
            parsed = parse_schema(raw, named_schemas={})
            digest = fingerprint(to_parsing_canonical_form(raw), "CRC-64-AVRO")
            found.append(Schema(name, int(version), parsed, bytes.fromhex(digest)))
    if len({schema.fingerprint for schema in found}) < len(found):
        raise ValueError("two schema versions share a fingerprint: a change of default or doc alone is no new version")
    return tuple(sorted(found, key=lambda schema: (schema.name, schema.version)))


@cache
def newest(name: str) -> Schema:
    """The version of record `name` that is written today."""
    return [schema for schema in versions() if schema.name == name][-1]


@cache
def _index() -> dict[bytes, Schema]:
    return {schema.fingerprint: schema for schema in versions()}


def by_fingerprint(fingerprint: bytes) -> Schema | None:
    """The version with this fingerprint, None when the package does not know it."""
    return _index().get(fingerprint)
