"""Two outputs of a log read side by side."""

from dataclasses import replace
from typing import Any

import pytest
from support.batches import batch, result, sample
from support.building import run_ended
from support.outputs import write_output
from support.store import open_log

from rolloutlog.consumers.batches import Batch
from rolloutlog.consumers.comparing.comparison import Compared
from rolloutlog.consumers.comparing.reading import compare_outputs
from rolloutlog.consumers.comparing.sides import Sides
from rolloutlog.consumers.outputs import BatchReady
from rolloutlog.consumers.packing import Packer
from rolloutlog.consumers.replaying.outputs import OutputScorer
from rolloutlog.consumers.replaying.selection import Selection
from rolloutlog.consumers.settings import FoldSettings
from rolloutlog.eventstore.codec import encode_event
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import BATCHES, NewRecord
from rolloutlog.eventstore.topics import create_topics

LIVE = FoldSettings()
TRAJECTORY = FoldSettings(merge="trajectory")


def group(group_id: str, total: float, *, settings: FoldSettings = LIVE, **fields: Any) -> Batch:
    made = batch(group_id, [sample(f"{group_id}/0/c", total=total)], config_hash=settings.config_hash, **fields)
    return replace(made, rollouts=(replace(result(group_id), final={"reward": total}),))


@pytest.fixture
async def log(tmp_path):
    opened = await open_log(f"sqlite:///{tmp_path}/log.db", create=True)
    await create_topics(opened, partitions=2, run_id="run")
    yield opened
    await opened.close()


async def publish(log: Any, *batches: Batch) -> None:
    """As the assembler does, with the end of the run behind them."""
    for each in batches:
        packer = Packer(each.input_partition, each.config_hash, "assembler.00000000000000dd")
        await log.append(packer.pack([BatchReady(each.trigger, each)], time_ns=0))
    await log.append([NewRecord(BATCHES, partition, None, encode_event(run_ended())) for partition in (0, 1)])


async def compare(log: Any, before: str = "live", after: str = "judged", **settings: Any) -> tuple[Compared, Sides]:
    return await compare_outputs(log, before, after, candidates=(LIVE,), **settings)


async def test_live_and_an_output_are_compared_rollout_by_rollout(log):
    await publish(log, group("a", 0.0), group("b", 1.0, input_partition=1))
    await write_output(
        log, "judged", [group("a", 0.5, settings=TRAJECTORY), group("b", 1.0, settings=TRAJECTORY, input_partition=1)],
        settings=TRAJECTORY,
    )  # fmt: skip
    found, sides = await compare(log)
    assert (found.both, found.before_alone, found.after_alone) == (2, 0, 0)
    assert found.rewards[0].spreads.difference == 0.25
    assert [each.rollout_id for each in found.rewards[0].largest] == ["a"]
    assert sides.differences() == [("merge", "none", "trajectory")]
    assert (sides.before.batches, sides.after.rollouts, sides.alike) == (2, 2, False)


@pytest.mark.parametrize("more", ["live", "judged"])
async def test_values_stay_on_their_side_whichever_has_more_batches(log, more: str):
    await publish(log, group("a", 0.0), *([group("x", 5.0)] if more == "live" else []))
    await write_output(log, "judged", [group("a", 1.0), *([group("x", 5.0)] if more == "judged" else [])])
    found, _ = await compare(log)
    assert (found.rewards[0].spreads.before.mean, found.rewards[0].spreads.after.mean) == (0.0, 1.0)
    assert (found.before_alone, found.after_alone) == ((1, 0) if more == "live" else (0, 1))


async def test_two_outputs_are_compared_in_the_order_in_which_they_are_named(log):
    await write_output(log, "one", [group("a", 0.0)])
    await write_output(log, "two", [group("a", 1.0)])
    assert (await compare(log, "two", "one"))[0].rewards[0].spreads.difference == -1.0


async def test_empty_output_has_nothing_in_common(log):
    await publish(log, group("a", 0.0))
    await write_output(log, "judged", [])
    found, sides = await compare(log)
    assert (found.both, found.before_alone, sides.after.batches) == (0, 1, 0)


async def test_output_is_shown_with_its_scorers_and_selection(log):
    scorers = (OutputScorer("judge", "2", "ab", True),)
    selection = Selection(from_ns=0, to_ns=3_600_000_000_000, groups=("a", "b"), rollouts=("r",))
    await write_output(log, "judged", [], scorers=scorers, selection=selection, rewards_ends=(3, 0))
    _, sides = await compare(log)
    assert sides.after.scorers == ("judge 2", "recorded rewards")
    assert sides.after.selection == (
        "2 groups, the groups of 1 rollout, groups closed from 1970-01-01T00:00:00Z and before 1970-01-01T01:00:00Z"
    )


async def test_output_of_a_replay_that_is_not_done_says_how_far_it_is(log):
    await write_output(log, "judged", [], ends=(10, 10))
    assert (await compare(log))[1].after.percent == 0


async def test_settings_of_live_batches_that_are_not_at_hand_are_unknown(log):
    await publish(log, group("a", 0.0, settings=TRAJECTORY))
    await write_output(log, "judged", [group("a", 0.0)])
    assert (await compare(log))[1].differences() is None


async def test_batches_of_several_settings_are_told_apart(log):
    await publish(log, group("a", 0.0), group("b", 0.0, settings=TRAJECTORY))
    await write_output(log, "judged", [])
    _, sides = await compare(log)
    assert sides.before.hashes == {LIVE.config_hash: 1, TRAJECTORY.config_hash: 1}
    assert sides.before.settings is None


async def test_records_that_are_no_batch_are_told_and_counted(log):
    await publish(log, group("a", 0.0))
    await write_output(log, "judged", [group("a", 1.0)])
    await log.append([NewRecord("output.judged", 0, b"a", b"nothing")])
    told: list[int] = []
    found, sides = await compare(log, on_refused=lambda record, error: told.append(record.offset))
    assert (found.both, sides.after.refused, len(told)) == (1, 1, 1)


async def test_only_partitions_that_are_asked_for_are_read(log):
    await publish(log, group("a", 0.0), group("b", 1.0, input_partition=1))
    await write_output(log, "judged", [group("a", 0.0), group("b", 1.0, input_partition=1)])
    assert (await compare(log, which=lambda count: [count - 1]))[0].rewards[0].spreads.before.mean == 1.0


async def test_progress_ends_at_the_whole(log):
    await publish(log, group("a", 0.0), group("b", 1.0, input_partition=1))
    await write_output(log, "judged", [group("a", 0.0)])
    told: list[tuple[int, int]] = []
    await compare(log, on_progress=lambda topic, done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]


async def test_unknown_output_is_refused_with_those_that_exist(log):
    await write_output(log, "judged", [])
    with pytest.raises(InvalidSettings, match=r"output 'nothing': expected one of live, judged, got none of that name"):
        await compare(log, "live", "nothing")
