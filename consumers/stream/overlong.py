"""Samples with more tokens than a stream takes: dropped, or cut, and never trained on without a word.

truncate_left   leaves out the first tokens
truncate_right  leaves out the last ones
Rewards         a reward on a token that is left out moves to the nearest token with mask 1 that stays, so that `total`
                is what it was. A response of which no such token stays is dropped
Not cut         which rewards count, and the sample's id
"""

from dataclasses import dataclass

import numpy as np

from rolloutlog.consumers.samples import Sample, cut_array, cut_runs
from rolloutlog.eventstore.tokens import TOKEN_BYTES

DROP, TRUNCATE_LEFT, TRUNCATE_RIGHT = "drop", "truncate_left", "truncate_right"
OVERLONG = (DROP, TRUNCATE_LEFT, TRUNCATE_RIGHT)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many tokens fit (None = any), and what becomes of samples with more: each one of OVERLONG."""

    prompt_tokens: int | None
    response_tokens: int | None
    prompt_rule: str = DROP
    response_rule: str = DROP

    @property
    def is_none(self) -> bool:
        """Whether any number fits."""
        return self.prompt_tokens is None and self.response_tokens is None

    def drop(self, sample: Sample) -> bool:
        """Whether it is dropped for its length."""
        prompt = self.prompt_rule == DROP and _is_above(sample.prompt_ids, self.prompt_tokens)
        return prompt or (self.response_rule == DROP and _is_above(sample.response_ids, self.response_tokens))

    def cut(self, sample: Sample) -> Sample | None:
        """As many of its tokens as fit; itself where all do. None = dropped: no token with mask 1 would be left."""
        if self.prompt_tokens is not None and _is_above(sample.prompt_ids, self.prompt_tokens):
            start, end = _kept(len(sample.prompt_ids) // TOKEN_BYTES, self.prompt_tokens, self.prompt_rule)
            sample = sample._replace(prompt_ids=sample.prompt_ids[start * TOKEN_BYTES : end * TOKEN_BYTES])
        if self.response_tokens is not None and _is_above(sample.response_ids, self.response_tokens):
            return _cut_response(sample, *_kept(len(sample.response_mask), self.response_tokens, self.response_rule))
        return sample


def _is_above(ids: bytes, tokens_max: int | None) -> bool:
    return tokens_max is not None and len(ids) > tokens_max * TOKEN_BYTES


def _kept(tokens: int, tokens_max: int, rule: str) -> tuple[int, int]:
    return (tokens - tokens_max, tokens) if rule == TRUNCATE_LEFT else (0, tokens_max)


def _cut_response(sample: Sample, start: int, end: int) -> Sample | None:
    """The response's tokens from `start` to before `end`; None when none of them has mask 1."""
    mask = sample.response_mask[start:end]
    first, last = mask.find(1), mask.rfind(1)
    if first < 0:
        return None
    places = np.frombuffer(sample.reward_token_index, "<i4") - start
    # A reward sits on mask 1, so the nearest one that stays is the first or the last.
    places = np.clip(places, first, last)
    values = np.frombuffer(sample.reward_token_value, "<f8")
    index = np.unique(places)
    value = np.array([values[places == at].sum() for at in index], "<f8")
    logprobs, calls = sample.logprobs, sample.call_tokens
    if calls is not None:
        calls = np.clip(np.frombuffer(calls, "<i4") - start, 0, end - start).astype("<i4").tobytes()
    return sample._replace(
        response_ids=sample.response_ids[start * TOKEN_BYTES : end * TOKEN_BYTES],
        response_mask=mask,
        logprobs=None if logprobs is None else logprobs[start * TOKEN_BYTES : end * TOKEN_BYTES],
        policy_version_runs=cut_runs(sample.policy_version_runs, start, end),
        reward_token_index=index.astype("<i4").tobytes(),
        reward_token_value=value.tobytes(),
        arrays=tuple(cut_array(each, start, end) for each in sample.arrays),
        call_tokens=calls,
    )
