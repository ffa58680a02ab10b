"""`compare` and `--output`, from a shell: what was assembled beside what replays made."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.outputs import write_output
from support.processes import Command, assemble, wait_until
from support.store import Store
from support.workload import whole_group

from rolloutlog.consumers.batches import Batch, RewardOutcome
from rolloutlog.consumers.replaying.outputs import OutputScorer
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.consumers.status import Status, status_record

EXIT_DIFFERENT, EXIT_USAGE = 1, 2
SCORED = FoldSettings(beyond="judge 2")
DONE = Status(
    app="replay.slow", partition=0, host="h", pid=4711, time_ns=0, position=10, watermark=10, end=10, open_rollouts=0,
    open_groups=0, oldest_open_ns=None, counts={}, waiting=(),
)  # fmt: skip
JUDGE = OutputScorer("judge", "2", "ab", True)


@pytest.fixture
def judged(embedded: Store) -> Store:
    return with_output(embedded)


def with_output(store: Store) -> Store:
    """Two groups of two rollouts, and an output `judged` in which a judge gives one of them another reward."""
    store.append([*whole_group("a", rollouts=2), *whole_group("b", rollouts=2, partition=1)])
    assert assemble(store.url).finish() == 0
    made = [judge(each, 0.25 if each.group_id == "a" else 1.0) for each in store.batches()]
    store.run(write_output(store.log, "judged", made, settings=SCORED, scorers=(JUDGE,)))
    return store


def judge(batch: Batch, value: float) -> Batch:
    """The batch with the first rollout judged anew."""
    first, *others = batch.rollouts
    verdict = RewardOutcome("judge.00000000000000ee:0", "reward", value, "rollout", "final", "final", (), (), "judge",
                            "2", -1)  # fmt: skip
    outcomes = tuple(replace(each, outcome="revised", rule=None) for each in first.outcomes)
    rollouts = (replace(first, final={"reward": value}, outcomes=(*outcomes, verdict)), *others)
    samples = tuple(_rewarded(each, value) if each.rollout_index == 0 else each for each in batch.samples)
    return replace(batch, rollouts=rollouts, samples=samples, config_hash=SCORED.config_hash)


def _incomplete(batch: Batch) -> Batch:
    first, *others = batch.rollouts
    failed = replace(first, status="incomplete", reason="scorer judge failed: KeyError")
    samples = tuple(each for each in batch.samples if each.rollout_index)
    return replace(batch, rollouts=(failed, *others), samples=samples)


def _rewarded(sample: Any, value: float) -> Any:
    packed = memoryview(bytearray(sample.reward_token_value)).cast("d")
    packed[-1] = value
    return sample._replace(total=value, final={"reward": value}, final_total=value, reward_token_value=packed.tobytes())


def run(store: Store, *arguments: str, code: int = 0) -> str:
    command = Command(*arguments, "--log", store.url)
    assert command.finish() == code, command.stderr
    return command.stdout if code in (0, EXIT_DIFFERENT) else command.stderr


def test_compare_prints_what_changed_and_whose_it_is(judged: Store) -> None:
    printed = run(judged, "compare", "live", "judged")
    lines = printed.splitlines()
    assert re.fullmatch(r"A  live: 2 groups, 4 rollouts, settings [0-9a-f]{32}", lines[0])
    assert lines[2] == "   scored by judge 2"
    assert "reward, final value of a rollout" in lines
    assert "  mean -0.1875, 1 rollout with another value" in lines
    assert "      by reward judge.00000000000000ee:0, scorer judge 2" in lines
    assert "  nothing learned, all rewards alike: 0 groups in B alone, 1 in A alone" in lines
    assert [line for line in lines if len(line) > 80] == []


def test_outputs_of_every_kind_of_log_are_compared(store: Store) -> None:
    with_output(store)
    assert "  mean -0.1875, 1 rollout with another value" in run(store, "compare", "live", "judged").splitlines()
    run(store, "replay", "--output", "again")
    assert len(run(store, "batches", "dump", "--output", "again", "--follow").splitlines()) == 4
    told = run(store, "batches", "dump", "--output", "other", code=EXIT_USAGE)
    assert "output 'other': expected one of live, again, judged, got none of that name" in told


def test_compare_knows_the_settings_that_an_assembler_was_started_with(embedded: Store) -> None:
    embedded.append(whole_group("a", rollouts=2))
    assert assemble(embedded.url, min_group=1).finish() == 0
    made = [judge(each, 0.25) for each in embedded.batches()]
    embedded.run(write_output(embedded.log, "judged", made, settings=SCORED, scorers=(JUDGE,)))
    lines = [line.split() for line in run(embedded, "compare", "live", "judged").splitlines()]
    assert ["min_group:", "1", "→", "2"] in lines


def test_compare_as_json_is_one_object_for_tools(judged: Store) -> None:
    found = json.loads(run(judged, "compare", "live", "judged", "--json", "--top", "1"))
    assert found["rollouts"] == {"both": 4, "compared": 4, "only_a": 0, "only_b": 0, "repeated": 0,
                                 "not_emitted": {"a": 0, "b": 0}}  # fmt: skip
    assert found["rewards"][0]["difference"] == -0.1875
    (change,) = found["rewards"][0]["changed_most"]
    assert (change["rollout_id"], change["a"], change["b"], change["scorer"]) == ("a-r0", 1.0, 0.25, "judge")
    assert (found["samples"]["both"], found["samples"]["total_changed"]) == (4, 1)
    assert found["outcomes"]["changed"] == [{"name": "reward", "a": "final", "b": "revised", "count": 2}]


def test_compare_of_a_reward_that_is_not_there_names_those_that_are_and_reports_nothing(judged: Store) -> None:
    command = Command("compare", "live", "judged", "--reward", "style", "--reward", "reward", "--log", judged.url)
    assert (command.finish(), command.stdout) == (EXIT_USAGE, "")
    assert "--reward style: expected names of rewards in live or judged, which are reward; got" in command.stderr


def test_compare_leaves_out_of_values_what_was_not_emitted(judged: Store) -> None:
    """As when a judge failed: the rollout has its old reward, and no sample."""
    failed = [_incomplete(each) if each.group_id == "a" else each for each in judged.batches()]
    judged.run(write_output(judged.log, "failed", failed))
    lines = run(judged, "compare", "live", "failed").splitlines()
    assert "not emitted, so left out of values there: 1 rollout in B" in lines
    assert [line.split() for line in lines if "not emitted" in line][1:] == [
        ["A", "4", "1", "0", "1", "1", "0.0", "%", "0", "not", "emitted"],
        ["B", "3", "1", "0", "1", "1", "0.0", "%", "1", "not", "emitted"],
    ]


def test_compare_with_an_output_that_is_not_there_names_those_that_are(judged: Store) -> None:
    told = run(judged, "compare", "live", "jugded", code=EXIT_USAGE)
    assert "output 'jugded': expected one of live, judged, got none of that name" in told


def test_compare_of_an_output_with_itself_is_refused(judged: Store) -> None:
    assert "expected two different outputs" in run(judged, "compare", "judged", "judged", code=EXIT_USAGE)


def test_compare_without_a_common_rollout_exits_1(judged: Store) -> None:
    judged.run(write_output(judged.log, "empty", []))
    printed = run(judged, "compare", "live", "empty", code=EXIT_DIFFERENT)
    assert printed.splitlines()[-1] == "0 rollouts in both; 4 rollouts (4 samples) only in A"


def test_batches_of_an_output_are_dumped_listed_and_exported(judged: Store, tmp_path: Any) -> None:
    totals = {each["rollout_id"]: each["total"] for each in map(json.loads, run(
        judged, "batches", "dump", "--output", "judged").splitlines())}  # fmt: skip
    assert totals == {"a-r0": 0.25, "a-r1": 1.0, "b-r0": 1.0, "b-r1": 1.0}
    finals = [json.loads(line)["final"] for line in run(
        judged, "batches", "rollouts", "--output", "judged").splitlines()]  # fmt: skip
    assert finals[0] == {"reward": 0.25}
    file = tmp_path / "judged.parquet"
    assert run(judged, "batches", "export", str(file), "--output", "judged") == f"{file}: 4 samples\n"
    live = [json.loads(line)["total"] for line in run(judged, "batches", "dump", "--output", "live").splitlines()]
    assert live == [1.0] * 4


def test_batches_of_an_output_that_is_not_there_are_refused(judged: Store) -> None:
    told = run(judged, "batches", "dump", "--output", "other", code=EXIT_USAGE)
    assert "expected one of live, judged, got none of that name" in told


def test_following_an_output_prints_what_its_replay_adds_and_ends_when_it_is_complete(judged: Store) -> None:
    first, *others = judged.batches()
    judged.run(write_output(judged.log, "slow", [first], ends=(10,) * judged.partitions))
    follow = Command("batches", "rollouts", "--output", "slow", "--follow", "--log", judged.url)
    wait_until(lambda: len(follow.printed) == len(first.rollouts), "what is there")
    judged.run(write_output(judged.log, "slow", others, ends=(10,) * judged.partitions))
    wait_until(lambda: len(follow.printed) == 4, "the batch that was added")
    judged.append([status_record(replace(DONE, partition=each)) for each in range(judged.partitions)])
    assert follow.finish() == 0, follow.stderr
    assert len(follow.printed) == 4


def test_following_an_output_that_is_complete_ends(judged: Store) -> None:
    assert len(run(judged, "batches", "dump", "--output", "judged", "--follow").splitlines()) == 4


def test_following_an_output_ends_at_a_stop_with_exit_code_0(judged: Store) -> None:
    judged.run(write_output(judged.log, "slow", judged.batches(), ends=(10,) * judged.partitions))
    follow = Command("batches", "dump", "--output", "slow", "--follow", "--log", judged.url)
    wait_until(lambda: len(follow.printed) == 4, "what is there")
    follow.terminate()
    assert follow.finish() == 0, follow.stderr


@pytest.mark.parametrize("name", ["bad.csv", "bad.JSONL", "bad.parquet.txt"])
def test_export_to_a_name_of_another_format_is_refused_and_writes_nothing(
    judged: Store, tmp_path: Any, name: str
) -> None:
    told = run(judged, "batches", "export", str(tmp_path / name), code=EXIT_USAGE)
    assert f"{name}: expected a name for a Parquet file, such as {Path(name).stem}.parquet, got one of another" in told
    assert list(tmp_path.glob("bad*")) == []


def test_explain_of_an_output_says_what_became_of_rewards_there(judged: Store) -> None:
    live = run(judged, "explain", "a-r0")
    scored = run(judged, "explain", "a-r0", "--output", "judged")
    assert "(reward 0.25, rollout)" not in live
    assert "reward judge.00000000000000ee:0 (reward 0.25, rollout): final" in scored
    assert "revised by judge.00000000000000ee:0, a later reward 'reward' of the whole rollout" in scored
    command = Command("explain", "a-r0", "--output", "judged", "--policy", "nearest", "--log", judged.url)
    assert command.finish() == 0
    assert "left out of this comparison: 1 reward that scorers gave to this output alone" in command.stderr
    command = Command("explain", "none-such", "--output", "judged", "--log", judged.url)
    assert command.finish() == EXIT_DIFFERENT
    assert "expected one of 4 rollouts of output.judged, got none" in command.stderr
