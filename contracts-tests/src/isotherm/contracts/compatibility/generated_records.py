"""Generated records: for every Avro schema a hypothesis strategy of its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

MAX_TIME_MS = 4_102_444_800_000
"""The end of the year 2099; generated times lie between 1970 and this one."""

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_PRIMITIVES: Mapping[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    # The sampled one is the first whole number that a double does not hold.
    "long": st.integers(-(2**63), 2**63 - 1) | st.sampled_from((2**53 + 1, -(2**63), 2**63 - 1)),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=12),
    "string": _TEXT,
}


def values(schema: Any, named: Mapping[str, Any] | None = None) -> st.SearchStrategy[Any]:
    """Values of `schema`, as fastavro takes them; of a union every branch comes up.

    Raises ValueError for a type that the catalog has no use for.
    """
    named = named or {}
    if isinstance(schema, list):
        return st.one_of(*(values(branch, named) for branch in schema))
    if isinstance(schema, str):
        return values(named[schema], named) if schema in named else _PRIMITIVES[schema]
    kind = schema["type"]
    if kind == "record":
        named = {**named, schema["name"]: schema}
        return st.fixed_dictionaries({field["name"]: values(field["type"], named) for field in schema["fields"]})
    if kind == "array":
        return st.lists(values(schema["items"], named), max_size=3)
    if kind == "map":
        return st.dictionaries(_TEXT, values(schema["values"], named), max_size=3)
    if kind == "enum":
        return st.sampled_from(schema["symbols"])
    if schema.get("logicalType") == "timestamp-millis":
        return st.integers(0, MAX_TIME_MS)
    if isinstance(kind, str) and kind not in _PRIMITIVES and kind not in named:
        raise ValueError(f"no values of type {kind}")
    return values(kind, named)
