"""`rolloutlog doctor`: what it prints, and its exit code."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rolloutlog.consumers.cli.main import rolloutlog
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import open_log


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'run.db'}"


def doctor(url: str) -> Result:
    return CliRunner().invoke(rolloutlog, ["doctor", "--log", url])


def test_doctor_of_a_log_that_can_not_be_reached_exits_3(url: str):
    result = doctor(url)
    assert result.exit_code == 3
    assert result.output.startswith("FAILED   reach      log file ")
    assert result.output.endswith(f"→ rolloutlog topics create --log {url}\n")


def test_doctor_of_a_log_that_works_exits_0_though_nobody_runs_yet(url: str):
    CliRunner().invoke(rolloutlog, ["topics", "create", "--log", url])
    result = doctor(url)
    assert result.exit_code == 0
    assert "ok       event      one there and back in " in result.output
    assert "warning  assembler  none has written a status yet\n" in result.output


def test_doctor_of_a_log_without_topics_exits_1(url: str):
    asyncio.run(make_file(url))
    assert doctor(url).exit_code == 1


async def make_file(url: str) -> None:
    await (await open_log(url, create=True)).close()


def test_doctor_of_a_wrong_url_is_wrong_usage():
    assert isinstance(doctor("run.db").exception, InvalidSettings)
