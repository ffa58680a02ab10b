"""Fixtures and hooks for all tests."""

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
from kafka_fixture import (
    kafka_bootstrap,
    own_broker,
    pytest_runtest_setup,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)

# Hypothesis' plugin imports this for the summary, from so deep a stack that Python 3.11 can fail to compile it there.
with suppress(ModuleNotFoundError):  # the environment of tests/verl has none
    import hypothesis.internal.observability  # noqa: F401

__all__ = [
    "kafka_bootstrap",
    "own_broker",
    "pytest_collection_modifyitems",
    "pytest_runtest_setup",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
    "scores_in_a_folder_of_the_tests",
]


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("slow_on_kafka")
        if mark is not None and mark.args in ((), (True,)) and item.get_closest_marker("kafka") is not None:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def scores_in_a_folder_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What scorers said is kept below the user's cache, by processes that tests start too."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before
