"""Values of schemas: random ones, and what the newest version makes of older ones."""

from typing import Any

from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": INT,
    "long": LONG,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": TEXT,
    "bytes": st.binary(max_size=8),
}


def any_value(schema: Any) -> st.SearchStrategy[Any]:
    """Any value of a schema, as fastavro has parsed it; of named types only where they are defined."""
    if isinstance(schema, list):
        return st.one_of([any_value(branch) for branch in schema])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return st.fixed_dictionaries({field["name"]: any_value(field["type"]) for field in schema["fields"]})
    if kind == "array":
        return st.lists(any_value(schema["items"]), max_size=3)
    if kind == "map":
        return st.dictionaries(TEXT, any_value(schema["values"]), max_size=3)
    if kind == "enum":
        return st.sampled_from(schema["symbols"])
    return any_value(kind) if isinstance(kind, dict | list) else PRIMITIVES[kind]


def with_defaults(schema: Any, value: Any) -> Any:
    """The value as the newest version gives it: fields that were added since have their defaults."""
    if isinstance(schema, list):
        branch = next((each for each in schema if isinstance(each, dict)), None)
        return value if branch is None or value is None else with_defaults(branch, value)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "array":
        return [with_defaults(schema["items"], item) for item in value]
    if kind != "record":
        return with_defaults(kind, value) if isinstance(kind, dict) else value
    made = {}
    for field in schema["fields"]:
        if field["name"] in value:
            made[field["name"]] = with_defaults(field["type"], value[field["name"]])
        else:
            made[field["name"]] = field["default"]
    return made
