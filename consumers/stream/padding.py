"""Rows of a step as numpy arrays, written from the packed bytes of samples without a Python list of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolloutlog.consumers.samples import Sample
from rolloutlog.consumers.stream.step import Step
from rolloutlog.eventstore.checks import plain_integer
from rolloutlog.eventstore.errors import InvalidSettings, StoreError
from rolloutlog.eventstore.tokens import TOKEN_BYTES

UNKNOWN_VERSION = -1
NO_GROUP = -1
TOKENS_END = 2**31  # ids and lengths are 32-bit integers

Buffer = bytes | memoryview


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
    prompt_tokens = _integer("prompt_tokens", prompt_tokens, 0)
    response_tokens = _integer("response_tokens", response_tokens, 0)
    pad_id = _integer("pad_id", pad_id, -TOKENS_END)
    samples, rows = step.samples, step.row_count
    prompts = [sample.prompt_ids for sample in samples]
    responses = [sample.response_ids for sample in samples]
    _check_lengths(samples, "prompt", prompts, prompt_tokens)
    _check_lengths(samples, "response", responses, response_tokens)
    ones = b"\x01" * max(prompt_tokens, response_tokens)
    totals = step.totals + (0.0,) * step.padding_count
    return Padded(
        prompt_ids=_joined(prompts, "<i4", rows, prompt_tokens, pad_id, left=True),
        prompt_mask=_joined(_cut(ones, prompts), "|u1", rows, prompt_tokens, 0, left=True),
        response_ids=_joined(responses, "<i4", rows, response_tokens, pad_id),
        response_mask=_joined([each.response_mask for each in samples], "|u1", rows, response_tokens, 0),
        attention_mask=_joined(_cut(ones, responses), "|u1", rows, response_tokens, 0),
        logprobs=_joined([each.logprobs or b"" for each in samples], "<f4", rows, response_tokens, 0),
        has_logprobs=_column([each.logprobs is not None for each in samples], np.bool_, rows, False),
        token_rewards=_token_rewards(step, response_tokens),
        total=np.array([np.nan if total is None else total for total in totals], np.float64),
        group_index=_column(step.groups, np.int32, rows, NO_GROUP),
        rollout_index=_column([each.rollout_index for each in samples], np.int32, rows, -1),
        policy_version_min=_column([_oldest(each) for each in samples], np.int64, rows, UNKNOWN_VERSION),
        is_padding=np.arange(rows) >= len(samples),
    )


def last_policy_token(sample: Sample) -> int:
    """Index of the last response token with mask 1, -1 when there is none."""
    return sample.response_mask.rfind(b"\x01")


def _joined(
    parts: Sequence[Buffer], dtype: str, rows: int, tokens: int, pad: int, *, left: bool = False
) -> NDArray[Any]:
    """Packed values of each row and its padding as one array, written once and without a step of Python for a token."""
    padding = memoryview(np.full(tokens, pad, dtype).tobytes())
    pieces: list[Buffer] = []
    for part in parts:
        rest = padding[len(part) :]
        pieces += (rest, part) if left else (part, rest)
    pieces += [padding] * (rows - len(parts))
    array = np.frombuffer(bytearray().join(pieces), dtype).reshape(rows, tokens)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _cut(ones: bytes, parts: Sequence[bytes]) -> list[Buffer]:
    """A one for each token of each part."""
    view = memoryview(ones)
    return [view[: len(part) // TOKEN_BYTES] for part in parts]


def _token_rewards(step: Step, tokens: int) -> NDArray[np.float64]:
    array = np.zeros((step.row_count, tokens), np.float64)
    samples = step.samples
    index = np.frombuffer(b"".join(each.reward_token_index for each in samples), "<i4")
    value = np.frombuffer(b"".join(each.reward_token_value for each in samples), "<f8")
    row = np.repeat(np.arange(len(samples)), [len(each.reward_token_index) // TOKEN_BYTES for each in samples])
    np.add.at(array, (row, index), value)
    if step.missing_reward is not None:
        for row_index, sample in enumerate(samples):
            if sample.total is None and (last := last_policy_token(sample)) >= 0:
                array[row_index, last] = step.missing_reward
    return array


def _column(values: Sequence[Any], dtype: Any, rows: int, padding: Any) -> NDArray[Any]:
    column = np.full(rows, padding, dtype)
    column[: len(values)] = values
    return column


def _oldest(sample: Sample) -> int:
    if not sample.policy_version_runs:
        return UNKNOWN_VERSION
    known = [run.policy_version for run in sample.policy_version_runs if run.policy_version is not None]
    return min(known, default=UNKNOWN_VERSION)


def _integer(name: str, value: Any, least: int) -> int:
    value = plain_integer(value)
    if type(value) is not int or not least <= value < TOKENS_END:
        raise InvalidSettings(f"{name}: expected an integer from {least} to {TOKENS_END - 1}, got {value!r}")
    return value


def _check_lengths(samples: Sequence[Sample], name: str, parts: Sequence[bytes], limit: int) -> None:
    if max(map(len, parts), default=0) < (limit + 1) * TOKEN_BYTES:
        return
    index = next(index for index, part in enumerate(parts) if len(part) // TOKEN_BYTES > limit)
    raise SampleTooLong(
        f"sample {samples[index].sample_id}: expected a {name} of at most {limit} tokens, got "
        f"{len(parts[index]) // TOKEN_BYTES}; nothing is cut: pad to more tokens, or open the stream with "
        f"{name}_tokens_max={limit}, which filters such samples"
    )
