"""Look whether a log works from here, and say in words what to do where it does not.

`examine(url)` gives findings one by one, as they are found. It changes nothing but one event: a heartbeat of a rollout
that never started, which every fold counts as `orphan` and forgets.

Order     reach, topics, run, retention, rights, broker or disk, event, clock, assembler, trainer
Not here  printing and exit codes: consumers.cli.doctor; what a log of one kind can tell: eventstore.log.kafka_health,
          eventstore.log.sqlite_health
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from rolloutlog.consumers.limits import Limits, events_kept_s, too_short
from rolloutlog.consumers.status import read_statuses
from rolloutlog.eventstore.acks import Ack, StepAcknowledged, read_ack
from rolloutlog.eventstore.codec import encode_event, header_of
from rolloutlog.eventstore.errors import InvalidEvent, LogMissing, LogUnavailable, StoreError
from rolloutlog.eventstore.events import RolloutHeartbeat
from rolloutlog.eventstore.log import (
    ACKS,
    EVENTS,
    META,
    Difference,
    Log,
    NewRecord,
    Stored,
    open_log,
    parse_url,
)
from rolloutlog.eventstore.log.reading import read_range
from rolloutlog.eventstore.meta import read_run
from rolloutlog.eventstore.partitioner import partition_of
from rolloutlog.eventstore.source import new_id, new_source
from rolloutlog.eventstore.topics import RETENTION_S, check_partitions, topic_settings

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "FAILED", "skipped"

APPS = ("assembler", "trainer")  # whose groups hold positions
CLOCK_S = 1.0
DISK_FREE_MIN = 256 * 2**20
WAL_BYTES_MAX = 256 * 2**20  # four times what is kept of it after a checkpoint
STATUS_S = 60.0  # an assembler writes one every 5 s
BACK_S = 20.0  # a dead program's open transaction hides newer events for 16 s
ACKS_LOOKED_AT = 1_000

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look found. `outcome`: OK, WARNING, FAILED or SKIPPED; `fix`: what to do, in words or as a command."""

    name: str
    outcome: str
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class _Case:
    """What every look is given."""

    log: Log
    url: str
    clock: Clock
    differences: Sequence[Difference]
    partitions: int
    limits: Limits = field(default_factory=Limits)


async def examine(
    url: str, *, only_alive: bool = False, limits: Limits | None = None, clock: Clock = time.time_ns
) -> AsyncGenerator[Finding, None]:
    """Findings about the log that `url` names, in order. The first is `reach`: when it FAILED it is the only one.

    only_alive  only look for living assemblers, and write nothing; without one it FAILED
    limits      of the assembler: events must be kept for longer; None = the defaults
    clock       this host's, UTC nanoseconds
    Raises      InvalidSettings for a URL that can't be one
    """
    parse_url(url)
    began = time.monotonic()
    try:
        log = await open_log(url)
    except StoreError as error:
        yield Finding("reach", FAILED, str(error), _how_to_reach(url, error))
        return
    try:
        yield Finding("reach", OK, f"opened in {_ms(time.monotonic() - began)}")
        looks = _alive(log, url, clock) if only_alive else _examine(log, url, clock, limits or Limits())
        async with aclosing(looks) as findings:
            async for finding in findings:
                yield finding
    finally:
        await log.close()


async def _examine(log: Log, url: str, clock: Clock, limits: Limits) -> AsyncGenerator[Finding, None]:
    try:
        partitions = await log.partitions(EVENTS)
        differences = await log.differences(topic_settings(partitions=partitions))
    except LogMissing:
        yield Finding("topics", FAILED, f"the log has no topic {EVENTS}", _create(url))
        yield Finding("others", SKIPPED, "they need topics")
        return
    except StoreError as error:
        yield Finding("topics", FAILED, str(error))
        for finding in await _rights(_Case(log, url, clock, (), 0)):  # for it may be that they can't be seen
            yield finding
        return
    case = _Case(log, url, clock, differences, partitions, limits)
    for finding in (_topics(case), _retention(case)):
        yield finding
    if missing := [each.topic for each in differences if each.found is None]:
        yield Finding("others", SKIPPED, f"they need the missing {', '.join(missing)}")
        return
    for name, look in LOOKS:
        try:
            for finding in await look(case):
                yield finding
        except StoreError as error:
            yield Finding(name, FAILED, str(error))


async def _alive(log: Log, url: str, clock: Clock) -> AsyncGenerator[Finding, None]:
    try:
        for finding in await _assembler(_Case(log, url, clock, (), await log.partitions(EVENTS))):
            yield replace(finding, outcome=FAILED) if finding.outcome == WARNING else finding
    except StoreError as error:
        yield Finding("assembler", FAILED, str(error))


def _topics(case: _Case) -> Finding:
    wrong = [each for each in case.differences if each.setting != "retention_s"]
    if not wrong:
        return Finding("topics", OK, f"all are there and as needed, {case.partitions} partitions of {EVENTS}")
    missing = [each.topic for each in wrong if each.found is None]
    text = "; ".join(
        f"{each.topic} is missing"
        if each.found is None
        else f"{each.topic}: expected {each.setting} {each.expected}, got {each.found}"
        for each in wrong
    )
    change = "set what differs on the topic with Kafka's kafka-configs.sh; partitions only change with a new prefix"
    embedded = "an embedded log's topics are fixed: make a new file"
    fix = _create(case.url) if missing else embedded if _embedded(case.url) else change
    return Finding("topics", FAILED, text, fix)


def _retention(case: _Case) -> Finding:
    """Retention that is not the default is someone's choice; what may be open longer than it is lost."""
    found = {each.topic: each.found for each in case.differences if each.setting == "retention_s"}
    wrong = too_short(events_kept_s(case.differences), case.limits)
    if wrong is not None:
        fix = "raise the topic's retention.ms, lower age_s or group_age_s, or start a new prefix or file"
        return Finding("retention", FAILED, wrong, fix)
    if found:
        others = ", ".join(f"{topic} {kept} s, not {RETENTION_S[topic]} s" for topic, kept in found.items())
        return Finding("retention", WARNING, f"not the default: {others}", "nothing, if someone chose it so")
    return Finding("retention", OK, f"{EVENTS} are kept longer than rollouts and groups may last")


async def _run(case: _Case) -> list[Finding]:
    run = await read_run(case.log)
    if run is None:
        return [Finding("run", FAILED, f"{META} names no run", _create(case.url))]
    check_partitions(run, case.partitions, case.url)
    return [Finding("run", OK, f"{run.run_id}, {run.partitions} partitions")]


async def _rights(case: _Case) -> list[Finding]:
    if _embedded(case.url):
        from rolloutlog.eventstore.log.sqlite_health import try_writing

        await try_writing(case.url)
        return [Finding("rights", OK, "the file can be read and written")]
    from rolloutlog.eventstore.log.kafka_health import rights

    found = await rights(case.url, list(RETENTION_S), APPS)
    create = "" if found.may_create else "; it may not create topics, which only `topics create` needs"
    if found.missing:
        lacking = "; ".join(f"{', '.join(rights)} on {resource}" for resource, rights in found.missing.items())
        fix = "grant them: docs/deploy.md, Rights, has the commands; hosts, assemblers and trainers need different ones"
        return [Finding("rights", FAILED, f"this user lacks {lacking}{create}", fix)]
    return [Finding("rights", OK, f"describe, read and write on all topics, groups and transactional ids{create}")]


async def _broker(case: _Case) -> list[Finding]:
    if _embedded(case.url):
        return [Finding("broker", SKIPPED, "an embedded log has none")]
    from rolloutlog.eventstore.log.kafka_health import LOSE_TRANSACTIONS, releases

    found = await releases(case.url)
    shown = ", ".join(f"broker {node}: {release}" for node, release in found.items())
    if any(release in LOSE_TRANSACTIONS for release in found.values()):
        return [
            Finding(
                "broker",
                WARNING,
                f"Kafka of {shown}: 4.3 and 4.4 can lose a transaction they acknowledged when a broker is killed "
                "(KAFKA-20734)",
                "run 4.2, or a release whose notes name KAFKA-20734 as mended; docs/decisions/0002-kafka-version.md",
            )
        ]
    if "?" in found.values():
        return [
            Finding("broker", WARNING, f"Kafka of {shown}: a release we don't know", "try it before you rely on it")
        ]
    return [Finding("broker", OK, f"Kafka of {shown}")]


async def _disk(case: _Case) -> list[Finding]:
    if not _embedded(case.url):
        return [Finding("disk", SKIPPED, "the brokers' disks are not seen from here")]
    from rolloutlog.eventstore.log.sqlite_health import file_health

    found = await file_health(case.url, clock=case.clock)
    text = f"{_mb(found.file_bytes)}, {_mb(found.disk_free)} free" + (
        f" on {found.file_system}" if found.file_system else ""
    )
    trim = f"rolloutlog topics trim --log {case.url}, or free space"
    if found.disk_free < DISK_FREE_MIN:
        return [Finding("disk", FAILED, f"{text}: less than {_mb(DISK_FREE_MIN)}", trim)]
    if found.wal_bytes > WAL_BYTES_MAX:
        stuck = f"find a process that hangs in a read: fuser {found.path}"
        return [Finding("disk", WARNING, f"{text}; its write-ahead file has {_mb(found.wal_bytes)}", stuck)]
    kept_h = (RETENTION_S[EVENTS] or 0) / 3600
    if found.pace and found.disk_free / found.pace < kept_h:
        left = f"at {_mb(found.pace)} an hour so far the disk is full in {found.disk_free / found.pace:.0f} h"
        return [Finding("disk", WARNING, f"{text}; {left}, before the oldest events may go ({kept_h:.0f} h)", trim)]
    return [Finding("disk", OK, text)]


async def _event(case: _Case) -> list[Finding]:
    """Publish one event, read it back, and compare its log time with this host's clock."""
    rollout_id = f"doctor-{new_id(8)}"
    began, before_ns = time.monotonic(), case.clock()
    event = RolloutHeartbeat(
        rollout_id=rollout_id, attempt=0, source=new_source("doctor"), sequence=0, time_ns=before_ns
    )
    key = rollout_id.encode()
    partition = partition_of(key, case.partitions)
    header = ("e", header_of(event).text())
    (stored,) = await case.log.append([NewRecord(EVENTS, partition, key, encode_event(event), (header,))])
    took_ns = case.clock() - before_ns
    back = read_range(case.log, EVENTS, partition, stored.offset, stored.offset + 1, silent_s=BACK_S)
    async with aclosing(back) as records:
        found = [record.value async for record in records]
    if found != [encode_event(event)]:
        return [Finding("event", FAILED, f"expected the event at {partition}:{stored.offset} back, got {found!r}")]
    text = f"one there and back in {_ms(time.monotonic() - began)} ({EVENTS} {partition}:{stored.offset})"
    return [Finding("event", OK, text), _clock(stored, before_ns, took_ns)]


def _clock(stored: Stored, before_ns: int, took_ns: int) -> Finding:
    """Log time against this host's, as well as the time of the request lets us tell."""
    ahead_s = (stored.log_time_ns - before_ns - took_ns / 2) / 1e9
    if abs(ahead_s) - took_ns / 2e9 <= CLOCK_S:
        return Finding("clock", OK, f"this host's differs from the log's by less than {CLOCK_S:g} s")
    return Finding(
        "clock",
        WARNING,
        f"the log's time is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this host's",
        "let NTP set both clocks; order and retention go by the log's, a host's events are corrected by it",
    )


async def _assembler(case: _Case) -> list[Finding]:
    start = f"rolloutlog assemble --log {case.url}"
    found = await read_statuses(case.log, partitions=case.partitions)
    if not found:
        return [Finding("assembler", WARNING, "none has written a status yet", start)]
    age_s = {number: (case.clock() - status.time_ns) / 1e9 for number, status in found.items()}
    silent = [number for number in range(case.partitions) if age_s.get(number, STATUS_S) >= STATUS_S]
    if silent:
        last = max((found[number] for number in silent if number in found), key=lambda s: s.time_ns, default=None)
        seen = (
            f"; the last one seen there was host {last.host}, pid {last.pid}, {age_s[last.partition]:.0f} s ago"
            if last is not None
            else ""
        )
        which = ", ".join(map(str, silent))
        return [Finding("assembler", WARNING, f"no status of partitions {which} for {STATUS_S:.0f} s{seen}", start)]
    open_rollouts, lag = (sum(getattr(each, name) for each in found.values()) for name in ("open_rollouts", "lag"))
    return [Finding("assembler", OK, f"all partitions have one; {open_rollouts} rollouts open, {lag} offsets behind")]


async def _trainer(case: _Case) -> list[Finding]:
    span = (await case.log.ranges(ACKS, [0]))[0]
    newest: dict[str, Ack] = {}
    first = max(span.first, span.end - ACKS_LOOKED_AT)
    async with aclosing(read_range(case.log, ACKS, 0, first, span.end)) as records:
        async for record in records:
            try:
                ack = read_ack(record)
            except InvalidEvent:
                continue
            if ack is not None:
                newest[ack.reader] = ack
    if not newest:
        return [Finding("trainer", WARNING, "none has acknowledged a step yet", "open a BatchStream in your trainer")]
    texts = [
        f"{reader}: next step {ack.step + isinstance(ack, StepAcknowledged)}, policy version {ack.policy_version}, "
        f"{max(case.clock() - ack.time_ns, 0) / 1e9:.0f} s ago"
        for reader, ack in newest.items()
    ]
    return [Finding("trainer", OK, "; ".join(texts))]


Look = Callable[[_Case], Awaitable[list[Finding]]]
LOOKS: tuple[tuple[str, Look], ...] = (
    ("run", _run),
    ("rights", _rights),
    ("broker", _broker),
    ("disk", _disk),
    ("event", _event),
    ("assembler", _assembler),
    ("trainer", _trainer),
)


def _how_to_reach(url: str, error: StoreError) -> str:
    """What the error's own text does not say: where a log comes from."""
    if isinstance(error, LogMissing):
        return _create(url)
    parsed = parse_url(url)
    if isinstance(error, LogUnavailable) and parsed.servers and parsed.servers[0].startswith(("127.", "localhost:")):
        port = parsed.servers[0].rpartition(":")[2]
        return f"a broker for development: rolloutlog dev-broker --port {port} --prefix {parsed.prefix}"
    return ""


def _embedded(url: str) -> bool:
    return parse_url(url).scheme == "sqlite"


def _create(url: str) -> str:
    return f"rolloutlog topics create --log {url}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"
