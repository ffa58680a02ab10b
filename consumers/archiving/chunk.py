"""One chunk of a partition while it is written: an Avro and a Parquet file that get their names when they are whole.

add      takes records; what waits in memory is at most a row group
flush    writes what waits
finish   flushes, stores both files under their names, then the manifest entry: from there on the chunk counts
discard  removes what was written; nothing of it counted

Needs    the extra `archive`. All calls wait: they are made in a thread.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from rolloutlog import __version__
from rolloutlog.consumers.archiving.avro_file import AvroWriter, HashedFile, held_bytes
from rolloutlog.consumers.archiving.columns import SCHEMA, VERSION, Seen, pq, table_of
from rolloutlog.consumers.archiving.entries import Entry, encode_entry
from rolloutlog.consumers.archiving.storage import Storage, doing
from rolloutlog.eventstore.log import Record

ROW_GROUP_BYTES = 8 * 2**20  # of records in memory
COMPRESSION = "zstd"
NS_PER_DAY = 24 * 3600 * 1_000_000_000


def day_of(log_time_ns: int) -> str:
    """The day in UTC, `YYYY-MM-DD`."""
    return datetime.fromtimestamp(log_time_ns // NS_PER_DAY * 24 * 3600, UTC).date().isoformat()


class Chunk:
    """Records of one partition and one day, from offset `first` on.

    value_bytes    of all its records' values so far; `waiting_bytes`: in memory, of records that are not written yet
    """

    def __init__(self, storage: Storage, run_id: str, topic: str, partition: int, first: int, day: str) -> None:
        self.topic, self.partition, self.first, self.day = topic, partition, first, day
        self.count = self.value_bytes = self.waiting_bytes = 0
        self._storage = storage
        self._run_id = run_id
        self._waiting: list[Record] = []
        self._first_time_ns: int | None = None
        self._last_time_ns: int | None = None
        self._seen = Seen()
        self._avro: AvroWriter | None = None
        self._parquet: HashedFile | None = None
        self._writer: Any = None

    def add(self, record: Record) -> None:
        if self._first_time_ns is None:
            self._first_time_ns = record.log_time_ns
        self._last_time_ns = record.log_time_ns
        self._waiting.append(record)
        self.count += 1
        self.value_bytes += len(record.value or b"")
        self.waiting_bytes += held_bytes(record)
        if self.waiting_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits: a row group of Parquet, some blocks of Avro."""
        if not self._waiting:
            return
        with self._writing():
            if self._avro is None or self._writer is None:
                self._open()
            assert self._avro is not None
            self._avro.add(self._waiting)
            self._writer.write_table(table_of(self._waiting, self._seen))
        self._waiting, self.waiting_bytes = [], 0

    def finish(self, end: int, clock: Callable[[], int]) -> Entry | None:
        """Store the chunk as offsets up to `end`. None: another archiver stored one from the same offset on."""
        self.flush()
        assert self._avro is not None
        assert self._parquet is not None
        with self._writing():
            self._writer.close()
            self._parquet.close()
            self._avro.file.close()
        stem = f"{self.topic}/day={self.day}/{self.partition}-{self.first}-{end}-{secrets.token_hex(4)}"
        avro = self._avro.file.named(f"{stem}.avro")
        parquet = self._parquet.named(f"{stem}.parquet", VERSION)
        entry = Entry(
            run_id=self._run_id,
            topic=self.topic,
            partition=self.partition,
            first=self.first,
            end=end,
            count=self.count,
            value_bytes=self.value_bytes,
            day=self.day,
            first_log_time_ns=self._first_time_ns,
            last_log_time_ns=self._last_time_ns,
            kinds=dict(sorted(self._seen.kinds.items())),
            refused=dict(sorted(self._seen.refused.items())),
            schemas=dict(sorted(self._seen.schemas.items())),
            avro=avro,
            parquet=parquet,
            parts=tuple(self._avro.parts),
            rolloutlog=__version__,
            written_ns=clock(),
        )
        self._storage.put(self._avro.file.path, avro.name)
        self._storage.put(self._parquet.path, parquet.name)
        if self._storage.create(entry.name, encode_entry(entry)):
            return entry
        self._storage.remove(avro.name)
        self._storage.remove(parquet.name)
        return None

    def discard(self) -> None:
        """Remove what was written. Never raises: what is left over is cleaned up later."""
        for file in (self._parquet, None if self._avro is None else self._avro.file):
            if file is not None:
                with suppress(Exception):
                    if file is self._parquet and self._writer is not None:
                        self._writer.close()
                with suppress(OSError):
                    file.close()
                with suppress(OSError):
                    file.path.unlink(missing_ok=True)

    def touch(self) -> None:
        """Tell other archivers that its files are in use."""
        for file in (self._parquet, None if self._avro is None else self._avro.file):
            if file is not None:
                with suppress(OSError):
                    file.path.touch()

    def _open(self) -> None:
        metadata = {"run_id": self._run_id, "topic": self.topic, "partition": str(self.partition)}
        metadata = {f"rolloutlog.{name}": value for name, value in metadata.items()}
        self._avro = AvroWriter(self._storage.part(), {"rolloutlog.version": __version__, **metadata})
        self._parquet = HashedFile(self._storage.part())
        self._writer = pq.ParquetWriter(self._parquet, SCHEMA.with_metadata(metadata), compression=COMPRESSION)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        where = f"chunk {self.topic}/{self.partition} from offset {self.first}"
        with doing(self._storage.url, "written", where):
            yield
