"""The effects of a batch on each id are those of its rows one by one, with fewer operations."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isotherm.schemas
from isotherm import kcql
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.sinks.repeated_ids import (
    Effect,
    EffectKind,
    fold,
    may_repeat_ids,
    merged,
)
from isotherm.servicekit.avro import WriterSchema

VALUES = st.recursive(
    st.integers(0, 3) | st.none(), lambda inner: st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
)
DOCUMENTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)
ROWS = st.lists(
    st.tuples(st.sampled_from("xy"), st.sampled_from(EffectKind), DOCUMENTS, st.sampled_from([None, "p"])), max_size=12
)


def apply(store: dict[str, Any], id_: str, effect: Effect) -> None:
    if effect.kind is EffectKind.DELETE:
        store.pop(id_, None)
        return
    document = orjson.loads(effect.document)
    if effect.pipeline is not None and effect.kind is EffectKind.PUT:
        document = {**document, "by": effect.pipeline}
    store[id_] = merged(store[id_], document) if effect.kind is EffectKind.MERGE and id_ in store else document


@given(ROWS, DOCUMENTS)
def test_folded_effects_leave_what_the_rows_would_leave(rows: list[Any], before: dict[str, Any]) -> None:
    effects = [
        (id_, Effect(kind, orjson.dumps(document), pipeline if kind is EffectKind.PUT else None, [place]))
        for place, (id_, kind, document, pipeline) in enumerate(rows)
    ]
    one_by_one, folded, parts, halved = {"x": before}, {"x": before}, {"x": before}, {"x": before}
    for id_, effect in effects:
        apply(one_by_one, id_, effect)
    copies = [(id_, Effect(one.kind, one.document, one.pipeline, one.rows)) for id_, one in effects]
    found = fold(copies)
    for id_, theirs in found.items():
        for effect in theirs:
            apply(folded, id_, effect)
            for part in effect.parts or [effect]:
                apply(parts, id_, part)
            for half in effect.halves() if effect.parts else [effect]:
                apply(halved, id_, half)
    assert folded == parts == halved == one_by_one
    places = sorted(place for theirs in found.values() for effect in theirs for place in effect.rows)
    assert places == list(range(len(rows))), "each row is answered for"
    assert [e.rows for theirs in found.values() for e in theirs if e.parts] == [
        [place for part in e.parts for place in part.rows] for theirs in found.values() for e in theirs if e.parts
    ]


@pytest.mark.parametrize(
    ("kcql_text", "record", "expected"),
    [
        ("INSERT INTO i SELECT * FROM t", "SensorReading", False),
        ("INSERT INTO i SELECT * FROM t PK device_id", "SensorReading", True),
        ("UPSERT INTO i SELECT * FROM t PK device_id, event_time", "SensorReading", True),
        ("INSERT INTO i SELECT * FROM t", "Device", True),
        ("INSERT INTO i SELECT * FROM t", None, False),
    ],
)
def test_ids_that_come_again(kcql_text: str, record: str | None, expected: bool) -> None:
    """A reading happened once; a device is described again and again."""
    (statement,) = kcql.parse(kcql_text)
    writer = None if record is None else WriterSchema(1, isotherm.schemas.schema(record, 1), None)
    assert may_repeat_ids(compile_plan(statement, writer, "-")) is expected
