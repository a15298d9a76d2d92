"""COPY alone on a real PostgreSQL: what it stores, when rows are merged after all, and tables that never get it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sink_world import Writing

from isotherm.persisters.api.columnar_rows import ColumnarRows
from isotherm.persisters.api.ownership import Ownership, OwnershipLostError
from isotherm.persisters.api.row import Batch, Row
from isotherm.persisters.api.sink import SinkConfigError, Unavailable

pytestmark = pytest.mark.integration

TIME_MS = 1_767_225_600_123
KINDS: dict[str, Any] = {
    "device": "string",
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "flag": "boolean",
    "small": "int",
    "large": "long",
    "single": "float",
    "level": ["null", "double"],
    "raw": "bytes",
    "tags": {"type": "map", "values": "string"},
}
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Level",
    "fields": [{"name": name, "type": type_} for name, type_ in KINDS.items()],
    "isotherm.identity": ["device", "at"],
    "isotherm.event_time": "at",
}


def level(device: str, **more: Any) -> dict[str, Any]:
    tags = {'a"\\\n\x01': "\u00e4\U0001f321"}
    known = {"flag": True, "small": -7, "large": -(2**63), "single": 0.1, "level": 1.5, "raw": b"\0\xff", "tags": tags}
    return {"device": device, "at": TIME_MS, **known, **more}


VALUES = [level("a"), level("b", level=None, tags={}, raw=b""), level("c", at=-62_135_596_800_000, level=float("inf"))]


class Table:
    """A table and a sink that writes into it."""

    def __init__(self, server: Any, name: str, *, is_new: bool = True) -> None:
        keys = {
            "host": "127.0.0.1",
            "port": str(server.port),
            "database": server.database,
            "username": server.user,
            "password": server.password,
            "kcql": f"INSERT INTO {name} SELECT * FROM levels AUTOCREATE",
        }
        self.name = name
        self._connection = psycopg.connect(server.url, autocommit=True, row_factory=dict_row)
        if is_new:
            self.execute(f"DROP TABLE IF EXISTS {name}")
        self._writing = Writing("postgresql", SCHEMA, "levels", keys)
        self._writing.sink.open()

    def execute(self, query: str) -> list[dict[str, Any]]:
        cursor = self._connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []

    def rows(self) -> list[dict[str, Any]]:
        return self.execute(f"SELECT *, at::text AS at FROM {self.name} ORDER BY device")

    def batch(self, *values: dict[str, Any], ownership: Ownership | None = None) -> Batch:
        rows = self._writing.rows_of(0, *values)
        assert isinstance(rows, ColumnarRows)
        return Batch("levels", 0, rows, ownership or Ownership())

    def write(self, *values: dict[str, Any], as_rows: bool = False) -> Sequence[Any]:
        batch = self.batch(*values)
        rows: Sequence[Row] = list(batch.rows) if as_rows else batch.rows
        return self._writing.sink.write(Batch("levels", 0, rows))

    def close(self) -> None:
        self._writing.sink.close()
        self._connection.close()


def test_columns_store_what_rows_store(postgresql: Any) -> None:
    with closing(Table(postgresql, "of_columns")) as columns, closing(Table(postgresql, "of_rows")) as rows:
        assert columns.write(*VALUES) == []
        assert rows.write(*VALUES, as_rows=True) == []
        assert columns.rows() == rows.rows()
        assert len(columns.rows()) == 3
        assert columns.rows()[0]["tags"] == VALUES[0]["tags"]


def test_keys_that_are_there_or_twice_in_a_batch_are_merged(postgresql: Any) -> None:
    with closing(Table(postgresql, "of_merges")) as table:
        for number in range(6):
            assert table.write(level("a", small=number), level("b", small=number), level("a", small=-number)) == []
            assert [row["small"] for row in table.rows()] == [-number, number]


def test_only_the_bad_row_of_a_batch_fails(postgresql: Any) -> None:
    with closing(Table(postgresql, "of_bad_rows")) as table:
        assert table.write(level("a")) == []
        table.execute(f"ALTER TABLE {table.name} ADD CHECK (small < 100)")
        (failed,) = table.write(level("b"), level("c", small=100), level("d"))
        assert (failed.index, failed.reason) == (1, "constraint")
        assert [row["device"] for row in table.rows()] == ["a", "b", "d"]


def test_a_task_that_has_lost_the_partition_stores_no_columns(postgresql: Any) -> None:
    with closing(Table(postgresql, "of_lost")) as table:
        ownership = Ownership()
        batch = table.batch(level("a"), ownership=ownership)
        assert table.write(level("z")) == []
        ownership.release()
        with pytest.raises(OwnershipLostError):
            table._writing.sink.write(batch)
        assert [row["device"] for row in table.rows()] == ["z"]


def test_a_rule_on_insert_is_obeyed(postgresql: Any) -> None:
    with closing(Table(postgresql, "of_rules")) as table:
        assert table.write(level("a")) == []
        table.execute(f"CREATE RULE none AS ON INSERT TO {table.name} DO INSTEAD NOTHING")
    with closing(Table(postgresql, "of_rules", is_new=False)) as table:
        assert table.write(level("b")) == []
        assert [row["device"] for row in table.rows()] == ["a"]


OTHER_NUMBER = "ALTER TABLE {0} ALTER large TYPE double precision"
NO_NUMBER = "ALTER TABLE {0} ALTER large TYPE timestamptz USING to_timestamp(0)"
NO_KEY = "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey"
RULE = "CREATE RULE none AS ON INSERT TO {0} DO INSTEAD NOTHING"


@pytest.mark.parametrize(
    ("change", "refused", "as_rows"),
    [
        (OTHER_NUMBER, False, False),
        (OTHER_NUMBER, False, True),
        (NO_NUMBER, True, False),
        (NO_KEY, True, False),
        (NO_KEY, True, True),
        (RULE, False, False),
        (RULE, False, True),
    ],
)
def test_a_table_that_was_changed_is_looked_at_again(
    postgresql: Any, change: str, refused: bool, as_rows: bool
) -> None:
    with closing(Table(postgresql, "of_changes")) as table:
        assert table.write(level("a"), as_rows=as_rows) == []
        table.execute(change.format(table.name))
        with pytest.raises(Unavailable, match="has changed"):
            table.write(level("b"), as_rows=as_rows)
        assert [row["device"] for row in table.rows()] == ["a"]
        if refused:
            with contextlib.suppress(SinkConfigError):
                assert len(table.write(level("b"), as_rows=as_rows)) == 1
            assert [row["device"] for row in table.rows()] == ["a"]
        else:
            assert table.write(level("b", large=7), as_rows=as_rows) == []
            assert [row["large"] for row in table.rows()][1:] in ([7.0], [])


def test_a_key_that_is_checked_at_the_end_gets_no_copy(postgresql: Any) -> None:
    with closing(Table(postgresql, "of_deferred")) as table:
        assert table.write(level("a")) == []
        table.execute(f"ALTER TABLE {table.name} DROP CONSTRAINT {table.name}_pkey")
        table.execute(f"ALTER TABLE {table.name} ADD PRIMARY KEY (device, at) DEFERRABLE INITIALLY DEFERRED")
        with pytest.raises(Unavailable, match="has changed"):
            table.write(level("b"))
        assert [row["device"] for row in table.rows()] == ["a"]


def test_texts_are_texts_whatever_encoding_the_environment_asks_for(
    postgresql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with closing(Table(postgresql, "of_encodings")) as table:
        assert table.write(level("Z\u00fcrich")) == []
        (row,) = table.execute(f"SELECT octet_length(device) AS size FROM {table.name}")
        assert row["size"] == len("Z\u00fcrich".encode())
