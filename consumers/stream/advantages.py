"""Advantages against the group: how much better a rollout did than the others that worked on its task.

A rollout's reward is the sum of its samples' totals, with the final values, which several may carry
(`final=every_call`), counted once. Samples without a reward add nothing; a rollout without any has what the stream puts
in the place of a missing reward, once. Samples that are left out of the step, as too long, count all the same: it is
often the last call that is, and the outcome stands there.

Not here  rows as arrays: consumers.stream.padding; groups without variance: consumers.stream.collector
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rolloutlog.consumers.samples import Sample
from rolloutlog.consumers.stream.sample_checks import sample_fault
from rolloutlog.consumers.stream.step import Step
from rolloutlog.eventstore.errors import InvalidSettings

UNITS = ROLLOUT, ROW = ("rollout", "row")
BASELINES = MEAN, LEAVE_ONE_OUT = ("mean", "leave_one_out")

logger = logging.getLogger("rolloutlog.trainer")

Key = tuple[int, int]  # group's index into the step's batches, rollout's index into the batch's


def group_advantages(
    step: Step,
    *,
    unit: str = ROLLOUT,
    baseline: str = MEAN,
    normalize_std: bool = False,
    epsilon: float = 1e-6,
) -> NDArray[np.float64]:
    """The advantage of each row, shape [B]; of rows of padding 0.0.

    unit           `rollout`: a group's rollouts are compared, however many rows each has, and all rows of a rollout
                   have its advantage. `row`: rows are compared, so that a rollout with more of them weighs more, which
                   is warned about
    baseline       what is subtracted: the group's `mean`, or the mean of all others (`leave_one_out`)
    normalize_std  divide by the group's standard deviation (n - 1 in the divisor) + `epsilon`, as GRPO does
    Returns        0.0 where nothing is known: for a group of one, and for rows without reward and without a number that
                   stands for it. Warns when most groups have one rollout, which leaves nothing to compare
    Raises         InvalidSettings: unknown settings, or a share of a step, which holds groups in part; use the whole
                   step and `shard_rows`
    """
    _check("unit", unit, UNITS)
    _check("baseline", baseline, BASELINES)
    if step.world != 1:
        raise InvalidSettings(
            f"group_advantages: expected a whole step, got one of {step.world} shares of step {step.number}, in which "
            "groups are not whole; compute them before `shard`, and cut them with `shard_rows`"
        )
    keys = _keys(step)
    rollouts = rollout_rewards(*_counted(step), step.missing_reward)
    _warn_of_single_rollouts(step, rollouts)
    advantages = np.zeros(step.row_count, np.float64)
    if unit == ROLLOUT:
        known = {key: value for key, value in rollouts.items() if value is not None}
        compared = _compared(list(known.values()), [group for group, _ in known], baseline, normalize_std, epsilon)
        found = dict(zip(known, compared.tolist(), strict=True))
        advantages[: len(keys)] = [found.get(key, 0.0) for key in keys]
    else:
        _warn_of_unequal_rows(step, keys)
        rows = [row for row, total in enumerate(step.totals) if total is not None]
        totals = [total for total in step.totals if total is not None]
        groups = [step.groups[row] for row in rows]
        advantages[rows] = _compared(totals, groups, baseline, normalize_std, epsilon)
    return advantages


def rollout_weights(step: Step) -> NDArray[np.float64]:
    """The weight of each row in a mean over rows with which every rollout weighs the same, shape [B], sum = samples.

    A plain mean over rows gives a rollout with five rows five times the say of one with one. Rows of padding have 0.
    """
    if step.world != 1:
        raise InvalidSettings(f"rollout_weights: expected a whole step, got one of {step.world} shares of it")
    keys = _keys(step)
    rows = Counter(keys)
    weights = np.zeros(step.row_count, np.float64)
    weights[: len(keys)] = [len(keys) / len(rows) / rows[key] for key in keys]
    return weights


def rollout_rewards(
    samples: Sequence[Sample], groups: Sequence[int], missing_reward: float | None
) -> dict[Key, float | None]:
    """Each rollout's reward, by group and rollout; None where there is none and nothing stands for it."""
    steps: dict[Key, float] = {}
    finals: dict[Key, float] = {}
    rewards: dict[Key, float | None] = {}
    for sample, group in zip(samples, groups, strict=True):
        key = (group, sample.rollout_index)
        rewards.setdefault(key, missing_reward)
        if sample.total is None:
            continue
        steps[key] = steps.get(key, 0.0) + sample.total - (sample.final_total or 0.0)
        if sample.final_total is not None:
            finals[key] = sample.final_total  # the same on every row that it reaches
        rewards[key] = steps[key] + finals.get(key, 0.0)
    return rewards


def _keys(step: Step) -> list[Key]:
    return [(group, sample.rollout_index) for sample, group in zip(step.samples, step.groups, strict=True)]


def _counted(step: Step) -> tuple[list[Sample], list[int]]:
    """The step's samples, and those of its groups that are left out though nothing is wrong with them; their groups."""
    samples, groups = list(step.samples), list(step.groups)
    taken = {(group, sample.sample_id) for sample, group in zip(samples, groups, strict=True)}
    for group, batch in enumerate(step.batches):
        for sample in batch.samples:
            if (group, sample.sample_id) not in taken and sample_fault(sample, batch.rollouts) is None:
                samples.append(sample)
                groups.append(group)
    return samples, groups


def _compared(
    values: Sequence[float], groups: Sequence[int], baseline: str, normalize_std: bool, epsilon: float
) -> NDArray[np.float64]:
    """Each value less the baseline of its group, of which there may be many: computed at once."""
    if not values:
        return np.zeros(0, np.float64)
    value = np.array(values, np.float64)
    _, group = np.unique(np.array(groups), return_inverse=True)
    count = np.bincount(group)[group]
    less_mean = value - np.bincount(group, value)[group] / count
    # a group of one compares with nothing, whatever rounding leaves of value - mean
    less_mean[count == 1] = 0.0
    advantages = less_mean * count / np.maximum(count - 1, 1) if baseline == LEAVE_ONE_OUT else less_mean
    if normalize_std:
        std = np.sqrt(np.bincount(group, less_mean**2)[group] / np.maximum(count - 1, 1))
        advantages = advantages / (std + epsilon)
    return advantages


def _warn_of_single_rollouts(step: Step, rewards: Mapping[Key, float | None]) -> None:
    known = Counter(group for (group, _), reward in rewards.items() if reward is not None)
    groups = set(step.groups)
    single = sum(known[group] <= 1 for group in groups)
    if 2 * single > len(groups):
        logger.warning(
            "step %d: %d of %d groups have one rollout with a reward, whose advantage is 0: raise min_group, or look "
            "at what became of the others with `rolloutlog batches rollouts`", step.number, single, len(groups)
        )  # fmt: skip


def _warn_of_unequal_rows(step: Step, keys: Sequence[Key]) -> None:
    rows = Counter(keys)
    fewest, most = min(rows.values(), default=0), max(rows.values(), default=0)
    if fewest != most:
        logger.warning(
            "step %d: unit='row' compares rows, and rollouts have %d to %d of them: those with more weigh more. Use "
            "unit='rollout', and `rollout_weights` where a loss is a mean over rows", step.number, fewest, most
        )  # fmt: skip


def _check(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InvalidSettings(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")
