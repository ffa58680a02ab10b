"""`rolloutlog topics`: create and check, on the embedded log."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rolloutlog.consumers.cli.main import rolloutlog
from rolloutlog.eventstore.errors import PartitionCountChanged
from rolloutlog.eventstore.log import open_log
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
