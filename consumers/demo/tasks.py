"""The tasks of the demo's agent, and the database that they ask about."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import resources
from typing import NamedTuple

STEPS_MAX = 20_000  # of SQLite's machine: far more than any sensible query takes here

Rows = list[tuple[object, ...]]


class Task(NamedTuple):
    """A question, in words of the vocabulary, and a query whose rows are right."""

    task_id: str
    question: str
    query: str


def _task(question: str, query: str) -> Task:
    return Task(question.lower().replace(" ", "-"), question, query)


TASKS = (
    _task("count customers", "SELECT COUNT(*) FROM customers"),
    _task("count customers in Berlin", "SELECT COUNT(*) FROM customers WHERE city = 'Berlin'"),
    _task("count customers in Lisbon", "SELECT COUNT(*) FROM customers WHERE city = 'Lisbon'"),
    _task("name customers in Oslo", "SELECT name FROM customers WHERE city = 'Oslo'"),
    _task("name shops", "SELECT name FROM shops"),
    _task("count shops in Lisbon", "SELECT COUNT(*) FROM shops WHERE city = 'Lisbon'"),
    _task("name shops in Berlin", "SELECT name FROM shops WHERE city = 'Berlin'"),
    _task("count orders", "SELECT COUNT(*) FROM orders"),
    _task("average orders", "SELECT AVG(amount) FROM orders"),
    _task("total orders", "SELECT SUM(amount) FROM orders"),
)


class QueryFailed(Exception):
    """SQLite refused a query; the text is its own."""


class Shop:
    """The database, in memory. One thread uses it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._answers: dict[Task, Rows] = {}

    def answer(self, task: Task) -> Rows:
        """The rows that are right."""
        if task not in self._answers:
            self._answers[task] = self.rows(task.query)
        return self._answers[task]

    def rows(self, query: str) -> Rows:
        """Run a query. The order of its rows is no part of an answer: they are sorted. Raises QueryFailed."""
        try:
            with closing(self._connection.execute(query)) as cursor:
                return sorted(cursor.fetchall(), key=repr)
        except sqlite3.Error as error:
            raise QueryFailed(str(error)) from error


@contextmanager
def open_shop() -> Iterator[Shop]:
    """Build the database from shop.sql. What a policy writes cannot change it, nor run for long."""
    # Without a cache: SQLite counts the steps of a statement over all its runs.
    with closing(sqlite3.connect(":memory:", cached_statements=0)) as connection:
        connection.executescript(resources.files(__package__).joinpath("shop.sql").read_text("utf-8"))
        connection.execute("PRAGMA query_only = ON")
        connection.set_progress_handler(lambda: 1, STEPS_MAX)
        yield Shop(connection)
