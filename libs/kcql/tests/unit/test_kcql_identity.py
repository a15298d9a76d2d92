"""From a record to its id, its target and its event time."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from isotherm.kcql import (
    Projection,
    ProjectionError,
    Record,
    compile_projection,
    parse,
)

VALUE: dict[str, Any] = {"a": 1, "b": {"c": 2, "d": None}, "n": None, "l": [{"n": 1}]}
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Outer",
    "fields": [
        {"name": "a", "type": "int"},
        {
            "name": "b",
            "type": ["null", {"type": "record", "name": "Inner", "fields": [{"name": "c", "type": "int"}]}],
        },
        {"name": "n", "type": ["null", "Inner"]},
        {"name": "l", "type": {"type": "array", "items": "Inner"}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}


def compiled(text: str, schema: Mapping[str, Any] | None = None, **options: Any) -> Projection:
    (statement,) = parse(text)
    return compile_projection(statement, schema=schema, **options)


class TestIdentity:
    def ids(self, pk: str, value: Any, schema: Any = None, **parts: Any) -> str | None:
        return compiled(f"UPSERT INTO t SELECT * FROM s PK {pk}", schema).id(Record(value=value, **parts))

    def test_values_joined(self) -> None:
        value = {"device": {"id": "dev-1"}, "window_start": datetime(2026, 1, 1, tzinfo=UTC), "n": 5}
        assert self.ids("device.id, window_start", value) == "dev-1-1767225600000"
        projection = compiled("UPSERT INTO t SELECT * FROM s PK device.id, n", pk_separator="|")
        assert projection.id(Record(value=value)) == "dev-1|5"
        assert projection.pk(Record(value=value)) == ("dev-1", 5)
        assert compiled("SELECT * FROM s").id(Record(value=value)) is None
        assert compiled("SELECT * FROM s").pk(Record(value=value)) is None

    def test_parts_of_the_record(self) -> None:
        parts: dict[str, Any] = {"key": b"k", "headers": {"h": b"1"}, "topic": "t", "partition": 0, "offset": 9}
        assert self.ids("_key, _header.h, _.topic, _.partition, _.offset", None, **parts) == "k-1-t-0-9"

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("x", "x"),
            (0, "0"),
            (True, "true"),
            (1.5, "1.5"),
            (b"\x00\xff", "00ff"),
            (date(2026, 1, 31), "2026-01-31"),
            (Decimal("1.50"), "1.50"),
            (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
            (datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=UTC), "1000"),
        ],
    )
    def test_values_as_text(self, value: Any, text: str) -> None:
        assert self.ids("v", {"v": value}) == text

    def test_microseconds_of_the_schema_are_kept(self) -> None:
        schema = {
            "type": "record",
            "name": "R",
            "fields": [{"name": "v", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]}],
        }
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=1, microseconds=5)
        assert self.ids("v", {"v": moment}, schema) == "1000005"

    @pytest.mark.parametrize(
        ("pk", "reason"),
        [
            ("n", "is null"),
            ("b.d.x", "is null"),
            ("b", "is a record"),
            ("l", "is an array"),
            ("zz", "no such field"),
            ("b.zz", "no such field"),
            ("l.n", "WITHSTRUCTURE"),
            ("a.x", "has no fields"),
            ("_header.h", "no such field"),
            ("_key", "is null"),
        ],
    )
    def test_what_is_no_key(self, pk: str, reason: str) -> None:
        for projection in (compiled(f"SELECT * FROM s PK {pk}"), compiled(f"SELECT * FROM s PK a, {pk}")):
            for call in (projection.id, projection.pk):
                with pytest.raises(ProjectionError, match=reason) as caught:
                    call(Record(value=VALUE))
                assert caught.value.path == pk

    def test_the_schema_says_it_before_the_first_record(self) -> None:
        for pk in ("b", "l", "n", "tags", "aa"):
            with pytest.raises(ProjectionError) as caught:
                compiled(f"SELECT * FROM s PK {pk}", SCHEMA).id(Record(value={"b": 1, "l": 1, "n": 1, "aa": 1}))
            assert caught.value.path == pk

    def test_a_key_that_is_no_text(self) -> None:
        with pytest.raises(ProjectionError, match="not UTF-8"):
            self.ids("_key", None, key=b"\xff")

    def test_an_alias_is_no_key_but_leads_to_its_path(self) -> None:
        with pytest.raises(ProjectionError, match=r"did you mean b\.c\?"):
            compiled("SELECT b.c AS id FROM s PK id", SCHEMA).id(Record(value=VALUE))


class TestTarget:
    def target(self, text: str, *, time: int | datetime | None = None, **parts: Any) -> str:
        return compiled(f"INSERT INTO {text}").target(Record(**parts), time)

    def test_static(self) -> None:
        assert self.target("`a b` SELECT * FROM s") == "a b"

    @pytest.mark.parametrize(
        ("target", "name"),
        [("_key", "k"), ("_value.a.b", "v"), ("_header.h", "x"), ("`_value.n`", "5"), ("$", "home_kitchen_1")],
    )
    def test_from_the_record(self, target: str, name: str) -> None:
        parts: dict[str, Any] = {"key": b"k", "value": {"a": {"b": "v"}, "n": 5}, "headers": [("h", b"x")]}
        assert self.target(f"{target} SELECT * FROM s", topic="/home/kitchen/1/", **parts) == name

    def test_a_field_of_withtarget_goes_first(self) -> None:
        assert self.target("t SELECT * FROM s WITHTARGET=a.b", value={"a": {"b": "c"}}) == "c"

    @pytest.mark.parametrize(
        ("target", "parts"),
        [
            ("_key", {}),
            ("_key", {"key": ""}),
            ("_key", {"key": b"\xff"}),
            ("_key.p", {"key": "k"}),
            ("_value.a", {"value": {}}),
            ("_value.a", {"value": {"a": {}}}),
            ("_header.h", {}),
            ("$", {}),
            ("$", {"topic": "/"}),
        ],
    )
    def test_a_record_that_names_no_target(self, target: str, parts: dict[str, Any]) -> None:
        with pytest.raises(ProjectionError):
            self.target(f"{target} SELECT * FROM s", **parts)

    def test_a_bare_select_has_none(self) -> None:
        with pytest.raises(ProjectionError, match="no target"):
            compiled("SELECT * FROM s").target(Record(), None)

    def test_the_suffix_is_that_of_the_event_time(self) -> None:
        text = "t SELECT * FROM s WITHINDEXSUFFIX -{YYYY.MM.DD}"
        assert self.target(text, time=1_769_868_309_123) == "t-2026.01.31"
        assert self.target(text, time=datetime(2026, 1, 31, tzinfo=UTC)) == "t-2026.01.31"
        assert self.target(f"_key {text[2:]}", key="k", time=0) == "k-1970.01.01"
        with pytest.raises(ProjectionError, match="needs an event time"):
            self.target(text)
        with pytest.raises(ProjectionError, match="years 1 to 9999"):
            self.target(text, time=10**18)
        assert self.target("t SELECT * FROM s WITHINDEXSUFFIX=-v1") == "t-v1"

    def test_withtimestamp_goes_before_the_event_time(self) -> None:
        text = "t SELECT * FROM s WITHTIMESTAMP ts WITHINDEXSUFFIX -{YYYY.MM.DD}"
        assert self.target(text, time=0, value={"ts": 1_769_868_309_123}) == "t-2026.01.31"
        with pytest.raises(ProjectionError, match="is null"):
            self.target(text, time=0, value={"ts": None})


class TestEventTime:
    def time_ms(self, clauses: str, value: Any = None, **parts: Any) -> int | None:
        return compiled(f"SELECT * FROM s {clauses}").timestamp_ms(Record(value=value, **parts))

    @pytest.mark.parametrize(
        ("unit", "number", "time_ms"),
        [
            ("NANOSECONDS", 1_769_868_309_123_999_999, 1_769_868_309_123),
            ("NANOSECONDS", -1, -1),
            ("MICROSECONDS", 1_999, 1),
            ("MILLISECONDS", 5, 5),
            ("MILLISECONDS", 5.9, 5),
            ("SECONDS", 1.5, 1500),
            ("SECONDS", 2, 2000),
            ("MINUTES", 2, 120_000),
            ("HOURS", 2, 7_200_000),
            ("DAYS", 2, 172_800_000),
        ],
    )
    def test_units(self, unit: str, number: float, time_ms: int) -> None:
        assert self.time_ms(f"WITHTIMESTAMP ts TIMESTAMPUNIT={unit}", {"ts": number}) == time_ms

    def test_times_that_are_no_numbers(self) -> None:
        for value in (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "1970-01-01T00:00:01Z", "1970-01-01T01:00:01+01:00"):
            assert self.time_ms("WITHTIMESTAMP ts TIMESTAMPUNIT=DAYS", {"ts": value}) == 1000

    def test_kafkas_own(self) -> None:
        assert self.time_ms("WITHTIMESTAMP sys_time() TIMESTAMPUNIT=SECONDS", timestamp_ms=7) == 7
        assert self.time_ms("WITHTIMESTAMP _.timestamp TIMESTAMPUNIT=SECONDS", timestamp_ms=7) == 7
        assert self.time_ms("") is None
        with pytest.raises(ProjectionError, match="sys_time"):
            self.time_ms("WITHTIMESTAMP sys_time()")

    @pytest.mark.parametrize("value", [None, True, "yesterday", {}, [], float("nan"), float("inf"), 10**18, b"1"])
    def test_what_is_no_time(self, value: Any) -> None:
        with pytest.raises(ProjectionError):
            self.time_ms("WITHTIMESTAMP ts", {"ts": value})
        with pytest.raises(ProjectionError, match="no such field"):
            self.time_ms("WITHTIMESTAMP ts", {})
