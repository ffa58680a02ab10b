"""A step of the demo's trainer: the rows of batches lead to the same weights as the simulation's."""

import numpy as np
import pytest
from support.demo_simulation import Row, learn, solve
from unit.consumers.test_batches import batch, result, sample

from rolloutlog.consumers.demo.policy import first_weights
from rolloutlog.consumers.demo.tasks import TASKS, open_shop
from rolloutlog.consumers.demo.training import learn as learn_step
from rolloutlog.consumers.stream.step import Step
from rolloutlog.eventstore.tokens import pack_logprobs, pack_token_ids


def rows_of(seed: int) -> list[Row]:
    """Two groups of 16 rollouts, drawn by version 0."""
    random, rows = np.random.default_rng(seed), []
    with open_shop() as shop:
        for rollout in range(32):
            calls, _ = solve(shop, TASKS[rollout // 16], first_weights(), random)
            rows += [Row(rollout // 16, rollout, *call) for call in calls]
    return rows


def step_of(rows: list[Row]) -> Step:
    samples = [
        sample(
            f"{index}",
            row.rollout % 16,
            prompt_ids=pack_token_ids(row.prompt_ids, "prompt_ids"),
            response_ids=pack_token_ids(row.response.token_ids, "response_ids"),
            response_mask=b"\x01" * len(row.response.token_ids),
            logprobs=pack_logprobs(row.response.logprobs, "logprobs"),
            total=row.total,
            reward_token_value=np.float64(row.total).tobytes(),
        )
        for index, row in enumerate(rows)
    ]
    groups = tuple(row.group for row in rows)
    batches = tuple(batch((result(),) * 16, tuple(samples)) for _ in range(2))
    return Step(0, batches, tuple(samples), groups, (0, 0), 0)


def test_learn_from_a_step_gives_the_weights_of_the_same_rows():
    rows = rows_of(0)
    assert len({row.rollout for row in rows}) < len(rows), "some rollouts have two calls"
    learned = learn_step(first_weights(), step_of(rows))
    assert learned == pytest.approx(learn(first_weights(), rows), abs=1e-5)
    assert not np.allclose(learned, first_weights())
