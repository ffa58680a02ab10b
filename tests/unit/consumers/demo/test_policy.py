"""The demo's policy: what it draws has the chances it says, and its gradient is exact."""

import numpy as np
import pytest

from rolloutlog.consumers.demo.policy import (
    SHAPE,
    TOKENS_MAX,
    context_of,
    draw,
    first_weights,
    gradient,
    log_chances,
    taken,
)
from rolloutlog.consumers.demo.vocabulary import END, SQL_TOKENS, query_text, question_ids

PROMPTS = [question_ids("count customers in Berlin"), [*question_ids("name shops"), 1, 5, 0]]
RESPONSES = np.array([[1, 2, 6, 7, 0], [1, 5, 0, 0, 0]])
FACTORS = np.array([[0.5, 0.5, 0.5, 0.5, 0.5], [-1.0, -1.0, -1.0, 0.0, 0.0]])


def contexts():
    size = max(map(len, PROMPTS))
    ids = np.array([[*prompt, *[END] * (size - len(prompt))] for prompt in PROMPTS])
    return context_of(ids, [[index < len(prompt) for index in range(size)] for prompt in PROMPTS])


def random_weights():
    return np.random.default_rng(3).normal(size=SHAPE)


def test_gradient_equals_the_numerical_one():
    weights, context = random_weights(), contexts()

    def objective(at: np.ndarray) -> float:
        return float((taken(log_chances(at, context, RESPONSES), RESPONSES) * FACTORS).sum())

    exact = gradient(log_chances(weights, context, RESPONSES), context, RESPONSES, FACTORS)
    probes = [*np.argwhere(exact)[::23], np.array([0, 3, 3]), np.array([20, 14, 2])]
    assert len(probes) > 20
    for probe in map(tuple, probes):
        step = np.zeros(SHAPE)
        step[probe] = 1e-5
        numerical = (objective(weights + step) - objective(weights - step)) / 2e-5
        assert exact[probe] == pytest.approx(numerical, abs=1e-8), probe


def test_draw_records_the_log_prob_that_a_batch_computes():
    """A trainer compares the two: were they not of one kind, the ratio would correct for nothing."""
    weights, random = random_weights(), np.random.default_rng(0)
    for prompt in PROMPTS:
        response = draw(weights, prompt, random)
        ids = np.array([response.token_ids])
        context = context_of(np.array([prompt]), np.ones((1, len(prompt))))
        assert taken(log_chances(weights, context, ids), ids)[0] == pytest.approx(response.logprobs)


def test_draw_draws_tokens_as_often_as_their_log_prob_says():
    random, weights = np.random.default_rng(1), first_weights()
    first = [draw(weights, PROMPTS[0], random) for _ in range(2_000)]
    share = sum(response.token_ids[0] == 1 for response in first) / len(first)
    chance = np.exp(next(response.logprobs[0] for response in first if response.token_ids[0] == 1))
    assert share == pytest.approx(chance, abs=0.03)


def test_draw_with_the_same_seed_gives_the_same_response():
    weights = first_weights()
    assert draw(weights, PROMPTS[0], np.random.default_rng(5)) == draw(weights, PROMPTS[0], np.random.default_rng(5))


def test_draw_without_an_end_stops_at_the_limit():
    weights = first_weights()
    weights[:, :, END] = -50.0
    response = draw(weights, PROMPTS[0], np.random.default_rng(0))
    assert (len(response.token_ids), response.finish_reason) == (TOKENS_MAX, "length")


def test_draw_that_ends_says_stop_and_its_text_has_no_end_token():
    weights = np.zeros(SHAPE)
    weights[:, END, 1] = weights[:, 1, END] = 50.0
    response = draw(weights, PROMPTS[0], np.random.default_rng(0))
    assert (response.token_ids, response.finish_reason) == ([1, END], "stop")
    assert query_text(response.token_ids) == "SELECT"


def test_context_counts_each_token_once_and_no_padding():
    context = context_of(np.array([[16, 17, 17, 0], [16, 0, 0, 0]]), np.array([[1, 1, 1, 0], [1, 1, 0, 0]]))
    assert np.flatnonzero(context[0]).tolist() == [16, 17]
    assert np.flatnonzero(context[1]).tolist() == [0, 16]
    assert context.max() == 1.0


def test_log_chances_of_all_next_tokens_sum_to_one():
    chances = np.exp(log_chances(random_weights(), contexts(), RESPONSES))
    assert chances.shape == (2, 5, SQL_TOKENS)
    assert chances.sum(axis=2) == pytest.approx(np.ones((2, 5)))
