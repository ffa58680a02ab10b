"""Rows of a step as numpy arrays, written from the packed bytes of samples without a Python list of tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolloutlog.consumers.samples import Sample
from rolloutlog.consumers.step import Step
from rolloutlog.eventstore.errors import InvalidSettings, StoreError
from rolloutlog.eventstore.tokens import TOKEN_BYTES

UNKNOWN_VERSION = -1
NO_GROUP = -1


class SampleTooLong(StoreError):
    """A sample has more tokens than a row; nothing is cut. The text names it, the limit and its length."""


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """B rows of P prompt and R response tokens. Rows of padding come last: masks 0, ids `pad_id`, total 0.0, groups -1.

    prompt_ids          int32   [B, P]  left-padded with `pad_id`
    prompt_mask         uint8   [B, P]  1 = a token of the prompt
    response_ids        int32   [B, R]  right-padded with `pad_id`
    response_mask       uint8   [B, R]  1 = written by the policy; 0 = a tool's token, or padding
    attention_mask      uint8   [B, R]  1 = a token of the response, also a tool's
    logprobs            float32 [B, R]  natural log, as recorded; 0.0 where the mask is 0 or none were recorded
    has_logprobs        bool    [B]     whether any were recorded
    token_rewards       float64 [B, R]  weighted rewards at their tokens; they add up to `total`
    total               float64 [B]     NaN = no reward, when the stream leaves it so
    group_index         int32   [B]     index into the step's batches, over all ranks
    rollout_index       int32   [B]     index into the batch's rollouts
    policy_version_min  int64   [B]     oldest policy version in the row, -1 = unknown
    is_padding          bool    [B]     a row without a sample
    """

    prompt_ids: NDArray[np.int32]
    prompt_mask: NDArray[np.uint8]
    response_ids: NDArray[np.int32]
    response_mask: NDArray[np.uint8]
    attention_mask: NDArray[np.uint8]
    logprobs: NDArray[np.float32]
    has_logprobs: NDArray[np.bool_]
    token_rewards: NDArray[np.float64]
    total: NDArray[np.float64]
    group_index: NDArray[np.int32]
    rollout_index: NDArray[np.int32]
    policy_version_min: NDArray[np.int64]
    is_padding: NDArray[np.bool_]


def pad_step(step: Step, prompt_tokens: int, response_tokens: int, pad_id: int) -> Padded:
    """See `Step.padded`."""
    for name, value in (("prompt_tokens", prompt_tokens), ("response_tokens", response_tokens)):
        if value < 0:
            raise InvalidSettings(f"{name}: expected an integer from 0, got {value!r}")
    rows = step.row_count
    prompt, response = (rows, prompt_tokens), (rows, response_tokens)
    padded = Padded(
        prompt_ids=np.full(prompt, pad_id, np.int32),
        prompt_mask=np.zeros(prompt, np.uint8),
        response_ids=np.full(response, pad_id, np.int32),
        response_mask=np.zeros(response, np.uint8),
        attention_mask=np.zeros(response, np.uint8),
        logprobs=np.zeros(response, np.float32),
        has_logprobs=np.zeros(rows, np.bool_),
        token_rewards=np.zeros(response, np.float64),
        total=np.zeros(rows, np.float64),
        group_index=np.full(rows, NO_GROUP, np.int32),
        rollout_index=np.full(rows, -1, np.int32),
        policy_version_min=np.full(rows, UNKNOWN_VERSION, np.int64),
        is_padding=np.arange(rows) >= len(step.samples),
    )
    for row, sample in enumerate(step.samples):
        _write(padded, row, sample, step.missing_reward)
    padded.group_index[: len(step.samples)] = step.groups
    return padded


def last_policy_token(sample: Sample) -> int:
    """Index of the last response token with mask 1, -1 when there is none."""
    return sample.response_mask.rfind(b"\x01")


def _write(padded: Padded, row: int, sample: Sample, missing: float | None) -> None:
    tokens = _checked(sample, "prompt", sample.prompt_ids, padded.prompt_ids)
    if tokens:
        padded.prompt_ids[row, -tokens:] = np.frombuffer(sample.prompt_ids, "<i4")
        padded.prompt_mask[row, -tokens:] = 1
    tokens = _checked(sample, "response", sample.response_ids, padded.response_ids)
    padded.response_ids[row, :tokens] = np.frombuffer(sample.response_ids, "<i4")
    padded.response_mask[row, :tokens] = np.frombuffer(sample.response_mask, np.uint8)
    padded.attention_mask[row, :tokens] = 1
    if sample.logprobs is not None:
        padded.logprobs[row, :tokens] = np.frombuffer(sample.logprobs, "<f4")
        padded.has_logprobs[row] = True
    total = sample.total
    if total is not None:
        index = np.frombuffer(sample.reward_token_index, "<i4")
        np.add.at(padded.token_rewards[row], index, np.frombuffer(sample.reward_token_value, "<f8"))
    elif missing is not None:
        total = missing
        if (last := last_policy_token(sample)) >= 0:
            padded.token_rewards[row, last] = missing
    padded.total[row] = np.nan if total is None else total
    padded.rollout_index[row] = sample.rollout_index
    known = [run.policy_version for run in sample.policy_version_runs if run.policy_version is not None]
    padded.policy_version_min[row] = min(known, default=UNKNOWN_VERSION)


def _checked(sample: Sample, name: str, ids: bytes, array: NDArray[Any]) -> int:
    tokens, limit = len(ids) // TOKEN_BYTES, array.shape[1]
    if tokens > limit:
        raise SampleTooLong(
            f"sample {sample.sample_id}: expected a {name} of at most {limit} tokens, got {tokens}; nothing is cut: "
            f"pad to more tokens, or open the stream with {name}_tokens_max={limit}, which filters such samples"
        )
    return tokens
