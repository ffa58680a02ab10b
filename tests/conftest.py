"""Fixtures and hooks for all tests."""

from contextlib import suppress

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
    "pytest_runtest_setup",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]
