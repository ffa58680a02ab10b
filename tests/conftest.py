"""Fixtures and hooks for all tests."""

# Its plugin imports this for the summary, from so deep a stack that Python 3.11 can fail to compile it there.
import hypothesis.internal.observability  # noqa: F401
from kafka_fixture import (
    kafka_bootstrap,
    own_broker,
    pytest_runtest_setup,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)

__all__ = [
    "kafka_bootstrap",
    "own_broker",
    "pytest_runtest_setup",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]
