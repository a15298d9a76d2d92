"""The condition `where`: what it may say, and that Spark keeps the same readings as KCQL's own projection."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from isotherm.aggregator.frames import conditions
from isotherm.aggregator.reading_condition import fields_of, parse_condition
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.kcql import Record, compile_projection, parse

pytest_plugins = ("aggregator_spark",)
# pyspark leaves the socket of every collect() to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")

COLUMNS = (
    "device_id string, metric string, value double, unit string, event_time timestamp, ingest_time timestamp, "
    "sequence long, attributes map<string,string>"
)
READINGS: list[tuple[Any, ...]] = [
    ("d1", "temperature", 21.5, "Cel", 1_000, 1_500, 0, {}),
    ("d2", "temperature", -5.0, "Cel", 2_000, 1_500, 7, {"site": "a"}),
    ("D1", "brightness", 0.1, "lx", 2_000, 2_000, 2**40, {"site": "b", "floor": "1"}),
    ("d_1", "a%b", 1e100, "", 86_400_000, 86_400_001, -1, {"site": ""}),
    ("d\\1", "x\ny", -0.0, "\N{KELVIN SIGN}", 0, 0, 1, {"site": "%"}),
    ("", "temperature", 21.0, "Cel", 999, 999, 3, {"floor": "site"}),
    ("d1", "temperature", 2.0**53, "Cel", 999, 999, 2**53 + 1, {}),
    ("d1", "temperature", 2.0**53, "Cel", 999, 999, 2**53, {}),
    ("d1", "temperature", 2.0**63, "Cel", 999, 999, 2**63 - 1, {}),
    ("d1", "temperature", -(2.0**63), "Cel", 999, 999, -(2**63), {}),
]

texts = st.sampled_from(["device_id", "metric", "unit", "attributes.site", "attributes.floor"])
text_constants = st.sampled_from(["'d1'", "'temperature'", "'a'", "''", "'%'", "'d\\1'", "'lx'", "'it''s'"])
numbers = st.sampled_from(["value", "sequence"])
whole_beyond_doubles = ["9007199254740992", "9007199254740993", "9007199254740993.0", "9223372036854775807"]
beyond_longs = ["9223372036854775808", "-9223372036854775808", "1e19"]
number_constants = st.sampled_from(
    ["0", "21.5", "-5", "1e100", "0.1", "7", "1099511627776", "-0.5", *whole_beyond_doubles, *beyond_longs]
)
times = st.sampled_from(["event_time", "ingest_time"])
time_constants = st.sampled_from(
    ["TIMESTAMP '1970-01-01T00:00:01Z'", "TIMESTAMP '1970-01-01T00:00:01.999500Z'", "TIMESTAMP '1970-01-02T00:00:00Z'"]
)
signs = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
patterns = st.sampled_from(
    ["'d%'", "'%1'", "'d_1'", "'d!_1' ESCAPE '!'", "'d\\1'", "'a!%b' ESCAPE '!'", "'%'", "'x_y'"]
)


def compared(fields: st.SearchStrategy[str], constants: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Comparisons of one kind, IN, and IS NULL."""
    listed = st.lists(constants, min_size=1, max_size=3).map(", ".join)
    return st.one_of(
        st.builds("{} {} {}".format, fields, signs, constants),
        st.builds("{} {} {}".format, constants, signs, fields),
        st.builds("{} {} {}".format, fields, signs, fields),
        st.builds("{} {} ({})".format, fields, st.sampled_from(["IN", "NOT IN"]), listed),
        st.builds("{} IS {}".format, fields, st.sampled_from(["NULL", "NOT NULL"])),
    )


simple = st.one_of(
    compared(texts, text_constants),
    compared(numbers, number_constants),
    compared(times, time_constants),
    st.builds("{} {} {}".format, texts, st.sampled_from(["LIKE", "NOT LIKE"]), patterns),
)
nested = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=6,
)


def moment(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def kept_by_kcql(condition: str) -> list[int]:
    (statement,) = parse(f"SELECT * FROM readings WHERE {condition}")
    accepts = compile_projection(statement, schema=None).accepts
    assert accepts is not None
    names = [column.split()[0] for column in COLUMNS.split(", ")]
    values = [dict(zip(names, one, strict=True)) for one in READINGS]
    timed = [{**v, "event_time": moment(v["event_time"]), "ingest_time": moment(v["ingest_time"])} for v in values]
    return [number for number, value in enumerate(timed) if accepts(Record(value=value))]


def kept_by_spark(spark: SparkSession, given_conditions: Sequence[str]) -> list[list[int]]:
    rows = [(n, (*one[:4], moment(one[4]), moment(one[5]), *one[6:])) for n, one in enumerate(READINGS)]
    kinds = ", ".join(column.replace(" ", ": ", 1) for column in COLUMNS.split(", "))
    frame = spark.createDataFrame(rows, f"number int, reading struct<{kinds}>")
    tests = [
        conditions.is_true(parse_condition(one), "reading").alias(f"c{n}") for n, one in enumerate(given_conditions)
    ]
    found = frame.select("number", *tests).orderBy("number").collect()
    return [[row["number"] for row in found if row[f"c{n}"]] for n in range(len(given_conditions))]


@given(written=st.lists(nested, min_size=40, max_size=40))
@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_spark_keeps_the_readings_that_kcql_keeps(spark: SparkSession, written: list[str]) -> None:
    """Forty conditions at once, because a job costs the same for one."""
    expected = [kept_by_kcql(one) for one in written]
    found = kept_by_spark(spark, written)
    assert dict(zip(written, found, strict=True)) == dict(zip(written, expected, strict=True))


def test_whole_numbers_beyond_those_of_doubles_are_compared_exactly(spark: SparkSession) -> None:
    written = [
        f"{left} {sign} {right}"
        for sign in ("=", "<>", "<", "<=", ">", ">=")
        for left, right in (
            ("sequence", "9007199254740993"),
            ("9007199254740992", "sequence"),
            ("value", "9007199254740993"),
            ("value", "sequence"),
            ("sequence", "value"),
            ("sequence", "9223372036854775808"),
            ("sequence", "7.5"),
        )
    ]
    written += ["sequence IN (9007199254740993.0, 7)", "sequence NOT IN (9007199254740992)", "value IN (2, 1e100)"]
    expected = [kept_by_kcql(one) for one in written]
    assert dict(zip(written, kept_by_spark(spark, written), strict=True)) == dict(zip(written, expected, strict=True))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("value >", "is no condition of KCQL"),
        ("value > 5 LIMIT 3", "nothing after it"),
        ("value > 5; SELECT * FROM x", "nothing after it"),
        ("temperature > 5", "field temperature is not allowed: must be device_id, metric"),
        ("attributes = 'a'", "field attributes is not allowed"),
        ("_key.id = 'a'", "key is not allowed"),
        ("value = 'warm'", "value is a number and 'warm' a text"),
        ("event_time > 5", "TIMESTAMP '"),
        ("value = TRUE", "a boolean"),
        ("value = metric", "a number and metric a text"),
        ("metric IN ('a', 'b') AND value LIKE 'a%'", "LIKE compares a text"),
        ("device_id LIKE '%a%b%'", "at most 2 %"),
    ],
)
def test_a_condition_that_cannot_work_ends_the_start(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"where") as refused:
        AggregatorSettings.model_validate({"checkpoint_dir": ".", "jars_dir": ".", "where": text})
    assert reason in str(refused.value)


def test_a_condition_reads_the_fields_that_it_names() -> None:
    condition = parse_condition("attributes.site = 'a' OR NOT (value > 1 AND attributes.floor IS NULL)")
    assert fields_of(condition) == ("attributes", "value")
    assert fields_of(None) == ()
