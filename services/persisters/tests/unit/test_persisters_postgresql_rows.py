"""The PostgreSQL sink without a server: SQL, values, what errors mean, and the runs of a batch."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.config import files
from isotherm.connector.config.files import ConfigError
from isotherm.persisters.configuration import check
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.persisters.sinks.postgresql import sql
from isotherm.persisters.sinks.postgresql.batches import BoundRow, runs
from isotherm.persisters.sinks.postgresql.errors import Meaning, is_refused_connection, meaning_of, reason_of
from isotherm.persisters.sinks.postgresql.sql import NotATableError, Table
from isotherm.persisters.sinks.postgresql.values import converter

TABLE = Table("public", "readings", {"device": "text", "at": sql.TIMESTAMP, "level": "integer"}, ("device", "at"))
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


@pytest.mark.parametrize(
    ("avro", "type_"),
    [
        ("string", "text"),
        (["null", "long"], "bigint"),
        (MILLIS, sql.TIMESTAMP),
        ({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, "numeric(10, 2)"),
        ({"type": "enum", "name": "E", "symbols": []}, "text"),
        ({"type": "array", "items": "int"}, "jsonb"),
        ({"type": "map", "values": "int"}, "jsonb"),
        (["int", "string"], "jsonb"),
        ({"type": "string", "logicalType": "uuid"}, "uuid"),
    ],
)
def test_columns_have_the_types_of_the_schema(avro: Any, type_: str) -> None:
    assert sql.sql_type(avro) == type_


def test_names_are_quoted_and_never_cut() -> None:
    assert sql.quoted('a"b') == '"a""b"'
    for wrong in ("", "a\0b", "x" * 64, "é" * 32):
        with pytest.raises(NotATableError):
            sql.quoted(wrong)


def test_a_table_is_created_with_its_key_and_partitioned_by_the_event_time() -> None:
    columns = {"device": "string", "at": MILLIS}
    text = sql.create_table("s", "t", columns, ["device", "at"], "at")
    assert text.endswith('PRIMARY KEY ("device", "at")) PARTITION BY RANGE ("at")')
    assert f'"{sql.ROW_ID}" text' in sql.create_table("s", "t", columns, [sql.ROW_ID], None)
    with pytest.raises(NotATableError, match="need the event time"):
        sql.create_table("s", "t", columns, ["device"], "at")
    with pytest.raises(NotATableError, match="PK other is not among"):
        sql.create_table("s", "t", columns, ["other"], None)


def test_a_partition_holds_one_day_of_utc() -> None:
    day = sql.day_of(1_767_225_600_000 - 1)
    assert day == date(2025, 12, 31)
    text = sql.create_partition(TABLE, day)
    assert '"readings_p20251231"' in text
    assert "FROM ('2025-12-31 00:00:00+00') TO ('2026-01-01 00:00:00+00')" in text


def test_a_merge_replaces_by_key_and_keeps_higher_revisions() -> None:
    text = sql.merge(TABLE, "stage", ("device", "at", "level"), None)
    assert 'ON CONFLICT ("device", "at") DO UPDATE SET "level" = excluded."level"' in text
    assert "WHERE" not in text
    revised = sql.merge(TABLE, "stage", ("device", "at", "level"), "level")
    assert revised.endswith('WHERE stored."level" IS NULL OR excluded."level" >= stored."level"')
    assert sql.merge(TABLE, "stage", ("device", "at"), None).endswith("DO NOTHING")


def test_a_percent_sign_in_a_name_is_no_parameter() -> None:
    assert sql.delete(Table("s", "a%b", {"c%d": "text"}, ("c%d",))) == 'DELETE FROM "s"."a%%b" WHERE "c%%d" = %s'


@pytest.mark.parametrize(
    ("column", "value", "stored"),
    [
        (sql.TIMESTAMP, 1_767_225_600_001, datetime(2026, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC)),
        ("timestamp without time zone", 0, datetime(1970, 1, 1)),
        ("date", 1, date(1970, 1, 2)),
        ("time without time zone", 1_500, time(0, 0, 1, 500_000)),
        ("text", 1.5, "1.5"),
        ("text", True, "true"),
        ("text", b"\x01", "AQ=="),
        ("character varying(20)", {"a": 1}, '{"a":1}'),
        ("jsonb", [1, None], "[1,null]"),
        ("integer", 7, 7),
        ("bytea", b"\x00", b"\x00"),
    ],
)
def test_values_become_what_their_column_takes(column: str, value: Any, stored: Any) -> None:
    assert converter(column)(value) == stored


@pytest.mark.parametrize(
    ("column", "value"),
    [("integer", [1]), ("bytea", {"a": 1}), (sql.TIMESTAMP, 10**30), ("time without time zone", -1), ("date", 10**12)],
)
def test_values_that_no_column_of_the_type_can_hold_are_refused(column: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        converter(column)(value)


@pytest.mark.parametrize(
    ("state", "meaning"),
    [
        (None, Meaning.TRANSIENT),
        ("57P01", Meaning.TRANSIENT),
        ("40P01", Meaning.TRANSIENT),
        ("53300", Meaning.TRANSIENT),
        ("55P03", Meaning.TRANSIENT),
        ("25006", Meaning.TRANSIENT),
        ("22003", Meaning.ROW),
        ("23514", Meaning.ROW),
        ("54000", Meaning.ROW),
        ("42P01", Meaning.TABLE),
        ("42703", Meaning.TABLE),
        ("42501", Meaning.CONFIGURATION),
        ("28P01", Meaning.CONFIGURATION),
        ("99999", Meaning.UNKNOWN),
    ],
)
def test_an_error_is_judged_by_its_sqlstate(state: str | None, meaning: Meaning) -> None:
    assert meaning_of(state) is meaning


def test_rows_are_counted_by_reason_and_refused_logins_are_told_from_outages() -> None:
    assert [reason_of(state) for state in ("22003", "23505", None)] == ["type", "constraint", "rejected"]
    assert is_refused_connection('FATAL:  password authentication failed for user "a"')
    assert is_refused_connection('FATAL:  database "a" does not exist')
    assert not is_refused_connection("connection refused; is the server running on that host?")
    assert not is_refused_connection("FATAL:  the database system is starting up")


def bound(index: int, key: str, level: int | None, revision: int | None = None, extra: bool = False) -> BoundRow:
    columns = ("device", "level", "more") if extra else ("device", "level")
    values = None if level is None else (key, level, 0) if extra else (key, level)
    return BoundRow(index, "t", TABLE, () if level is None else columns, values, (key,), None, revision)


ROWS = st.lists(
    st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 9)), st.booleans()), min_size=1, max_size=30
)


@given(ROWS)
def test_runs_leave_what_the_rows_one_by_one_would_leave(rows: list[tuple[str, int | None, bool]]) -> None:
    given_rows = [bound(index, key, level, extra=extra) for index, (key, level, extra) in enumerate(rows)]
    singly: dict[Any, dict[str, Any]] = defaultdict(dict)
    by_runs: dict[Any, dict[str, Any]] = defaultdict(dict)
    for row in given_rows:
        apply(singly, row)
    for run in runs(given_rows):
        assert len({row.key for row in run.rows}) == len(run.rows)
        for row in run.rows:
            apply(by_runs, row)
    assert by_runs == singly


def apply(store: dict[Any, dict[str, Any]], row: BoundRow) -> None:
    if row.values is None:
        store[row.key] = {}
    else:
        store[row.key].update(zip(row.columns, row.values, strict=True))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_in_a_run_the_highest_revision_of_a_key_stays(revisions: list[int]) -> None:
    (run,) = runs(bound(index, "a", index, revision) for index, revision in enumerate(revisions))
    (row,) = run.rows
    assert row.revision == max(revisions)
    assert row.row_index == max(index for index, revision in enumerate(revisions) if revision == max(revisions))


def test_the_names_of_partitions_must_fit() -> None:
    columns = {"device": "string", "at": MILLIS}
    assert sql.create_table("s", "t" * 53, columns, ["at"], "at")
    with pytest.raises(NotATableError, match="63 bytes"):
        sql.create_table("s", "t" * 54, columns, ["at"], "at")


def test_the_example_and_the_keys_are_valid_and_upsert_needs_a_key() -> None:
    kind = installed_sinks()["postgresql"]
    example = files.read(Path(__file__).parents[4] / "examples" / "postgresql" / "readings-to-postgresql.properties")
    assert check(kind, example).notices == ()
    given = {**example.config, "connect.postgresql.kcql": "UPSERT INTO readings SELECT * FROM thermostat.data"}
    wrong = {**given, "connect.postgresql.ssl.mode": "allow", "connect.postgresql.ssl.key": "key.pem"}
    with pytest.raises(ConfigError) as caught:
        check(kind, files.from_mapping(wrong))
    told = "\n".join(caught.value.problems)
    for part in ("UPSERT needs PK", "ssl.mode: 'allow' is not allowed", "ssl.certificate is missing"):
        assert part in told
