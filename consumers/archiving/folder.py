"""An archive in a folder: of this machine, or of a network disk that is mounted.

put     fsync of the file, then its name, then fsync of the folder
create  a hard link, which never replaces a file; where there are none, a look and then the name
"""

import errno
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rolloutlog.consumers.archiving.storage import PART_SUFFIX, PARTS, Found, doing

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class FolderStorage:
    """See `Storage`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    def make(self) -> None:
        with self._doing("made", self.root):
            self.root.mkdir(parents=True, exist_ok=True)

    def part(self) -> Path:
        path = self.root / PARTS / f"{secrets.token_hex(8)}{PART_SUFFIX}"
        with self._doing("made", path):
            path.parent.mkdir(exist_ok=True)
        return path

    def put(self, part: Path, name: str) -> None:
        target = self.root / name
        with self._doing("written", target):
            _sync(part)
            self._make_folders(target.parent)
            os.replace(part, target)
            _sync(target.parent)

    def create(self, name: str, data: bytes) -> bool:
        target, part = self.root / name, self.part()
        with self._doing("written", target):
            try:
                with part.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                self._make_folders(target.parent)
                try:
                    os.link(part, target)
                except FileExistsError:
                    return False
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    if target.exists():  # where there are no links, the look comes first and two may win
                        return False
                    os.replace(part, target)
                _sync(target.parent)
                return True
            finally:
                part.unlink(missing_ok=True)

    def read(self, name: str) -> bytes | None:
        with self._doing("read", self.root / name):
            try:
                return (self.root / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read_all(self, names: Sequence[str]) -> Mapping[str, bytes]:
        found = {}
        for name in names:
            with self._doing("read", self.root / name):
                found[name] = (self.root / name).read_bytes()
        return found

    def read_part(self, name: str, first: int, size_bytes: int) -> bytes:
        with self._doing("read", self.root / name), (self.root / name).open("rb") as file:
            file.seek(first)
            return file.read(size_bytes)

    def find(self, folder: str) -> list[Found]:
        found = []
        with self._doing("read", self.root / folder):
            for path, _, names in os.walk(self.root / folder, onerror=_raise_unless_missing, followlinks=True):
                for name in names:
                    with suppress(FileNotFoundError):  # another process gave it its name, or removed it
                        stat = os.stat(file := Path(path, name))
                        found.append(Found(file.relative_to(self.root).as_posix(), stat.st_size, stat.st_mtime))
        return sorted(found)

    def open(self, name: str) -> Any:
        with self._doing("read", self.root / name):
            try:
                return (self.root / name).open("rb")
            except (FileNotFoundError, NotADirectoryError):
                return None

    def remove(self, name: str) -> None:
        with self._doing("removed", self.root / name):
            (self.root / name).unlink(missing_ok=True)

    def close(self) -> None: ...

    def _make_folders(self, folder: Path) -> None:
        """Make a folder and those above it, each stored in the one that holds it."""
        if folder.is_dir():
            return
        self._make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)

    @contextmanager
    def _doing(self, what: str, path: Path) -> Iterator[None]:
        with doing(self.url, what, str(path)):
            yield


def _sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network disks know no fsync of a folder
            raise
    finally:
        os.close(descriptor)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
