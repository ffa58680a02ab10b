"""Extra info as bytes: exact both ways, and refused cleanly when the bytes are not ours."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlog.eventstore.extra_info import (
    RESERVED_KEYS,
    InvalidExtraInfo,
    decode_extra_info,
    encode_extra_info,
    reserved_collisions,
)

FILE = json.loads((Path(__file__).parents[2] / "cases" / "extra_info.json").read_text())


def same(one: Any, other: Any) -> bool:
    """Equal in value and in type, NaN equal to NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or (one != one and other != other))


EXACT = [
    float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 0.1,
    2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**300,
    None, True, "\u00e9\U0001f600", "a\x00", [], [[1], {"b": [None]}], {}, {"a": {"b": 1.0}},
    {"$nan": True}, {"$dict": {"$np": "int8", "v": 1}}, {"a": 1, "$": 2},
    np.float64(0.1), np.float32(0.1), np.float16("inf"), np.float32("nan"), np.int8(-128), np.uint64(2**64 - 1),
    np.bool_(False), np.str_("x"),
    np.array([[1, 2], [3, 4]], np.int16), np.array([0.5, float("nan")], np.float32), np.array(3.0),
    np.array([2**64 - 1, 1], np.uint64), np.array([True, False]), np.array(["a", "bcd"]), np.array(["a"], "<U9"),
    np.zeros((0, 3), np.float32), np.zeros((2, 0)), np.array([1.5], ">f4"), np.array([1, 2, 3])[::2],
]  # fmt: skip


@pytest.mark.parametrize("value", EXACT, ids=repr)
def test_extra_info_of_any_allowed_value_comes_back_the_same(value: Any) -> None:
    assert same(decode_extra_info(encode_extra_info({"x": value})), {"x": value})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=8))
def test_extra_info_of_nested_values_comes_back_the_same(mapping: dict[str, Any]) -> None:
    encoded = encode_extra_info(mapping)
    assert same(decode_extra_info(encoded), mapping)
    assert encode_extra_info(decode_extra_info(encoded)) == encoded


def test_extra_info_is_written_as_the_codec_of_the_cases_says() -> None:
    mapping = {"b": float("nan"), "a": 2**64, "s": np.float32(0.5), "v": np.array([1], np.int8), "\u00e9": 1}
    assert encode_extra_info(mapping).decode() == (
        '{"b":{"$nan":true},"a":{"$int":"18446744073709551616"},"s":{"$np":"float32","v":0.5},'
        '"v":{"$nd":"int8","v":[1]},"\u00e9":1}'
    )


def test_extra_info_of_none_is_an_empty_mapping() -> None:
    assert (encode_extra_info(None), decode_extra_info(b""), decode_extra_info(b"{}")) == (b"{}", {}, {})


@pytest.mark.parametrize(
    "value",
    [
        (1, 2), {1}, b"x", 1j, object(), np.array([None]), np.datetime64("2020"), np.complex64(1), np.longdouble(1),
        np.ma.array([1]), np.array([(1,)], [("f", "i4")]), {1: 2}, "\ud800", 10**5000,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_extra_info_of_another_type_is_refused_naming_the_key(value: Any) -> None:
    with pytest.raises(InvalidExtraInfo, match=r"expected .*, got .* at \$\.extra_info\.pred") as error:
        encode_extra_info({"acc": 1.0, "pred": value})
    assert error.value.keys == ("pred",)


@pytest.mark.parametrize("mapping", ["oops", [("a", 1)], {1: 2}, {"\ud800": 1}, 3.0])
def test_extra_info_that_is_no_mapping_of_text_is_refused(mapping: Any) -> None:
    with pytest.raises(InvalidExtraInfo, match="expected"):
        encode_extra_info(mapping)


def test_extra_info_above_256_keys_is_refused_with_its_keys() -> None:
    encode_extra_info({str(i): i for i in range(256)})
    with pytest.raises(InvalidExtraInfo, match="expected at most 256 keys, got 257") as error:
        encode_extra_info({str(i): i for i in range(257)})
    assert len(error.value.keys) == 257


def test_extra_info_above_64_kb_is_refused_with_its_keys() -> None:
    room = 64 * 1024 - len('{"x":""}')
    assert len(encode_extra_info({"x": "a" * room})) == 64 * 1024
    with pytest.raises(InvalidExtraInfo, match="expected at most 65536 bytes, got 65537") as error:
        encode_extra_info({"x": "a" * (room + 1)})
    assert error.value.keys == ("x",)


BROKEN = [
    b"{",
    b"[1]",
    b"3",
    b"\xff{}",
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"a":1e999}',
    b'{"a":1,"a":2}',
    b'{"a":"\\ud800"}',
    b'{"\\ud800":1}',
    b'{"a":' + b"[" * 30_000,
    b'{"a":' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"a":' + b"9" * 5_000 + b"}",
    b'{"a":{"$nan":1}}',
    b'{"a":{"$nan":true,"v":1}}',
    b'{"a":{"$inf":2}}',
    b'{"a":{"$inf":true}}',
    b'{"a":{"$huh":1}}',
    b'{"a":{"$int":"1_0"}}',
    b'{"a":{"$int":" 1"}}',
    b'{"a":{"$int":5}}',
    b'{"a":{"$int":"' + b"9" * 9_000 + b'"}}',
    b'{"a":{"$np":"object","v":1}}',
    b'{"a":{"$np":"O","v":1}}',
    b'{"a":{"$np":"int8","v":300}}',
    b'{"a":{"$np":"int8"}}',
    b'{"a":{"$np":"int8","v":true}}',
    b'{"a":{"$np":"float16","v":1e9}}',
    b'{"a":{"$np":"float32","v":[1]}}',
    b'{"a":{"$np":"float32","v":{"$np":"float32","v":1}}}',
    b'{"a":{"$np":"V1000000000","v":0}}',
    b'{"a":{"$np":3,"v":0}}',
    b'{"a":{"$np":"' + b"i4," * 20_000 + b'","v":0}}',
    b'{"a":{"$nd":"i4,i4","v":[1]}}',
    b'{"a":{"$nd":"O","v":[1]}}',
    b'{"a":{"$nd":"<U999999","v":["a"]}}',
    b'{"a":{"$nd":"<U9999999999","v":["a"]}}',
    b'{"a":{"$nd":"<U1","v":["ab"]}}',
    b'{"a":{"$nd":"int8","v":[[1],[2,3]]}}',
    b'{"a":{"$nd":"int8","v":[1,[2]]}}',
    b'{"a":{"$nd":"int8","v":[[1],2]}}',
    b'{"a":{"$nd":"int8","v":{"$np":"int8","v":1},"shape":[]}}',
    b'{"a":{"$nd":"int8","v":[],"shape":[-1]}}',
    b'{"a":{"$nd":"int8","v":[],"shape":[0,2147483647]}}',
    b'{"a":{"$nd":"int8","v":[1],"shape":[2]}}',
    b'{"a":{"$nd":"int8","v":[],"shape":"0"}}',
    b'{"a":{"$nd":"int8","v":' + b"[" * 40 + b"]" * 40 + b"}}",
    b'{"a":{"$dict":3}}',
    b'{"a":{"$dict":{},"b":1}}',
    b'{"' + b"x" * 70_000 + b'":1}',
]


@pytest.mark.parametrize("encoded", BROKEN, ids=lambda encoded: repr(encoded[:40]))
def test_extra_info_from_bytes_that_are_not_ours_is_refused(encoded: bytes) -> None:
    with pytest.raises(InvalidExtraInfo, match="expected"):
        decode_extra_info(encoded)


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,$nanpdvintfloat326U<0159 ', max_size=60).map(str.encode))
def test_extra_info_from_any_bytes_is_decoded_or_refused(encoded: bytes) -> None:
    with suppress(InvalidExtraInfo):
        encode_extra_info(decode_extra_info(encoded))


def test_extra_info_decoded_from_tags_in_another_order_is_the_same() -> None:
    assert same(decode_extra_info(b'{"a":{"v":0.5,"$np":"float32"}}'), {"a": np.float32(0.5)})


def test_reserved_keys_are_those_of_the_cases() -> None:
    assert set(FILE["static_reserved"]) == RESERVED_KEYS


def test_reserved_collisions_come_in_the_order_of_the_mapping() -> None:
    assert reserved_collisions({"uid": 1, "score": 1, "acc": 1, "pred": 1, "reward": 1}) == ["uid", "reward"]


def test_import_of_extra_info_and_rewards_loads_no_heavy_package() -> None:
    heavy = "{'pydantic', 'rich', 'click', 'aiokafka'}"
    code = "import sys, rolloutlog.eventstore.extra_info, rolloutlog.eventstore.rewards\n"
    code += f"assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
