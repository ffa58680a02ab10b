"""A step as verl's DataProto, as verl's trainers expect it from their own rollouts.

One row a sample, in the step's order. verl reorders rows, so that what a row is stands in columns. Whole steps only:
verl cuts and balances batches itself. No pickle is read from a log: a DataProto is made here, from checked bytes.

Reward    `rm_scores`, weighted rewards at their tokens, none on a tool's: verl's GAE loses a reward that sits on one
Extra     one column per key over the whole step, named in `reward_extra_keys`; verl takes a key list per worker or
          queue item, and fails where two differ
Needs     the extra `verl`, which brings torch
Not here  what verl's fully-async trainer pulls from: consumers.adapters.verl_queue
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolloutlog.consumers.adapters import missing
from rolloutlog.consumers.samples import Sample
from rolloutlog.consumers.stream.padding import Padded
from rolloutlog.consumers.stream.step import Step
from rolloutlog.eventstore.checks import plain_integer
from rolloutlog.eventstore.errors import InvalidSettings, StoreError

try:
    import torch
    from verl import DataProto
except ModuleNotFoundError as error:
    raise missing(__name__, "verl", error) from error

EXTRA_KEYS = "reward_extra_keys"
LOG_PROBS = "rollout_log_probs"  # no column of this name, also when a step has no such tensor
PADDING_UID = ""  # a group of their own: no group has an empty id

logger = logging.getLogger("rolloutlog.trainer")


class StepRefused(StoreError):
    """A step cannot be what verl takes. The text names the first sample, and what to change."""


def to_verl(
    step: Step,
    *,
    prompt_tokens: int,
    response_tokens: int,
    pad_id: int,
    columns: Mapping[str, Sequence[Any]] | None = None,
    on_collision: str = "reject",
    rows_multiple_of: int = 1,
) -> DataProto:
    """All rows of a step as one DataProto.

    columns           more columns without tensors, a value per sample, such as `data_source`
    on_collision      what becomes of a key of extra info that is named like another column, as `Step.extra_info` says
    rows_multiple_of  append rows of padding up to the next multiple; they have a prompt, no response, mask 0, reward 0,
                      and are marked in `is_padding`
    Returns           N rows of P + R tokens. Tensors: `prompts`, `responses`, `input_ids`, `attention_mask`,
                      `position_ids`, `response_mask` int64; `rm_scores` float32, `rollout_log_probs` float32 when every
                      sample has them. Columns: `uid` is the group's id; `min_global_steps`, `max_global_steps` are
                      policy versions, None = unknown; `sample_id`, `rollout_id`, `task_id`, `__num_turns__`,
                      `is_padding`
    Raises            StepRefused, SampleTooLong; InvalidSettings for a share of a step
    """
    _check(step, rows_multiple_of)
    padded = step.padded(prompt_tokens, response_tokens, pad_id)
    tensors = _tensors(step, padded)
    own = _own_columns(step)
    given = _given_columns(step, columns, {*tensors, *own, LOG_PROBS})
    extra = step.extra_info(reserved={*tensors, *own, *given}, on_collision=on_collision)
    data = DataProto.from_dict(
        tensors=tensors, non_tensors={**own, **given, **extra}, meta_info={EXTRA_KEYS: list(extra)}
    )
    padding_count = -len(step.samples) % rows_multiple_of
    return _with_padding(data, padding_count, pad_id) if padding_count else data


def object_column(values: Sequence[Any]) -> NDArray[np.object_]:
    """One element per row, whatever the values are: numpy makes two dimensions of equally long lists."""
    column = np.empty(len(values), object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def _check(step: Step, rows_multiple_of: int) -> None:
    if step.world != 1 or step.padding_count:
        raise InvalidSettings(
            f"to_verl: expected a whole step, got one of {step.world} shares of step {step.number}; verl cuts batches "
            "itself"
        )
    if type(plain_integer(rows_multiple_of)) is not int or rows_multiple_of < 1:
        raise InvalidSettings(f"rows_multiple_of: expected an integer from 1, got {rows_multiple_of!r}")
    for sample, total in zip(step.samples, step.totals, strict=True):
        if total is None:
            raise StepRefused(
                f"step {step.number} refused: sample {sample.sample_id} has no reward, and nothing stands for it; open "
                'the stream with missing_reward="exclude", or with a number'
            )
        if not sample.prompt_ids:
            # verl's engines take padding out by the prompt's first token
            raise StepRefused(f"step {step.number} refused: sample {sample.sample_id} has no prompt, which verl needs")


def _tensors(step: Step, padded: Padded) -> dict[str, Any]:
    prompts, responses = _long(padded.prompt_ids), _long(padded.response_ids)
    attention_mask = torch.cat([_long(padded.prompt_mask), _long(padded.attention_mask)], dim=1)
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
        "response_mask": _long(padded.response_mask),
        "rm_scores": torch.from_numpy(_float32(step, padded.token_rewards)),
    }
    lacking = [sample.sample_id for sample in step.samples if sample.logprobs is None]
    if not lacking:
        tensors[LOG_PROBS] = torch.from_numpy(padded.logprobs)
    elif len(lacking) < len(step.samples):
        logger.warning(
            "step %d: %d of %d samples have no log-probs, %s the first; rollout_log_probs is left out for all",
            step.number, len(lacking), len(step.samples), lacking[0],
        )  # fmt: skip
    return tensors


def _float32(step: Step, rewards: NDArray[np.float64]) -> NDArray[np.float32]:
    beyond = np.abs(rewards) > np.finfo(np.float32).max
    if beyond.any():
        row, token = np.argwhere(beyond)[0]
        raise StepRefused(
            f"step {step.number} refused: sample {step.samples[row].sample_id} has reward {rewards[row, token]}, which "
            "verl's float32 does not hold; scale it in the scorer, or with a weight of the assembler"
        )
    return rewards.astype(np.float32)


def _long(array: NDArray[Any]) -> Any:
    return torch.from_numpy(array).to(torch.int64)


def _own_columns(step: Step) -> dict[str, NDArray[Any]]:
    batches = [step.batches[group] for group in step.groups]
    rollouts = [batch.rollouts[sample.rollout_index] for sample, batch in zip(step.samples, batches, strict=True)]
    versions = [_versions(sample) for sample in step.samples]
    return {
        "uid": object_column([batch.group_id for batch in batches]),
        "min_global_steps": object_column([min(each, default=None) for each in versions]),
        "max_global_steps": object_column([max(each, default=None) for each in versions]),
        "sample_id": object_column([sample.sample_id for sample in step.samples]),
        "rollout_id": object_column([rollout.rollout_id for rollout in rollouts]),
        "task_id": object_column([rollout.task_id for rollout in rollouts]),
        "__num_turns__": np.array([len(sample.span_ids) for sample in step.samples], np.int32),
        "is_padding": np.zeros(len(step.samples), np.bool_),
    }


def _versions(sample: Sample) -> list[int]:
    return [run.policy_version for run in sample.policy_version_runs if run.policy_version is not None]


def _given_columns(
    step: Step, columns: Mapping[str, Sequence[Any]] | None, taken: set[str]
) -> dict[str, NDArray[np.object_]]:
    columns = {} if columns is None else columns
    if not isinstance(columns, Mapping):
        raise InvalidSettings(f"columns: expected a mapping of names to values, got {type(columns).__name__}")
    for name, values in columns.items():
        if not isinstance(name, str):
            raise InvalidSettings(f"columns: expected names that are text, got {name!r:.100}")
        if name in taken:
            raise InvalidSettings(f"columns: {name!r} is a column that to_verl makes itself; name it otherwise")
        count = _count(values)
        if count != len(step.samples):
            got = type(values).__name__ if count is None else count
            raise InvalidSettings(
                f"columns: expected {len(step.samples)} values of {name!r}, one per sample, got {got}"
            )
    return {name: object_column(values) for name, values in columns.items()}


def _count(values: Any) -> int | None:
    """None for what has no values by row: text and mappings have a length too."""
    try:
        return None if isinstance(values, str | bytes | Mapping) else len(values)
    except TypeError:
        return None


def _with_padding(data: DataProto, padding_count: int, pad_id: int) -> DataProto:
    """Rows after the last, of its prompt without a response: losses and verl's means of scores pass over them."""
    rows = len(data)
    data = data.select_idxs(np.r_[np.arange(rows), np.full(padding_count, rows - 1)])
    prompt_tokens = data.batch["prompts"].shape[1]
    for name in ("responses", "input_ids"):
        data.batch[name][rows:, prompt_tokens if name == "input_ids" else 0 :] = pad_id
    data.batch["attention_mask"][rows:, prompt_tokens:] = 0
    data.batch["position_ids"] = (data.batch["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    for name in ("response_mask", "rm_scores", "rollout_log_probs"):
        if name in data.batch:
            data.batch[name][rows:] = 0
    data.non_tensor_batch["uid"][rows:] = PADDING_UID
    data.non_tensor_batch["sample_id"][rows:] = None
    data.non_tensor_batch["is_padding"][rows:] = True
    return data
