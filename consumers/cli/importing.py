"""`rolloutlog import`: bring trajectories of other programs into the log.

A file is known by its digest. `import/{digest}` in meta says that its import began, and where the events ended then; a
second record says that it finished. An import that was cut off reads what it stored and goes on after it.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import click

from rolloutlog.consumers.cli.configuration import load
from rolloutlog.consumers.cli.main import EXIT_DIFFERENT
from rolloutlog.consumers.cli.options import log_option, run, settings_option
from rolloutlog.consumers.cli.progress import bars
from rolloutlog.consumers.messages import Trajectory, identities, parse_trajectory, trajectory_events
from rolloutlog.eventstore.checks import check_event, refused
from rolloutlog.eventstore.codec import HEADER, decode_record, encode_event, encode_record, header_of, parse_header
from rolloutlog.eventstore.errors import InvalidEvent, InvalidSettings, StoreError
from rolloutlog.eventstore.events import Event, Span
from rolloutlog.eventstore.log import EVENTS, META, Log, NewRecord, open_log
from rolloutlog.eventstore.log.reading import read_all, read_range
from rolloutlog.eventstore.meta import Run, read_run
from rolloutlog.eventstore.partitioner import partition_of
from rolloutlog.eventstore.settings import EVENT_BYTES_MAX
from rolloutlog.eventstore.topics import check_partitions, create_topics

RECORD = "ImportRecorded"
STARTED, FINISHED = "started", "finished"
APPEND_BYTES = 4 * 2**20
APPEND_RECORDS = 1_000
REPORTED_MAX = 20


@click.group(name="import")
def import_group() -> None:
    """Bring trajectories of other programs into the log."""


@import_group.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@log_option
@settings_option
def messages(file: Path, settings: Path | None, log: str | None) -> None:
    """Import chat trajectories in OpenAI message form, one JSON object a line.

    Each line has task_id, messages or traj, and may have trial and reward. One line is one rollout, lines of one task
    one group. Token ids are the UTF-8 bytes of the text, in ChatML form: for looking at rewards and batches, not for
    training a model.
    An embedded log is created when it is missing. Exit code 1: some lines were refused, the rest is imported.
    """
    url = load(settings, {"log": log}).url()
    if not file.is_file():
        raise InvalidSettings(f"{file}: expected a file that can be read twice, got a pipe or device: save it first")
    refused = run(_import(url, file))
    if refused:
        raise click.exceptions.Exit(EXIT_DIFFERENT)


@dataclass
class Lines:
    """What a first reading of the file says: which lines are good, and how many each task has."""

    good: list[int] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    by_task: Counter[str] = field(default_factory=Counter)


async def _import(url: str, file: Path) -> int:
    digest = _digest(file)
    lines = _read_lines(file)
    for number, text in lines.refused[:REPORTED_MAX]:
        click.echo(f"line {number} refused: {text}", err=True)
    if len(lines.refused) > REPORTED_MAX:
        click.echo(f"and {len(lines.refused) - REPORTED_MAX} more lines refused", err=True)
    log = await open_log(url, create=True)
    try:
        this_run = await _run_of(log, url)
        earlier = await _earlier(log, digest)
        if earlier is not None and earlier["status"] == FINISHED:
            click.echo(f"{file.name} was imported before: {earlier['rollouts']} rollouts; nothing added")
            return 0
        spans = await log.ranges(EVENTS, range(this_run.partitions))
        stored: dict[str, set[int]] = {}
        # Of the first try, so that events made again by the one that goes on are the same bytes.
        time_ns = time.time_ns() if earlier is None else earlier["time_ns"]
        if earlier is None:
            await _record(log, digest, file, STARTED, spans, lines, time_ns)
        else:
            stored = await _stored(log, digest, earlier, spans)
            click.echo(
                f"going on after {sum(map(len, stored.values()))} events of an import that was cut off", err=True
            )
        with bars() as shown:
            writer = _Writer(log, this_run, time_ns)
            for index, trajectory in enumerate(_trajectories(file, lines)):
                shown.tell("importing", index, len(lines.good))
                done = stored.get(identities(trajectory, digest).source, set())
                await writer.add(trajectory, digest, lines.by_task[trajectory.task_id], done)
            await writer.flush()
        if _digest(file) != digest:
            raise StoreError(f"{file} changed while it was imported; import it again when it is complete")
        await _record(log, digest, file, FINISHED, spans, lines, time.time_ns())
    finally:
        await log.close()
    click.echo(
        f"{len(lines.good)} rollouts in {len(lines.by_task)} groups, {writer.calls} calls, {writer.events} events "
        f"of {writer.size_bytes} bytes (with prompts repeated: {writer.repeated_bytes}); "
        f"{len(lines.refused)} lines refused"
    )
    return len(lines.refused)


async def _run_of(log: Log, url: str) -> Run:
    """The log's run; the topics of an embedded log are made when they are missing."""
    if url.startswith("sqlite:"):
        return await create_topics(log)
    found = await read_run(log)
    if found is None:
        raise InvalidSettings(f"log {url}: no run: `rolloutlog topics create --log {url}` makes it")
    check_partitions(found, await log.partitions(EVENTS), url)
    return found


def _read_lines(file: Path) -> Lines:
    lines = Lines()
    with file.open("rb") as opened:
        for number, text in enumerate(opened, 1):
            if not text.strip():
                continue
            try:
                trajectory = parse_trajectory(text, number)
                for event in trajectory_events(trajectory, "0" * 32, group_size=1, run_id="", time_ns=0):
                    _check(event)
            except InvalidEvent as error:
                lines.refused.append((number, str(error)))
                continue
            lines.good.append(number)
            lines.by_task[trajectory.task_id] += 1
    return lines


def _check(event: Event) -> None:
    check_event(event)
    size_bytes = len(encode_event(event))
    if size_bytes > EVENT_BYTES_MAX:
        # the span's id tells the message: call-3 is the fourth
        what = event.span_id if isinstance(event, Span) else event.record
        raise refused(f"events of at most {EVENT_BYTES_MAX} bytes", f"{size_bytes} bytes of {what}", "messages")


def _trajectories(file: Path, lines: Lines) -> Iterator[Trajectory]:
    good = set(lines.good)
    with file.open("rb") as opened:
        for number, text in enumerate(opened, 1):
            if number in good:
                yield parse_trajectory(text, number)


def _digest(file: Path) -> str:
    digest = blake2b(digest_size=16)
    with file.open("rb") as opened:
        while block := opened.read(2**20):
            digest.update(block)
    return digest.hexdigest()


class _Writer:
    """Appends events in requests of bounded size and counts them."""

    def __init__(self, log: Log, this_run: Run, time_ns: int) -> None:
        self._log, self._run, self._time_ns = log, this_run, time_ns
        self._records: list[NewRecord] = []
        self._waiting_bytes = 0
        self.events = self.calls = self.size_bytes = self.repeated_bytes = 0

    async def add(self, trajectory: Trajectory, digest: str, group_size: int, done: set[int]) -> None:
        key = identities(trajectory, digest).group_id.encode()
        partition = partition_of(key, self._run.partitions)
        for event in trajectory_events(
            trajectory, digest, group_size=group_size, run_id=self._run.run_id, time_ns=self._time_ns
        ):
            value = encode_event(event)
            repeated = getattr(event, "prompt_base_tokens", 0) * 4
            self.repeated_bytes += len(value) + repeated
            self.calls += getattr(event, "kind", "") == "call"
            self.size_bytes += len(value)
            self.events += 1
            if event.sequence in done:
                continue
            self._records.append(NewRecord(EVENTS, partition, key, value, ((HEADER, header_of(event).text()),)))
            self._waiting_bytes += len(value)
        if len(self._records) >= APPEND_RECORDS or self._waiting_bytes >= APPEND_BYTES:
            await self.flush()

    async def flush(self) -> None:
        if self._records:
            await self._log.append(self._records)
        self._records, self._waiting_bytes = [], 0


async def _earlier(log: Log, digest: str) -> dict[str, Any] | None:
    """The newest record of this file's import."""
    found = None
    async for record in read_all(log, META):
        if record.key == f"import/{digest}".encode():
            try:
                found = decode_record(record.value, expected=RECORD)[1]
            except InvalidEvent:
                continue  # deleted, or not readable to this version: as if it were not there
    return found


async def _record(log: Log, digest: str, file: Path, status: str, spans: Any, lines: Lines, time_ns: int) -> None:
    fields = {
        "digest": digest,
        "file": file.name,
        "status": status,
        "offsets": [{"partition": partition, "offset": span.end} for partition, span in spans.items()],
        "lines": len(lines.good) + len(lines.refused),
        "rollouts": len(lines.good),
        "refused": len(lines.refused),
        "time_ns": time_ns,
    }
    await log.append([NewRecord(META, 0, f"import/{digest}".encode(), encode_record(RECORD, fields))])


async def _stored(log: Log, digest: str, earlier: dict[str, Any], spans: Any) -> dict[str, set[int]]:
    """Events of this file's import that are in the log: source to sequence numbers."""
    stored: dict[str, set[int]] = {}
    prefix = f"import-{digest[:12]}-"
    for each in earlier["offsets"]:
        span = spans[each["partition"]]
        async for record in read_range(log, EVENTS, each["partition"], max(each["offset"], span.first), span.end):
            try:
                header = parse_header(dict(record.headers).get(HEADER))
            except InvalidEvent:
                continue
            if header.rollout_id.startswith(prefix):
                stored.setdefault(header.source, set()).add(header.sequence)
    return stored
