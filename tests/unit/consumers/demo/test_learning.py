"""What the demo's trainer learns from: totals of rollouts against their group, corrected for staleness."""

import numpy as np
import pytest
from support.demo_simulation import learning_curve

from rolloutlog.consumers.demo.learning import RATIO_MAX, advantages, improve
from rolloutlog.consumers.demo.policy import context_of, first_weights, log_chances, taken
from rolloutlog.consumers.demo.settings import SOLVED
from rolloutlog.consumers.demo.vocabulary import question_ids

RESPONSE = np.array([[1, 2, 6, 9, 0]])  # SELECT COUNT(*) FROM orders
QUESTION = question_ids("count orders")


def context():
    return context_of(np.array([QUESTION]), np.ones((1, len(QUESTION))))


def logprob(weights) -> float:
    return float(taken(log_chances(weights, context(), RESPONSE), RESPONSE).sum())


def improved(advantage: float, ratio: float = 1.0):
    weights = first_weights()
    recorded = taken(log_chances(weights, context(), RESPONSE), RESPONSE) - np.log(ratio)
    mask = np.ones(RESPONSE.shape)
    return improve(weights, context(), RESPONSE, mask, recorded, np.array([advantage]), rollout_count=1)


def test_advantages_compare_rollouts_with_the_mean_of_their_group():
    got = advantages([1.2, 0.2, 5.0, 7.0], np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1]))
    assert got == pytest.approx([0.5, -0.5, -1.0, 1.0])


def test_advantages_of_a_rollouts_samples_are_those_of_the_rollout():
    """A first query that failed led to the second, which was right."""
    got = advantages([0.0, 1.0, 0.2], np.array([0, 0, 1]), np.array([0, 0, 0]))
    assert got == pytest.approx([0.4, 0.4, -0.4])


def test_advantages_of_a_group_that_got_the_same_are_zero():
    assert advantages([0.2, 0.2], np.array([0, 1]), np.array([0, 0])).tolist() == [0.0, 0.0]


def test_improve_makes_good_responses_likelier_and_bad_ones_less_likely():
    before = logprob(first_weights())
    assert logprob(improved(0.1)) > before > logprob(improved(-0.1))


def test_improve_without_advantage_keeps_the_weights():
    assert np.array_equal(improved(0.0), first_weights())


def test_improve_cuts_the_ratio_of_a_token_that_was_unlikely_when_it_was_drawn():
    assert improved(0.1, ratio=100.0) == pytest.approx(improved(0.1, ratio=RATIO_MAX))
    assert not np.allclose(improved(0.1, ratio=1.5), improved(0.1, ratio=1.0))


def test_improve_weighs_padding_with_nothing():
    weights = first_weights()
    padded = np.concatenate([RESPONSE, [[0, 0]]], axis=1)
    mask = np.array([[1.0] * 5 + [0.0] * 2])
    recorded = taken(log_chances(weights, context(), padded), padded) * mask
    got = improve(weights, context(), padded, mask, recorded, np.array([0.1]), rollout_count=1)
    assert got == pytest.approx(improved(0.1))


def test_simulation_learns_from_chance_to_solved():
    curve = []
    for mean in learning_curve(7, steps_max=50, staleness=4):
        curve.append(mean)
        if mean >= SOLVED:
            break
    assert curve[0] < 0.3
    assert curve[-1] >= SOLVED


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_simulation_with_every_seed_is_solved_in_half_the_steps_allowed(seed: int):
    assert any(mean >= SOLVED for mean in learning_curve(seed, steps_max=50, staleness=6))
