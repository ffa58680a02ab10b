"""What a batch is checked for before it is trained on: another program, or a newer one, may have written it.

A sample that is refused ends `rejected`, and the rest of its batch is trained on. A batch that is wrong as a whole (two
attempts of one rollout, one sample twice) is refused whole: which of them is meant cannot be told. Nothing is mended.
"""

from collections.abc import Mapping, Sequence
from math import isclose, isfinite, prod

import numpy as np

from rolloutlog.consumers.batches import Batch, RolloutResult
from rolloutlog.consumers.samples import Sample
from rolloutlog.eventstore.checks import ARRAY_DTYPE, AXES_MAX
from rolloutlog.eventstore.events import TokenArray
from rolloutlog.eventstore.tokens import TOKEN_BYTES

EMITTED = "emitted"


def batch_fault(batch: Batch) -> str | None:
    """Why no sample of the batch can be trained on; None = nothing speaks against it."""
    attempts: dict[str, int] = {}
    emitted = [(each.rollout_id, each.attempt) for each in batch.rollouts if each.status == EMITTED]
    if len(set(emitted)) < len(emitted):
        twice = next(each for each in emitted if emitted.count(each) > 1)
        return f"expected each rollout once, got rollout {twice[0]}, attempt {twice[1]}, twice"
    for rollout_id, attempt in [*emitted, *filter(None, (_identity(each) for each in batch.samples))]:
        if attempts.setdefault(rollout_id, attempt) != attempt:
            both = f"{attempts[rollout_id]} and {attempt}"
            return f"expected samples of one attempt of each rollout, got attempts {both} of rollout {rollout_id}"
    seen: set[str] = set()
    for sample in batch.samples:
        if sample.sample_id in seen:
            return f"expected each sample once, got {sample.sample_id} twice"
        seen.add(sample.sample_id)
    return _version_fault(batch)


def sample_fault(sample: Sample, rollouts: Sequence[RolloutResult]) -> str | None:
    """Why it cannot be trained on, as `field: expected ..., got ...`; None = it can. `rollouts`: the batch's."""
    return (
        _identity_fault(sample, rollouts)
        or _token_fault(sample)
        or _reward_fault(sample)
        or _beside_fault(sample)
        or _call_fault(sample)
    )


def _version_fault(batch: Batch) -> str | None:
    """What is wrong with the oldest version, by which the group's staleness is told."""
    oldest = batch.policy_version_min
    if oldest is not None and oldest < 0:
        return f"expected a policy_version_min from 0, got {oldest}"
    for sample in batch.samples:
        for run in sample.policy_version_runs:
            version = run.policy_version
            if version is not None and version >= 0 and (oldest is None or version < oldest):
                return (
                    f"expected a policy_version_min of at most {version}, which wrote {sample.sample_id}, got {oldest}"
                )
    return None


def _identity_fault(sample: Sample, rollouts: Sequence[RolloutResult]) -> str | None:
    """What is wrong with whose it is: it would be compared with the wrong rollouts."""
    if not sample.sample_id:
        return "sample_id: expected text that is not empty, got ''"
    if not 0 <= sample.rollout_index < len(rollouts):
        return f"rollout_index: expected one of the batch's {len(rollouts)} rollouts, got {sample.rollout_index}"
    rollout, named = rollouts[sample.rollout_index], _identity(sample)
    if rollout.status != EMITTED:
        return f"rollout_index: expected a rollout that is emitted, got {rollout.rollout_id}, which is {rollout.status}"
    if named is not None and named != (rollout.rollout_id, rollout.attempt):
        return (
            f"rollout_index: expected the rollout that its id names, {named[0]}, attempt {named[1]}, got "
            f"{rollout.rollout_id}, attempt {rollout.attempt}"
        )
    return None


def _identity(sample: Sample) -> tuple[str, int] | None:
    """Rollout and attempt, as the sample's id names them."""
    rollout_id, _, rest = sample.sample_id.rpartition("/")[0].rpartition("/")
    return (rollout_id, int(rest)) if rollout_id and rest.isdecimal() else None


def _token_fault(sample: Sample) -> str | None:
    for name, packed in (("prompt_ids", sample.prompt_ids), ("response_ids", sample.response_ids)):
        if len(packed) % TOKEN_BYTES:
            return f"{name}: expected {TOKEN_BYTES} bytes a token, got {len(packed)} bytes"
        ids = np.frombuffer(packed, "<i4")
        if len(ids) and np.minimum.reduce(ids) < 0:  # at twice the speed of `min`, on every token that is read
            at = int((ids < 0).argmax())
            # a token id from 2**31 on reads as a negative one
            return f"{name}: expected token ids from 0 to 2**31 - 1, got {int(ids[at]) % 2**32} at index {at}"
    tokens, mask = len(sample.response_ids) // TOKEN_BYTES, sample.response_mask
    if len(mask) != tokens:
        return f"response_mask: expected {tokens} values, one per response token, got {len(mask)}"
    written = mask.count(1)
    if mask.count(0) + written < tokens:
        return "response_mask: expected 0 and 1, got " + str(max(mask))
    if not written:
        return "response_mask: expected a token that the policy wrote, got none"
    if sample.logprobs is not None:
        if len(sample.logprobs) != tokens * TOKEN_BYTES:
            got = len(sample.logprobs) / TOKEN_BYTES
            return f"logprobs: expected {tokens} values, one per response token, got {got:g}"
        if not np.isfinite(np.frombuffer(sample.logprobs, "<f4")).all():
            return "logprobs: expected finite numbers, got others"
    return None


def _reward_fault(sample: Sample) -> str | None:
    index, value = sample.reward_token_index, sample.reward_token_value
    if len(index) % 4 or len(value) % 8 or len(index) // 4 != len(value) // 8:
        return f"reward_token_value: expected one of 8 bytes per index, got {len(value)} for {len(index)} of indices"
    tokens, before = len(sample.response_mask), -1
    for at in np.frombuffer(index, "<i4").tolist():
        if not 0 <= at < tokens:
            return f"reward_token_index: expected indices into {tokens} response tokens, got {at}"
        if not sample.response_mask[at]:
            return f"reward_token_index: expected tokens that the policy wrote, got index {at} with mask 0"
        if at <= before:
            return f"reward_token_index: expected ascending indices, got {at} after {before}"
        before = at
    rewards = np.frombuffer(value, "<f8").tolist()
    total = sample.total
    if (total is None) != (not rewards):
        return f"total: expected {'none without rewards' if not rewards else 'a number with rewards'}, got {total}"
    if total is not None and not (isfinite(total) and all(map(isfinite, rewards))):
        return f"total: expected finite rewards, got {total}"
    if total is not None and not isclose(total, sum(rewards), rel_tol=1e-9, abs_tol=1e-9 * max(map(abs, rewards))):
        return f"total: expected the sum of its rewards, {sum(rewards)}, got {total}"
    final = sample.final_total
    if final is not None and (total is None or not isfinite(final)):
        return f"final_total: expected {'none without rewards' if total is None else 'a finite number'}, got {final}"
    return _named_fault("step", sample.step) or _named_fault("final", sample.final)


def _named_fault(field: str, values: Mapping[str, float]) -> str | None:
    wrong = next((name for name, value in values.items() if not isfinite(value)), None)
    return None if wrong is None else f"{field}: expected finite numbers, got {values[wrong]} of {wrong}"


def _beside_fault(sample: Sample) -> str | None:
    tokens = len(sample.response_mask)
    names = [array.name for array in sample.arrays]
    if len(set(names)) < len(names):
        return f"arrays: expected each array once, got {names}"
    for array in sample.arrays:
        if (fault := _array_fault(array, tokens)) is not None:
            return f"arrays.{array.name}: {fault}"
    runs = sample.policy_version_runs
    got = sum(run.tokens for run in runs)
    if runs and (got != tokens or min(run.tokens for run in runs) < 0):
        return f"policy_version_runs: expected runs of {tokens} response tokens in all, got {got}"
    version = min((run.policy_version for run in runs if run.policy_version is not None), default=0)
    return None if version >= 0 else f"policy_version_runs: expected versions from 0, got {version}"


def _array_fault(array: TokenArray, tokens: int) -> str | None:
    shape = array.shape
    if not shape or shape[0] != tokens:
        return f"expected a first axis of {tokens} response tokens, got shape {shape}"
    if len(shape) > AXES_MAX or min(shape) < 0 or max(shape) >= 2**31:
        return f"expected 1 to {AXES_MAX} axes from 0 to 2**31 - 1, got shape {shape[: AXES_MAX + 1]}"
    if not ARRAY_DTYPE.fullmatch(array.dtype):
        return f"expected a little-endian dtype of numbers, got {array.dtype!r}"
    try:
        size_bytes = prod(shape) * np.dtype(array.dtype).itemsize
    except TypeError:
        return f"expected a dtype that numpy knows, got {array.dtype!r}"
    return None if len(array.data) == size_bytes else f"expected {size_bytes} bytes, got {len(array.data)}"


def _call_fault(sample: Sample) -> str | None:
    """What is wrong with where its calls stand: they cannot be told apart again."""
    calls, tokens, packed = sample.span_ids, len(sample.response_mask), sample.call_tokens
    if len(set(calls)) < len(calls):
        return "span_ids: expected each call once, got one twice"
    if packed is None:
        return None if len(calls) == 1 else f"call_tokens: expected places of {len(calls)} calls, got none"
    if len(packed) != 8 * len(calls):
        return f"call_tokens: expected {8 * len(calls)} bytes, 8 a call, got {len(packed)}"
    ends = np.frombuffer(packed, "<i4")
    places = np.concatenate(([0], ends, [tokens]))
    if (places[1:] < places[:-1]).any():
        return f"call_tokens: expected ascending places within {tokens} response tokens, got others"
    written = np.zeros(tokens, np.uint8)
    for start, end in ends.reshape(-1, 2).tolist():
        written[start:end] = 1
    return (
        None if written.tobytes() == sample.response_mask else "call_tokens: expected mask 1 in calls alone, got others"
    )
