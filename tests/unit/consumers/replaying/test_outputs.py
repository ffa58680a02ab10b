"""Outputs as they are written down: once, and gone on with only by the same wish."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.store import Store

from rolloutlog.consumers.replaying.outputs import (
    Output,
    OutputDiffers,
    OutputGone,
    OutputRewards,
    OutputScorer,
    beyond_of,
    check_same,
    check_topic,
    create_output,
    list_outputs,
    read_output,
    topic_of,
)
from rolloutlog.consumers.replaying.selection import Selection
from rolloutlog.consumers.settings import FoldSettings, canonical_json
from rolloutlog.eventstore.errors import Fenced, InvalidSettings, LogMissing
from rolloutlog.eventstore.log import open_log

JUDGE = OutputScorer("judge", "2", "ab" * 16, False)


def output(name: str = "judged", **fields: Any) -> Output:
    given: dict[str, Any] = {
        "run_id": "run", "config_hash": FoldSettings().config_hash, "scorers": (JUDGE,),
        "settings": canonical_json(FoldSettings().canonical()), "selection": Selection(1_000, None, ("g",), ("r",)),
        "first": (1, 2), "ends": (10, 20), "rewards_ends": (3, 0), "time_ns": 7, "source": "log", **fields,
    }  # fmt: skip
    return Output(name, **given)


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "x" * 81, "ö", "live"])
def test_topic_of_a_name_that_can_be_none_is_refused(name: str):
    with pytest.raises(InvalidSettings, match=f"output {name!r}: expected"):
        topic_of(name)


def test_topic_of_a_name_is_below_output():
    assert topic_of("Judged_2-a") == "output.Judged_2-a"


def test_output_comes_back_as_it_was_created(store: Store):
    made = output(record=True, rewards_before_ns=9, rewards_of=(OutputRewards("slow", "1"), OutputRewards("old", None)))
    assert store.run(create_output(store.log, made)) == made
    assert store.run(read_output(store.log, "judged")) == made
    assert store.run(store.log.partitions(made.topic)) == 2
    assert store.run(read_output(store.log, "other")) is None


def test_output_created_again_stays_the_first(store: Store):
    first = store.run(create_output(store.log, output()))
    assert store.run(create_output(store.log, output(time_ns=8))) == first
    store.run(create_output(store.log, output("other")))
    assert [each.name for each in store.run(list_outputs(store.log))] == ["judged", "other"]


def test_output_created_by_two_at_once_is_one(store: Store):
    async def create(time_ns: int) -> Output | None:
        log = await open_log(store.url)
        try:
            return await create_output(log, output(time_ns=time_ns))
        except Fenced:
            return None
        finally:
            await log.close()

    async def both() -> list[Output | None]:
        return await asyncio.gather(*(create(time_ns) for time_ns in range(4)))

    made = {each.time_ns for each in store.run(both()) if each is not None}
    (found,) = store.run(list_outputs(store.log))
    assert made == {found.time_ns}


def test_output_that_records_is_not_gone_on_with_without_recording():
    with pytest.raises(OutputDiffers, match="output judged was made with --record given, got none"):
        check_same(output(record=True), output(), rewards_given=False)


def test_beyond_is_empty_without_scorers_and_recorded_rewards():
    assert beyond_of((), (0, 0)) == ""
    assert FoldSettings(beyond="").config_hash == FoldSettings().config_hash
    assert len({beyond_of((JUDGE,), (0, 0)), beyond_of((), (1, 0)), beyond_of((), (2, 0))}) == 3
    assert FoldSettings(beyond="x").config_hash != FoldSettings().config_hash


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"settings": canonical_json(FoldSettings(min_group=3).canonical())}, "with min_group 2, got 3"),
        ({"scorers": ()}, "with scorers judge 2, got none"),
        ({"scorers": (replace(JUDGE, version="3"),)}, "with scorers judge 2, got judge 3"),
        ({"scorers": (replace(JUDGE, source="cd" * 16),)}, f"with scorer judge in a file with digest {'ab' * 16}"),
        ({"selection": Selection(2_000, None, ("g",), ("r",))},
         "with --from 1970-01-01T00:00:00.000001Z, got 1970-01-01T00:00:00.000002Z"),
        ({"selection": Selection(1_000, None, ("h",), ("r",))}, "with --group g, got h"),
        ({"record": True}, "without --record: none of its rewards were recorded.* use another --output; verdicts are "),
        ({"rewards_ends": (4, 0), "rewards_before_ns": 5_000},
         "without --rewards-as-of, with all that was recorded until 1970-01-01T00:00:00.000000Z, got with "
         "--rewards-as-of 1970-01-01T00:00:00.000005Z: other recorded rewards would count. Leave --rewards-as-of out"),
        ({"rewards_ends": (0, 0), "rewards_before_ns": 0}, "without .*, got with --rewards-as-of none"),
    ],
)  # fmt: skip
def test_output_is_gone_on_with_only_by_the_same_wish(fields: dict[str, Any], text: str):
    check_same(output(), output(first=(0, 0), ends=(99, 99), time_ns=9), rewards_given=True)
    with pytest.raises(OutputDiffers, match=f"output judged was made {text}"):
        check_same(output(), output(**fields), rewards_given=True)


def test_output_is_gone_on_with_by_its_own_recorded_rewards_when_nothing_is_said_of_them():
    check_same(output(), output(rewards_ends=(4, 0)), rewards_given=False)


def test_output_of_more_ids_than_a_record_holds_is_refused_before_anything_is_made(store: Store):
    ids = tuple(f"{index:04}" + "x" * 10_000 for index in range(900))
    with pytest.raises(InvalidSettings, match=r"output judged: expected ids of at most 8388608 bytes in all, got 900"):
        store.run(create_output(store.log, output(selection=Selection(groups=ids))))
    with pytest.raises(LogMissing):
        store.run(store.log.partitions("output.judged"))


def test_output_whose_topic_was_deleted_is_not_gone_on_with(store: Store):
    store.run(create_output(store.log, output("kept")))
    store.run(check_topic(store.log, output("kept")))
    with pytest.raises(OutputGone, match=r"output gone: expected topic output.gone, got none: it was deleted"):
        store.run(check_topic(store.log, output("gone")))
