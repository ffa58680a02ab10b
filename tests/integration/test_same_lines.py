"""The same events give the same samples on every log."""

import json
import uuid
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from rolloutlog.consumers.cli.main import rolloutlog

from .test_import import shared_data

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]


def run(*arguments: str) -> str:
    result = CliRunner(catch_exceptions=False).invoke(rolloutlog, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_trajectories_give_the_same_lines_on_both_logs(kafka_bootstrap: str, tmp_path: Path) -> None:
    file = str(shared_data())
    dumps = []
    for url in (f"sqlite:///{tmp_path}/tau.db", f"kafka://{kafka_bootstrap}/tau-{uuid.uuid4().hex[:8]}"):
        run("topics", "create", "--partitions", "4", "--log", url)
        run("import", "messages", file, "--log", url)
        run("assemble", "--until-end", "--log", url)
        dumps.append(run("batches", "dump", "--log", url))
    assert dumps[0] == dumps[1]
    lines = [json.loads(line) for line in dumps[0].splitlines()]
    rollouts = {(line["group_id"], line["rollout_id"]) for line in lines}
    assert len(lines) == 579
    assert Counter(Counter(group for group, _ in rollouts).values()) == {4: 10}
