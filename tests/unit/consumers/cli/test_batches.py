"""`rolloutlog batches dump`: its lines, and what it does with records that are no batches."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from support.building import call, completed, floats, ids, reward, started
from unit.consumers.folding import Partition

from rolloutlog.consumers.attribution import AttributionSettings
from rolloutlog.consumers.batches import Batch, encode_parts
from rolloutlog.consumers.cli.batches import rollout_lines, sample_lines
from rolloutlog.consumers.cli.main import rolloutlog
from rolloutlog.consumers.times import parse_time
from rolloutlog.eventstore.events import Event, PolicyVersionRun
from rolloutlog.eventstore.extra_info import encode_extra_info
from rolloutlog.eventstore.log import BATCHES, NewRecord, open_log
from rolloutlog.eventstore.topics import create_topics

FIELDS = [
    "sample_id",
    "batch_id",
    "group_id",
    "rollout_id",
    "attempt",
    "split",
    "turn_index",
    "turn_count",
    "prompt_ids",
    "response_ids",
    "response_mask",
    "logprobs",
    "policy_version",
    "total",
    "step",
    "final",
    "rollout_final",
    "reward_token_index",
    "reward_token_value",
    "extra_info",
    "outcomes",
]


def closed(*events: Event, start: int | None = None, group_id: str = "g", **settings: Any) -> Batch:
    partition = Partition(**settings)
    partition.add(started(policy_version=start, group_id=group_id), *events, completed(len(events) + 1), key=group_id)
    return partition.batch


def line(*events: Event, **settings: Any) -> dict[str, Any]:
    """The only sample's line."""
    (found,) = sample_lines(closed(*events, **settings))
    return found


def test_dump_has_these_fields_in_this_order():
    assert list(line(call("c", 1))) == FIELDS


def test_dump_says_which_sample_it_is():
    made = line(call("c", 1))
    found = {name: made[name] for name in FIELDS[:8] if name != "batch_id"}
    assert found == {
        "sample_id": "r/0/c",
        "group_id": "g",
        "rollout_id": "r",
        "attempt": 0,
        "split": "train",
        "turn_index": 0,
        "turn_count": 1,
    }


def test_rollouts_says_when_its_group_closed_as_a_replay_is_given_it():
    batch = replace(closed(call("c", 1)), closed_ns=1_772_366_400_000_001_999)
    (found,) = rollout_lines(batch)
    assert found["closed"] == "2026-03-01T12:00:00.000001Z"
    assert parse_time(found["closed"], 0) == 1_772_366_400_000_001_000


def test_dump_names_the_batch():
    batch = closed(call("c", 1))
    assert [found["batch_id"] for found in sample_lines(batch)] == [batch.batch_id]


def test_dump_writes_tokens_as_numbers():
    made = line(call("c", 1, prompt_ids=ids(1, 2), response_ids=ids(3, 2**31 - 1), logprobs=floats(-0.5, -0.25)))
    assert [made[name] for name in ("prompt_ids", "response_ids", "response_mask", "logprobs")] == [
        [1, 2],
        [3, 2**31 - 1],
        [1, 1],
        [-0.5, -0.25],
    ]


def test_dump_of_a_call_without_log_probs_has_null():
    assert line(call("c", 1))["logprobs"] is None


def test_dump_has_the_oldest_policy_version_of_the_calls_runs():
    runs = (PolicyVersionRun(7, 1), PolicyVersionRun(4, 1))
    assert line(call("c", 1, policy_version_runs=runs), start=9)["policy_version"] == 4


@pytest.mark.parametrize("runs", [(), (PolicyVersionRun(None, 2),)])
def test_dump_of_a_call_without_policy_version_has_that_of_the_start(runs: tuple[PolicyVersionRun, ...]):
    assert line(call("c", 1, policy_version_runs=runs), start=9)["policy_version"] == 9


def test_dump_without_any_policy_version_has_null():
    assert line(call("c", 1))["policy_version"] is None


def test_dump_has_policy_version_0_as_0():
    assert line(call("c", 1, policy_version_runs=(PolicyVersionRun(0, 2),)), start=9)["policy_version"] == 0


def test_dump_keeps_total_step_final_and_rollout_final_apart():
    made = line(
        call("c", 1),
        reward(2, value=0.5, name="style"),
        reward(3, value=1.0, scope="rollout"),
        attribution=AttributionSettings(weights={"style": 2.0}),
    )
    assert [made[name] for name in ("total", "step", "final", "rollout_final")] == [
        2.0,
        {"style": 0.5},
        {"reward": 1.0},
        {"reward": 1.0},
    ]


def test_dump_has_the_final_of_this_call_and_that_of_the_rollout():
    first, last = sample_lines(closed(call("a", 1), call("b", 2), reward(3, scope="rollout")))
    assert [first["final"], first["rollout_final"], last["final"]] == [{}, {"reward": 1.0}, {"reward": 1.0}]


def test_dump_of_a_sample_without_reward_has_null_and_no_reward_tokens():
    made = line(call("c", 1))
    assert [made[name] for name in ("total", "reward_token_index", "reward_token_value")] == [None, [], []]


def test_dump_has_the_reward_token_and_its_value():
    made = line(call("c", 1, response_ids=ids(3, 4, 5)), reward(2, value=0.25))
    assert [made["reward_token_index"], made["reward_token_value"]] == [[2], [0.25]]


def test_dump_writes_extra_info_as_it_was_recorded():
    encoded = encode_extra_info({"acc": float("nan"), "big": 2**70, "array": np.arange(2)})
    assert line(call("c", 1), reward(2, extra_info=encoded))["extra_info"] == json.loads(encoded)


def test_dump_without_extra_info_has_an_empty_mapping():
    assert line(call("c", 1))["extra_info"] == {}


def test_dump_tells_what_became_of_each_reward_of_the_rollout():
    made = line(
        call("c", 1), reward(2, value=0.5, reward_id="mine"), reward(3, value=None, name="none", reward_id="no")
    )
    assert made["outcomes"] == {
        "mine": {
            "name": "reward",
            "value": 0.5,
            "outcome": "attributed",
            "rule": "enclosing",
            "calls": ["c"],
            "found": [],
        },
        "no": {"name": "none", "value": None, "outcome": "no_verdict", "rule": None, "calls": [], "found": []},
    }


def test_dump_tells_all_outcomes_with_each_sample():
    first, last = sample_lines(closed(call("a", 1), call("b", 2), reward(3, scope="rollout", reward_id="mine")))
    assert first["outcomes"] == last["outcomes"]


def test_dump_of_an_evaluation_group_has_no_line():
    partition = Partition()
    partition.add(started(split="val"), call("c", 1), completed(2))
    assert list(sample_lines(partition.batch)) == []


# Through the command line


def dump(folder: Path, *values: bytes | None) -> Result:
    """The dump of a log that holds these records of batches in one partition."""
    url = f"sqlite:///{folder / 'run.db'}"

    async def write() -> None:
        log = await open_log(url, create=True)
        await create_topics(log, partitions=2)
        await log.append([NewRecord(BATCHES, 1, b"g", value) for value in values])
        await log.close()

    asyncio.run(write())
    return CliRunner(catch_exceptions=False).invoke(rolloutlog, ["batches", "dump", "--log", url])


def parts(name: str) -> list[bytes]:
    """A batch in two parts: one sample each."""
    batch = closed(call("a", 1), call("b", 2), group_id=name)
    halves = [replace(batch, samples=batch.samples[:1]), replace(batch, rollouts=(), samples=batch.samples[1:])]
    return [encode_parts(replace(half, part=index, parts=2))[0] for index, half in enumerate(halves)]


def names(result: Result) -> list[tuple[str, str]]:
    lines = [json.loads(text) for text in result.stdout.splitlines()]
    return [(found["group_id"], found["sample_id"]) for found in lines]


def test_dump_prints_one_json_line_a_sample(tmp_path: Path):
    result = dump(tmp_path, *encode_parts(closed(call("a", 1), call("b", 2))))
    assert names(result) == [("g", "r/0/a"), ("g", "r/0/b")]


def test_dump_puts_parts_together(tmp_path: Path):
    assert names(dump(tmp_path, *parts("g"), *parts("h"))) == [
        ("g", "r/0/a"),
        ("g", "r/0/b"),
        ("h", "r/0/a"),
        ("h", "r/0/b"),
    ]


def test_dump_of_a_log_without_batches_is_empty(tmp_path: Path):
    result = dump(tmp_path)
    assert (result.exit_code, result.output) == (0, "")


def test_dump_passes_over_a_record_that_is_no_batch_and_says_where(tmp_path: Path):
    result = dump(tmp_path, b"junk", *encode_parts(closed(call("a", 1))))
    assert names(result) == [("g", "r/0/a")]
    assert result.stderr.startswith("offset 1:0: expected Avro single-object bytes")


def test_dump_passes_over_a_batch_whose_first_part_is_gone(tmp_path: Path):
    """Retention may cut it off."""
    result = dump(tmp_path, parts("g")[1], *parts("h"))
    assert names(result) == [("h", "r/0/a"), ("h", "r/0/b")]
    assert "expected part 0 of 2, got part 1 of 2" in result.stderr


def test_dump_refuses_partitions_that_the_log_does_not_have(tmp_path: Path):
    dump(tmp_path)
    result = CliRunner().invoke(
        rolloutlog, ["batches", "dump", "--log", f"sqlite:///{tmp_path / 'run.db'}", "--partitions", "2"]
    )
    assert "within 0-1" in str(result.exception)


def test_dump_says_which_samples_of_another_writer_are_bad_and_prints_the_others(tmp_path: Path):
    made = closed(call("a", 1), call("b", 2), call("c", 3), call("d", 4))
    first, second, third, fourth = made.samples
    bad = [first._replace(rollout_index=7), second._replace(response_ids=b"abc"), third._replace(total=float("nan"))]
    result = dump(tmp_path, *encode_parts(replace(made, samples=(*bad, fourth))))
    assert names(result) == [("g", "r/0/d")]
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == [
        f"sample r/0/{name} of group g is bad" for name in "abc"
    ]


def test_dump_writes_what_json_lacks_in_another_writers_batch_as_in_extra_info(tmp_path: Path):
    made = closed(call("a", 1))
    (rollout,) = made.rollouts
    wrong = replace(rollout, final={"a": float("nan"), "b": float("-inf")})
    sample = made.samples[0]._replace(extra_info=b"{")
    (line,) = map(
        json.loads,
        dump(tmp_path, *encode_parts(replace(made, rollouts=(wrong,), samples=(sample,)))).stdout.splitlines(),
    )
    assert (line["rollout_final"], line["extra_info"]) == ({"a": {"$nan": True}, "b": {"$inf": -1}}, None)
