"""What a batch is checked for before it is trained on: another program, or a newer one, may have written it.

A sample that is refused ends `rejected`, and the rest of its batch is trained on. A batch that is wrong as a whole (two
attempts of one rollout, one sample twice) is refused whole: which of them is meant cannot be told. Nothing is mended.
"""

from collections.abc import Sequence
from math import isclose, isfinite, prod

import numpy as np

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.samples import Sample
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
    return None


def sample_fault(sample: Sample, rollout_count: int) -> str | None:
    """Why the sample cannot be trained on, as `field: expected ..., got ...`; None = it can."""
    if not 0 <= sample.rollout_index < rollout_count:
        return f"rollout_index: expected one of the batch's {rollout_count} rollouts, got {sample.rollout_index}"
    return _token_fault(sample) or _reward_fault(sample) or _beside_fault(sample)


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
    tokens = len(sample.response_mask)
    for at in np.frombuffer(index, "<i4").tolist():
        if not 0 <= at < tokens:
            return f"reward_token_index: expected indices into {tokens} response tokens, got {at}"
        if not sample.response_mask[at]:
            return f"reward_token_index: expected tokens that the policy wrote, got index {at} with mask 0"
    rewards = np.frombuffer(value, "<f8").tolist()
    total = sample.total
    if (total is None) != (not rewards):
        return f"total: expected {'none without rewards' if not rewards else 'a number with rewards'}, got {total}"
    if total is not None and not (isfinite(total) and all(map(isfinite, rewards))):
        return f"total: expected finite rewards, got {total}"
    if total is not None and not isclose(total, sum(rewards), rel_tol=1e-9, abs_tol=1e-9 * max(map(abs, rewards))):
        return f"total: expected the sum of its rewards, {sum(rewards)}, got {total}"
    return None


def _beside_fault(sample: Sample) -> str | None:
    tokens = len(sample.response_mask)
    for array in sample.arrays:
        if not array.shape or array.shape[0] != tokens:
            return f"arrays.{array.name}: expected a first axis of {tokens} response tokens, got shape {array.shape}"
        if (fault := _array_fault(array.dtype, array.shape, array.data)) is not None:
            return f"arrays.{array.name}: {fault}"
    runs = sample.policy_version_runs
    got = sum(run.tokens for run in runs)
    if runs and (got != tokens or min(run.tokens for run in runs) < 0):
        return f"policy_version_runs: expected runs of {tokens} response tokens in all, got {got}"
    if sample.call_tokens is not None:
        expected, got = 8 * len(sample.span_ids), len(sample.call_tokens)
        if got != expected:
            return f"call_tokens: expected {expected} bytes, 8 a call, got {got}"
        ends = np.frombuffer(sample.call_tokens, "<i4").tolist()
        if sorted([0, *ends, tokens]) != [0, *ends, tokens]:
            return f"call_tokens: expected ascending places within {tokens} response tokens, got others"
    return None


def _array_fault(dtype: str, shape: Sequence[int], data: bytes) -> str | None:
    try:
        size_bytes = prod(shape) * np.dtype(dtype).itemsize
    except TypeError:
        return f"expected a dtype that numpy knows, got {dtype!r}"
    return None if len(data) == size_bytes else f"expected {size_bytes} bytes, got {len(data)}"
