"""Read Avro's binary form by a function that is compiled from the schema.

`compile_reader` writes the statements that read one schema's fields and compiles them once. In Python, a value costs
less so than in a library that looks at the schema for each: events and batches come twice as fast.

Values   as `fastavro.schemaless_reader` gives them; tests compare the two on every schema
Faults   bytes that are no such value raise something, and never give another value. What is read here where fastavro
         refuses it: nothing. Refused here alone: a negative length, a number of more than 64 bits, a branch or an end
         in more bytes than it needs
Not here  framing, older versions, InvalidEvent: eventstore.codec
"""

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any

Reader = Callable[[bytes, int], tuple[Any, int]]
Kinds = Mapping[str, type]

INDENT = "    "
# Of the first byte of a number: the number, or None when more bytes follow; of a length also when it is negative.
NUMBERS = tuple(None if byte > 0x7F else (byte >> 1) ^ -(byte & 1) for byte in range(256))
LENGTHS = tuple(None if byte > 0x7F or byte & 1 else byte >> 1 for byte in range(256))

_DOUBLE = Struct("<d")
_NINE_BYTES = Struct("<QB")
_MORE = 0x8080808080808080  # the bits that say that another byte follows


def compile_reader(schema: Any, kinds: Kinds | None = None) -> Reader:
    """A function of bytes and an index into them: gives the value that begins there, and the index after it.

    schema  as fastavro.parse_schema gives it: a record that does not hold itself
    kinds   records' names, without namespace, to the dataclasses of which objects are made; arrays are tuples then.
            None: dictionaries and lists
    Raises  TypeError for a type that no schema of ours has. What is returned raises IndexError, EOFError, ValueError
            and struct.error on bytes that are no such value
    """
    source = _Source(kinds)
    source.add(0, "def read(data, at):")
    value = source.read(schema, 1)
    source.add(1, "if at > len(data): raise EOFError")  # a slice beyond the end is short, and raises nothing
    source.add(1, f"return {value}, at")
    names: dict[str, Any] = {f"new_{name}": kind for name, kind in (kinds or {}).items()}
    names |= {"NUMBERS": NUMBERS, "LENGTHS": LENGTHS, "double": _DOUBLE.unpack_from}
    names |= {"long_number": _long_number, "long_length": _long_length, "block": _block}
    exec("\n".join(source.lines), names)
    reader: Reader = names["read"]
    return reader


class _Source:
    """The statements of a reader. Locals: `data`, `at`, `n` (a length or branch), `end` of a text, `v1`, `v2`, ..."""

    def __init__(self, kinds: Kinds | None) -> None:
        self.lines: list[str] = []
        self._kinds = kinds
        self._named: dict[str, Any] = {}
        self._count = 0

    def add(self, depth: int, *statements: str) -> None:
        self.lines += [INDENT * depth + each for each in statements]

    def read(self, schema: Any, depth: int) -> str:
        """Add the statements that read a value; returns the expression that gives it."""
        schema = self._named.get(schema, schema) if isinstance(schema, str) else schema
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, list):
            return self._union(kind, depth)
        if isinstance(kind, dict):
            return self.read(kind, depth)
        if kind == "null":
            return "None"
        if kind == "record":
            return self._record(schema, depth)
        value = self._name()
        if kind in ("int", "long"):
            self.add(depth, f"{value} = NUMBERS[data[at]]", "at += 1")
            self.add(depth, f"if {value} is None: {value}, at = long_number(data, at - 1)")
        elif kind in ("string", "bytes"):
            self.add(depth, "n = LENGTHS[data[at]]", "at += 1", "if n is None: n, at = long_length(data, at - 1)")
            self.add(depth, "end = at + n", f"{value} = data[at:end]{'.decode()' * (kind == 'string')}", "at = end")
        elif kind == "double":
            self.add(depth, f"{value} = double(data, at)[0]", "at += 8")
        elif kind == "boolean":
            self.add(depth, f"{value} = data[at] != 0", "at += 1")
        elif kind == "array":
            return self._blocks(value, depth, schema, "items")
        elif kind == "map":
            return self._blocks(value, depth, schema, "values")
        else:
            raise TypeError(f"no reader for Avro's type {kind}: eventstore.avro_reader has to learn it")
        return value

    def _union(self, branches: list[Any], depth: int) -> str:
        value = self._name()
        self.add(depth, "n = data[at]", "at += 1")
        for index, branch in enumerate(branches):
            self.add(depth, f"{'elif' if index else 'if'} n == {2 * index}:")
            self.add(depth + 1, f"{value} = {self.read(branch, depth + 1)}")
        self.add(depth, "else: raise ValueError('a union has no such branch')")
        return value

    def _record(self, schema: Any, depth: int) -> str:
        self._named[schema["name"]] = schema
        fields = {field["name"]: self.read(field["type"], depth) for field in schema["fields"]}
        name = schema["name"].rpartition(".")[2]
        if self._kinds is not None and name in self._kinds:
            order: tuple[str, ...] = self._kinds[name].__match_args__  # type: ignore[attr-defined]
            return f"new_{name}({', '.join(fields[field] for field in order)})"  # by place, which is faster
        return f"{{{', '.join(f'{field!r}: {value}' for field, value in fields.items())}}}"

    def _blocks(self, value: str, depth: int, schema: Any, inner: str) -> str:
        """Arrays and maps: blocks of entries, each with their count before it, up to a count of 0."""
        self.add(depth, f"{value} = {'[]' if inner == 'items' else '{}'}", "n = data[at]", "at += 1", "while n:")
        self.add(depth + 1, "n = LENGTHS[n]", "if n is None: n, at = block(data, at - 1)", "for _ in range(n):")
        if inner == "items":
            self.add(depth + 2, f"{value}.append({self.read(schema[inner], depth + 2)})")
        else:
            key = self.read("string", depth + 2)
            self.add(depth + 2, f"{value}[{key}] = {self.read(schema[inner], depth + 2)}")
        self.add(depth + 1, "n = data[at]", "at += 1")
        return f"tuple({value})" if inner == "items" and self._kinds is not None else value

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"


def _long_number(data: bytes, at: int) -> tuple[int, int]:
    """A number of several bytes, lowest 7 bits first, its sign in the lowest bit."""
    number, second = data[at] & 0x7F, data[at + 1]
    if second <= 0x7F:
        number |= second << 7
        return (number >> 1) ^ -(number & 1), at + 2
    if len(data) - at >= 9:  # as a time in nanoseconds has: all bytes at once, in half the time
        number, last = _NINE_BYTES.unpack_from(data, at)
        if last <= 0x7F and number & _MORE == _MORE:
            number ^= _MORE
            number -= (number & 0x7F007F007F007F00) >> 1  # two bytes of 7 bits become one of 14, and so on
            number -= 3 * ((number & 0x3FFF00003FFF0000) >> 2)
            number -= 15 * ((number & 0x0FFFFFFF00000000) >> 4)
            number |= last << 56
            return (number >> 1) ^ -(number & 1), at + 9
    number = shift = 0
    while (byte := data[at]) > 0x7F:
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
    number |= byte << shift
    if number >> 64:
        raise ValueError("a number of more than 64 bits")
    return (number >> 1) ^ -(number & 1), at + 1


def _long_length(data: bytes, at: int) -> tuple[int, int]:
    """A length that LENGTHS does not know, such as that of most columns."""
    first, second = data[at], data[at + 1]
    if first > 0x7F and second <= 0x7F and not first & 1:
        return (first & 0x7E) >> 1 | second << 6, at + 2
    length, at = _number(data, at)
    if length < 0:
        raise ValueError("a negative length")
    return length, at


def _block(data: bytes, at: int) -> tuple[int, int]:
    """How many entries follow, where LENGTHS does not know. Negative: the size of the block stands before them."""
    count, at = _number(data, at)
    if count == 0:
        raise ValueError("an end in more bytes than it needs")
    return (count, at) if count > 0 else (-count, _number(data, at)[1])


def _number(data: bytes, at: int) -> tuple[int, int]:
    number = NUMBERS[data[at]]
    return (number, at + 1) if number is not None else _long_number(data, at)
