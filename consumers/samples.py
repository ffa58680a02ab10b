"""Training samples from calls.

A sample is one training row. With `merge=none` it is one call: its prompt, its response, a mask of ones. With
`merge=trajectory` it is one line of conversation: the prompt of its first call, then responses with mask 1 and what was
observed between them with mask 0. `split_calls` undoes it.

Rewards sit on response tokens: a call's weighted step rewards at its last token, the final values once at the row's
last token with mask 1, never on a tool's token. `total` is their sum, None when nothing reaches the row: never 0 in its
place.

Not here  which calls make a line: consumers.trajectory
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rolloutlog.consumers.attribution import CallResult
from rolloutlog.consumers.trajectory import Line, LineCall
from rolloutlog.eventstore.events import PolicyVersionRun, Span, TokenArray
from rolloutlog.eventstore.tokens import TOKEN_BYTES


class Sample(NamedTuple):
    """One training row of P prompt and T response tokens; `_replace` makes a changed one.

    prompt_ids, response_ids   int32 little-endian, 4 P and 4 T bytes
    response_mask              uint8, T bytes, 1 = written by the policy
    logprobs                   float32 little-endian, natural log, 4 T bytes, 0.0 where mask is 0; None = not recorded
    reward_token_index         int32 little-endian, k indices into the response, ascending
    reward_token_value         float64 little-endian, k weighted rewards; `total` is their sum, None when k = 0
    step, final                name to value, unweighted; step values of several calls are added up
    final_total                what is of final values in `total`; None = none of them reaches it
    call_tokens                int32 little-endian, of each call where its response begins and ends (before which token)
                               in the row's; None = the row is one call
    extra_info                 UTF-8 JSON of the rewards that count for it; empty = none
    """

    sample_id: str
    rollout_index: int
    turn_index: int
    span_ids: tuple[str, ...]
    prompt_ids: bytes
    response_ids: bytes
    response_mask: bytes
    logprobs: bytes | None
    policy_version_runs: tuple[PolicyVersionRun, ...]
    total: float | None
    step: Mapping[str, float]
    final: Mapping[str, float]
    reward_token_index: bytes
    reward_token_value: bytes
    extra_info: bytes
    model: str | None
    finish_reason: str | None
    arrays: tuple[TokenArray, ...]
    final_total: float | None = None
    call_tokens: bytes | None = None

    @property
    def call_ranges(self) -> tuple[tuple[int, int], ...]:
        """Of each call, in the order of `span_ids`: where its response begins and ends in the row's, in tokens."""
        if self.call_tokens is None:
            return ((0, len(self.response_mask)),)
        ends = np.frombuffer(self.call_tokens, "<i4").tolist()
        return tuple(zip(ends[::2], ends[1::2], strict=True))

    @property
    def size_bytes(self) -> int:
        """Upper limit of its encoded size."""
        texts = len(self.sample_id) + sum(map(len, (*self.span_ids, *self.step, *self.final)))
        texts += len(self.model or "") + len(self.finish_reason or "")
        packed = sum(map(len, (self.prompt_ids, self.response_ids, self.response_mask, self.logprobs or b"")))
        packed += len(self.reward_token_index) + len(self.reward_token_value) + len(self.extra_info)
        packed += len(self.call_tokens or b"")
        packed += sum(len(each.data) + 4 * len(each.name) + 10 * len(each.shape) + 100 for each in self.arrays)
        # UTF-8 takes at most 4 bytes a character; 20 bytes hold any number or length of a map or list entry.
        return packed + 4 * texts + 20 * (len(self.policy_version_runs) + len(self.step) + len(self.final)) + 300


def call_sample(call: Span, result: CallResult, prompt_ids: bytes, extra_info: bytes, *, rollout_index: int) -> Sample:
    """The sample of one call (`merge=none`).

    call        the span the call is named after; it has at least one response token
    prompt_ids  its full prompt, packed
    """
    response_ids = call.response_ids or b""
    tokens = len(response_ids) // TOKEN_BYTES
    index, value = _reward_tokens([] if result.total is None else [(tokens - 1, result.total)])
    return Sample(
        sample_id=f"{call.rollout_id}/{call.attempt}/{call.span_id}",
        rollout_index=rollout_index,
        turn_index=result.turn_index,
        span_ids=(result.span_id,),
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        response_mask=b"\x01" * tokens,
        logprobs=call.logprobs,
        policy_version_runs=call.policy_version_runs,
        total=result.total,
        step=result.step,
        final=result.final,
        reward_token_index=index,
        reward_token_value=value,
        extra_info=extra_info,
        model=call.model,
        finish_reason=call.finish_reason,
        arrays=call.arrays,
        final_total=result.final_total,
    )


def line_sample(line: Line, extra_info: bytes, *, rollout_index: int) -> Sample:
    """The sample of one line of conversation (`merge=trajectory`). A line of one call gives what `call_sample` does."""
    first, results = line.calls[0], [call.result for call in line.calls]
    if len(line.calls) == 1:
        return call_sample(first.span, first.result, line.prompt_ids, extra_info, rollout_index=rollout_index)
    observed = [call.observed for call in line.calls]
    responses = [call.span.response_ids or b"" for call in line.calls]
    ranges = _ranges(map(_count, observed), map(_count, responses))
    tokens = ranges[-1][1]
    mask = np.zeros(tokens, np.uint8)
    for start, end in ranges:
        mask[start:end] = 1
    final_total = next((each.final_total for each in results if each.final_total is not None), None)
    rewards = _rewards(results, ranges, final_total)
    index, value = _reward_tokens(rewards)
    return Sample(
        sample_id=f"{first.span.rollout_id}/{first.span.attempt}/{first.span.span_id}",
        rollout_index=rollout_index,
        turn_index=first.result.turn_index,
        span_ids=tuple(each.span_id for each in results),
        prompt_ids=line.prompt_ids,
        response_ids=b"".join(part for pair in zip(observed, responses, strict=True) for part in pair),
        response_mask=mask.tobytes(),
        logprobs=_logprobs(line.calls, ranges),
        policy_version_runs=_runs(line.calls, ranges),
        total=sum(amount for _, amount in rewards) if rewards else None,
        step=_added(each.step for each in results),
        final={name: value for each in results for name, value in each.final.items()},
        reward_token_index=index,
        reward_token_value=value,
        extra_info=extra_info,
        model=line.calls[-1].span.model,
        finish_reason=line.calls[-1].span.finish_reason,
        arrays=tuple(_array(each, line.calls, ranges) for each in first.span.arrays),
        final_total=final_total,
        call_tokens=np.array(ranges, "<i4").tobytes(),
    )


@dataclass(frozen=True, slots=True)
class SampleCall:
    """One call of a sample, as it was before merging. Fields as in Sample; `reward`: what sits on its tokens."""

    span_id: str
    prompt_ids: bytes
    response_ids: bytes
    logprobs: bytes | None
    policy_version_runs: tuple[PolicyVersionRun, ...]
    arrays: tuple[TokenArray, ...]
    reward: float | None


def split_calls(sample: Sample) -> Iterator[SampleCall]:
    """Undo a merge: the sample's calls in turn order, each with its full prompt and its response."""
    index = np.frombuffer(sample.reward_token_index, "<i4")
    value = np.frombuffer(sample.reward_token_value, "<f8")
    for span_id, (start, end) in zip(sample.span_ids, sample.call_ranges, strict=True):
        own = value[(index >= start) & (index < end)]
        yield SampleCall(
            span_id=span_id,
            prompt_ids=sample.prompt_ids + sample.response_ids[: start * TOKEN_BYTES],
            response_ids=sample.response_ids[start * TOKEN_BYTES : end * TOKEN_BYTES],
            logprobs=None if sample.logprobs is None else sample.logprobs[start * TOKEN_BYTES : end * TOKEN_BYTES],
            policy_version_runs=cut_runs(sample.policy_version_runs, start, end),
            arrays=tuple(cut_array(each, start, end) for each in sample.arrays),
            reward=float(own.sum()) if len(own) else None,
        )


def cut_runs(runs: Sequence[PolicyVersionRun], start: int, end: int) -> tuple[PolicyVersionRun, ...]:
    """The runs of the tokens from `start` to before `end`."""
    cut, at = [], 0
    for run in runs:
        tokens = min(end, at + run.tokens) - max(start, at)
        at += run.tokens
        if tokens > 0:
            cut.append(PolicyVersionRun(run.policy_version, tokens))
    return tuple(cut)


def cut_array(array: TokenArray, start: int, end: int) -> TokenArray:
    """The values of the tokens from `start` to before `end`."""
    size = len(array.data) // array.shape[0] if array.shape[0] else 0
    return TokenArray(array.name, array.dtype, (end - start, *array.shape[1:]), array.data[start * size : end * size])


def _count(packed: bytes) -> int:
    return len(packed) // TOKEN_BYTES


def _ranges(observed: Iterable[int], responses: Iterable[int]) -> list[tuple[int, int]]:
    """Where each call's response begins and ends in the row's, from how many tokens each part has."""
    ranges, at = [], 0
    for before, tokens in zip(observed, responses, strict=True):
        ranges.append((at + before, at + before + tokens))
        at = ranges[-1][1]
    return ranges


def _rewards(
    results: Sequence[CallResult], ranges: Sequence[tuple[int, int]], final_total: float | None
) -> list[tuple[int, float]]:
    rewards = []
    for place, (result, (_, end)) in enumerate(zip(results, ranges, strict=True), 1):
        amounts = [result.step_total, final_total if place == len(results) else None]
        given = [amount for amount in amounts if amount is not None]
        if given:
            rewards.append((end - 1, sum(given)))
    return rewards


def _logprobs(calls: Sequence[LineCall], ranges: Sequence[tuple[int, int]]) -> bytes | None:
    if calls[0].span.logprobs is None:
        return None  # so has none of the others: consumers.trajectory
    filled = np.zeros(ranges[-1][1], "<f4")
    for call, (start, end) in zip(calls, ranges, strict=True):
        filled[start:end] = np.frombuffer(call.span.logprobs or b"", "<f4")
    return filled.tobytes()


def _array(like: TokenArray, calls: Sequence[LineCall], ranges: Sequence[tuple[int, int]]) -> TokenArray:
    """One array over the whole row, zero where the mask is 0."""
    filled = np.zeros((ranges[-1][1], *like.shape[1:]), like.dtype)
    for call, (start, end) in zip(calls, ranges, strict=True):
        (own,) = (each for each in call.span.arrays if each.name == like.name)
        filled[start:end] = np.frombuffer(own.data, own.dtype).reshape(own.shape)
    return TokenArray(like.name, like.dtype, filled.shape, filled.tobytes())


def _runs(calls: Sequence[LineCall], ranges: Sequence[tuple[int, int]]) -> tuple[PolicyVersionRun, ...]:
    """Which version wrote which tokens over the row; None for those that no policy wrote, or an unknown one."""
    if not any(call.span.policy_version_runs for call in calls):
        return ()
    joined: list[PolicyVersionRun] = []
    at = 0
    for call, (start, end) in zip(calls, ranges, strict=True):
        own = call.span.policy_version_runs or (PolicyVersionRun(None, end - start),)
        for run in (PolicyVersionRun(None, start - at), *own):
            if joined and joined[-1].policy_version == run.policy_version:
                joined[-1] = PolicyVersionRun(run.policy_version, joined[-1].tokens + run.tokens)
            elif run.tokens:
                joined.append(run)
        at = end
    return tuple(joined)


def _added(steps: Iterable[Mapping[str, float]]) -> dict[str, float]:
    added: dict[str, float] = {}
    for step in steps:
        for name, value in step.items():
            added[name] = added.get(name, 0.0) + value
    return added


def _reward_tokens(rewards: Sequence[tuple[int, float]]) -> tuple[bytes, bytes]:
    """Pack (token index, value) pairs, ascending by index."""
    if not rewards:
        return b"", b""  # as most calls have it
    index = np.array([at for at, _ in rewards], "<i4").tobytes()
    value = np.array([amount for _, amount in rewards], "<f8").tobytes()
    return index, value
