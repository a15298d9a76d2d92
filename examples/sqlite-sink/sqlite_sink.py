"""A sink for SQLite: a table for each target, with each row as JSON under its id. The tutorial explains it."""

import sqlite3
import threading
from collections.abc import Sequence

from isotherm.connector.config.definitions import Importance, Type
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.records.documents import NotADocumentError, to_json
from isotherm.persisters.sinks.plugin import SinkCode, SinkKind
from isotherm.persisters.sinks.sink_keys import SinkKeys

_keys = SinkKeys("connect.sqlite")
_file = _keys.key("file", Type.STRING, None, "File of the database.", Importance.HIGH, required=True)
_definition = _keys.definition(
    "isotherm.examples.SqliteSink", (_file, *_keys.batches(500)), aliases=("sqlite",), clauses=("PK", "IGNORE")
)
_CREATE = "CREATE TABLE IF NOT EXISTS {} (id TEXT PRIMARY KEY, revision INTEGER, row TEXT NOT NULL)"
_DELETE = "DELETE FROM {} WHERE id = ?"
_UPSERT = """INSERT INTO {} VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET revision = excluded.revision,
    row = excluded.row WHERE ifnull(excluded.revision >= revision, 1)"""


class SqliteSink:
    """Writes a batch in one transaction. A later row of an id replaces an earlier one, but no higher revision."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        """Open the file; in WAL mode others can read while the sink writes."""
        try:
            self._connection = self._connection or sqlite3.connect(
                self._file, 0.5, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            raise SinkConfigError(f"{_file.name}: {self._file!r}: {error}") from error

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        """Write the rows; a row that the table refuses fails alone."""
        with self._lock:
            if self._connection is None:
                raise Unavailable("SQLite: not open")
            try:
                with self._connection as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    failed = [one for place, row in enumerate(batch.rows) if (one := self._put(connection, place, row))]
                    batch.ownership.check()
            except sqlite3.OperationalError as error:
                raise Unavailable(f"SQLite: {error}") from error
            return failed

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _put(self, connection: sqlite3.Connection, place: int, row: Row) -> FailedRow | None:
        table = '"' + row.target.replace('"', '""') + '"'
        try:
            connection.execute(_CREATE.format(table))
            if row.values is None:
                connection.execute(_DELETE.format(table), (row.id,))
            else:
                connection.execute(_UPSERT.format(table), (row.id, row.revision, to_json(row.values).decode()))
        except (sqlite3.IntegrityError, NotADocumentError) as error:
            return FailedRow(place, "rejected", error)
        return None


SQLITE = SinkKind(
    "sqlite", _definition, "connect.sqlite", lambda: SinkCode(lambda config, *_: SqliteSink(config.text(_file.name)))
)
