"""Extra info of one sample, joined from the rewards that count for it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlog.consumers.extra_info_merging import merge_extra_info
from rolloutlog.eventstore.extra_info import encode_extra_info


def test_merge_of_one_key_from_two_rewards_of_one_name_keeps_the_later() -> None:
    parts = [("reward", {"acc": 0, "pred": "a"}), ("reward", {"acc": 1})]
    assert merge_extra_info(parts) == ({"acc": 1, "pred": "a"}, [])


def test_merge_of_one_key_from_rewards_of_different_names_keeps_both_by_name() -> None:
    parts = [("style", {"acc": 0, "len": 3}), ("reward", {"acc": 1})]
    assert merge_extra_info(parts) == ({"style/acc": 0, "len": 3, "reward/acc": 1}, [])


def test_merge_of_nothing_is_an_empty_mapping() -> None:
    assert merge_extra_info([]) == ({}, [])


def test_merge_keeps_keys_in_first_seen_order() -> None:
    merged, _ = merge_extra_info([("a", {"z": 1, "y": 1}), ("a", {"x": 1, "z": 2})])
    assert list(merged) == ["z", "y", "x"]


def test_merge_refuses_a_mapping_with_reserved_keys_and_keeps_the_others() -> None:
    parts = [("bad", {"acc": 1, "uid": "u", "reward": 1}), ("good", {"acc": 0})]
    assert merge_extra_info(parts) == ({"acc": 0}, ["uid", "reward"])


def test_merge_refuses_the_mapping_that_would_exceed_256_keys() -> None:
    first = {f"k{i}": i for i in range(255)}
    merged, refused = merge_extra_info([("a", first), ("b", {"x": 1, "y": 1}), ("c", {"z": 1})])
    assert merged == {**first, "z": 1}
    assert refused == ["x", "y"]


def test_merge_refuses_the_mapping_that_would_exceed_64_kb() -> None:
    merged, refused = merge_extra_info([("a", {"x": "a" * 40_000}), ("b", {"y": "b" * 40_000}), ("c", {"z": 1})])
    assert list(merged) == ["x", "z"]
    assert refused == ["y"]


def test_merge_of_a_later_value_that_is_smaller_makes_room() -> None:
    parts = [("a", {"x": "a" * 60_000}), ("a", {"x": "a"}), ("b", {"y": "b" * 60_000})]
    assert merge_extra_info(parts) == ({"x": "a", "y": "b" * 60_000}, [])


def test_merge_of_a_key_that_looks_like_another_rewards_key_is_refused_and_named() -> None:
    parts: list[tuple[str, dict[str, Any]]] = [("c", {"a/x": 1}), ("a", {"x": 2}), ("b", {"x": 3})]
    assert merge_extra_info(parts) == ({"a/x": 1, "b/x": 3}, ["a/x"])


def test_merge_refuses_a_value_that_cannot_be_written() -> None:
    assert merge_extra_info([("a", {"x": (1, 2)}), ("b", {"y": 1})]) == ({"y": 1}, ["x"])


KEYS = st.sampled_from(("a", "b", "c", "\u00e9", "r/a"))
VALUES = st.one_of(st.integers(), st.none(), st.text(), st.just("x" * 30_000))
NAMES = st.sampled_from(("r", "s", "\u00fc"))
PARTS = st.lists(st.tuples(NAMES, st.dictionaries(KEYS, VALUES, max_size=4)), max_size=6)


@given(PARTS)
def test_merge_of_any_parts_stays_within_the_limits(parts: list[tuple[str, dict[str, Any]]]) -> None:
    merged, _ = merge_extra_info(parts)
    assert len(encode_extra_info(merged)) <= 64 * 1024


@given(PARTS)
def test_merge_of_any_parts_loses_no_key_without_naming_it(parts: list[tuple[str, dict[str, Any]]]) -> None:
    merged, refused = merge_extra_info(parts)
    for name, mapping in parts:
        for key in mapping:
            assert {key, f"{name}/{key}"} & {*merged, *refused}


@pytest.mark.parametrize("size", [0, 1, 2])
def test_merge_weighs_a_row_exactly(size: int) -> None:
    """Two names of one key: the row grows by both names, so that the limit is met to the byte."""
    row = {"first/x": "", "s/x": ""}
    room = 64 * 1024 - len(encode_extra_info(row)) + size - 1
    merged, refused = merge_extra_info([("first", {"x": ""}), ("s", {"x": "y" * room})])
    assert bool(refused) == (size > 1)
    assert len(merged) == (1 if refused else 2)
