"""The SQLite sink passes the kit."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from isotherm.sink_testkit import SinkConformance, SinkUnderTest


class SqliteUnderTest(SinkUnderTest):
    """A file for each test."""

    sink = "sqlite_sink:SQLITE"

    def __init__(self, file: Path) -> None:
        self._file = file

    def connector(self, topic: str, target: str, pk: Sequence[str]) -> Mapping[str, str]:
        statement = f"INSERT INTO {target} SELECT * FROM {topic} PK {', '.join(pk)}"
        return {"connect.sqlite.file": str(self._file), "connect.sqlite.kcql": statement}

    def rows(self, target: str) -> Sequence[Mapping[str, Any]]:
        with closing(sqlite3.connect(self._file)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (target,)).fetchone():
                return []
            return [json.loads(row) for (row,) in connection.execute(f"SELECT row FROM {target}")]

    @contextmanager
    def outage(self) -> Iterator[None]:
        with closing(sqlite3.connect(self._file, isolation_level=None)) as other:
            other.execute("PRAGMA journal_mode = WAL")
            other.execute("BEGIN EXCLUSIVE")
            yield
            other.execute("ROLLBACK")

    def refuse_high_levels(self, target: str) -> bool:
        with closing(sqlite3.connect(self._file)) as connection:
            connection.execute(
                f"CREATE TABLE {target} (id TEXT PRIMARY KEY, revision INTEGER, "
                "row TEXT NOT NULL CHECK (json_extract(row, '$.level') <= 32767))"
            )
        return True


class TestSqlite(SinkConformance):
    """All checks of the kit."""

    @pytest.fixture
    def under_test(self, tmp_path: Path) -> SinkUnderTest:
        return SqliteUnderTest(tmp_path / "store.db")
