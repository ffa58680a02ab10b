"""What a closed rollout's events come to: its rewards' outcomes and its samples. What a closed group's: its batch.

`settle(rollout, settings, partition)` decodes the spans of a closed rollout, restores full prompts, attributes the
rewards and makes samples. A span that is refused becomes a dead letter, with the closing event as trigger, and makes
the rollout incomplete. `settle_group` makes the batch, live and in a replay alike. Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from operator import itemgetter
from typing import Any

from rolloutlog.consumers.attribution import Attribution, CallResult, Entry, RewardEntry, SpanEntry, attribute
from rolloutlog.consumers.batches import SAMPLE_BYTES_MAX, RewardOutcome, make_batch
from rolloutlog.consumers.extra_info_merging import merge_extra_info
from rolloutlog.consumers.outputs import BatchReady, DeadLetter, GroupLeft
from rolloutlog.consumers.samples import Sample, call_sample, line_sample
from rolloutlog.consumers.settings import TRAJECTORY, FoldSettings
from rolloutlog.consumers.state import Rollout, Stored
from rolloutlog.consumers.trajectory import PromptPaths, find_lines
from rolloutlog.eventstore.checks import check_agreement, check_event
from rolloutlog.eventstore.codec import HEADER, Header, decode_event
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import COMPLETED, RewardRecorded, Span
from rolloutlog.eventstore.extra_info import InvalidExtraInfo, decode_extra_info, encode_extra_info
from rolloutlog.eventstore.log import EVENTS, Record
from rolloutlog.eventstore.prompts import PromptRestore
from rolloutlog.eventstore.spans import describe
from rolloutlog.eventstore.tokens import TOKEN_BYTES

INCOMPLETE = "incomplete"
FAULTS_SHOWN = 3
REASON_CHARACTERS_MAX = 4_000
ROLLOUT_BYTES_MAX = 512 * 2**20  # of full prompts and responses: shared prompts make them many times the events
REFUSED_CHARACTERS_MAX = 64 * 1024  # of refused keys that a result names, so that a bad scorer leaves it small

LINE_BYTES_MAX = SAMPLE_BYTES_MAX - 2**18  # of a merged row's tokens and arrays; the rest is for names and extra info

_Row = tuple[Sequence[str], Callable[[bytes], Sample]]  # step rewards that count for it; its sample, of its extra info


@dataclass(frozen=True, slots=True)
class Settled:
    """A closed rollout, decoded. `status`: completed, failed, expired or incomplete."""

    status: str
    reason: str | None
    error: str | None
    turn_count: int
    final: dict[str, float]
    outcomes: tuple[RewardOutcome, ...]
    samples: tuple[Sample, ...]
    extra_info_refused: tuple[str, ...]


def settle_group(left: GroupLeft, settings: FoldSettings, partition: int) -> tuple[BatchReady, list[DeadLetter]]:
    """The batch of a closed group, and dead letters of those of its rollouts that were not settled before."""
    group = left.group
    letters = [each for rollout in group.rollouts.values() for each in settle_rollout(rollout, settings, partition)]
    batch = make_batch(
        group, settings, partition=partition, trigger=left.trigger, closed_ns=left.closed_ns, reason=left.reason
    )
    return BatchReady(left.trigger, batch), letters


def settle_rollout(rollout: Rollout, settings: FoldSettings, partition: int) -> list[DeadLetter]:
    """Settle a closed rollout once, and let go of its events."""
    closing = rollout.closed
    assert closing is not None
    if closing.settled is not None:
        return []
    closing.settled, letters = settle(rollout, settings, partition)
    rollout.attempt.records, rollout.attempt.sources = [], {}
    return letters


def settle(rollout: Rollout, settings: FoldSettings, partition: int) -> tuple[Settled, list[DeadLetter]]:
    """Decode a closed rollout. Returns the result and a dead letter for every refused span."""
    attempt, closing = rollout.attempt, rollout.closed
    assert closing is not None
    letters: list[DeadLetter] = []
    faults = list(attempt.faults)

    def refuse(stored: Stored, error: InvalidEvent) -> None:
        record = _record(stored, rollout, partition)
        letters.append(DeadLetter(closing.offset, record, error.reason, error.field, str(error)))
        faults.append(f"{stored.kind} at offset {stored.offset} refused: {error.reason}")

    calls, entries, rewards = _decode(rollout, partition, refuse)
    attribution = attribute(entries, settings.attribution)
    if attribution.fault is not None:
        faults.insert(0, attribution.fault)  # first, so that it is always told in full
    wanted = closing.status == COMPLETED and attempt.started.split in settings.splits
    rows_of = _line_rows if settings.merge == TRAJECTORY else _call_rows
    rows = rows_of(calls, attribution.calls, rollout.index, refuse, faults)
    samples: list[Sample] = []
    refused_keys: dict[str, None] = {}
    extra_info = _ExtraInfo(rewards)
    if wanted and (not faults or settings.on_incomplete == "keep"):
        for reward_ids, make in rows:
            merged, refused = extra_info.merged((*reward_ids, *attribution.final_reward_ids))
            refused_keys.update(dict.fromkeys(refused))
            sample = make(merged)
            if sample.total is not None and not isfinite(sample.total):
                # finite rewards, but their sum is above what a float holds
                faults.append(f"sample {sample.sample_id} with rewards of {sample.total} in all")
            elif sample.size_bytes > SAMPLE_BYTES_MAX:
                faults.append(f"sample {sample.sample_id} of {sample.size_bytes} bytes, at most {SAMPLE_BYTES_MAX}")
            else:
                samples.append(sample)
    status, reason = closing.status, closing.reason
    if faults:
        more = f" and {len(faults) - FAULTS_SHOWN} more" if len(faults) > FAULTS_SHOWN else ""
        reason = "; ".join(filter(None, [reason, *faults[:FAULTS_SHOWN]])) + more
        if status == COMPLETED:
            status = INCOMPLETE
            samples = samples if settings.on_incomplete == "keep" else []
    return (
        Settled(
            status=status,
            reason=None if reason is None else reason[:REASON_CHARACTERS_MAX],
            error=None if attempt.completed is None else _error(attempt.completed.error),
            turn_count=len(attribution.all_calls),
            final=dict(attribution.final),
            outcomes=_outcomes(attribution, rewards),
            samples=tuple(samples),
            extra_info_refused=_named(refused_keys),
        ),
        letters,
    )


def entries_of(rollout: Rollout, partition: int) -> list[Entry]:
    """What attribution is given of a rollout that still has its records, without refused spans, as in `settle`."""
    return _decode(rollout, partition, lambda stored, error: None)[1]


def _decode(rollout: Rollout, partition: int, refuse: Any) -> tuple[dict[str, Stored], list[Entry], dict[str, Stored]]:
    """Decode the attempt's spans in log order. Returns calls by span id, entries for attribution, rewards by id."""
    calls: dict[str, Stored] = {}
    rewards: dict[str, Stored] = {}
    spans: set[str] = set()
    entries: list[Entry] = []
    for stored in rollout.attempt.records:
        if stored.kind == RewardRecorded.record:
            rewards.setdefault(stored.event.id, stored)
            entries.append(reward_entry(stored.event))
        elif stored.kind == Span.record:
            try:
                span = decode_span(stored, rollout, partition)
            except InvalidEvent as error:
                refuse(stored, error)
                continue
            entries.append(_span_entry(span))
            if span.kind == "call" and span.span_id not in spans:
                calls[span.span_id] = stored
            spans.add(span.span_id)  # an id recorded twice counts once, the first time
    return calls, entries, rewards


def decode_span(stored: Stored, rollout: Rollout, partition: int) -> Span:
    """A span of a closed rollout, decoded and checked once. Raises InvalidEvent when it is refused."""
    if stored.event is None:
        event = decode_event(stored.kind, stored.value)
        check_event(event, where=f"offset {partition}:{stored.offset}")
        check_agreement(_header(stored, rollout), event, _key(rollout))
        stored.event = event
    assert isinstance(stored.event, Span)
    return stored.event


def _restored_bytes(calls: dict[str, Stored]) -> int:
    """Size of all full prompts and responses, told from the events alone."""
    total = 0
    for stored in calls.values():
        call = stored.event
        total += call.prompt_base_tokens * TOKEN_BYTES + len(call.prompt_ids or b"") + len(call.response_ids or b"")
    return total


def _prompts(calls: dict[str, Stored], refuse: Any) -> dict[str, bytes]:
    """Full prompts of all calls with response tokens, by span id."""
    restore = PromptRestore()
    for stored in calls.values():
        restore.add(stored.event)
    prompts = {}
    for span_id, stored in calls.items():
        try:
            prompts[span_id] = restore.prompt(stored.event)
        except InvalidEvent as error:
            refuse(stored, error)
    return prompts


def _call_rows(
    calls: dict[str, Stored], results: Sequence[CallResult], rollout_index: int, refuse: Any, faults: list[str]
) -> list[_Row]:
    """A row for each call. One is left out when its own span or its prompt's base was refused."""
    size_bytes = _restored_bytes(calls)
    if size_bytes > ROLLOUT_BYTES_MAX:
        faults.append(f"full prompts and responses of {size_bytes} bytes, at most {ROLLOUT_BYTES_MAX}")
        return []
    prompts = _prompts(calls, refuse)
    rows: list[_Row] = []
    for result in results:
        if result.span_id in prompts:
            call, prompt_ids = calls[result.span_id].event, prompts[result.span_id]
            rows.append(
                (result.reward_ids, partial(call_sample, call, result, prompt_ids, rollout_index=rollout_index))
            )
    return rows


def _line_rows(
    calls: dict[str, Stored], results: Sequence[CallResult], rollout_index: int, refuse: Any, faults: list[str]
) -> list[_Row]:
    """A row for each line of conversation, without the calls that `_call_rows` leaves out."""
    paths = PromptPaths()
    for stored in calls.values():
        paths.add(stored.event)
    known = set()
    for span_id, stored in calls.items():
        try:
            paths.response(stored.event)
            known.add(span_id)
        except InvalidEvent as error:
            refuse(stored, error)
    usable = ((result, calls[result.span_id].event) for result in results if result.span_id in known)
    lines = find_lines(usable, paths, size_bytes_max=LINE_BYTES_MAX)
    size_bytes = sum(line.size_bytes for line in lines)
    if size_bytes > ROLLOUT_BYTES_MAX:
        faults.append(f"lines of conversation of {size_bytes} bytes, at most {ROLLOUT_BYTES_MAX}")
        return []
    return [
        (
            tuple(reward_id for call in line.calls for reward_id in call.result.reward_ids),
            partial(line_sample, line, rollout_index=rollout_index),
        )
        for line in lines
    ]


class _ExtraInfo:
    """Extra info of a rollout's rewards, each decoded once."""

    def __init__(self, rewards: dict[str, Stored]) -> None:
        self._given: dict[str, tuple[int, str, dict[str, Any]]] = {}  # reward id → place in the log, name, mapping
        self._unreadable: dict[str, Sequence[str]] = {}  # reward id → refused keys
        self._merged: dict[frozenset[str], tuple[bytes, list[str]]] = {}  # most calls are reached by the same rewards
        for place, (reward_id, stored) in enumerate(rewards.items()):
            if stored.event.extra_info:
                try:
                    self._given[reward_id] = (place, stored.event.name, decode_extra_info(stored.event.extra_info))
                except InvalidExtraInfo as error:
                    self._unreadable[reward_id] = error.keys or (f"all of reward {reward_id}",)

    def merged(self, reward_ids: Iterable[str]) -> tuple[bytes, list[str]]:
        """Merge that of the rewards that count for a call, in log order. Returns JSON and the refused keys."""
        if not self._given and not self._unreadable:
            return b"", []
        counting = frozenset(each for each in reward_ids if each in self._given or each in self._unreadable)
        if counting not in self._merged:
            self._merged[counting] = self._merge(counting)
        return self._merged[counting]

    def _merge(self, counting: frozenset[str]) -> tuple[bytes, list[str]]:
        refused = [key for reward_id in counting for key in self._unreadable.get(reward_id, ())]
        parts = sorted((self._given[each] for each in counting if each in self._given), key=itemgetter(0))
        merged, more = merge_extra_info([(name, mapping) for _, name, mapping in parts])
        return (encode_extra_info(merged) if merged else b""), [*sorted(refused), *more]


def _named(keys: Iterable[str]) -> tuple[str, ...]:
    """The keys, up to REFUSED_CHARACTERS_MAX characters in all, and how many more there are."""
    keys = list(keys)
    characters = 0
    for index, key in enumerate(keys):
        characters += len(key)
        if characters > REFUSED_CHARACTERS_MAX:
            return (*keys[:index], f"and {len(keys) - index} more")
    return tuple(keys)


def _error(text: str | None) -> str | None:
    return None if text is None else describe(text)


def _outcomes(attribution: Attribution, rewards: dict[str, Stored]) -> tuple[RewardOutcome, ...]:
    found = []
    for reward_id, outcome in attribution.outcomes.items():
        stored = rewards[reward_id]
        reward = stored.event
        found.append(
            RewardOutcome(
                reward_id=reward_id,
                name=reward.name,
                value=reward.value,
                scope=reward.scope,
                outcome=outcome.outcome,
                rule=outcome.rule,
                calls=tuple(outcome.calls),
                found=tuple(outcome.found),
                scorer=reward.scorer,
                scorer_version=reward.scorer_version,
                offset=stored.offset,
            )
        )
    return tuple(found)


def _span_entry(span: Span) -> SpanEntry:
    return SpanEntry(
        span_id=span.span_id,
        parent_id=span.parent_id,
        kind=span.kind,
        name=span.name,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        response_id=span.response_id,
        choice_index=span.choice_index,
        model=span.model,
        token_count=len(span.response_ids or b"") // TOKEN_BYTES,
        trainable=span.trainable,
    )


def reward_entry(reward: RewardRecorded) -> RewardEntry:
    """A reward as attribution is given it."""
    return RewardEntry(
        reward_id=reward.id,
        value=reward.value,
        name=reward.name,
        scope=reward.scope,
        time_ns=reward.time_ns,
        target=None if reward.target is None else (reward.target.key, reward.target.value),
        parent_id=reward.parent_id,
        after_call=reward.after_call,
        supersedes=reward.supersedes,
    )


def _key(rollout: Rollout) -> bytes:
    return rollout.attempt.started.group_id.encode()


def _header(stored: Stored, rollout: Rollout) -> Header:
    return Header(
        stored.kind, stored.flags, rollout.attempt.number, stored.sequence, stored.source.id, rollout.rollout_id
    )


def _record(stored: Stored, rollout: Rollout, partition: int) -> Record:
    """The record as it came; its log time is not kept."""
    headers = stored.headers or ((HEADER, _header(stored, rollout).text()),)
    return Record(EVENTS, partition, stored.offset, 0, _key(rollout), stored.value, headers)
