"""Columns of extra info over an optimizer batch: keys, dtypes, masks, collisions; the same whatever way rows came."""

import json
import logging
import pickle
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import batch, published, sample

from rolloutlog.consumers.extra_info import ExtraInfoRefused, NoExtraInfo, assemble_extra_info
from rolloutlog.consumers.stream.acked import Reached
from rolloutlog.consumers.stream.collector import Collector, StepSettings
from rolloutlog.consumers.stream.step import Step, shard
from rolloutlog.eventstore.errors import InvalidSettings
from rolloutlog.eventstore.extra_info import encode_extra_info
from rolloutlog.eventstore.extra_info_values import decode_value

FILE = json.loads((Path(__file__).parents[2] / "cases" / "extra_info.json").read_text())


def variants() -> list[Any]:
    """Each case's rows with what they come to, a case's variants apart."""
    found = []
    for case in FILE["cases"]:
        for index, variant in enumerate(case.get("variants", [{}])):
            whole = {**case, **variant}
            expect = whole.get("expect", {})
            if "columns_by_variant" in expect:
                whole["expect"] = {**expect, "columns": expect["columns_by_variant"][index]}
            whole["infos"] = whole["infos"] if "infos" in whole else list(chain(*whole["chunks"]))
            found.append(pytest.param(whole, id=f"{case['id']}-{index}"))
    return found


def rows_of(case: dict[str, Any]) -> list[Any]:
    if case.get("int_key"):
        return [{1: 2}]
    return [decode_value(each, "$") if isinstance(each, dict) else each for each in case["infos"]]


def same(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(
        one == other or (one != one and other != other) for one, other in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("case", variants())
def test_assembly_gives_what_the_case_states(case: dict[str, Any]) -> None:
    rows, reserved = rows_of(case), case.get("reserved", ())
    if "error" in case:
        kind = {"ValueError": ValueError, "TypeError": TypeError}[case["error"]["type"]]
        with pytest.raises(kind) as error:
            assemble_extra_info(rows, reserved=reserved)
        named = case["error"].get("match_any")
        assert named is None or any(key in str(error.value) for row in rows for key in row if key in named)
        return
    columns, expect = assemble_extra_info(rows, reserved=reserved), case["expect"]
    assert list(columns) == expect["keys"]
    for name, expected in expect["columns"].items():
        values = decode_value(expected["values"], "$")
        assert same(columns[name].tolist(), values)
        assert columns[name].dtype == np.dtype(expected["dtype"])
        assert columns[name].shape == (len(rows),)
    for name in expect.get("dense", ()):
        assert columns.present[name].all()


def test_assembly_of_chunks_the_other_way_round_takes_their_keys_in_that_order() -> None:
    columns = assemble_extra_info([{"score": 1.0, "acc": True, "pred": "42"}, {"acc": 0.0}])
    assert list(columns) == ["score", "acc", "pred"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False], "bool"),
        ([1, 2], "int64"),
        ([True, 2], "int64"),
        ([1, 0.5], "float64"),
        ([np.float32(1), 0.1], "float64"),
        ([np.int8(1), np.int8(2)], "int8"),
        (["", "\u00e9"], "<U1"),
        (["a" * 256, "b"], "<U256"),
    ],
)
def test_dense_scalars_keep_the_dtype_that_numpy_infers(values: list[Any], dtype: str) -> None:
    column = assemble_extra_info([{"x": value} for value in values])["x"]
    assert column.dtype == np.dtype(dtype)
    assert column.tolist() == [value.item() if isinstance(value, np.generic) else value for value in values]


@pytest.mark.parametrize(
    "values",
    [
        [1, "a"],
        [True, "a"],
        [2**63 + 1, 1],
        [2**53 + 1, 0.5],
        [2**64, 1],
        [10**400, 1.5],
        [np.uint64(2**64 - 1), np.int64(-1)],
        ["ab\0", "b"],
        ["a" * 257, "b"],
        [[1, 2], [3, 4]],
        [[1, 2], [3]],
        [[], []],
        [(1, 2), (3, 4)],
        [{"a": 1}, {"a": 2}],
        [{1}, {2}],
        [None, 1.0],
        [1, [2]],
        [b"a", b"b"],
    ],
    ids=repr,
)
def test_values_that_numpy_would_change_become_objects_one_a_row(values: list[Any]) -> None:
    column = assemble_extra_info([{"x": value} for value in values])["x"]
    assert (column.dtype, column.shape) == (np.dtype(object), (2,))
    assert [(type(found), found) for found in column] == [(type(value), value) for value in values]


def test_arrays_become_objects_one_a_row() -> None:
    arrays = [np.array([1, 2]), np.array([3, 4]), np.array(5.0)]
    column = assemble_extra_info([{"x": array} for array in arrays])["x"]
    assert column.shape == (3,)
    assert all(found is array for found, array in zip(column, arrays, strict=True))


def test_absent_none_and_nan_stay_three_things() -> None:
    columns = assemble_extra_info([{"x": None}, {}, {"x": float("nan")}])
    assert columns["x"][:2].tolist() == [None, None]
    assert np.isnan(columns["x"][2])
    assert columns.present["x"].tolist() == [True, False, True]


def test_parity_with_the_pull_request_gives_two_dimensions_and_wide_text() -> None:
    rows = [{"x": [1, 2], "pred": "a" * 300, "y": 1}, {"x": [3, 4], "pred": "b"}]
    columns = assemble_extra_info(rows, numpy_parity=True)
    assert columns["x"].tolist() == [[1, 2], [3, 4]]
    assert columns["x"].dtype == np.dtype("int64")
    assert columns["pred"].dtype == np.dtype("<U300")
    assert columns["y"].tolist() == [1, None]


def test_parity_of_lists_that_are_not_alike_is_refused_as_there() -> None:
    with pytest.raises(ValueError, match="extra info 'x': expected values of which numpy makes an array"):
        assemble_extra_info([{"x": [1, 2]}, {"x": [1]}], numpy_parity=True)


def test_collisions_are_refused_naming_every_key_and_its_first_sample() -> None:
    rows = [{"acc": 1}, {"uid": 1, "acc": 1}, {"uid": 2, "level": 3}]
    with pytest.raises(ExtraInfoRefused) as error:
        assemble_extra_info(rows, reserved=["level"], sample_ids=["r-0/0/c", "r-1/0/c", "r-2/0/c"])
    assert str(error.value) == (
        "extra info refused: expected keys that no other column has, got 'uid' (first in r-1/0/c), 'level' (first in "
        'r-2/0/c); rename them in the scorer, or assemble with on_collision="prefix"'
    )


def test_collisions_with_prefix_have_columns_of_another_name_in_their_place() -> None:
    columns = assemble_extra_info([{"uid": 1, "acc": 2}], on_collision="prefix")
    assert list(columns) == ["reward/uid", "acc"]


def test_collision_whose_prefixed_name_is_taken_is_refused() -> None:
    with pytest.raises(ExtraInfoRefused, match=r"got 'uid' \(first in row 0\)"):
        assemble_extra_info([{"uid": 1, "reward/uid": 2}], on_collision="prefix")


def test_scorers_own_keys_of_verl_are_allowed() -> None:
    assert list(assemble_extra_info([{"score": 1.0, "acc": 1, "pred": "a"}])) == ["score", "acc", "pred"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{}, "oops"], "extra info of row 1: expected a mapping or None, got str"),
        ([{}, {1: 2}], "extra info of row 1: expected keys that are text, got 1"),
    ],
)
def test_row_that_is_no_mapping_of_text_is_refused_by_name(rows: list[Any], message: str) -> None:
    with pytest.raises(NoExtraInfo, match=message):
        assemble_extra_info(rows)


def test_row_with_10_000_keys_is_refused_by_name() -> None:
    with pytest.raises(ExtraInfoRefused, match=r"row 1 refused: expected at most 256 keys, got 10000: 'k0'.*9980 more"):
        assemble_extra_info([{}, {f"k{index}": 1 for index in range(10_000)}])


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"reserved": "uid"}, "reserved: expected names of columns, got 'uid'"),
        ({"reserved": None}, "reserved: expected names of columns, got None"),
        ({"reserved": [1]}, r"reserved: expected names of columns, got \[1\]"),
        ({"on_collision": "drop"}, "on_collision: expected reject or prefix, got 'drop'"),
    ],
)
def test_assembly_with_unusable_settings_is_refused(given_settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        assemble_extra_info([], **given_settings)


def test_metrics_are_means_of_finite_numbers_that_are_present() -> None:
    rows = [
        {"acc": True, "pred": "a", "x": float("nan"), "late": 1},
        {"acc": 0.0, "pred": None, "x": 4, "late": "text"},
        {"acc": 1, "x": 10**400},
    ]
    assert assemble_extra_info(rows).metrics() == {
        "extra_info/acc/rows": 3, "extra_info/acc/present": 3, "extra_info/acc/mean": 2 / 3,
        "extra_info/pred/rows": 3, "extra_info/pred/present": 2,
        "extra_info/x/rows": 3, "extra_info/x/present": 3, "extra_info/x/mean": 4.0,
        "extra_info/late/rows": 3, "extra_info/late/present": 2,
    }  # fmt: skip


def test_metrics_of_numbers_whose_sum_is_above_any_float_have_their_mean() -> None:
    assert assemble_extra_info([{"x": 1.5e308}, {"x": 1.5e308}]).metrics()["extra_info/x/mean"] == 1.5e308


# A step


def with_info(sample_id: str, info: dict[str, Any] | bytes, **fields: Any):
    return sample(sample_id, extra_info=info if isinstance(info, bytes) else encode_extra_info(info), **fields)


def step_of(*infos: dict[str, Any] | bytes) -> Step:
    made = batch("g", [with_info(f"r-{index}/0/c", info) for index, info in enumerate(infos)])
    return Step(0, (made,), made.samples, (0,) * len(infos), (0,), 3)


def test_step_leaves_out_columns_that_the_trainer_has_and_warns_naming_all(caplog: pytest.LogCaptureFixture) -> None:
    step = step_of({"acc": 1, "level": 2}, {"total": 3, "level": 4, "uid": 5})
    with caplog.at_level(logging.WARNING):
        columns = step.extra_info(reserved=["level"])
    assert list(columns) == ["acc"]
    assert columns.refused_keys == {"level": "r-0/0/c", "total": "r-1/0/c", "uid": "r-1/0/c"}
    (warning,) = caplog.messages
    assert "'level' (first in r-0/0/c), 'total' (first in r-1/0/c), 'uid' (first in r-1/0/c); samples" in warning


def test_step_with_prefix_keeps_columns_that_the_trainer_has() -> None:
    columns = step_of({"level": 2, "total": 3}).extra_info(reserved=["level"], on_collision="prefix")
    assert list(columns) == ["reward/level", "reward/total"]
    assert columns.refused_keys == {}


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (b'{"acc": NaN}', "expected JSON in UTF-8"),
        (json.dumps({f"k{index}": 1 for index in range(10_000)}).encode(), "expected at most 65536 bytes"),
        (json.dumps({f"k{index}": 1 for index in range(300)}).encode(), "expected at most 256 keys, got 300"),
    ],
    ids=["no JSON", "10,000 keys", "300 keys"],
)
def test_step_with_a_sample_of_refused_extra_info_keeps_the_sample_and_the_others_columns(
    info: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program may have written it."""
    step = step_of({"acc": 1}, info)
    with caplog.at_level(logging.WARNING):
        columns = step.extra_info()
    assert columns["acc"].tolist() == [1, None]
    assert list(columns.refused_samples) == ["r-1/0/c"]
    assert reason in columns.refused_samples["r-1/0/c"]
    assert "1 samples refused, which are trained on without it; first r-1/0/c" in caplog.text


def test_step_with_the_same_refused_extra_info_in_two_samples_names_both() -> None:
    assert list(step_of(b"{", b"{").extra_info().refused_samples) == ["r-0/0/c", "r-1/0/c"]


def test_step_of_rows_whose_keys_contain_ids_has_a_bounded_number_of_columns() -> None:
    infos = [{f"{row}-{key}": 1 for key in range(256)} for row in range(17)]
    columns = step_of(*infos).extra_info()
    assert len(columns) == 4_096
    assert next(iter(columns.refused_keys)) == "16-0"


def test_step_rows_that_share_extra_info_share_no_value_that_can_change() -> None:
    columns = step_of({"x": [1]}, {"x": [1]}).extra_info()
    columns["x"][0].append(2)
    assert columns["x"][1] == [1]


def test_step_without_rows_has_no_columns() -> None:
    columns = step_of().extra_info()
    assert (columns, columns.row_count, columns.metrics()) == ({}, 0, {})


def test_step_of_which_a_reward_is_missing_keeps_the_others_columns() -> None:
    made = batch("g", [with_info("g/0/a", {"acc": 1}), with_info("g/0/b", {"other": 1}, total=None)])
    step = collected([(made, 0)], missing_reward="exclude")
    assert list(step.extra_info()) == ["acc"]
    assert list(collected([(made, 0)], missing_reward=0.0).extra_info()) == ["acc", "other"]


def test_share_of_extra_info_has_all_columns_and_padding_that_counts_nothing() -> None:
    columns = step_of({"acc": 1.0, "pred": "a"}, {"acc": 0.5}, {"acc": 0.0}).extra_info()
    first, second = (columns.shard(rank, 2) for rank in (0, 1))
    assert first["pred"].tolist() == ["a", None]
    assert second["acc"].tolist() == [0.0, 0.0]
    assert second["acc"].dtype == np.dtype("float64")
    assert second["pred"].tolist() == [None, None]
    assert second.present["acc"].tolist() == [True, False]
    assert second.metrics()["extra_info/acc/rows"] == 1
    assert (second.row_count, second.padding_count) == (2, 1)


def test_extra_info_of_a_share_is_refused_saying_what_to_do() -> None:
    with pytest.raises(InvalidSettings, match=r"expected a whole step, got a share.*before `shard`"):
        shard(step_of({}, {}), 0, 2).extra_info()


def test_columns_survive_pickling() -> None:
    columns = step_of({"acc": 1.0}, {"uid": 1}).extra_info()
    again = pickle.loads(pickle.dumps(columns))
    assert again["acc"].tolist() == [1.0, None]
    assert (again.present["acc"].tolist(), again.refused_keys, again.row_count) == (
        [True, False],
        {"uid": "r-1/0/c"},
        2,
    )


def collected(batches: list[Any], *, missing_reward: Any = "exclude", arrival: list[int] | None = None) -> Step:
    """A step of batches, each (batch, partition), which arrive in an order of their own."""
    settings = StepSettings(len(batches), None, missing_reward)
    made = Collector(settings, {p: Reached(0) for p in range(8)}, number=0, origin="t")
    for index in arrival or range(len(batches)):
        one, partition = batches[index]
        made.add(published(one, index, partition), None)
    formed = made.form(None)
    assert formed is not None
    return formed[0]


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3), st.lists(st.integers())
)
ROWS = st.lists(st.dictionaries(st.sampled_from(["acc", "score", "pred", "cp", "x"]), VALUES), min_size=1, max_size=9)


@given(rows=ROWS, data=st.data())
def test_any_split_of_rows_over_batches_and_partitions_gives_the_same_columns(rows: list[Any], data: Any) -> None:
    whole = assemble_extra_info(rows)
    samples = [with_info(f"row-{index}", row) for index, row in enumerate(rows)]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(rows)))) | {0, len(rows)})
    chunks = [samples[start:end] for start, end in pairwise(cuts)]
    partitions = sorted(data.draw(st.lists(st.integers(0, 7), min_size=len(chunks), max_size=len(chunks))))
    arrival = data.draw(st.permutations(range(len(chunks))))
    batches = [(batch(f"g-{index}", chunk), p) for index, (chunk, p) in enumerate(zip(chunks, partitions, strict=True))]
    found = collected(batches, arrival=arrival).extra_info()
    assert list(found) == list(whole)
    for name, column in whole.items():
        assert found[name].dtype == column.dtype
        assert same(found[name].tolist(), column.tolist())
        assert list(map(type, found[name])) == list(map(type, column))
        assert found.present[name].tolist() == whole.present[name].tolist()


def test_share_of_extra_info_for_a_rank_that_is_none_is_refused() -> None:
    """A rank counted from 1 would get no rows, and nobody would see it."""
    columns = assemble_extra_info([{"acc": 1.0}, {"acc": 0.0}])
    for rank, world in ((2, 2), (-1, 2), (0, 0), ("0", 2)):
        with pytest.raises(InvalidSettings, match="expected a rank from 0 and below its world"):
            columns.shard(rank, world)  # type: ignore[arg-type]


def test_sample_ids_of_another_number_of_rows_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="sample_ids: expected 2, one per row, got 1"):
        assemble_extra_info([{"acc": 1.0}, {"uid": 2}], sample_ids=["a"])


def test_warning_of_a_prefixed_name_that_is_taken_does_not_advise_the_prefix(caplog: pytest.LogCaptureFixture) -> None:
    made = step_of({"uid": 1}, {"reward/uid": 2})
    assert list(made.extra_info(on_collision="prefix")) == ["reward/uid"]
    assert "Rename them in the scorer" in caplog.text
    assert "on_collision" not in caplog.text
