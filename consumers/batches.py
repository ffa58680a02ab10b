"""Training batches: one closed group each, its samples and what became of every reward.

A batch above the record limit is written in parts, within one transaction; `join_parts` puts it together again. Its id
is BLAKE2b-128 of [group id, ordered sample ids, config hash]: the same group folded again has the same id.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

from rolloutlog.consumers.samples import Sample
from rolloutlog.consumers.settings import FoldSettings, digest
from rolloutlog.consumers.state import Group, Rollout
from rolloutlog.eventstore.codec import RecordReader, encode_record
from rolloutlog.eventstore.errors import InvalidEvent
from rolloutlog.eventstore.events import COMPLETED, PolicyVersionRun, TokenArray

RECORD = "TrainingBatch"
PART_BYTES_MAX = 8 * 2**20  # one record's value; the topic's own limit leaves 64 KiB for key, headers and framing
SAMPLE_BYTES_MAX = PART_BYTES_MAX - 2**17  # so that one sample always fits into a part beside the batch's own fields
OUTCOME_BYTES_A_RECORD = 2**20  # a rollout's outcomes are spread over several records beyond this
CALLS_AN_OUTCOME = 1_000  # an id takes up to 2 kB


@dataclass(frozen=True, slots=True)
class RewardOutcome:
    """What became of one reward. Fields: schemas/TrainingBatch.v2.avsc, RewardOutcome."""

    reward_id: str
    name: str
    value: float | None
    scope: str
    outcome: str
    rule: str | None
    calls: tuple[str, ...]
    found: tuple[str, ...]
    scorer: str | None
    scorer_version: str | None
    offset: int


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """One rollout in its one final state. Fields: schemas/TrainingBatch.v2.avsc, RolloutResult."""

    rollout_id: str
    attempt: int
    task_id: str
    split: str
    status: str
    reason: str | None
    error: str | None
    policy_version: int | None
    turn_count: int
    final: dict[str, float]
    outcomes: tuple[RewardOutcome, ...]
    extra_info_refused: tuple[str, ...]
    first_event: int
    closing_event: int
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """A closed group. Fields: schemas/TrainingBatch.v2.avsc. `rollouts` and `samples` are whole, over all parts."""

    batch_id: str
    group_id: str
    run_id: str
    config_hash: str
    input_partition: int
    trigger: int
    first_event: int
    closed_ns: int
    closed_reason: str
    group_size: int | None
    policy_version_min: int | None
    policy_version_max: int | None
    reason: str | None
    rollouts: tuple[RolloutResult, ...]
    samples: tuple[Sample, ...]
    part: int = 0
    parts: int = 1


def make_batch(
    group: Group, settings: FoldSettings, *, partition: int, trigger: int, closed_ns: int, reason: str
) -> Batch:
    """Assemble a closed group whose rollouts are settled.

    Survivors are the rollouts closed as completed, and incomplete ones with `on_incomplete=keep`; fewer than
    `min_group` (1 for a group of one) and none of them is trained.
    """
    rollouts = list(group.rollouts.values())
    kept = [_kept(rollout, settings) for rollout in rollouts]
    needed = 1 if group.size == 1 else settings.min_group
    enough = sum(kept) >= needed
    dropped = None if enough else f"{sum(kept)} of at least {needed} rollouts completed"
    results: list[RolloutResult] = []
    samples: list[Sample] = []
    for rollout, keep in zip(rollouts, kept, strict=True):
        results.append(_result(rollout, keep, dropped))
        if keep and enough:
            samples += _closing(rollout).settled.samples
    for started, offset in group.surplus.values():
        results.append(_surplus(started, offset, group))
    versions = _policy_versions(samples, rollouts)
    if not samples and not dropped:
        untrained = sorted({result.split for result in results} - set(settings.splits))
        dropped = f"split {', '.join(untrained)}" if untrained else "no call is selected"
    sample_ids = [sample.sample_id for sample in samples]
    return Batch(
        batch_id=digest([group.group_id, sample_ids, settings.config_hash]),
        group_id=group.group_id,
        run_id=rollouts[0].attempt.started.run_id if rollouts else "",
        config_hash=settings.config_hash,
        input_partition=partition,
        trigger=trigger,
        first_event=group.first_offset,
        closed_ns=closed_ns,
        closed_reason=reason,
        group_size=group.size,
        policy_version_min=min(versions, default=None),
        policy_version_max=max(versions, default=None),
        reason=None if samples else dropped,
        rollouts=tuple(results),
        samples=tuple(samples),
    )


def encode_parts(batch: Batch) -> list[bytes]:
    """The batch's records: one, or several where one would be above PART_BYTES_MAX."""
    # A group that needs parts is not also encoded whole: its samples can be many times the limit.
    if sum(sample.size_bytes for sample in batch.samples) <= PART_BYTES_MAX:
        whole = _encode(batch)
        if len(whole) <= PART_BYTES_MAX:
            return [whole]
    parts: list[Batch] = []
    empty = replace(batch, rollouts=(), samples=())
    base = len(_encode(empty)) + 64
    size = base
    rollouts: list[RolloutResult] = []
    samples: list[Sample] = []
    items: Iterator[RolloutResult | Sample] = chain(_spread(batch.rollouts), batch.samples)
    for item in items:
        item_bytes = item.size_bytes if isinstance(item, Sample) else _result_bytes(item)
        if size + item_bytes > PART_BYTES_MAX and (rollouts or samples):
            parts.append(replace(batch, rollouts=tuple(rollouts), samples=tuple(samples)))
            size, rollouts, samples = base, [], []
        size += item_bytes
        if isinstance(item, Sample):
            samples.append(item)
        else:
            rollouts.append(item)
    parts.append(replace(batch, rollouts=tuple(rollouts), samples=tuple(samples)))
    return [_encode(replace(part, part=index, parts=len(parts))) for index, part in enumerate(parts)]


def decode_part(value: bytes | None) -> Batch:
    """Read one record of a batch. Raises InvalidEvent when it is none."""
    batch: Batch = _READER.read(value)
    return batch


def join_parts(parts: Sequence[Batch]) -> Batch:
    """Put a batch together from all of its parts, in order. Raises InvalidEvent naming the part that is not there."""
    first = parts[0]
    for index in range(max(first.parts, len(parts))):
        got = parts[index] if index < len(parts) else None
        if got is None or (got.batch_id, got.part, got.parts) != (first.batch_id, index, first.parts):
            expected = f"part {index} of {first.parts}" if index < first.parts else f"{first.parts} parts"
            raise InvalidEvent(
                f"batch {first.batch_id} refused: expected {expected}, got "
                + ("none" if got is None else f"part {got.part} of {got.parts} of batch {got.batch_id}"),
                reason="part_missing",
                field="$.part",
            )
    if len(parts) == 1:
        return first  # nothing goes on in a part that is alone
    runs: list[list[RolloutResult]] = []
    for result in (each for part in parts for each in part.rollouts):
        if runs and runs[-1][0].rollout_id == result.rollout_id and runs[-1][0].status == result.status:
            runs[-1].append(result)
        else:
            runs.append([result])
    samples = tuple(sample for part in parts for sample in part.samples)
    return replace(first, rollouts=tuple(map(_joined, runs)), samples=samples, part=0, parts=1)


def _joined(run: Sequence[RolloutResult]) -> RolloutResult:
    outcomes: dict[str, list[RewardOutcome]] = {}
    for outcome in (each for result in run for each in result.outcomes):
        outcomes.setdefault(outcome.reward_id, []).append(outcome)
    final = {name: value for result in run for name, value in result.final.items()}
    return replace(run[0], outcomes=tuple(map(_whole_outcome, outcomes.values())), final=final)


def _whole_outcome(pieces: Sequence[RewardOutcome]) -> RewardOutcome:
    if len(pieces) == 1:
        return pieces[0]
    calls = tuple(call for piece in pieces for call in piece.calls)
    return replace(pieces[0], calls=calls, found=tuple(call for piece in pieces for call in piece.found))


def _closing(rollout: Rollout) -> Any:
    assert rollout.closed is not None
    return rollout.closed


def _kept(rollout: Rollout, settings: FoldSettings) -> bool:
    status = _closing(rollout).settled.status
    return bool(status == COMPLETED or (status == "incomplete" and settings.on_incomplete == "keep"))


def _result(rollout: Rollout, keep: bool, dropped: str | None) -> RolloutResult:
    closing, started = _closing(rollout), rollout.attempt.started
    settled = closing.settled
    status, reason = settled.status, settled.reason
    if keep:
        status = "group_dropped" if dropped else "emitted"
        reason = dropped or reason
    return RolloutResult(
        rollout_id=rollout.rollout_id,
        attempt=rollout.attempt.number,
        task_id=started.task_id,
        split=started.split,
        status=status,
        reason=None if status == "failed" else reason,
        error=settled.error,
        policy_version=started.policy_version,
        turn_count=settled.turn_count,
        final=dict(settled.final),
        outcomes=settled.outcomes,
        extra_info_refused=settled.extra_info_refused,
        first_event=rollout.first_offset,
        closing_event=closing.offset,
        metadata=started.metadata,
    )


def _surplus(started: Any, offset: int, group: Group) -> RolloutResult:
    return RolloutResult(
        rollout_id=started.rollout_id,
        attempt=started.attempt,
        task_id=started.task_id,
        split=started.split,
        status="surplus",
        reason=f"beyond the group's {group.size} rollouts",
        error=None,
        policy_version=started.policy_version,
        turn_count=0,
        final={},
        outcomes=(),
        extra_info_refused=(),
        first_event=offset,
        closing_event=offset,
        metadata=started.metadata,
    )


def _policy_versions(samples: Sequence[Sample], rollouts: Sequence[Rollout]) -> list[int]:
    found = []
    for sample in samples:
        known = [run.policy_version for run in sample.policy_version_runs if run.policy_version is not None]
        start = rollouts[sample.rollout_index].attempt.started.policy_version
        found += known or ([] if start is None else [start])
    return found


def _spread(results: Sequence[RolloutResult]) -> Iterator[RolloutResult]:
    """Results of bounded size: a large one goes on in records that hold only more of its outcomes and finals."""
    for result in results:
        rest = replace(result, outcomes=(), final={}, metadata=b"", error=None, extra_info_refused=())
        runs = _runs([*_pieces(result.outcomes), *result.final.items()])
        yield _filled(replace(result, outcomes=(), final={}), next(runs))
        for run in runs:
            yield _filled(rest, run)


def _filled(result: RolloutResult, run: Sequence[RewardOutcome | tuple[str, float]]) -> RolloutResult:
    outcomes = tuple(each for each in run if isinstance(each, RewardOutcome))
    return replace(result, outcomes=outcomes, final=dict(each for each in run if isinstance(each, tuple)))


def _pieces(outcomes: Sequence[RewardOutcome]) -> Iterator[RewardOutcome]:
    """Outcomes that name at most CALLS_AN_OUTCOME calls: one with more goes on in others of its reward."""
    for outcome in outcomes:
        yield replace(outcome, calls=outcome.calls[:CALLS_AN_OUTCOME], found=outcome.found[:CALLS_AN_OUTCOME])
        for start in range(CALLS_AN_OUTCOME, max(len(outcome.calls), len(outcome.found)), CALLS_AN_OUTCOME):
            end = start + CALLS_AN_OUTCOME
            yield replace(outcome, calls=outcome.calls[start:end], found=outcome.found[start:end])


def _runs(
    items: Sequence[RewardOutcome | tuple[str, float]],
) -> Iterator[list[RewardOutcome | tuple[str, float]]]:
    """At least one run, which may be empty."""
    run: list[RewardOutcome | tuple[str, float]] = []
    size = 0
    for item in items:
        item_bytes = _outcome_bytes(item) if isinstance(item, RewardOutcome) else 4 * len(item[0]) + 20
        if run and size + item_bytes > OUTCOME_BYTES_A_RECORD:
            yield run
            run, size = [], 0
        run.append(item)
        size += item_bytes
    yield run


def _outcome_bytes(outcome: RewardOutcome) -> int:
    """Upper limit of an outcome's encoded size."""
    texts = [outcome.reward_id, outcome.name, outcome.scorer or "", outcome.scorer_version or ""]
    texts += [*outcome.calls, *outcome.found]
    return 4 * sum(map(len, texts)) + 5 * len(texts) + 100


def _result_bytes(result: RolloutResult) -> int:
    """Encoded size of one rollout's result, measured on a batch that holds nothing else."""
    return len(_encode(Batch("", "", "", "", 0, 0, 0, 0, "", None, None, None, None, (result,), ())))


def _encode(batch: Batch) -> bytes:
    record = _plain(batch)
    record["rollouts"] = [
        {**_plain(result), "outcomes": [_plain(each) for each in result.outcomes]} for result in batch.rollouts
    ]
    record["samples"] = [
        {
            **sample._asdict(),
            "policy_version_runs": [_plain(run) for run in sample.policy_version_runs],
            "arrays": [_plain(each) for each in sample.arrays],
        }
        for sample in batch.samples
    ]
    return encode_record(RECORD, record)


def _plain(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in _names(type(value))}


_NAMES: dict[type, tuple[str, ...]] = {}


def _names(kind: type) -> tuple[str, ...]:
    if kind not in _NAMES:
        _NAMES[kind] = tuple(field.name for field in fields(kind))
    return _NAMES[kind]


_READER = RecordReader(
    RECORD,
    {RECORD: Batch}
    | {each.__name__: each for each in (RolloutResult, RewardOutcome, Sample, PolicyVersionRun, TokenArray)},
)
