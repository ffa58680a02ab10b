"""Avro schemas of everything the log holds, one record a file, every released version for ever.

`{Record}.v{N}.avsc` is version N of a record. A released file never changes: a new version is a new file that reads the
bytes of every older one (`compatibility`); what a version means anew, `upcasters` translate. `released.json` pins what
is released, `golden/` holds bytes of every version, which tests decode with today's code.

Fingerprints are CRC-64-AVRO of the canonical form (Avro specification, "Single-object encoding"). The canonical form
leaves out documentation and defaults: two versions that differ only there would share a fingerprint, so loading
refuses.

Not here  how to add a version, and what becomes of old and new bytes: docs/schemas.md
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

    return read_folder(files(__name__))


def read_folder(folder: Any) -> tuple[Schema, ...]:
    """All versions of all records in a folder, by name and version. Raises ValueError when two are the same to Avro."""
    found = [schema_of(file.name, json.loads(file.read_text(encoding="utf-8"))) for file in avsc_files(folder)]
    by_print: dict[bytes, Schema] = {}
    for schema in found:
        other = by_print.setdefault(schema.fingerprint, schema)
        if other is not schema:
            raise ValueError(
                f"{other.name}.v{other.version} and {schema.name}.v{schema.version} share a fingerprint: a change of "
                "default or doc alone is no new version"
            )
    return tuple(sorted(found, key=lambda schema: (schema.name, schema.version)))


def avsc_files(folder: Any) -> list[Any]:
    """The schema files of a folder."""
    return [file for file in folder.iterdir() if file.name.endswith(".avsc")]


def name_and_version(file_name: str) -> tuple[str, int]:
    """`("Span", 1)` of `Span.v1.avsc`."""
    name, _, version = file_name.removesuffix(".avsc").partition(".v")
    return name, int(version)


def schema_of(file_name: str, raw: dict[str, Any]) -> Schema:
    """The schema that a file holds."""
    from fastavro import parse_schema
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    parsed = parse_schema(raw, named_schemas={})
    digest = fingerprint(to_parsing_canonical_form(raw), "CRC-64-AVRO")
    return Schema(*name_and_version(file_name), parsed, bytes.fromhex(digest))


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
