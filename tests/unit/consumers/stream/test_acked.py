"""What a reader has acknowledged: as committed, and as a checkpoint's state."""

import json

import pytest

from rolloutlog.consumers.position import PositionRefused
from rolloutlog.consumers.stream.acked import Acked, from_positions, from_state, to_positions, to_state
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.log import Position

WHERE = "reader trainer of batches"
STATE = {"format": 1, "reader": "trainer", "run_id": "run", "step": 3, "policy_version": 7, "offsets": {"0": 5, "1": 9}}
STATE_2 = {**STATE, "format": 2, "ended": [], "line": 0}


@pytest.mark.parametrize(
    "acked",
    [
        Acked(3, 7, {0: 5, 1: 9}),
        Acked(0, None, {0: 0}),
        Acked(3, 7, {0: 5, 1: 9}, frozenset({1})),
        Acked(3, 7, {0: 5}, line=None),
        Acked(2**63 - 1, 2**63 - 1, {5: 1}, frozenset({5}), 2**63 - 1),
    ],
)
def test_positions_come_back_as_committed(acked):
    positions = to_positions(acked)
    assert all(len(position.metadata) <= 100 and position.metadata.isascii() for position in positions.values())
    assert from_positions(positions, where=WHERE) == acked


def test_positions_have_this_form():
    assert to_positions(Acked(3, 7, {0: 5})) == {0: Position(5, "r2:3:7:0:-:f11c1af9")}
    assert to_positions(Acked(3, None, {0: 5}, frozenset({0}), 9)) == {0: Position(5, "r2:3:-:9:ended:e5d1789b")}


def test_positions_of_the_first_format_are_read():
    positions = {0: Position(5, "r1:3:7:4fc6a425"), 1: Position(6, "r1:3:-:b2a45d5f")}
    assert from_positions(positions, where=WHERE) == Acked(3, None, {0: 5, 1: 6}, line=None)


def test_no_positions_are_nothing_acknowledged():
    assert from_positions({}, where=WHERE) == Acked(0, None, {})


def test_highest_step_counts_when_partitions_differ():
    positions = to_positions(Acked(3, 7, {0: 5})) | to_positions(Acked(2, 6, {1: 4}))
    assert from_positions(positions, where=WHERE) == Acked(3, 7, {0: 5, 1: 4})


def test_emptied_metadata_loses_step_and_version_but_no_offset(caplog):
    positions = to_positions(Acked(3, 7, {0: 5})) | {1: Position(4, "")}
    assert from_positions(positions, where=WHERE) == Acked(3, 7, {0: 5, 1: 4})
    assert "reader trainer of batches, partition 1: metadata was emptied" in caplog.text


@pytest.mark.parametrize(
    "metadata", ["1:12:1:-:eed85c16", "hello", "r1:3:7:00000000", "r1:3:7", "r2:3:7:4fc6a425", "r2:3:7:0:-:00000000"]
)
def test_metadata_of_others_is_refused(metadata):
    with pytest.raises(PositionRefused, match=r"reader trainer of batches, partition 2: expected metadata of a reader"):
        from_positions({2: Position(5, metadata)}, where=WHERE)


def test_metadata_of_a_newer_format_is_refused():
    with pytest.raises(PositionRefused, match="expected format r2, got r3: it was committed by a newer version"):
        from_positions({0: Position(5, "r3:anything")}, where=WHERE)


def test_state_comes_back_from_json():
    state = to_state(Acked(3, 7, {1: 9, 0: 5}), reader="trainer", run_id="run")
    assert state == STATE_2
    assert from_state(json.loads(json.dumps(state)), reader="trainer", run_id="run", partitions=[0, 1]) == Acked(
        3, 7, {0: 5, 1: 9}
    )


def test_state_says_in_which_partitions_the_run_has_ended():
    acked = Acked(3, 7, {0: 5, 1: 9}, frozenset({1}))
    state = to_state(acked, reader="trainer", run_id="run")
    assert state["ended"] == [1]
    assert from_state(json.loads(json.dumps(state)), reader="trainer", run_id="run", partitions=[0, 1]) == acked


def test_state_of_the_first_format_is_read():
    assert from_state(STATE, reader="trainer", run_id="run", partitions=[0, 1]) == Acked(3, 7, {0: 5, 1: 9}, line=None)


def test_line_of_another_readers_state_is_unknown():
    state = {**STATE_2, "line": 7}
    given = {"run_id": "run", "partitions": [0, 1]}
    assert from_state(state, reader="trainer", **given).line == 7
    assert from_state(state, reader="other", **given).line is None


def test_state_of_an_output_is_for_that_output_alone():
    """Its offsets are of another topic; an older version refuses the format."""
    given = {"reader": "trainer", "run_id": "run", "partitions": [0, 1]}
    state = to_state(Acked(3, 7, {0: 5, 1: 9}), reader="trainer", run_id="run", output_id="judged.5")
    assert (state["format"], state["output"]) == (3, "judged.5")
    assert from_state(state, output_id="judged.5", **given) == Acked(3, 7, {0: 5, 1: 9})
    for output_id, expected in ((None, "live batches"), ("judged.6", "output 'judged.6'")):
        with pytest.raises(InvalidSettings, match=rf"expected one of {expected}, .* got one of output 'judged.5'"):
            from_state(state, output_id=output_id, **given)
    with pytest.raises(InvalidSettings, match=r"expected one of output 'judged.5', .* got one of live batches"):
        from_state(STATE_2, output_id="judged.5", **given)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"run_id": "other"}, "expected run run, as this log holds, got 'other'"),
        ({"format": 4}, "expected a format from 1 to 3, got 4"),
        ({"format": "1"}, "expected a format from 1 to 3, got '1'"),
        ({"format": 3}, "expected one of live batches, which this stream reads, got one of output ''"),
        ({"step": -1}, "expected integers from 0, of 63 bits at most, got step -1"),
        ({"step": "3"}, "expected integers from 0, of 63 bits at most, got step '3'"),
        ({"step": 2**63}, "got step 9223372036854775808"),
        ({"policy_version": 10**25}, "policy version 10000000000000000000000000"),
        ({"ended": [2]}, r"expected partitions among \[0, 1\] as `ended`, got \[2\]"),
        ({"ended": [True]}, "as `ended`"),
        ({"ended": 1}, "as `ended`, got 1"),
        ({"line": -1}, "as `line`, got -1"),
        ({"policy_version": 1.0}, "got step 3, policy version 1.0"),
        ({"offsets": {"0": 5}}, r"expected offsets of partitions \[0, 1\].*got \[0\]; open it with partitions=\[0\]"),
        ({"offsets": {"0": -5, "1": 2}}, "expected offsets by partition"),
        ({"offsets": [1, 2]}, "expected offsets by partition"),
    ],
)
def test_unusable_state_is_refused_by_name(changed, message):
    with pytest.raises(InvalidSettings, match=f"state refused: .*{message}"):
        from_state({**STATE, **changed}, reader="trainer", run_id="run", partitions=[0, 1])


@pytest.mark.parametrize("state", [None, {}, {"step": 3}, [1]])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(InvalidSettings, match=r"expected what state_dict\(\) gave"):
        from_state(state, reader="trainer", run_id="run", partitions=[0, 1])
