"""`rolloutlog metrics`: its table and its JSON."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.building import call, completed, reward, started
from unit.consumers.folding import Partition

from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.consumers.batches import Batch, encode_parts
from rolloutlog.consumers.cli.main import rolloutlog
from rolloutlog.eventstore.log import BATCHES, NewRecord, open_log
from rolloutlog.eventstore.topics import create_topics


def batches() -> list[Batch]:
    made = []
    for version, group_id in enumerate(("g", "h")):
        partition = Partition(attribution=AttributionSettings())
        events = [
            call("c", 1),
            reward(2, value=version / 2, scope="rollout"),
            reward(3, value=0.25, name="[bold]style"),
        ]
        events = events[: 3 - version]
        partition.add(
            started(policy_version=version, group_id=group_id), *events, completed(len(events) + 1), key=group_id
        )
        made.append(partition.batch)
    return made


def metrics(folder: Path, made: list[Batch], *arguments: str) -> Result:
    url = f"sqlite:///{folder}/run.db"

    async def prepare() -> None:
        log = await open_log(url, create=True)
        await create_topics(log, partitions=1)
        for each in made:
            await log.append([NewRecord(BATCHES, 0, b"g", value) for value in encode_parts(each)])
        await log.close()

    asyncio.run(prepare())
    return CliRunner().invoke(rolloutlog, ["metrics", "--log", url, *arguments], catch_exceptions=False)


def test_table_has_a_line_for_all_and_one_a_name(tmp_path: Path):
    lines = [" ".join(line.split()) for line in metrics(tmp_path, batches()).stdout.splitlines()]
    assert lines == [
        "reward final step total counts, by outcome (rule)",
        "all 0.375 of 2 2 rollouts, 2 samples",
        "reward 0.25 of 2 - 0.375 of 2 final 2",
        "[bold]style - 0.25 of 1, 1 null 0.25 of 1, 1 null attributed 1 (enclosing 1)",
    ]


def test_table_by_policy_version_names_each(tmp_path: Path):
    lines = [line.split() for line in metrics(tmp_path, batches(), "--by", "policy_version").stdout.splitlines()]
    assert [line[0] for line in lines] == ["policy_version", "0", "reward", "[bold]style", "1", "reward"]


def test_json_is_one_object_with_a_group_for_all(tmp_path: Path):
    found = json.loads(metrics(tmp_path, batches(), "--json").stdout)
    assert found["by"] is None
    (group,) = found["groups"]
    assert {name: group[name] for name in ("all", "rollouts", "samples", "total")} == {
        "all": None,
        "rollouts": 2,
        "samples": 2,
        "total": {"mean": 0.375, "count": 2, "null": 0},
    }
    assert group["names"]["reward"] == {
        "outcomes": [{"outcome": "final", "rule": "final", "count": 2}],
        "final": {"mean": 0.25, "count": 2, "null": 0},
        "step": {"mean": None, "count": 0, "null": 2},
        "total": {"mean": 0.375, "count": 2, "null": 0},
    }


@pytest.mark.parametrize(("by", "keys"), [("policy_version", [0, 1]), ("task", ["t"]), ("split", ["train"])])
def test_json_by_something_has_a_group_for_each(tmp_path: Path, by: str, keys: list[object]):
    found = json.loads(metrics(tmp_path, batches(), "--json", "--by", by).stdout)
    assert [each[by] for each in found["groups"]] == keys


def test_log_without_batches_has_none(tmp_path: Path):
    assert metrics(tmp_path, []).stdout == "no batches\n"
