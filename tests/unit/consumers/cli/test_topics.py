"""`rolloutlog topics`: create and check, on the embedded log."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rolloutlog.consumers.cli.main import rolloutlog
from rolloutlog.eventstore.errors import InvalidSettings, PartitionCountChanged
from rolloutlog.eventstore.log import NewRecord, open_log
from rolloutlog.eventstore.log.sqlite import SqliteLog
from rolloutlog.eventstore.topics import topic_settings


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'run.db'}"


def topics(command: str, url: str, *arguments: str) -> Result:
    return CliRunner().invoke(rolloutlog, ["topics", command, "--log", url, *arguments])


def test_topics_create_makes_a_run_with_4_partitions_on_the_embedded_log(url: str):
    result = topics("create", url)
    assert result.exit_code == 0
    assert result.output.endswith(": 4 partitions of events\n")


def test_topics_create_makes_as_many_partitions_as_wanted(url: str):
    assert topics("create", url, "--partitions", "7").output.endswith(": 7 partitions of events\n")


def test_topics_create_again_names_the_same_run(url: str):
    assert topics("create", url).output == topics("create", url).output


def test_topics_create_with_another_partition_count_is_refused(url: str):
    """Keys would move, and groups would be torn."""
    topics("create", url)
    assert isinstance(topics("create", url, "--partitions", "7").exception, PartitionCountChanged)


@pytest.mark.parametrize("count", ["0", "-1", "x"])
def test_topics_create_with_no_partition_count_exits_2(url: str, count: str):
    assert topics("create", url, "--partitions", count).exit_code == 2


def test_topics_check_of_what_was_created_finds_no_difference(url: str):
    topics("create", url)
    result = topics("check", url)
    assert (result.exit_code, result.output) == (0, "all topics are as wanted\n")


def test_topics_check_names_what_is_missing_and_exits_1(url: str):
    async def some() -> None:
        log = await open_log(url, create=True)
        await log.create([each for each in topic_settings(partitions=4) if each.name != "acks"])
        await log.close()

    asyncio.run(some())
    result = topics("check", url)
    assert (result.exit_code, "acks" in result.output, "a run" in result.output) == (1, True, True)


def aged(url: str) -> None:
    """A dead letter and an event of 1970."""

    async def append() -> None:
        log = await SqliteLog.open(url, create=True, clock=lambda: 0)
        await log.create(topic_settings(partitions=4))
        await log.append([NewRecord("dead-letters", 1, b"", bytes(500_000)), NewRecord("events", 0, b"", b"")])
        await log.close()

    asyncio.run(append())


def test_topics_trim_says_what_it_removed_what_stays_and_what_is_free(url: str):
    aged(url)
    lines = topics("trim", url).output.splitlines()
    assert lines[:2] == [
        "dead-letters/1: 1 records removed, 0.5 MB",
        "events/0: older records stay: assembler has committed no position",
    ]
    assert lines[2].startswith("0.5 MB of the file's ")
    assert lines[2].endswith(" MB are free for new records; --shrink gives them back")


def test_topics_trim_dry_run_removes_nothing(url: str):
    aged(url)
    for _ in range(2):
        assert topics("trim", url, "--dry-run").output.startswith(
            "dead-letters/1: 1 records would be removed, 0.5 MB\n"
        )


def test_topics_trim_with_shrink_makes_the_file_smaller(url: str, tmp_path: Path):
    aged(url)
    size_bytes = (tmp_path / "run.db").stat().st_size
    assert topics("trim", url, "--shrink").output.endswith(" 0.5 MB less\n")
    assert size_bytes - (tmp_path / "run.db").stat().st_size > 450_000


def test_topics_trim_with_nothing_to_remove_says_so(url: str):
    topics("create", url)
    assert topics("trim", url).output.startswith("nothing is older than its topic keeps")


def test_topics_trim_of_a_kafka_log_says_that_brokers_do_it():
    result = topics("trim", "kafka://127.0.0.1:1/run")
    assert isinstance(result.exception, InvalidSettings)
    assert "on Kafka the brokers remove what is older than each topic's retention.ms" in str(result.exception)


@pytest.mark.parametrize("flags", [("--without", "assembler"), ("--dry-run", "--shrink")])
def test_topics_trim_with_flags_that_make_no_sense_is_refused(url: str, flags: tuple[str, ...]):
    assert isinstance(topics("trim", url, *flags).exception, InvalidSettings)
