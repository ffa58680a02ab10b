"""The compiled reader gives what fastavro gives, on every schema and whatever the bytes."""

from dataclasses import dataclass
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlog.eventstore.avro_reader import compile_reader
from rolloutlog.schemas import versions

VERSIONS = versions()
READERS = {schema.fingerprint: compile_reader(schema.parsed) for schema in VERSIONS}


@dataclass(frozen=True, slots=True)
class Point:
    """Fields in another order than the schema's."""

    y: int
    x: int


def values(schema: Any, named: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Any value of a schema."""
    if isinstance(schema, list):
        return st.one_of([values(each, named) for each in schema])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return values(kind, named)
    if kind == "array":
        return st.lists(values(schema["items"], named), max_size=3)
    if kind == "map":
        return st.dictionaries(st.text(max_size=5), values(schema["values"], named), max_size=3)
    if kind == "record":
        named[schema["name"]] = schema
        return st.fixed_dictionaries({field["name"]: values(field["type"], named) for field in schema["fields"]})
    simple = {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300),
        "double": st.floats(),
        "string": st.text(max_size=8) | st.text(min_size=64, max_size=70),
        "bytes": st.binary(max_size=8) | st.binary(min_size=64, max_size=70) | st.just(bytes(20_000)),
    }
    return simple[kind] if kind in simple else values(named[kind], named)


EACH = {schema.fingerprint: values(schema.parsed, {}) for schema in VERSIONS}


def written(parsed: Any, value: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, parsed, value)
    return out.getvalue()


def read_by_fastavro(parsed: Any, data: bytes, at: int) -> tuple[Any, int] | None:
    """None where it refuses, also to read beyond the end."""
    body = BytesIO(data)
    body.seek(at)
    try:
        return fastavro.schemaless_reader(body, parsed, None), body.tell()
    except Exception:
        return None


def read_compiled(reader: Any, data: bytes, at: int) -> tuple[Any, int] | None:
    try:
        found: tuple[Any, int] = reader(data, at)
    except Exception:
        return None
    return found


@given(st.sampled_from(VERSIONS), st.data())
def test_reader_of_any_value_gives_what_fastavro_gives(schema, data):
    value = written(schema.parsed, data.draw(EACH[schema.fingerprint]))
    found = READERS[schema.fingerprint](b"frame" + value, 5)
    # by repr: NaN is not equal to itself, and True is to 1
    assert repr(found) == repr(read_by_fastavro(schema.parsed, b"frame" + value, 5))
    assert found[1] == 5 + len(value)


@given(st.sampled_from(VERSIONS), st.data())
def test_reader_of_a_value_cut_short_refuses_it(schema, data):
    value = written(schema.parsed, data.draw(EACH[schema.fingerprint]))
    length = data.draw(st.integers(0, len(value) - 1))
    assert read_compiled(READERS[schema.fingerprint], value[:length], 0) is None


@given(st.sampled_from(VERSIONS), st.data())
def test_reader_of_changed_bytes_refuses_them_or_gives_what_fastavro_gives(schema, data):
    value = bytearray(written(schema.parsed, data.draw(EACH[schema.fingerprint])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(value)))
        value[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=3)
            | st.sampled_from([b"\x80\x00", b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\x01", b"\x03"])
        )
    found = read_compiled(READERS[schema.fingerprint], bytes(value), 0)
    if found is not None:
        assert repr(found) == repr(read_by_fastavro(schema.parsed, bytes(value), 0))


@given(st.sampled_from(VERSIONS), st.binary(max_size=60))
def test_reader_of_any_bytes_refuses_them_or_gives_what_fastavro_gives(schema, value):
    found = read_compiled(READERS[schema.fingerprint], value, 0)
    if found is not None:
        assert repr(found) == repr(read_by_fastavro(schema.parsed, value, 0))


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=10))
def test_reader_of_any_number_gives_it(number, behind):
    value = written("long", number)
    assert compile_reader("long")(value + behind, 0) == (number, len(value))


@pytest.mark.parametrize(
    "number", [sign * 2**bits + step for bits in range(0, 63) for sign in (1, -1) for step in (-1, 0)]
)
def test_reader_of_numbers_of_every_length_gives_them(number):
    value = written("long", number)
    assert compile_reader("long")(value, 0) == (number, len(value))
    assert compile_reader("long")(value + bytes(9), 0) == (number, len(value))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("long", b"\xff" * 9 + b"\x02"),  # 65 bits
        ("long", b"\x80" * 10 + b"\x01"),
        ("bytes", b"\x01abc"),  # a length of -1
        ("string", b"\x02\xff"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01abc"),  # longer than any memory
        (["null", "long"], b"\x04\x02"),  # no third branch
        (["null", "long"], b"\x01\x02"),  # branch -1
        (["null", "long"], b"\x80\x00"),  # branch 0 in two bytes
        ({"type": "array", "items": "long"}, b"\x02\x02\x80\x00"),  # its end in two bytes
        ({"type": "array", "items": "long"}, b"\x02\x02"),  # no end
        ("double", bytes(7)),
        ("boolean", b""),
    ],
)
def test_reader_of_bytes_that_are_no_value_refuses_them(schema, value):
    assert read_compiled(compile_reader(schema), value, 0) is None


def test_reader_of_an_array_in_blocks_with_their_sizes_gives_all_of_it():
    """Other writers write large arrays so."""
    blocks = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\x00"  # count -2, 2 bytes, 1 and 2; count 1, 3; the end
    assert compile_reader({"type": "array", "items": "long"})(blocks, 0) == ([1, 2, 3], len(blocks))


def test_reader_with_kinds_makes_their_objects_and_tuples():
    point = {
        "type": "record",
        "name": "a.Point",
        "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int"}],
    }
    schema = fastavro.parse_schema(
        {"type": "record", "name": "a.Line", "fields": [{"name": "points", "type": {"type": "array", "items": point}},
                                                        {"name": "last", "type": ["null", "a.Point"]}]}
    )  # fmt: skip
    value = written(schema, {"points": [{"x": 1, "y": 2}], "last": {"x": 3, "y": 4}})
    made, _ = compile_reader(schema, {"Point": Point})(value, 0)
    assert made == {"points": (Point(2, 1),), "last": Point(4, 3)}


def test_schema_with_a_type_that_none_of_ours_has_is_refused_by_name():
    with pytest.raises(TypeError, match="no reader for Avro's type float"):
        compile_reader("float")
