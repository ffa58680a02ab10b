"""What the demo's trainer learns from a step: policy gradient against the mean of the group.

Pure: arrays in, weights out. A rollout's total is the sum of its samples' totals; its advantage is that total minus the
mean of its group's. Every sample of a rollout gets the rollout's advantage, since a first query that fails may still
lead to a right second one: alone, its own total would say that it was worth nothing, and the agent would learn to write
second queries only by luck.
"""

import numpy as np
import numpy.typing as npt

from rolloutlog.consumers.demo.policy import Array, Ids, Weights, gradient, log_chances, taken

LEARNING_RATE = 12.0
RATIO_MAX = 2.0  # of a token's chance now to when it was drawn


def advantages(totals: npt.ArrayLike, rollouts: Ids, groups: Ids) -> Array:
    """The advantage of each sample, [N].

    totals    of the samples, [N]
    rollouts  index of each sample's rollout
    groups    index of each sample's group
    """
    by_rollout = np.bincount(rollouts, weights=np.asarray(totals, float))
    group_of_rollout = np.zeros(len(by_rollout), int)
    group_of_rollout[rollouts] = groups
    mean = np.bincount(group_of_rollout, weights=by_rollout) / np.maximum(np.bincount(group_of_rollout), 1)
    result: Array = (by_rollout - mean[group_of_rollout])[rollouts]
    return result


def improve(
    weights: Weights,
    context: Array,
    response_ids: Ids,
    response_mask: npt.ArrayLike,
    logprobs: npt.ArrayLike,
    advantage: Array,
    *,
    rollout_count: int,
    learning_rate: float = LEARNING_RATE,
) -> Weights:
    """New weights after one step of N samples of up to T tokens.

    logprobs  as recorded by the versions that wrote the tokens, [N, T]. Their ratio to those of `weights` corrects for
              staleness; it is cut at RATIO_MAX, so that one old token cannot outweigh the rest
    """
    log_chance = log_chances(weights, context, response_ids)
    ratio = np.exp(np.minimum(taken(log_chance, response_ids) - np.asarray(logprobs), np.log(RATIO_MAX)))
    factors = advantage[:, None] * ratio * np.asarray(response_mask) / rollout_count
    return weights + learning_rate * gradient(log_chance, context, response_ids, factors)
