"""The manifest of an archive: what counts.

One entry a chunk, `manifest/{topic}/{partition}/{first offset, 20 digits}.json`, written last and whole. A chunk is
there once its entry is; files that no entry names are nothing. The archive's position in a partition is where the chain
of its entries ends, and nowhere else: whoever goes on, goes on there. An entry's name is the offset it begins at, and
is given only once, so two archivers cannot both add the same records; where a store lets both write, the second one's
entry replaces one with the same records, and readers take each offset from one entry alone.

An entry without files tells that offsets hold no record (transaction markers), or, with `lost`, that retention had
removed them before they were archived.

Not here  what an entry says: consumers.archiving.entries; where files are: consumers.archiving.storage
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rolloutlog.consumers.archiving import fields
from rolloutlog.consumers.archiving.entries import MANIFEST, PARTITIONS_MAX, Entry, decode_entry, seal, unseal
from rolloutlog.consumers.archiving.errors import ArchiveDamaged
from rolloutlog.consumers.archiving.storage import Storage
from rolloutlog.eventstore.errors import InvalidSettings, LogMissing
from rolloutlog.eventstore.log import EVENTS, REWARDS
from rolloutlog.eventstore.meta import Run

TOPICS = (EVENTS, REWARDS)
RUN_FILE = f"{MANIFEST}/run.json"


def chain(entries: Iterable[Entry], position: int = 0) -> list[Entry]:
    """The entries that are read, in order: from the position on, each begins where those before it end, or earlier.

    What follows a gap is not in the chain.
    """
    waiting = sorted(entries, key=lambda each: (each.first, each.end), reverse=True)
    found: list[Entry] = []
    while True:
        best: Entry | None = None
        while waiting and waiting[-1].first <= position:
            entry = waiting.pop()
            if entry.end > (position if best is None else best.end):
                best = entry
        if best is None:
            return found
        found.append(best)
        position = best.end


def gap_end(entries: Iterable[Entry], position: int) -> int | None:
    """Where entries go on that the chain does not reach: what lies between is missing. None: nothing is."""
    return min((entry.first for entry in entries if entry.first > position), default=None)


def covers(entries: Iterable[Entry], first: int, end: int) -> bool:
    """Whether the entries hold all offsets from `first` to below `end`."""
    for entry in sorted(entries, key=lambda each: each.first):
        if entry.first > first:
            break
        first = max(first, entry.end)
    return first >= end


def missing_text(topic: str, partition: int, first: int, end: int) -> str:
    return (
        f"{topic}/{partition}: expected a manifest entry from offset {first} on, got none before offset {end}: records "
        f"from {first} to {end - 1} are missing"
    )


def check_partition(url: str, run: Run, entry: Entry) -> None:
    """Raise ArchiveDamaged for an entry of a partition that the run has not."""
    if entry.partition >= run.partitions:
        raise ArchiveDamaged(
            f"archive {url}: {entry.name}: expected a partition from 0 to {run.partitions - 1}, as {RUN_FILE} says, "
            f"got {entry.partition}"
        )


def encode_run(run: Run, *, rolloutlog: str) -> bytes:
    return seal({**asdict(run), "rolloutlog": rolloutlog})


def read_archived_run(storage: Storage) -> Run | None:
    """The run whose log is archived here; None where nothing is archived yet."""
    data = storage.read(RUN_FILE)
    if data is None:
        return None
    values = unseal(data, RUN_FILE)
    try:
        return Run(
            fields.text(values.get("run_id"), "run_id"),
            fields.whole(values.get("partitions"), "partitions", 1, PARTITIONS_MAX),
            fields.whole(values.get("created_ns"), "created_ns"),
        )
    except ArchiveDamaged as error:
        raise ArchiveDamaged(f"archive {storage.url}: {RUN_FILE}: {error}") from error


def require_run(storage: Storage) -> Run:
    """The run whose log is archived here. Raises LogMissing."""
    run = read_archived_run(storage)
    if run is None:
        raise LogMissing(
            f"archive {storage.url}: expected an archive, got no {RUN_FILE}; `rolloutlog archive --to` makes one"
        )
    return run


def names_of(storage: Storage, topic: str, partition: int | None = None) -> list[str]:
    """Names of the entries of a topic or of one partition, those of a partition in order."""
    folder = f"{MANIFEST}/{topic}" if partition is None else f"{MANIFEST}/{topic}/{partition}"
    return [each.name for each in storage.find(folder) if each.name.endswith(".json")]


def read_entries(storage: Storage, names: Sequence[str], run_id: str) -> list[Entry]:
    """Read entries. Raises ArchiveDamaged, and InvalidSettings for one of another run."""
    entries = []
    found = storage.read_all(names)
    for name in names:
        try:
            entry = decode_entry(found[name], name)
        except ArchiveDamaged as error:
            raise ArchiveDamaged(
                f"archive {storage.url}: {error}; remove that file and what it held is archived again, as long as the "
                "log has it"
            ) from error
        check_run(storage.url, entry.run_id, run_id, name)
        entries.append(entry)
    return entries


def check_run(url: str, found: str, expected: str, what: str) -> None:
    """Raise InvalidSettings when it is of another run."""
    if found != expected:
        raise InvalidSettings(
            f"archive {url}: {what}: expected run {expected}, got run {found}; one archive holds one run: use another "
            "folder or URL"
        )
