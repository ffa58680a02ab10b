"""Values of a manifest's JSON, each of the type and within the range that a reader counts on.

A checksum tells that the bytes are those that were written, not that a sound program wrote them: a manifest may be
edited by hand and sealed again, or come from somebody else. What it says becomes places in files and names of files.

Errors  ArchiveDamaged that names the field; its text without the file's name
"""

from typing import Any

from rolloutlog.consumers.archiving.errors import ArchiveDamaged

LONG_MAX = 2**63 - 1
_SHOWN = 60


def whole(value: Any, field: str, low: int = 0, high: int = LONG_MAX) -> int:
    """An integer from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:  # a bool is none
        raise _wrong(field, f"an integer from {low} to {high}", value)
    return value


def text(value: Any, field: str, *, empty: bool = False) -> str:
    """A text that can be written, and says something."""
    if not isinstance(value, str) or not (value or empty) or not _writable(value):
        raise _wrong(field, "a text", value)
    return value


def counts(value: Any, field: str) -> dict[str, int]:
    """How many of each name."""
    if not isinstance(value, dict):
        raise _wrong(field, "an object of counts", value)
    return {text(name, field): whole(count, f"{field}.{name}") for name, count in value.items()}


def list_of(value: Any, field: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise _wrong(field, "a list" if length is None else f"a list of {length}", value)
    return value


def object_of(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(field, "an object", value)
    return value


def name_within(value: Any, field: str, folder: str) -> str:
    """The name of a file below a folder of the archive, and of none elsewhere."""
    name = text(value, field)
    steps = name.split("/")
    if steps[0] != folder or len(steps) < 2 or any(step in ("", ".", "..") for step in steps) or not _plain(name):
        raise _wrong(field, f"the name of a file in {folder}/", value)
    return name


def _plain(name: str) -> bool:
    return "\\" not in name and name.isprintable()


def _writable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong(field: str, expected: str, got: Any) -> ArchiveDamaged:
    shown = ascii(got)
    return ArchiveDamaged(f"{field}: expected {expected}, got {shown[:_SHOWN]}{'...' if len(shown) > _SHOWN else ''}")
