"""The demo's tasks: real queries on a real database."""

import pytest

from rolloutlog.consumers.demo.tasks import TASKS, QueryFailed, Task, open_shop
from rolloutlog.consumers.demo.vocabulary import FRAGMENTS, TOKENS, error_id, question_ids, word_id


@pytest.fixture
def shop():
    with open_shop() as opened:
        yield opened


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_id)
def test_task_has_an_answer_and_words_that_the_policy_reads(task: Task, shop):
    assert len(shop.rows(task.query)) > 0
    assert all(token < TOKENS for token in question_ids(task.question))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_id)
def test_task_is_answered_by_fragments_that_the_policy_writes(task: Task):
    rest = task.query
    for fragment in sorted(FRAGMENTS, key=len, reverse=True):
        rest = rest.replace(fragment, "")
    assert rest.strip() == ""


def test_tasks_have_different_answers(shop):
    """So that a right answer to another question is a wrong one to this."""
    answers = [str(shop.rows(task.query)) for task in TASKS]
    assert len(set(answers)) == len(TASKS)


def test_rows_come_in_one_order(shop):
    assert shop.rows("SELECT name FROM shops ORDER BY shop_id DESC") == shop.rows("SELECT name FROM shops")


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("SELECT FROM", "error: syntax"),
        ("SELECT name FROM orders", "error: no such column"),
        ("SELECT name FROM nowhere", "error: other"),
    ],
)
def test_query_that_fails_gives_the_token_of_its_error(shop, query: str, error: str):
    with pytest.raises(QueryFailed) as failed:
        shop.rows(query)
    assert error_id(str(failed.value)) == word_id(error)


@pytest.mark.parametrize("query", ["DELETE FROM shops", "SELECT 1; SELECT 2"])
def test_query_that_is_more_than_a_question_is_refused(shop, query: str):
    with pytest.raises(QueryFailed):
        shop.rows(query)
    assert len(shop.rows("SELECT name FROM shops")) == 6


def test_query_that_runs_for_long_is_interrupted(shop):
    with pytest.raises(QueryFailed, match="interrupted"):
        shop.rows("SELECT COUNT(*) FROM orders a, orders b, orders c, orders d, orders e")


def test_query_that_is_asked_often_is_not_taken_for_a_long_one(shop):
    for _ in range(500):
        assert shop.rows(TASKS[0].query) == [(11,)]


def test_query_without_text_gives_no_rows(shop):
    assert shop.rows("") == []
