"""The demo's loop without processes and log: hosts that lag behind the trainer by a fixed number of versions."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rolloutlog.consumers.demo.agent import PARSES, run
from rolloutlog.consumers.demo.learning import advantages, improve
from rolloutlog.consumers.demo.policy import TOKENS_MAX, Response, Weights, context_of, draw, first_weights
from rolloutlog.consumers.demo.settings import GROUP_SIZE, GROUPS_PER_STEP, RECENT
from rolloutlog.consumers.demo.tasks import TASKS, Shop, Task, open_shop
from rolloutlog.consumers.demo.vocabulary import error_id, question_ids

PROMPT_TOKENS = 32


class Row(NamedTuple):
    """One call. `total`: of its sample."""

    group: int
    rollout: int
    prompt_ids: list[int]
    response: Response
    total: float


def learning_curve(seed: int, *, steps_max: int, staleness: int) -> Iterator[float]:
    """Mean final reward of the last RECENT rollouts (fewer at first), after each step."""
    random = np.random.default_rng(seed)
    versions: deque[Weights] = deque([first_weights()], maxlen=staleness + 1)
    finals: deque[float] = deque(maxlen=RECENT)
    with open_shop() as shop:
        for step in range(steps_max):
            rows: list[Row] = []
            for group in range(GROUPS_PER_STEP):
                task = TASKS[(step * GROUPS_PER_STEP + group) % len(TASKS)]
                for rollout in range(group * GROUP_SIZE, (group + 1) * GROUP_SIZE):
                    calls, final = solve(shop, task, versions[0], random)
                    rows += [Row(group, rollout, *call) for call in calls]
                    finals.append(final)
            versions.append(learn(versions[-1], rows))
            yield sum(finals) / len(finals)


def solve(
    shop: Shop, task: Task, weights: Weights, random: np.random.Generator
) -> tuple[list[tuple[list[int], Response, float]], float]:
    """As the agent does: its calls (prompt, response, total of the sample), and the final reward."""
    prompt_ids = question_ids(task.question)
    first = draw(weights, prompt_ids, random)
    rows, error = run(shop, first)
    if error is None:
        final = float(rows == shop.answer(task))
        return [(prompt_ids, first, PARSES + final)], final
    again = [*prompt_ids, *first.token_ids, error_id(error)]
    second = draw(weights, again, random)
    rows, _ = run(shop, second)
    final = float(rows == shop.answer(task))
    return [(prompt_ids, first, 0.0), (again, second, final)], final


def learn(weights: Weights, rows: list[Row]) -> Weights:
    prompts, prompt_mask = _padded([row.prompt_ids for row in rows], PROMPT_TOKENS)
    responses, mask = _padded([row.response.token_ids for row in rows], TOKENS_MAX)
    logprobs, _ = _padded([row.response.logprobs for row in rows], TOKENS_MAX, float)
    rollouts, groups = np.array([row.rollout for row in rows]), np.array([row.group for row in rows])
    advantage = advantages([row.total for row in rows], rollouts, groups)
    context = context_of(prompts, prompt_mask)
    return improve(weights, context, responses, mask, logprobs, advantage, rollout_count=len(set(rollouts.tolist())))


def _padded(rows: list[list[int]] | list[list[float]], size: int, kind: type = int):
    values, mask = np.zeros((len(rows), size), kind), np.zeros((len(rows), size))
    for index, row in enumerate(rows):
        values[index, : len(row)], mask[index, : len(row)] = row, 1.0
    return values, mask
