"""A file to import: read several times, plain or gzip, in lines of bounded size.

What is wrong with a line, such as its length or the gzip data it stands in, is said in its place, so that the lines
around it still count. Once a digest was made of a file, nothing is read of it that is not as it was then.
"""

import gzip
import io
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple

from rolloutlog.eventstore.errors import InvalidEvent, InvalidSettings, StoreError

LINE_BYTES_MAX = 256 * 2**20  # an event of 8 MiB is some 50 MB of JSON; a line is held in memory
DOCUMENT_BYTES_MAX = LINE_BYTES_MAX  # of a document that is read as a whole, and held in memory as well

STANDARD_INPUT = "-"

_GZIP = b"\x1f\x8b"
_BLOCK_BYTES = 2**20
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)


class Line(NamedTuple):
    """A line, from 1. `fault`: why it has no text."""

    number: int
    text: bytes
    fault: InvalidEvent | None = None

    @property
    def place(self) -> str:
        return f"line {self.number}"


class Input:
    """One file. `name`: how it is called in messages."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = path.name if name is None else name
        self._blocks: list[bytes] | None = None  # digests of its blocks, once `digest` was asked

    def lines(self) -> Iterator[Line]:
        """Every line that is not blank, with its end."""
        number = 0
        with self._open() as opened:
            while True:
                number += 1
                try:
                    text = opened.readline(LINE_BYTES_MAX + 1)
                    too_long = len(text) > LINE_BYTES_MAX
                    if too_long and not text.endswith(b"\n"):
                        _skip_line(opened)
                except _DAMAGED as error:
                    yield Line(number, b"", _damaged(error))
                    return
                if not text:
                    return
                if too_long:
                    fault = InvalidEvent(f"expected lines of at most {LINE_BYTES_MAX} bytes, got a longer one")
                    yield Line(number, b"", fault)
                elif not text.isspace():
                    yield Line(number, text)

    def read(self) -> bytes:
        """All of it. Raises InvalidEvent when it is damaged or above DOCUMENT_BYTES_MAX."""
        text = bytearray()
        with self._open() as opened:
            try:
                while block := opened.read(_BLOCK_BYTES):
                    text += block
                    if len(text) > DOCUMENT_BYTES_MAX:
                        raise InvalidEvent(
                            f"expected a document of at most {DOCUMENT_BYTES_MAX} bytes, got a larger one"
                        )
            except _DAMAGED as error:
                raise _damaged(error) from error
        return bytes(text)

    def digest(self) -> str:
        """BLAKE2b-128 of its bytes as they are stored, in hex. From now on reading it raises StoreError where it is not
        as it was."""
        digest, blocks = blake2b(digest_size=16), []
        with self.path.open("rb") as opened:
            while block := opened.read(_BLOCK_BYTES):
                digest.update(block)
                blocks.append(_digest_of(block))
        self._blocks = blocks
        return digest.hexdigest()

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        with self._open_packed() as opened:
            if opened.peek(2)[:2] != _GZIP:
                yield opened
                return
            # Read in small pieces, so that of a file that was cut off all whole lines are had.
            with gzip.GzipFile(fileobj=opened) as unpacked:
                yield unpacked  # type: ignore[misc]

    def _open_packed(self) -> io.BufferedReader:
        """The file as it is stored."""
        if self._blocks is None:
            return self.path.open("rb")
        return io.BufferedReader(_Unchanged(self.path.open("rb"), self._blocks, self.name))


class _Unchanged(io.RawIOBase):
    """A file whose blocks are compared with their digests before anything of them is read."""

    def __init__(self, opened: IO[bytes], blocks: list[bytes], name: str) -> None:
        self._opened, self._blocks, self._name = opened, blocks, name
        self._index = self._at = 0
        self._block = b""

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        if self._at == len(self._block):
            self._block, self._at = self._opened.read(_BLOCK_BYTES), 0
            expected = self._blocks[self._index] if self._index < len(self._blocks) else None
            if (_digest_of(self._block) if self._block else None) != expected:
                raise StoreError(
                    f"{self._name} changed while it was imported; what is new in it was not stored; import it again "
                    "when it is complete"
                )
            self._index += 1
        size = min(len(into), len(self._block) - self._at)
        into[:size] = self._block[self._at : self._at + size]
        self._at += size
        return size

    def close(self) -> None:
        self._opened.close()
        super().close()


@contextmanager
def open_input(path: Path) -> Iterator[Input]:
    """The file of this name; for `-` what comes from standard input, kept on disk meanwhile.

    Raises  InvalidSettings for what cannot be read twice
    """
    if str(path) != STANDARD_INPUT:
        check_readable(path)
        yield Input(path)
        return
    if sys.stdin is None:  # so Python says that it was closed by who started us
        raise InvalidSettings("-: expected standard input, got none: it is closed")
    with tempfile.NamedTemporaryFile(prefix="rolloutlog-", suffix=".import") as kept:
        with naming(kept.name):
            shutil.copyfileobj(sys.stdin.buffer, kept, _BLOCK_BYTES)
            kept.flush()
        yield Input(Path(kept.name), "standard input")


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Let an error of the system, such as a full disk, name the file: of one that is open it says none."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def check_readable(path: Path) -> None:
    """Raise InvalidSettings for a pipe or device."""
    if not path.is_file():
        raise InvalidSettings(
            f"{path}: expected a file that can be read twice, got a pipe or device: save it first, or give - and send "
            "it to standard input"
        )


def joined_digest(parts: Iterator[str] | list[str]) -> str:
    """One digest of several texts, in their order."""
    digest = blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode(errors="surrogatepass")  # so a name comes that is no UTF-8
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def _digest_of(block: bytes) -> bytes:
    return blake2b(block, digest_size=16).digest()


def _skip_line(opened: IO[bytes]) -> None:
    while True:
        text = opened.readline(_BLOCK_BYTES)
        if not text or text.endswith(b"\n"):
            return


def _damaged(error: Exception) -> InvalidEvent:
    return InvalidEvent(f"expected gzip data to its end, got damaged or cut off data ({error}); nothing follows it")
