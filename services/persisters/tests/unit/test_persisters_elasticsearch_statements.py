"""Data streams, routing and policies: what may be asked for together, and what a row becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from isotherm import kcql
from isotherm.connector.config import files
from isotherm.connector.config.validation import InvalidConfigError, Validated
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import RowError, SinkConfigError
from isotherm.persisters.configuration import check
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.persisters.sinks.elasticsearch.indices import mapping
from isotherm.persisters.sinks.elasticsearch.operations import Operations
from isotherm.persisters.sinks.elasticsearch.product import Product
from isotherm.persisters.sinks.elasticsearch.statements import check_plan
from isotherm.servicekit.avro import WriterSchema, parse

NULLS = "'behavior.on.null.values'='DELETE'"
STREAM = "INSERT INTO a SELECT * FROM t STOREAS DATA_STREAM"


def schema(**declared: Any) -> WriterSchema:
    fields = [{"name": name, "type": "long"} for name in ("id", "at", "revision")]
    json = {
        "type": "record",
        "name": "R",
        "fields": fields,
        **{f"isotherm.{key}": one for key, one in declared.items()},
    }
    return WriterSchema(1, json, parse(json))


def validated(kcql_text: str, **more: str) -> Validated:
    given = {"name": "n", "connector.class": "opensearch", "topics": "t", "kcql": kcql_text}
    return check(installed_sinks()["elasticsearch"], files.from_mapping(given | more))


@pytest.mark.parametrize(
    ("statement", "more", "message"),
    [
        ("INSERT INTO a SELECT * FROM t STOREAS QUEUE", {}, "STOREAS QUEUE is not allowed; expected DATA_STREAM"),
        (f"{STREAM}(x=1)", {}, "STOREAS DATA_STREAM has no parameters"),
        ("UPSERT INTO a SELECT * FROM t PK id STOREAS DATA_STREAM", {}, "UPSERT changes documents"),
        (
            f"INSERT INTO a SELECT * FROM t PK _key STOREAS DATA_STREAM PROPERTIES({NULLS})",
            {},
            "by a tombstone",
        ),
        (
            "INSERT INTO a SELECT * FROM t STOREAS DATA_STREAM WITHINDEXSUFFIX=-{YYYY}",
            {},
            "a data stream rolls over itself",
        ),
        ("INSERT INTO _value.a SELECT * FROM t STOREAS DATA_STREAM", {}, "needs a target that the statement names"),
        (f"{STREAM} PROPERTIES('routing'='id')", {}, "a data stream takes no routing"),
        ("INSERT INTO a SELECT * FROM t PROPERTIES('routing'='a..b')", {}, "expected the name of a field"),
        (f"INSERT INTO a SELECT * FROM t PK _key PROPERTIES('routing'='id', {NULLS})", {}, "routing=id is not in PK"),
        (
            "INSERT INTO a SELECT * FROM t",
            {"lifecycle.policy": "p", "retention.days": "1"},
            "not allowed together with",
        ),
        ("INSERT INTO a SELECT * FROM t", {"lifecycle.policy": "p", "index.auto.create": "false"}, "creates no index"),
    ],
)
def test_what_does_not_go_together_is_told_at_the_start(statement: str, more: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message.replace("(", r"\(")):
        validated(statement, **more)


def test_a_topic_of_the_suite_with_revisions_is_refused_at_the_start() -> None:
    given = {"name": "n", "connector.class": "elastic", "topics": "temperatures.aggregated"}
    text = "INSERT INTO a SELECT * FROM temperatures.aggregated STOREAS DATA_STREAM"
    with pytest.raises(InvalidConfigError, match="a newer revision would never be seen"):
        check(installed_sinks()["elasticsearch"], files.from_mapping(given | {"kcql": text}))


@pytest.mark.parametrize(
    ("clauses", "declared", "is_allowed"),
    [
        ("", {}, True),
        ("", {"identity": ["id", "at"], "event_time": "at"}, True),
        ("PK id, at", {"event_time": "at"}, True),
        ("PK id", {"event_time": "at"}, False),
        ("", {"identity": ["id"], "event_time": "at"}, False),
        ("", {"identity": ["id", "at"], "event_time": "at", "revision": "revision"}, False),
    ],
)
def test_a_stream_takes_only_ids_that_occur_once(clauses: str, declared: Mapping[str, Any], is_allowed: bool) -> None:
    (statement,) = kcql.parse(f"INSERT INTO a SELECT * FROM t {clauses} STOREAS DATA_STREAM")
    plan = compile_plan(statement, schema(**declared), "-")
    if is_allowed:
        check_plan(plan)
    else:
        with pytest.raises(SinkConfigError, match="a data stream keeps the first"):
            check_plan(plan)


def lines(statement_text: str, values: Any, pk: tuple[Any, ...] = (), index: str | None = None) -> list[Any]:
    (statement,) = kcql.parse(statement_text)
    plan = compile_plan(statement, None, "-")
    row = Row(0, "a", "1", values, 1_000, None, plan, pk=pk)
    return [orjson.loads(line) for line in Operations(plan).lines(row, index).splitlines()]


@pytest.mark.parametrize(
    ("values", "document"),
    [
        ({"v": 1}, {"@timestamp": 1_000, "v": 1}),
        ({}, {"@timestamp": 1_000}),
        ({"@timestamp": 5, "v": 1}, {"@timestamp": 5, "v": 1}),
    ],
)
def test_documents_of_a_stream_have_their_time(values: Any, document: Any) -> None:
    assert lines(STREAM, values) == [{"create": {"_id": "1"}}, document]


def test_routing_is_that_of_the_field_and_of_a_deletion_that_of_its_key() -> None:
    nested = "INSERT INTO a SELECT * FROM t PROPERTIES('ROUTING'='device.room')"
    assert lines(nested, {"device": {"room": "attic"}}, index="b")[0] == {
        "index": {"_id": "1", "_index": "b", "routing": "attic"}
    }
    truth = "INSERT INTO a SELECT * FROM t PROPERTIES('routing'='on')"
    assert lines(truth, {"on": True})[0]["index"]["routing"] == "true"
    deleting = f"INSERT INTO a SELECT * FROM t PK _key.id, _key.room PROPERTIES('routing'='room', {NULLS})"
    assert lines(deleting, None, ("1", "attic")) == [{"delete": {"_id": "1", "routing": "attic"}}]
    for nothing in ({}, {"device": None}, {"device": {"room": ""}}, {"device": 3}):
        with pytest.raises(RowError, match=r"the row has no 'device\.room'"):
            lines(nested, nothing)


def test_templates_of_streams_and_of_opensearch() -> None:
    template = mapping.index_template("a", {}, {"index.lifecycle.name": "p"}, is_data_stream=True)
    assert template["data_stream"] == {}
    assert template["template"]["settings"] == {"index.lifecycle.name": "p"}
    columns = {"m": {"type": "map", "values": "string"}}
    assert mapping.properties(columns, Product.OPENSEARCH) == {"m": {"type": "flat_object"}}
    assert mapping.properties(columns)["m"]["type"] == "flattened"
