"""Release new versions of records: `python -m rolloutlog.schemas.release [Record.vN ...]`, in a checkout.

Of each version that is named, by default of each that `released.json` does not pin yet, it takes these steps, and
refuses by name before it writes anything:

  1 check   the version reads the bytes of every older one, and is documented (schemas.compatibility)
  2 golden  encode `golden/{Record}.v{N}.json`, one value with every field set, into `golden/{Record}.v{N}.bin`
  3 pin     fingerprint, and digests of the schema's text and of the golden bytes, into `released.json`

What is pinned is never written again: a file that differs from its pin is an error that names it. Two branches that
each add a version meet in `released.json` as lines of their own.
"""

import json
import sys
from collections.abc import Collection, Iterator
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

from rolloutlog.schemas import avsc_files, name_and_version, schema_of
from rolloutlog.schemas.compatibility import faults

FOLDER = Path(__file__).parent
PINS = "released.json"
MARKER = b"\xc3\x01"
DIGEST_BYTES = 16


class NotReleased(Exception):
    """A version cannot be released; the text says why, a fault a line. Nothing was written."""


def main() -> int:
    try:
        added = release(FOLDER, sys.argv[1:])
    except NotReleased as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(f"released {each}" for each in added) or "nothing to release: every version is pinned")
    return 0


def release(folder: Path, only: Collection[str] = ()) -> list[str]:
    """Release what is not pinned yet, or of that what is named `only`. Returns the names. Raises NotReleased."""
    pins, wrong = read_pins(folder), list(pin_faults(folder))
    raws = read_raw(folder)
    wrong += [f"{stem}.avsc: expected a schema of that name, got none" for stem in only if stem not in raws]
    new = [stem for stem in raws if stem not in pins and (not only or stem in only)]
    for record in sorted({name_and_version(stem)[0] for stem in new}):
        wrong += [f"{record}, {fault}" for fault in record_faults(raws, record)]
    if wrong:
        raise NotReleased("\n".join(wrong))
    values = {stem: golden_bytes(folder, stem, raws[stem]) for stem in new}
    for stem, value in values.items():
        (folder / "golden" / f"{stem}.bin").write_bytes(value)
    pins |= {stem: pin_of(folder, stem, raws[stem]) for stem in new}
    _write_pins(folder, pins)
    return new


def record_faults(raws: dict[str, dict[str, Any]], record: str) -> list[str]:
    """Faults of all versions of one record, in words."""
    named = {name_and_version(stem): raw for stem, raw in raws.items()}
    return [str(each) for each in faults({version: raw for (name, version), raw in named.items() if name == record})]


def read_raw(folder: Path) -> dict[str, dict[str, Any]]:
    """`Span.v1` → the schema as it stands in its file, of all files, by name and version."""
    files = sorted(avsc_files(folder), key=lambda file: name_and_version(file.name))
    return {file.name.removesuffix(".avsc"): json.loads(file.read_text(encoding="utf-8")) for file in files}


def read_pins(folder: Path) -> dict[str, dict[str, str]]:
    """`Span.v1` → `fingerprint`, `schema`, `golden`: hex digits."""
    file = folder / PINS
    pins = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    assert isinstance(pins, dict)
    return pins


def pin_of(folder: Path, stem: str, raw: dict[str, Any]) -> dict[str, str]:
    """What is pinned of a version. Texts count without their line ends, which a checkout may change."""
    text = "\n".join((folder / f"{stem}.avsc").read_text(encoding="utf-8").splitlines())
    golden = (folder / "golden" / f"{stem}.bin").read_bytes()
    return {
        "fingerprint": schema_of(stem, raw).fingerprint.hex(),
        "schema": _digest(text.encode()),
        "golden": _digest(golden),
    }


def pin_faults(folder: Path) -> Iterator[str]:
    """What differs from its pin, in words that name the file."""
    raws = read_raw(folder)
    for stem, pin in read_pins(folder).items():
        if stem not in raws:
            yield f"{stem}.avsc is gone: a released version stays for ever, for its bytes are in logs"
        elif not (folder / "golden" / f"{stem}.bin").exists():
            yield f"golden/{stem}.bin is gone: put it back as it was released"
        else:
            now = pin_of(folder, stem, raws[stem])
            for what, file in (("schema", f"{stem}.avsc"), ("golden", f"golden/{stem}.bin")):
                if now[what] != pin[what]:
                    yield f"{file} is not as it was released: put it back, and add a version instead"


def golden_bytes(folder: Path, stem: str, raw: dict[str, Any]) -> bytes:
    """The framed bytes of a version's golden value. Raises NotReleased naming what is wrong with it."""
    from fastavro import schemaless_reader, schemaless_writer

    file = folder / "golden" / f"{stem}.json"
    if not file.exists():
        raise NotReleased(
            f"golden/{file.name} is missing: write one value of {stem} with every field set, and run again"
        )
    fields, schema = from_json(file.read_text(encoding="utf-8")), schema_of(stem, raw)
    missing = [field["name"] for field in raw["fields"] if field["name"] not in fields]
    if missing:
        raise NotReleased(f"golden/{file.name}: expected every field set, got none of {', '.join(missing)}")
    out = BytesIO(MARKER + schema.fingerprint)
    out.seek(0, 2)
    try:
        schemaless_writer(out, schema.parsed, fields, strict=True)
    except Exception as error:  # fastavro raises ValueError, TypeError, KeyError and more
        raise NotReleased(f"golden/{file.name}: {error}") from error
    body = BytesIO(out.getvalue())
    body.seek(10)
    if schemaless_reader(body, schema.parsed, None) != fields:
        raise NotReleased(f"golden/{file.name}: expected a value that comes back as it was written")
    return out.getvalue()


def from_json(text: str) -> dict[str, Any]:
    """A golden value; bytes are written `{"$hex": ...}`."""
    read = json.loads(text, object_hook=lambda o: bytes.fromhex(o["$hex"]) if o.keys() == {"$hex"} else o)
    assert isinstance(read, dict)
    return read


def to_json(value: dict[str, Any]) -> str:
    """A golden value as people read it."""
    return json.dumps(value, indent=1, ensure_ascii=False, default=lambda b: {"$hex": b.hex()}) + "\n"


def _write_pins(folder: Path, pins: dict[str, dict[str, str]]) -> None:
    lines = [f"  {json.dumps(stem)}: {json.dumps(pins[stem])}" for stem in sorted(pins, key=name_and_version)]
    (folder / PINS).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _digest(value: bytes) -> str:
    return blake2b(value, digest_size=DIGEST_BYTES).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
