"""The demo's policy: a softmax over SQL fragments, one token at a time.

The logit of a next token is a sum over the tokens of the prompt, each counted once: `weights[token in prompt, token
before, next]`. So every prompt and response has a log-prob, and the gradient is exact. Rows of a batch are handled at
once, as padded arrays; prompts as `context`, 1 where a token occurs.

Not here  what the weights learn from: consumers.demo.learning; their files: consumers.demo.weights
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rolloutlog.consumers.demo.vocabulary import (
    END,
    QUESTION,
    SQL_TOKENS,
    TOKENS,
    fragment_id,
    word_id,
)

TOKENS_MAX = 12  # of a response: the longest sensible query has eight
SHAPE = (TOKENS, SQL_TOKENS, SQL_TOKENS)  # token of the prompt, token before, next token

# What version 0 knows, as if it had seen some SQL before: which fragment may follow which, and a hint of which word
# asks for which fragment. It writes mostly queries that run, and few that answer the question.
UNGRAMMATICAL = -5.0
HINT = 1.0
FOLLOWERS = {
    "<end>": ("SELECT",),
    "SELECT": ("COUNT(*)", "SUM(amount)", "AVG(amount)", "name"),
    "COUNT(*)": ("FROM",),
    "SUM(amount)": ("FROM",),
    "AVG(amount)": ("FROM",),
    "name": ("FROM",),
    "FROM": ("customers", "shops", "orders"),
    "customers": ("WHERE", "<end>"),
    "shops": ("WHERE", "<end>"),
    "orders": ("WHERE", "<end>"),
    "WHERE": ("city =",),
    "city =": ("'Berlin'", "'Lisbon'", "'Oslo'"),
    "'Berlin'": ("<end>",),
    "'Lisbon'": ("<end>",),
    "'Oslo'": ("<end>",),
}
HINTS = {
    "count": "COUNT(*)",
    "total": "SUM(amount)",
    "average": "AVG(amount)",
    "name": "name",
    "customers": "customers",
    "shops": "shops",
    "orders": "orders",
    "in": "WHERE",
    "Berlin": "'Berlin'",
    "Lisbon": "'Lisbon'",
    "Oslo": "'Oslo'",
}

Weights = npt.NDArray[np.float64]  # of SHAPE
Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.integer]


class Response(NamedTuple):
    """What the policy drew: tokens, END included, and the natural log of each one's chance."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str


def first_weights() -> Weights:
    """Version 0."""
    weights = np.zeros(SHAPE)
    weights[QUESTION] = UNGRAMMATICAL
    for fragment, followers in FOLLOWERS.items():
        weights[QUESTION, fragment_id(fragment), [fragment_id(each) for each in followers]] = 0.0
    for word, fragment in HINTS.items():
        weights[word_id(word), :, fragment_id(fragment)] = HINT
    return weights


def draw(weights: Weights, prompt_ids: Sequence[int], random: np.random.Generator) -> Response:
    """Write one response."""
    logits = weights[np.unique(prompt_ids)].sum(axis=0)
    chances = np.exp(_log_softmax(logits))
    before = END
    token_ids: list[int] = []
    logprobs: list[float] = []
    while len(token_ids) < TOKENS_MAX:
        token = int(random.choice(SQL_TOKENS, p=chances[before]))
        token_ids.append(token)
        logprobs.append(float(np.log(chances[before, token])))
        if token == END:
            return Response(token_ids, logprobs, "stop")
        before = token
    return Response(token_ids, logprobs, "length")


def context_of(prompt_ids: Ids, prompt_mask: npt.ArrayLike) -> Array:
    """[N, P] token ids, and 1 where they are no padding → [N, TOKENS]: 1 where the prompt holds the token."""
    context = np.zeros((len(prompt_ids), TOKENS))
    row, column = np.nonzero(np.asarray(prompt_mask))
    context[row, prompt_ids[row, column]] = 1.0
    return context


def log_chances(weights: Weights, context: Array, response_ids: Ids) -> Array:
    """Log-probs of all next tokens at each place of the responses: [N, T, SQL_TOKENS]."""
    logits = np.tensordot(context, weights, axes=1)  # [N, before, next]
    return _log_softmax(logits[np.arange(len(context))[:, None], _before(response_ids)])


def taken(log_chance: Array, response_ids: Ids) -> Array:
    """Log-probs of the tokens that were written, [N, T]; places of padding hold those of token END."""
    chosen: Array = np.take_along_axis(log_chance, response_ids[:, :, None], axis=2)[:, :, 0]
    return chosen


def gradient(log_chance: Array, context: Array, response_ids: Ids, factors: Array) -> Weights:
    """Gradient by the weights of Σ factors[n, t] · log-prob of token t of row n. Padding has factor 0.

    log_chance  of the same rows and weights
    """
    pull = -factors[:, :, None] * np.exp(log_chance)
    row, place = np.indices(response_ids.shape)
    pull[row, place, response_ids] += factors
    by_row = np.zeros((len(context), SQL_TOKENS, SQL_TOKENS))
    np.add.at(by_row, (row, _before(response_ids)), pull)
    result: Weights = np.tensordot(context.T, by_row, axes=1)
    return result


def _before(response_ids: Ids) -> Ids:
    """The token before each: of the first one, END."""
    before = np.full_like(response_ids, END)
    before[:, 1:] = response_ids[:, :-1]
    return before


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
