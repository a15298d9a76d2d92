"""Flat records, their bytes, and what fastavro makes of these."""

from __future__ import annotations

import io
from typing import Any

import fastavro
from hypothesis import strategies as st

HEADER = b"\0\0\0\0\x09"
FLAT: dict[str, Any] = {
    "type": "record",
    "name": "Flat",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "time", "type": {"type": "long"}},
        {"name": "low", "type": "double"},
        {"name": "high", "type": {"type": "double"}},
        {"name": "count", "type": "int"},
        {"name": "is_on", "type": "boolean"},
        {"name": "more", "type": {"type": "map", "values": "string"}},
        {"name": "room", "type": ["null", "string"]},
        {"name": "factor", "type": ["double", "null"]},
        {"name": "until", "type": ["null", "long"]},
    ],
}
PARSED = fastavro.parse_schema(FLAT)
PLAIN = {
    "name": "a",
    "time": 1_767_225_600_000,
    "low": 1.5,
    "high": -0.0,
    "count": -1,
    "is_on": True,
    "more": {"a": "b"},
    "room": None,
    "factor": 2.5,
    "until": 1_767_225_600_001,
}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
times = st.integers(1_767_225_600_000, 1_767_225_700_000)
longs = st.one_of(times, st.integers(-(2**63), 2**63 - 1), st.integers(-70, 20_000), st.sampled_from([2**40, 2**41]))
doubles = st.floats(allow_nan=False)
records = st.fixed_dictionaries(
    {
        "name": texts,
        "time": longs,
        "low": doubles,
        "high": doubles,
        "count": st.integers(-(2**31), 2**31 - 1),
        "is_on": st.booleans(),
        "more": st.dictionaries(texts, texts, max_size=3),
        "room": st.none() | texts,
        "factor": st.none() | doubles,
        "until": st.none() | longs,
    }
)


def written(record: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, PARSED, record)
    return HEADER + buffer.getvalue()


def read_by_fastavro(data: bytes) -> Any:
    body = io.BytesIO(data[len(HEADER) :])
    value = fastavro.schemaless_reader(body, PARSED, None)
    assert not body.read()
    return value
