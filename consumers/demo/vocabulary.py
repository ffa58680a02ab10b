"""The tokens of the demo: fragments of SQL, which the policy writes, and the words that it reads besides.

A token's id is its place in VOCABULARY. Fragments come first, so that they are 0 … SQL_TOKENS - 1.
"""

from collections.abc import Iterable

END = 0  # ends a query; as the token before the first one, it begins it too

FRAGMENTS = (
    "<end>",
    "SELECT",
    "COUNT(*)",
    "SUM(amount)",
    "AVG(amount)",
    "name",
    "FROM",
    "customers",
    "shops",
    "orders",
    "WHERE",
    "city =",
    "'Berlin'",
    "'Lisbon'",
    "'Oslo'",
)
WORDS = (
    "question:",
    "count",
    "total",
    "average",
    "name",
    "customers",
    "shops",
    "orders",
    "in",
    "Berlin",
    "Lisbon",
    "Oslo",
)
ERRORS = ("error: syntax", "error: no such column", "error: other")
VOCABULARY = FRAGMENTS + WORDS + ERRORS

SQL_TOKENS = len(FRAGMENTS)
TOKENS = len(VOCABULARY)
QUESTION = SQL_TOKENS  # begins each prompt

_WORD_ID = {word: SQL_TOKENS + index for index, word in enumerate(WORDS + ERRORS)}
_FRAGMENT_ID = {fragment: index for index, fragment in enumerate(FRAGMENTS)}


def question_ids(question: str) -> list[int]:
    """The tokens of a question, such as `count customers in Berlin`."""
    return [QUESTION, *(_WORD_ID[word] for word in question.split())]


def fragment_id(fragment: str) -> int:
    return _FRAGMENT_ID[fragment]


def word_id(word: str) -> int:
    """The token of a word or an error."""
    return _WORD_ID[word]


def error_id(message: str) -> int:
    """The token that tells the policy of an error of SQLite."""
    for error in ERRORS[:-1]:
        if error.removeprefix("error: ") in message:
            return _WORD_ID[error]
    return _WORD_ID[ERRORS[-1]]


def query_text(token_ids: Iterable[int]) -> str:
    """The query that a response says."""
    return " ".join(FRAGMENTS[token] for token in token_ids if token != END)
