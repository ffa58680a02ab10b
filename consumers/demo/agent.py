"""The demo's agent: writes a query, runs it, and writes it anew when it did not run.

The step reward `parses` is emitted where the query is checked, deep in the code and without a handle; attribution finds
the call that wrote the query.
"""

import time

import numpy as np

from rolloutlog.consumers.demo.policy import Response, Weights, draw
from rolloutlog.consumers.demo.settings import TOKEN_S
from rolloutlog.consumers.demo.tasks import QueryFailed, Rows, Shop, Task
from rolloutlog.consumers.demo.vocabulary import error_id, query_text, question_ids
from rolloutlog.eventstore import Rollout, emit_reward

PARSES = 0.2  # reward of a first query that runs

MODEL = "demo-softmax"


def solve(
    rollout: Rollout, task: Task, shop: Shop, weights: Weights, version: int, random: np.random.Generator
) -> float:
    """Work on a task; returns 1.0 when the rows are those wanted, else 0.0."""

    def write(prompt_ids: list[int]) -> Response:
        with rollout.call(model=MODEL, policy_version=version) as call:
            response = draw(weights, prompt_ids, random)
            time.sleep(len(response.token_ids) * TOKEN_S)
            call.record(
                prompt_ids=prompt_ids,
                response_ids=response.token_ids,
                logprobs=response.logprobs,
                finish_reason=response.finish_reason,
            )
        return response

    with rollout.agent("sql"):
        prompt_ids = question_ids(task.question)
        with rollout.operation("write_query"):
            first = write(prompt_ids)
        with rollout.operation("check_query"):
            rows, error = check(shop, first)
        if error is not None:
            with rollout.operation("rewrite_query"):
                second = write([*prompt_ids, *first.token_ids, error_id(error)])
                rows, _ = run(shop, second)
    return 1.0 if rows == shop.answer(task) else 0.0


def check(shop: Shop, response: Response) -> tuple[Rows | None, str | None]:
    """Run the first query, and judge it."""
    rows, error = run(shop, response)
    emit_reward(PARSES if error is None else 0.0, name="parses", extra_info={"error": error} if error else None)
    return rows, error


def run(shop: Shop, response: Response) -> tuple[Rows | None, str | None]:
    """The rows of a query, or the error of the database."""
    try:
        return shop.rows(query_text(response.token_ids)), None
    except QueryFailed as error:
        return None, str(error)
