"""Whether a batch is plainly sound: the common case, told for all of its samples at once.

Not here  what is wrong, and batches of which this cannot be told at once: consumers.stream.sample_checks
"""

from collections.abc import Sequence
from math import isfinite
from struct import Struct

import numpy as np

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.samples import Sample
from rolloutlog.consumers.stream.sample_checks import EMITTED
from rolloutlog.eventstore.tokens import TOKEN_BYTES

_INDEX = Struct("<i")
_VALUE = Struct("<d")


def is_plainly_sound(batch: Batch) -> bool:
    """True: neither the batch nor a sample has a fault. False says nothing: they are to be looked at one by one.

    Plain is a sample of one call with at most one reward and without arrays.
    """
    samples = batch.samples
    rollouts = enumerate(batch.rollouts)
    emitted = {index: f"{each.rollout_id}/{each.attempt}" for index, each in rollouts if each.status == EMITTED}
    if len({batch.rollouts[index].rollout_id for index in emitted}) < len(emitted):
        return False
    if len({each.sample_id for each in samples}) < len(samples):
        return False
    oldest = batch.policy_version_min
    if oldest is not None and oldest < 0:
        return False
    for sample in samples:
        tokens = len(sample.response_mask)
        if not (
            sample.sample_id.rpartition("/")[0] == emitted.get(sample.rollout_index)
            and len(sample.response_ids) == tokens * TOKEN_BYTES
            and not len(sample.prompt_ids) % TOKEN_BYTES
            and (sample.logprobs is None or len(sample.logprobs) == tokens * TOKEN_BYTES)
            and len(sample.span_ids) == 1
            and sample.call_tokens is None
            and not sample.arrays
            and 1 in sample.response_mask
            and _are_runs_sound(sample, oldest, tokens)
            and _are_rewards_sound(sample, tokens)
        ):
            return False
    return _are_columns_sound(samples)


def _are_runs_sound(sample: Sample, oldest: int | None, tokens: int) -> bool:
    if not sample.policy_version_runs:
        return True
    for run in sample.policy_version_runs:
        tokens -= run.tokens
        version = run.policy_version
        if run.tokens < 0 or (version is not None and (oldest is None or version < oldest)):
            return False
    return tokens == 0


def _are_rewards_sound(sample: Sample, tokens: int) -> bool:
    index, value = sample.reward_token_index, sample.reward_token_value
    total, final = sample.total, sample.final_total
    if total is None:
        if index or value or final is not None:
            return False
    elif not (
        len(index) == _INDEX.size
        and len(value) == _VALUE.size
        and _VALUE.unpack(value)[0] == total
        and isfinite(total)
        and 0 <= (at := _INDEX.unpack(index)[0]) < tokens
        and sample.response_mask[at]
        and (final is None or isfinite(final))
    ):
        return False
    return all(map(isfinite, sample.step.values())) and all(map(isfinite, sample.final.values()))


def _are_columns_sound(samples: Sequence[Sample]) -> bool:
    """Token ids from 0, masks of 0 and 1, finite log-probs: each looked at once for all samples."""
    columns = [each.prompt_ids for each in samples] + [each.response_ids for each in samples]
    ids = np.frombuffer(b"".join(columns), "<i4")
    if len(ids) and np.minimum.reduce(ids) < 0:
        return False
    mask = np.frombuffer(b"".join([each.response_mask for each in samples]), np.uint8)
    if len(mask) and np.maximum.reduce(mask) > 1:
        return False
    logprobs = np.frombuffer(b"".join([each.logprobs for each in samples if each.logprobs]), "<f4")
    # One number that is not finite makes the sum such a one; a sum that is too large is looked at again.
    with np.errstate(all="ignore"):
        return bool(isfinite(np.add.reduce(logprobs)))
