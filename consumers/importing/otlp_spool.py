"""Spans that wait on disk until their file is read: those of one rollout may stand anywhere in it."""

import json
import tempfile
from typing import IO

from rolloutlog.consumers.importing.inputs import naming
from rolloutlog.consumers.importing.otlp_spans import OtlpSpan, SpanEvent


class Spool:
    """Spans on disk, by name. In memory are only their places."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="rolloutlog-")  # noqa: SIM115 closed by `close`
        self._places: dict[str, list[tuple[int, int]]] = {}

    def add(self, name: str, span: OtlpSpan) -> None:
        text = json.dumps(span).encode()
        self._places.setdefault(name, []).append((self._file.tell(), len(text)))
        with naming(tempfile.gettempdir()):
            self._file.write(text)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def names(self) -> list[str]:
        """In the order in which they were first added."""
        return list(self._places)

    def spans(self, name: str) -> list[OtlpSpan]:
        found = []
        for begin, size_bytes in self._places[name]:
            with naming(tempfile.gettempdir()):  # what waits is written before it is read
                self._file.seek(begin)
                text = self._file.read(size_bytes)
            span = OtlpSpan(*json.loads(text))
            events = tuple(SpanEvent(*event) for event in span.events)
            found.append(span._replace(events=events, links=tuple(span.links)))
        return found

    def merge(self, name: str, into: str) -> None:
        """Take all of one name to another."""
        self._places.setdefault(into, []).extend(self._places.pop(name))

    def close(self) -> None:
        self._file.close()
