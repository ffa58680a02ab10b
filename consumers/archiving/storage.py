"""Where an archive's files are: a folder, or any URL that fsspec can open.

A file is made in a temporary place (`part`) and gets its name once it is whole and stored (`put`), so that no reader
ever sees half of one. `create` gives a small file its name only when nothing has it: of several writers one wins.

Errors    ArchiveUnavailable naming the file and the system's reason
Not here  how each kind of place keeps these promises: consumers.archiving.folder, consumers.archiving.remote

All calls wait: they are made in threads.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from re import compile as regex
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from rolloutlog.consumers.archiving.errors import ArchiveUnavailable
from rolloutlog.eventstore.errors import InvalidSettings

PARTS = "tmp"  # beside what counts, on the same disk: a name is then given at once
PART_SUFFIX = ".part"

_ONE_SLASH = regex(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")  # s3:/bucket: a slip of the hand


class Found(NamedTuple):
    """A file that is there. `name`: relative to the archive, with `/`; `changed_s`: seconds since 1970."""

    name: str
    size_bytes: int
    changed_s: float


class Storage(Protocol):
    """The files of one archive, by names relative to it, with `/`."""

    url: str  # as it may be shown

    def make(self) -> None:
        """Make the place itself where it is missing."""

    def part(self) -> Path:
        """A new path on a local disk, to write a file at that `put` will take."""

    def put(self, part: Path, name: str) -> None:
        """Give a whole file its name; the part is gone then."""

    def create(self, name: str, data: bytes) -> bool:
        """Store a small file unless there is one of that name; returns whether it did."""

    def read(self, name: str) -> bytes | None:
        """All of a file; None = there is none."""

    def read_all(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Several small files at once. One that is gone is an error."""

    def read_part(self, name: str, first: int, size_bytes: int) -> bytes:
        """Some bytes of a file, fewer where it ends."""

    def open(self, name: str) -> Any:
        """A file opened for reading, as `open(..., "rb")` gives it. None = there is none."""

    def find(self, folder: str) -> list[Found]:
        """All files below a folder, by name; none where it is missing."""

    def remove(self, name: str) -> None:
        """Remove a file. One that is gone is no error."""

    def close(self) -> None:
        """Remove what was made beside the archive."""


def open_storage(url: str | os.PathLike[str]) -> Storage:
    """The storage that a URL or path names; nothing is read or made yet. Raises InvalidSettings."""
    text = os.fspath(url)
    if not text or "\0" in text:
        raise InvalidSettings(f"archive {text!r}: expected a folder, or a URL such as s3://bucket/archive")
    scheme, separator, rest = text.partition("://")
    if separator:
        scheme = scheme.lower()
        text = f"{scheme}://{rest}"
    if _ONE_SLASH.match(text) or (separator and not scheme):
        raise InvalidSettings(
            f"archive {shown(text)}: expected a folder, or a URL such as s3://bucket/archive, got neither; a folder of "
            f"that name is ./{shown(text)}"
        )
    if not separator and not text.startswith("file:"):
        return _folder(text)
    if scheme == "file" or text.startswith("file:"):
        host, slash, path = (rest if separator else text.removeprefix("file:")).partition("/")
        if host or not slash:
            raise InvalidSettings(f"archive {text}: expected file:///absolute/path, or the path alone")
        return _folder(unquote(f"/{path}"))
    if scheme in ("sqlite", "kafka"):
        raise InvalidSettings(f"archive {shown(text)}: expected a folder, or a URL of files, got that of a log")
    from rolloutlog.consumers.archiving.remote import RemoteStorage

    return RemoteStorage(text)


def shown(url: str) -> str:
    """The URL as it may be shown: a password has no place in it, but may have been put there."""
    plain, query, _ = url.partition("?")
    scheme, separator, rest = plain.partition("://")
    host, slash, path = rest.partition("/")
    user, at, host = host.rpartition("@")
    return f"{scheme}{separator}{'...@' if at and user else at}{host}{slash}{path}{'?...' if query else ''}"


@contextmanager
def doing(url: str, what: str, file: str) -> Iterator[None]:
    """Turn errors of systems and drivers into ArchiveUnavailable that names the file."""
    try:
        yield
    except ArchiveUnavailable:
        raise
    except Exception as error:  # drivers of object stores raise their own
        why = (
            os.strerror(error.errno)
            if isinstance(error, OSError) and error.errno
            else str(error) or type(error).__name__
        )
        rest = "; nothing of it counts: put that right and run the command again" if what == "written" else ""
        raise ArchiveUnavailable(f"archive {url}: {file} could not be {what}: {why}{rest}") from error


def old(found: Iterable[Found], age_s: float) -> list[Found]:
    """Files that have not changed for so long."""
    before = time.time() - age_s
    return [each for each in found if each.changed_s < before]


def _folder(path: str) -> Storage:
    from rolloutlog.consumers.archiving.folder import FolderStorage

    return FolderStorage(Path(path))
