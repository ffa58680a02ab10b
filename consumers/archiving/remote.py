"""An archive behind a URL, through fsspec: S3, GCS, Azure, memory and others.

put     one put, which object stores carry out whole. Parts are written on this machine's temporary disk
create  a look, then a put that is conditional where the store can (fsspec's mode `create`)

Needs   the extra `archive`, and the package of the URL's scheme, such as s3fs
"""

import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutlog.consumers.adapters import missing
from rolloutlog.consumers.archiving.storage import PART_SUFFIX, PARTS, Found, doing, shown
from rolloutlog.eventstore.errors import InvalidSettings


class RemoteStorage:
    """See `Storage`."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError as error:
            raise InvalidSettings(str(missing(__name__, "archive", error))) from error
        self.url = shown(url)
        try:
            self._fs: Any
            self._fs, self._root = url_to_fs(url)
        except Exception as error:  # fsspec and what it loads raise anything
            raise InvalidSettings(
                f"archive {self.url}: expected a folder or a URL that fsspec opens: {error}"
            ) from error
        self._parts: Path | None = None

    def make(self) -> None:
        with self._doing("made", ""):
            self._fs.makedirs(self._root, exist_ok=True)

    def part(self) -> Path:
        with self._doing("made", PARTS):
            if self._parts is None:
                self._parts = Path(tempfile.mkdtemp(prefix="rolloutlog-archive-"))
            return self._parts / f"{secrets.token_hex(8)}{PART_SUFFIX}"

    def put(self, part: Path, name: str) -> None:
        with self._doing("written", name):
            self._make_folder(name)
            self._fs.put_file(str(part), self._path(name))
            part.unlink()

    def create(self, name: str, data: bytes) -> bool:
        with self._doing("written", name):
            self._make_folder(name)
            self._fs.invalidate_cache()
            if self._fs.exists(self._path(name)):  # in any case: some stores pass over a mode that they don't know
                return False
            try:
                self._fs.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return False
            except (TypeError, NotImplementedError, ValueError):  # it does not know the mode, and says so
                self._fs.pipe_file(self._path(name), data)
            self._fs.invalidate_cache()
            return True

    def read(self, name: str) -> bytes | None:
        with self._doing("read", name):
            try:
                return bytes(self._fs.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

    def read_all(self, names: Sequence[str]) -> Mapping[str, bytes]:
        if not names:
            return {}
        with self._doing("read", names[0]):
            found = self._fs.cat([self._path(name) for name in names])
            return {name: bytes(found[self._path(name)]) for name in names}

    def read_part(self, name: str, first: int, size_bytes: int) -> bytes:
        with self._doing("read", name):
            return bytes(self._fs.cat_file(self._path(name), start=first, end=first + size_bytes))

    def find(self, folder: str) -> list[Found]:
        with self._doing("read", folder):
            self._fs.invalidate_cache()  # others write here too
            try:
                found = self._fs.find(self._path(folder), detail=True)
            except FileNotFoundError:
                return []
        start = len(self._fs._strip_protocol(self._root).rstrip("/")) + 1
        return sorted(Found(path[start:], int(info["size"]), _changed_s(info)) for path, info in found.items())

    def open(self, name: str) -> Any:
        with self._doing("read", name):
            try:
                return self._fs.open(self._path(name), "rb")
            except FileNotFoundError:
                return None

    def remove(self, name: str) -> None:
        with self._doing("removed", name), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def close(self) -> None:
        if self._parts is not None:
            shutil.rmtree(self._parts, ignore_errors=True)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _make_folder(self, name: str) -> None:
        # object stores have none, and take this for nothing; others need them
        self._fs.makedirs(self._path(str(PurePosixPath(name).parent)), exist_ok=True)

    @contextmanager
    def _doing(self, what: str, name: str) -> Iterator[None]:
        with doing(self.url, what, f"{self.url.rstrip('/')}/{name}"):
            yield


def _changed_s(info: Mapping[str, Any]) -> float:
    """When it was written. A store that does not tell keeps its files: they count as written now."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        changed = info.get(name)
        if isinstance(changed, int | float):
            return float(changed)
        if isinstance(changed, datetime):
            return changed.timestamp()
    return time.time()
