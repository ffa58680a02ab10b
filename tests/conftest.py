"""Fixtures and hooks for all tests."""

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
