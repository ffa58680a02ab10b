"""Verdicts that were paid for, so that a run that goes on, or another over the same rollouts, pays nothing twice.

One SQLite file, used by any number of processes on one machine. The key is run, scorer, version, rollout and attempt:
what a verdict depends on. No verdict at all (a scorer returned nothing) is kept too; failures are not.

A cache that fails later on, as on a full disk, costs money and no verdict: it is said once and the run goes on.
"""

import logging
import os
import sqlite3
from hashlib import blake2b
from pathlib import Path
from re import compile as regex
from threading import Lock

from rolloutlog.consumers.scoring.results import source_of
from rolloutlog.eventstore.checks import check_event
from rolloutlog.eventstore.codec import decode_event, encode_event
from rolloutlog.eventstore.errors import InvalidEvent, InvalidSettings
from rolloutlog.eventstore.events import RewardRecorded

FORMAT = 1  # in the file's user_version
BUSY_TIMEOUT_MS = 30_000
LENGTH_BYTES = 4  # before each value

_FILE_NAME = regex(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")
_log = logging.getLogger(__name__)


class Cache:
    """Verdicts in one file. Safe for use by several threads. Raises InvalidSettings when the file is unusable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self._failed = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_MS / 1_000, isolation_level=None, check_same_thread=False
            )
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise InvalidSettings(
                f"score cache {path}: expected a file of scores, or none yet in a folder that can be written, got: "
                f"{error}; move it away, or go without it: --no-cache"
            ) from error

    def get(self, run_id: str, scorer: str, version: str, rollout_id: str, attempt: int) -> list[RewardRecorded] | None:
        """The verdicts, [] = there was none; None = not known."""
        try:
            with self._lock:
                row = self._file.execute(
                    "SELECT verdicts FROM verdicts"
                    " WHERE run_id=? AND scorer=? AND version=? AND rollout_id=? AND attempt=?",
                    (run_id, scorer, version, rollout_id, attempt),
                ).fetchone()
        except sqlite3.Error as error:
            self._warn(error)
            return None
        if row is None:
            return None
        try:
            return _unpacked(row[0], source_of(scorer, version, rollout_id, attempt), rollout_id, attempt)
        except Exception as error:  # bytes of any kind, from a file that anyone may have written to
            self._warn(error)
            self._drop(row[0], run_id, scorer, version, rollout_id, attempt)
            return None

    def put(
        self,
        run_id: str,
        scorer: str,
        version: str,
        rollout_id: str,
        attempt: int,
        verdicts: tuple[RewardRecorded, ...],
    ) -> None:
        """Keep verdicts. What another process has put meanwhile stays."""
        try:
            with self._lock:
                self._file.execute(
                    "INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?, ?, ?)",
                    (run_id, scorer, version, rollout_id, attempt, _packed(verdicts)),
                )
        except sqlite3.Error as error:
            self._warn(error)

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _prepare(self) -> None:
        self._file.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        found = self._file.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, FORMAT):
            raise sqlite3.DatabaseError(f"format {found}, this version knows {FORMAT}")
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.execute("PRAGMA synchronous=NORMAL")
        self._file.execute("BEGIN IMMEDIATE")
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS verdicts (run_id TEXT, scorer TEXT, version TEXT, rollout_id TEXT,"
            " attempt INTEGER, verdicts BLOB, PRIMARY KEY (run_id, scorer, version, rollout_id, attempt)) WITHOUT ROWID"
        )
        self._file.execute(f"PRAGMA user_version={FORMAT}")
        self._file.execute("COMMIT")

    def _drop(self, found: object, *key: str | int) -> None:
        """Make room for a verdict in the place of what is none."""
        try:
            with self._lock:
                self._file.execute(
                    "DELETE FROM verdicts WHERE verdicts=?"
                    " AND run_id=? AND scorer=? AND version=? AND rollout_id=? AND attempt=?",
                    (found, *key),
                )
        except sqlite3.Error as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            _log.warning("score cache %s: %s; scores go on without it where it fails", self.path, error)


def cache_path(run_id: str) -> Path:
    """Where a run's verdicts are kept by default: below XDG_CACHE_HOME or ~/.cache."""
    name = run_id if _FILE_NAME.fullmatch(run_id) else blake2b(run_id.encode(), digest_size=16).hexdigest()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "rolloutlog" / "scores" / f"{name}.db"


def _packed(verdicts: tuple[RewardRecorded, ...]) -> bytes:
    values = map(encode_event, verdicts)
    return b"".join(len(value).to_bytes(LENGTH_BYTES, "little") + value for value in values)


def _unpacked(packed: bytes, source: str, rollout_id: str, attempt: int) -> list[RewardRecorded]:
    """Verdicts of that source about that attempt. Raises any error for other bytes."""
    verdicts: list[RewardRecorded] = []
    at = 0
    while at < len(packed):
        start = at + LENGTH_BYTES
        at = start + int.from_bytes(packed[at:start], "little")
        event = decode_event(RewardRecorded.record, packed[start:at])
        check_event(event)
        found = (event.source, event.rollout_id, event.attempt, event.sequence)
        if not isinstance(event, RewardRecorded) or found != (source, rollout_id, attempt, len(verdicts)):
            raise InvalidEvent(f"expected verdict {len(verdicts)} of {source} about rollout {rollout_id}, got another")
        verdicts.append(event)
    return verdicts
