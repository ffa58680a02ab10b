"""`rolloutlog outputs delete` on both logs, also while a replay writes the output."""

import json
import os
from pathlib import Path

import pytest
from support.processes import Command
from support.store import Store, batches_of
from support.workload import whole_group

from rolloutlog.consumers.replaying.outputs import list_outputs, topic_of

from .conftest import NewUrl

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow_on_kafka]

GROUPS = 12
SLOW = """
import asyncio
from rolloutlog.consumers.scoring import Reward, scorer

@scorer(version="1", concurrency=1)
async def slow(rollout):
    await asyncio.sleep(0.25)
    return Reward(1.0, name="slow")
"""


def command(*arguments: str, code: int = 0) -> Command:
    started = Command(*arguments)
    assert started.finish() == code, started.stderr
    return started


def fill(store: Store) -> None:
    store.append([record for index in range(GROUPS) for record in whole_group(f"g{index}", rollouts=2)])


def test_deleted_output_can_be_made_again_with_other_settings(new_url: NewUrl) -> None:
    with Store(new_url(), partitions=1) as store:
        fill(store)
        command("replay", "--log", store.url, "--output", "again")
        assert "expected" in command("outputs", "delete", "none", "--log", store.url, "--yes", code=2).stderr
        assert "again: deleted" in command("outputs", "delete", "again", "--log", store.url, "--yes").stdout
        assert "no outputs" in command("outputs", "--log", store.url).stderr
        made = command("replay", "--log", store.url, "--output", "again", "--min-group", "1")
        assert f"again: {GROUPS} groups, " in made.stdout
        assert len(batches_of(store.records(topic_of("again"), [0]))) == GROUPS
        (told,) = command("outputs", "--log", store.url, "--json").printed
        assert (json.loads(told)["complete"], json.loads(told)["groups"]) == (True, GROUPS)


def test_output_is_deleted_only_when_somebody_says_so(embedded: Store) -> None:
    fill(embedded)
    command("replay", "--log", embedded.url, "--output", "kept")
    asked = command("outputs", "--log", embedded.url, "delete", "kept", code=130)
    assert f"delete output kept (complete, {GROUPS} groups, " in asked.stderr
    (output,) = embedded.run(list_outputs(embedded.log))
    assert output.name == "kept"
    assert command("outputs", "--log", embedded.url).stdout.rstrip().endswith(" KiB")
    size_bytes = json.loads(command("outputs", "--log", embedded.url, "--json").stdout)["size_bytes"]
    assert size_bytes == sum(len(each.value or b"") for each in embedded.records("output.kept"))


def test_replay_whose_output_is_deleted_ends_by_name_and_never_makes_half_of_it_again(
    new_url: NewUrl, tmp_path: Path
) -> None:
    with Store(new_url(), partitions=1) as store:
        fill(store)
        (tmp_path / "judges.py").write_text(SLOW)
        arguments = ("replay", "--log", store.url, "--output", "going", "--scorer", "judges:slow", "--no-cache")
        running = Command("--log-level", "debug", *arguments, path=tmp_path)
        running.wait_for_steps(0, "commit")
        deleting = command("outputs", "delete", "going", "--log", store.url, "--yes")
        assert running.finish(120) == 4, running.stderr
        assert f"partition 0 of output going was taken over by host {os.uname().nodename}, pid {deleting.pid}" in (
            running.stderr
        )
        assert store.run(list_outputs(store.log)) == []
        assert "no outputs" in command("outputs", "--log", store.url).stderr
        command("replay", "--log", store.url, "--output", "going")
        assert len(batches_of(store.records(topic_of("going"), [0]))) == GROUPS
