"""Which Kafka the tests run against; imported by conftest.

First of: the servers in `KAFKA_BOOTSTRAP_SERVERS`; a broker started from its jars, which takes Java 17 and, the first
time, Maven. With neither, tests marked `kafka` are skipped and counted in the summary at the end;
`ROLLOUTLOG_REQUIRE_KAFKA=1` makes that a failure.

Tests that run in several processes (pytest-xdist) have a broker each; the run's own process tells of all of them.

Fixtures  kafka_bootstrap  servers for the whole run, "host:port[,host:port]"; tests use topics and ids of their own
          own_broker       a broker that a module's tests may stop and kill
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from rolloutlog.deploy.kafka import Broker, KafkaMissing, broker_jars, kafka_version
from rolloutlog.deploy.kafka.jars import java


@dataclass
class KafkaInUse:
    """What this run found, and what it did with it."""

    given: str | None = None  # KAFKA_BOOTSTRAP_SERVERS
    missing: str | None = None  # why a broker cannot be started from its jars
    skipped_count: int = 0
    used: str | None = None


IN_USE = pytest.StashKey[KafkaInUse]()
OF_WORKERS = pytest.StashKey[list[KafkaInUse]]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `kafka`, or fail it, when there is no Kafka."""
    if item.get_closest_marker("kafka") is None:
        return
    found = _find(item.config)
    if found.missing is None or (found.given and "own_broker" not in getattr(item, "fixturenames", ())):
        return
    reason = f"no Kafka: {found.missing}"
    if os.environ.get("ROLLOUTLOG_REQUIRE_KAFKA") == "1":
        pytest.fail(f"{reason} (ROLLOUTLOG_REQUIRE_KAFKA=1)", pytrace=False)
    found.skipped_count += 1
    pytest.skip(reason)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker: hand over what it found."""
    found = session.config.stash.get(IN_USE, None)
    if found is not None and hasattr(session.config, "workeroutput"):
        session.config.workeroutput["kafka"] = asdict(found)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker has ended."""
    if found := getattr(node, "workeroutput", {}).get("kafka"):
        node.config.stash.setdefault(OF_WORKERS, []).append(KafkaInUse(**found))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which Kafka was used, and how many tests had none."""
    own = config.stash.get(IN_USE, None)
    all_found = [*([] if own is None else [own]), *config.stash.get(OF_WORKERS, [])]
    for used in dict.fromkeys(found.used for found in all_found if found.used):
        terminalreporter.write_line(f"kafka: {used}")
    if skipped_count := sum(found.skipped_count for found in all_found):
        missing = next(found.missing for found in all_found if found.skipped_count)
        line = f"kafka: {skipped_count} TESTS SKIPPED, no Kafka: {missing}"
        terminalreporter.write_line(line, red=True, bold=True)


@pytest.fixture(scope="session")
def kafka_bootstrap(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    found = _find(pytestconfig)
    if found.given:
        found.used = f"{found.given}, from KAFKA_BOOTSTRAP_SERVERS"
        yield found.given
        return
    with Broker.start(tmp_path_factory.mktemp("kafka")) as broker:
        found.used = (
            f"Apache Kafka {kafka_version()} from its jars on {broker.bootstrap}, ready in {broker.start_s:.1f} s"
        )
        yield broker.bootstrap


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker.start(tmp_path_factory.mktemp("own-kafka")) as broker:
        yield broker


def _find(config: pytest.Config) -> KafkaInUse:
    """Look once a run; the jars are resolved here, before a test's own time starts to count."""
    if IN_USE not in config.stash:
        found = KafkaInUse(given=os.environ.get("KAFKA_BOOTSTRAP_SERVERS") or None)
        try:
            java()
            broker_jars()
        except KafkaMissing as error:
            found.missing = str(error)
        config.stash[IN_USE] = found
    return config.stash[IN_USE]
