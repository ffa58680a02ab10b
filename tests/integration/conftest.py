"""Logs for processes: a fresh one for each test, once for every kind of log; no process outlives its test."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes import kill_started
from support.store import Store

NewUrl = Callable[[], str]


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)], scope="module")
def log_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def new_url(log_kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NewUrl:
    """Makes the URL of a log that nobody has used: a new file, or a new prefix."""
    directory: Path = tmp_path_factory.mktemp("logs")
    bootstrap = request.getfixturevalue("kafka_bootstrap") if log_kind == "kafka" else ""

    def make() -> str:
        name = uuid.uuid4().hex[:12]
        return f"kafka://{bootstrap}/test-{name}" if bootstrap else f"sqlite:///{directory}/{name}.db"

    return make


@pytest.fixture
def store(new_url: NewUrl) -> Iterator[Store]:
    """A fresh log with its topics."""
    with Store(new_url()) as opened:
        yield opened


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Store]:
    """A fresh embedded log, for what happens before a log is asked for anything."""
    with Store(f"sqlite:///{tmp_path}/log.db") as opened:
        yield opened


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What scorers said in other tests is not known: runs of tests have one id."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Kill what a failed test left running."""
    yield
    kill_started()
