"""A small agent for `rolloutlog demo`: adds two numbers by guessing, checks its guess and guesses again.

Its policy draws one of CHOICES numbers with equal chance, so token ids and log-probs are real: a response is one token,
the number itself. The check is worth 0.2 when the first guess is right; the rollout returns 1.0 for a right last guess.
"""

from collections.abc import Iterator
from math import log
from random import Random

from rolloutlog.eventstore import EventPublisher, Rollout, emit_reward

CHOICES = 3
OPERATOR_TOKEN = 1_000  # "plus"; numbers are their own tokens
ANSWER_TOKEN = 1_001  # "the answer is"
WRONG_TOKEN = 1_002  # "that is wrong, again"
POLICY_VERSION = 0


def run_host(url: str, tasks: list[int], group_size: int, seed: int) -> None:
    """One rollout host: works on `tasks`, `group_size` rollouts for each, and publishes what happens."""
    random = Random(seed)
    with EventPublisher.open(url) as events:
        for task in tasks:
            group = events.group(task_id=f"add-{task}", size=group_size)
            for _ in range(group_size):
                with events.rollout(group=group, policy_version=POLICY_VERSION) as rollout:
                    rollout.finish(reward=solve(rollout, task, 2 * task + 1, random))


def solve(rollout: Rollout, left: int, right: int, random: Random) -> float:
    """The agent: returns 1.0 when its last guess is the sum."""
    with rollout.agent("adder"):
        prompt = [left, OPERATOR_TOKEN, right, ANSWER_TOKEN]
        with rollout.operation("write_answer"):
            guess = ask(rollout, prompt, left + right, random)
        with rollout.operation("check_answer"):
            right_at_once = guess == left + right
            emit_reward(0.2 if right_at_once else 0.0, name="check")
        if not right_at_once:
            with rollout.operation("rewrite_answer"):
                guess = ask(rollout, [*prompt, guess, WRONG_TOKEN], left + right, random)
    return 1.0 if guess == left + right else 0.0


def ask(rollout: Rollout, prompt: list[int], answer: int, random: Random) -> int:
    """One call of the policy: CHOICES numbers around the answer, each with the same chance."""
    with rollout.call(model="guesser", policy_version=POLICY_VERSION) as call:
        guess = random.choice(list(_choices(answer)))
        call.record(prompt_ids=prompt, response_ids=[guess], logprobs=[-log(CHOICES)])
    return guess


def _choices(answer: int) -> Iterator[int]:
    yield from range(max(0, answer - 1), max(0, answer - 1) + CHOICES)
