"""The demo's trainer: one process that learns from steps of batches.

Every step takes the same order, numbered as in the code:

  1 receive      the step: GROUPS_PER_STEP batches, none of them too stale
  2 learn        new weights, as the next policy version
  3 write        their file, whole, before anyone is told of the version
  4 acknowledge  step and policy version, in one transaction; hosts see it and go on with the new weights

It ends when the run has ended: the stream then ends by itself.
"""

from pathlib import Path

import numpy as np

from rolloutlog.consumers.demo.learning import advantages, improve
from rolloutlog.consumers.demo.policy import TOKENS_MAX, Weights, context_of
from rolloutlog.consumers.demo.settings import GROUPS_PER_STEP, MAX_STALENESS, READER
from rolloutlog.consumers.demo.vocabulary import END
from rolloutlog.consumers.demo.weights import load_weights, save_weights
from rolloutlog.consumers.trainer import BatchStream, Step

PROMPT_TOKENS_MAX = 32  # a question, the failed query and its error take less


def train(url: str, weights_folder: Path) -> None:
    """Train from version 0 on until the run has ended."""
    version, weights = 0, load_weights(weights_folder, 0)
    with BatchStream.open(
        url, reader=READER, groups_per_step=GROUPS_PER_STEP, max_staleness=MAX_STALENESS, missing_reward="exclude"
    ) as stream:
        stream.set_policy_version(version)
        for step in stream:  # 1
            if step.samples:
                weights = learn(weights, step)  # 2
                version += 1
                save_weights(weights_folder, version, weights)  # 3
            stream.ack(step, policy_version=version)  # 4
            stream.set_policy_version(version)


def learn(weights: Weights, step: Step) -> Weights:
    """New weights after one step."""
    rows = step.padded(prompt_tokens=PROMPT_TOKENS_MAX, response_tokens=TOKENS_MAX, pad_id=END)
    rollouts, index = np.unique(np.stack([rows.group_index, rows.rollout_index], axis=1), axis=0, return_inverse=True)
    return improve(
        weights,
        context_of(rows.prompt_ids, rows.prompt_mask),
        rows.response_ids,
        rows.response_mask,
        rows.logprobs,
        advantages(rows.total, index.reshape(-1), rows.group_index),
        rollout_count=len(rollouts),
    )
