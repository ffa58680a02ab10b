"""Training samples from calls.

A sample is one training row. With `merge=none` it is one call: its prompt, its response, a mask of ones.

Rewards sit on response tokens. A call's weighted step rewards and the final values that reach it sit at its last token
with mask 1, never on a tool's token. `total` is their sum, None when nothing reaches it: never 0 in its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rolloutlog.consumers.attribution import CallResult
from rolloutlog.eventstore.events import PolicyVersionRun, Span, TokenArray
from rolloutlog.eventstore.tokens import TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Sample:
    """One training row of P prompt and T response tokens.

    prompt_ids, response_ids   int32 little-endian, 4 P and 4 T bytes
    response_mask              uint8, T bytes, 1 = written by the policy
    logprobs                   float32 little-endian, natural log, 4 T bytes, 0.0 where mask is 0; None = not recorded
    reward_token_index         int32 little-endian, k indices into the response, ascending
    reward_token_value         float64 little-endian, k weighted rewards; `total` is their sum, None when k = 0
    step, final                name to value, unweighted
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

    @property
    def size_bytes(self) -> int:
        """Upper limit of its encoded size."""
        texts = len(self.sample_id) + sum(map(len, (*self.span_ids, *self.step, *self.final)))
        texts += len(self.model or "") + len(self.finish_reason or "")
        packed = sum(map(len, (self.prompt_ids, self.response_ids, self.response_mask, self.logprobs or b"")))
        packed += len(self.reward_token_index) + len(self.reward_token_value) + len(self.extra_info)
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
    )


def _reward_tokens(rewards: Sequence[tuple[int, float]]) -> tuple[bytes, bytes]:
    """Pack (token index, value) pairs, ascending by index."""
    index = np.array([at for at, _ in rewards], "<i4").tobytes()
    value = np.array([amount for _, amount in rewards], "<f8").tobytes()
    return index, value
