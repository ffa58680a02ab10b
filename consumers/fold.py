"""Fold events into the state of a partition.

`fold(state, record)` is the only way in which that state changes. It is pure: no clock, no I/O; the same records in the
same order give the same state and outputs on any machine. Live assembly, replay and archive all go through it.

Order      one partition's records by offset; an event seen before (same source and sequence) changes nothing
Opening    a rollout opens at its RolloutStarted; starts of a closed group open nothing
Closing    a rollout closes at the event after which nothing it waits for is missing, a group when all of its announced
           rollouts are closed, or at its GroupClosed
Decisions  of the partition's owner, about what it knew at offset `as_of`. What an event would lift (idle, grace, retry)
           holds only as of the newest one; an age and replayed bytes hold, whatever came since
Run        its end is passed on once every group opened before it is closed; rollouts that start after it are folded as
           any other
Restart    outputs triggered below `state.emit_from` are not made again: they are out already
Not here   what a closed rollout's events come to: consumers.closing; which reward counts for what:
           consumers.attribution
"""

from sys import intern

from rolloutlog.consumers.closing import settle_group, settle_rollout
from rolloutlog.consumers.outputs import DeadLetter, GroupClosing, GroupLeft, Output, RolloutLeft, RunEnding
from rolloutlog.consumers.state import (
    Attempt,
    Awaited,
    ClosedGroup,
    Closing,
    Group,
    PartitionState,
    Rollout,
    Source,
    Stored,
)
from rolloutlog.eventstore.checks import check_agreement, check_event
from rolloutlog.eventstore.codec import HEADER, Header, decode_event, parse_header
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import (
    AGE,
    COMPLETE,
    FAILED,
    KINDS,
    REQUESTED,
    RETRY,
    Event,
    GroupClosed,
    RewardRecorded,
    RolloutCompleted,
    RolloutExpired,
    RolloutHeartbeat,
    RolloutStarted,
    RunEnded,
    SourceEnded,
    Span,
)
from rolloutlog.eventstore.log import Record

MAIN = "main"


def fold(state: PartitionState, record: Record) -> list[Output]:
    """Take one record into the state and return what it causes, in the order in which it is to be published.

    Raises  nothing for any bytes: what can't be decoded or is refused becomes a DeadLetter
    """
    state.position = record.offset + 1
    state.now_ns = max(state.now_ns, record.log_time_ns)
    outputs: list[Output] = []
    header = None
    try:
        header = parse_header(_header(record))
        if not record.key:
            raise InvalidEvent("event refused: expected the group's id, got an empty key", reason="key", field="key")
        _dispatch(state, header, record, outputs)
    except InvalidEvent as error:
        state.counts["refused"] += 1
        outputs.append(DeadLetter(record.offset, record, error.reason, error.field, str(error)))
        if header is not None:
            _take_fault(state, header, record, error, outputs)
    if state.run_ends:
        _end_run(state, record.offset, outputs)
    if record.offset < state.emit_from:
        state.counts.clear()  # counted by whoever published it
        return []
    return outputs


def _header(record: Record) -> bytes | None:
    headers = record.headers
    if len(headers) == 1 and headers[0][0] == HEADER:
        return headers[0][1]
    found = [value for name, value in headers if name == HEADER]
    if len(found) > 1:
        raise InvalidEvent(f"event refused: expected one header e, got {len(found)}", reason="bad_header", field=HEADER)
    return found[0] if found else None


def _dispatch(state: PartitionState, header: Header, record: Record, outputs: list[Output]) -> None:
    if header.kind == RolloutStarted.record:
        _start(state, header, record, outputs)
    elif header.kind == GroupClosed.record:
        _close_group_event(state, header, record, outputs)
    elif header.kind == RunEnded.record:
        _run_ended(state, header, record)
    else:
        _rollout_event(state, header, record, outputs)


def _decode(header: Header, record: Record) -> Event:
    event = decode_event(header.kind, record.value)
    check_event(event, where=f"offset {record.partition}:{record.offset}")
    check_agreement(header, event, record.key)
    return event


# Opening


def _start(state: PartitionState, header: Header, record: Record, outputs: list[Output]) -> None:
    event = _decode(header, record)
    assert isinstance(event, RolloutStarted)
    if header.resend and record.log_time_ns - event.time_ns > state.settings.late_window_ns:
        state.counts["stale_resend"] += 1
        return
    group_id = event.group_id
    memory = state.remembered(group_id)
    if memory is not None:
        # The refusal goes into the log, so that a restart above the first closing still finds one.
        memory.pending = True
        state.counts["group_reused"] += 1
        outputs.append(GroupClosing(record.offset, group_id))
        return
    group = state.groups.get(group_id)
    if group is None:
        group = Group(group_id, event.group_size, record.offset, record.offset, first_ns=state.now_ns)
        state.groups[group_id] = group
        pin = (record.offset, group_id)
        state.pins.append(pin)
        state.opened.append(pin)
    rollout = group.rollouts.get(event.rollout_id)
    if rollout is None:
        _open(state, group, event, header, record)
    else:
        _start_again(state, group, rollout, event, header, record)


def _open(state: PartitionState, group: Group, event: RolloutStarted, header: Header, record: Record) -> None:
    if event.rollout_id in group.surplus:
        state.counts["duplicate"] += 1
        return
    if group.size is not None and len(group.rollouts) >= group.size:
        group.surplus[event.rollout_id] = (event, record.offset)
        state.counts["surplus"] += 1
        return
    group.rollouts[event.rollout_id] = Rollout(
        event.rollout_id, len(group.rollouts), record.offset, state.now_ns, _attempt(event, header, record)
    )
    group.newest_offset = record.offset
    group.open_count += 1
    state.open_rollouts += 1
    state.counts["started"] += 1


def _start_again(
    state: PartitionState, group: Group, rollout: Rollout, event: RolloutStarted, header: Header, record: Record
) -> None:
    current = rollout.attempt
    if event.attempt == current.number:
        same = event.source == current.started.source
        state.counts["duplicate" if same and event == current.started else "conflict"] += 1
    elif rollout.closed is not None:
        state.counts["late"] += 1
    elif event.attempt < current.number:
        state.counts["superseded"] += 1
    else:
        state.counts["superseded_attempts"] += 1
        rollout.attempt = _attempt(event, header, record)
        group.newest_offset = record.offset


def _attempt(event: RolloutStarted, header: Header, record: Record) -> Attempt:
    # One text for all rollouts of a run, a task and a group: with many open ones, copies would weigh.
    for name in ("run_id", "task_id", "group_id", "split"):
        event.__dict__[name] = intern(event.__dict__[name])
    attempt = Attempt(event.attempt, event, record.offset, record.offset)
    source = attempt.sources[event.source] = Source(event.source)
    source.add(header.sequence)
    return attempt


# Events of an open rollout


def _find(state: PartitionState, header: Header, record: Record) -> tuple[Group, Rollout] | str:
    """The open rollout an event belongs to, or the name under which the event is counted instead."""
    assert record.key is not None
    try:
        group_id = record.key.decode()
    except UnicodeDecodeError:
        return "orphan"  # no group's id
    group = state.groups.get(group_id)
    if group is None:
        return "late" if state.remembered(group_id) is not None else "orphan"
    rollout = group.rollouts.get(header.rollout_id)
    if rollout is None:
        return "surplus_events" if header.rollout_id in group.surplus else "orphan"
    if rollout.closed is not None:
        return "late"
    if rollout.attempt.expired is not None and header.kind != RolloutExpired.record:
        return "late"
    if header.attempt < rollout.attempt.number:
        return "superseded"
    if header.attempt > rollout.attempt.number:
        return "orphan"
    name = header.source.rpartition(".")[0]
    if name == MAIN and header.source != rollout.attempt.started.source:
        return "conflict"  # a second process runs the same attempt: the one that started it counts
    return group, rollout


def _rollout_event(state: PartitionState, header: Header, record: Record, outputs: list[Output]) -> None:
    found = _find(state, header, record)
    if isinstance(found, str):
        state.counts[found] += 1
        return
    group, rollout = found
    attempt = rollout.attempt
    if header.kind == RolloutExpired.record:
        _expire(state, group, rollout, header, record, outputs)
        return
    known = attempt.sources.get(header.source)
    if known is not None and _repeated(state, attempt, known, header, record):
        return
    # Spans wait undecoded: most bytes are theirs, and only rollouts that close need them.
    event = None if header.kind == Span.record else _decode(header, record)
    source = _arrive(group, attempt, header, record.offset, ends=isinstance(event, RolloutCompleted | SourceEnded))
    if header.kind != RolloutHeartbeat.record:  # it says no more than that it came
        attempt.records.append(_stored(header, record, source, event))
    if source.values is not None:
        source.values[header.sequence] = record.value
    if isinstance(event, RewardRecorded) and attempt.awaited is not None:
        attempt.awaited.rewards.discard(event.name)
    elif isinstance(event, RolloutCompleted) and attempt.completed is None:
        attempt.completed, attempt.waits_from = event, record.offset
        names = (each.event.name for each in attempt.records if each.kind == RewardRecorded.record)
        attempt.awaited = Awaited(event, attempt.sources.values(), names)
    if attempt.completed is not None:
        _close_when_whole(state, group, rollout, record.offset, outputs)


def _stored(header: Header, record: Record, source: Source, event: Event | None) -> Stored:
    """The kind's own text and the source's object, not copies: an open rollout weighs little more than its bytes."""
    extra = record.headers if len(record.headers) > 1 else None
    kind = KINDS[header.kind].record
    return Stored(record.offset, kind, header.flags, header.sequence, source, record.value, extra, event)


def _arrive(group: Group, attempt: Attempt, header: Header, offset: int, *, ends: bool = False) -> Source:
    """Take note that an event has arrived; `ends`: it is its source's last."""
    source = attempt.sources.get(header.source)
    if source is None:
        source = attempt.sources[header.source] = Source(header.source)
        if attempt.awaited is not None:
            attempt.awaited.source_seen(source.name)
    whole_before = source.whole
    source.add(header.sequence)
    if ends:
        source.end = header.sequence
    if attempt.awaited is not None and source.whole and not whole_before:
        attempt.awaited.source_whole(source.name)
    attempt.newest_offset = group.newest_offset = offset
    return source


def _repeated(state: PartitionState, attempt: Attempt, source: Source, header: Header, record: Record) -> bool:
    """Whether the event had arrived before, or comes after its source's end; counted if so."""
    if source.end is not None and header.sequence > source.end:
        state.counts["after_end"] += 1
        return True
    if header.sequence >= source.next and header.sequence not in (source.scattered or ()):
        return False
    if source.values is None:
        source.values = {each.sequence: each.value for each in attempt.records if each.source is source}
    # A refused event has arrived, but is not kept: what comes again is no more than a duplicate of it.
    other = source.values.get(header.sequence, record.value) != record.value
    state.counts["conflict" if other else "duplicate"] += 1
    return True


def _take_fault(
    state: PartitionState, header: Header, record: Record, error: InvalidEvent, outputs: list[Output]
) -> None:
    """A refused event of an open rollout counts as arrived, so that nothing waits for it, and is held against it."""
    if header.kind in (RolloutStarted.record, GroupClosed.record, RunEnded.record, RolloutExpired.record):
        return
    if not record.key:
        return
    found = _find(state, header, record)
    if isinstance(found, str):
        return
    group, rollout = found
    attempt = rollout.attempt
    _arrive(group, attempt, header, record.offset)
    attempt.faults += (f"{header.kind} at offset {record.offset} refused: {error.reason}",)
    if attempt.completed is not None:
        _close_when_whole(state, group, rollout, record.offset, outputs)


# Closing


def _close_when_whole(
    state: PartitionState, group: Group, rollout: Rollout, offset: int, outputs: list[Output]
) -> None:
    attempt = rollout.attempt
    completed = attempt.completed
    assert completed is not None
    if not attempt.whole:
        return
    if completed.status == FAILED:
        if not attempt.is_last:
            return  # waits for the next attempt's start
        _close_rollout(state, group, rollout, offset, "failed", completed.error, outputs)
    else:
        _close_rollout(state, group, rollout, offset, "completed", None, outputs)


def _expire(
    state: PartitionState, group: Group, rollout: Rollout, header: Header, record: Record, outputs: list[Output]
) -> None:
    event = _decode(header, record)
    assert isinstance(event, RolloutExpired)
    attempt = rollout.attempt
    if event.reason == AGE:
        holds = attempt.first_offset <= event.as_of <= attempt.newest_offset
    else:
        holds = event.as_of == attempt.newest_offset and (attempt.expired is None or event.reason == RETRY)
    if not holds:
        state.counts["stale_decision"] += 1
        return
    missing = [
        *(f"events {gap.first}-{gap.last} of {gap.source}" for gap in event.missing_events),
        *(f"end of {name}" for name in event.missing_names),
        *(f"reward {name}" for name in event.missing_rewards),
    ]
    reason = event.reason + (f", missing {'; '.join(missing)}" if missing else "")
    attempt.expired = attempt.expired or reason
    if event.reason not in (AGE, RETRY) and not attempt.is_last:  # the age is that of all attempts together
        attempt.waits_from = record.offset
        return  # waits for the next attempt's start
    if attempt.completed is not None and attempt.completed.status == FAILED:
        _close_rollout(state, group, rollout, record.offset, "failed", attempt.completed.error, outputs)
    else:
        _close_rollout(state, group, rollout, record.offset, "expired", attempt.expired, outputs)


def _close_rollout(
    state: PartitionState,
    group: Group,
    rollout: Rollout,
    offset: int,
    status: str,
    reason: str | None,
    outputs: list[Output],
) -> None:
    rollout.closed = Closing(offset, status, reason)
    group.open_count -= 1
    state.open_rollouts -= 1
    _leave(state, rollout, offset, outputs)
    if group.size is not None and group.open_count == 0 and len(group.rollouts) == group.size:
        _close_group(state, group, offset, COMPLETE, outputs)


def _leave(state: PartitionState, rollout: Rollout, offset: int, outputs: list[Output]) -> None:
    """Settle a closed rollout. Its refused spans are dead letters with the closing event as trigger."""
    if offset < state.emit_from:
        return
    if not state.settles:
        outputs.append(RolloutLeft(offset, rollout))
        return
    refused = settle_rollout(rollout, state.settings, state.partition)
    state.counts["refused"] += len(refused)
    outputs.extend(refused)


def _close_group_event(state: PartitionState, header: Header, record: Record, outputs: list[Output]) -> None:
    event = _decode(header, record)
    assert isinstance(event, GroupClosed)
    group_id, offset = event.group_id, record.offset
    group = state.groups.get(group_id)
    expires_ns = state.now_ns + state.settings.late_window_ns
    if event.reason == COMPLETE:
        # Published by an owner: from here on a restart knows without anything that stands before.
        if group is not None:
            state.counts["closed_before"] += len(group.rollouts)
            _forget(state, group)
        state.closed[group_id] = ClosedGroup(offset, False, expires_ns)
        state.closed_pins.append((offset, group_id))
    elif event.as_of is not None and (group is None or not group.first_offset <= event.as_of <= group.newest_offset):
        state.counts["stale_decision"] += 1
    elif group is not None:
        for rollout in list(group.rollouts.values()):
            if rollout.closed is None:
                rollout.closed = Closing(offset, "expired", "group_closed")
                group.open_count -= 1
                state.open_rollouts -= 1
                _leave(state, rollout, offset, outputs)
        _close_group(state, group, offset, event.reason, outputs)
    elif event.reason == REQUESTED and not _pending(state, group_id):
        # Closed by its host before any start arrived, or once more: starts that come now are refused. It counts anew
        # each time, since a restart may find this one first.
        state.closed[group_id] = ClosedGroup(offset, False, expires_ns)
        state.closed_pins.append((offset, group_id))
    else:
        state.counts["late"] += 1


def _pending(state: PartitionState, group_id: str) -> bool:
    memory = state.remembered(group_id)
    return memory is not None and memory.pending


def _close_group(state: PartitionState, group: Group, offset: int, reason: str, outputs: list[Output]) -> None:
    if offset >= state.emit_from:
        left = GroupLeft(offset, group, state.now_ns, reason)
        if state.settles:
            # Dead letters are out: only rollouts closed below P are settled now.
            ready, letters = settle_group(left, state.settings, state.partition)
            state.counts["refused"] += len(letters)
            outputs.append(ready)
        else:
            outputs.append(left)
        outputs.append(GroupClosing(offset, group.group_id))
    _forget(state, group)
    state.counts["groups_closed"] += 1
    state.closed[group.group_id] = ClosedGroup(group.first_offset, True, state.now_ns + state.settings.late_window_ns)


def _forget(state: PartitionState, group: Group) -> None:
    del state.groups[group.group_id]
    state.open_rollouts -= group.open_count
    state.oldest_open()  # drops what no longer holds, so that it does not pile up


# The end of the run


def _run_ended(state: PartitionState, header: Header, record: Record) -> None:
    event = _decode(header, record)
    assert isinstance(event, RunEnded)
    state.counts["run_ended"] += 1
    state.run_ends.append((record.offset, event))


def _end_run(state: PartitionState, offset: int, outputs: list[Output]) -> None:
    """Pass on the ends of the run that no group opened before them holds back any more."""
    oldest = state.oldest_open()
    while state.run_ends and (oldest is None or oldest > state.run_ends[0][0]):
        ended_at, event = state.run_ends.popleft()
        state.counts["run_ended_passed_on"] += 1
        outputs.append(RunEnding(offset, ended_at, event))
