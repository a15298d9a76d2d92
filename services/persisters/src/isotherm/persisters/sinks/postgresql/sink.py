"""The PostgreSQL sink: a transaction for each batch. COPY for new keys, else COPY into a staging table and a merge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from isotherm.connector.config.validation import Problem, Validated
from isotherm.persisters.api.columnar_rows import ColumnarRows
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import RowError, SinkConfigError, Unavailable
from isotherm.persisters.api.stored_row import Finding, StoredRow
from isotherm.persisters.hotpath import copy_writer
from isotherm.persisters.sinks import tls
from isotherm.persisters.sinks.merged_batches import write_merged
from isotherm.persisters.sinks.postgresql import reading, sql
from isotherm.persisters.sinks.postgresql.batches import BoundRow, Run, runs
from isotherm.persisters.sinks.postgresql.binding import RowBinder
from isotherm.persisters.sinks.postgresql.columnar import binary_copy
from isotherm.persisters.sinks.postgresql.connections import Connection, Connections
from isotherm.persisters.sinks.postgresql.connector_keys import PREFIX
from isotherm.persisters.sinks.postgresql.direct_copies import DirectCopies
from isotherm.persisters.sinks.postgresql.errors import Meaning, meaning_of, reason_of
from isotherm.persisters.sinks.postgresql.sql import Table
from isotherm.persisters.sinks.postgresql.tables import Tables, is_unchanged
from isotherm.persisters.sinks.postgresql.values import Convert


class _RowsRefusedError(Exception):
    """PostgreSQL refused a transaction because of one of its rows; the cause says why."""


class _TableChangedError(Exception):
    """A table has other columns, another key, or something that keeps COPY from doing what INSERT does."""


class _ColumnCopy(NamedTuple):
    """What writes the columns of a batch."""

    target: str
    table: Table
    statement: bytes
    body: bytes


class PostgresqlSink:
    """Rows by primary key; the later row of a key wins, or the one with the highest revision.

    A write first tries COPY alone, which PostgreSQL refuses if one of the keys is there; then it merges the rows. The
    order of a write is: lock and change the rows, check the ownership, commit. The next owner of the partition
    waits for these locks, so a commit that the server executes late changes nothing newer; and a task that has lost the
    partition before the check does not commit. See docs/adr/0168 and docs/adr/0251.
    """

    def __init__(self, config: Validated, writers: int) -> None:
        """`writers` is how many threads write at most; each uses one connection."""
        self._config = config
        self._connections = Connections(config, most_idle=writers)
        self._tables = Tables(config, self._connections)
        self._converters: dict[str, Convert] = {}
        self._copies = DirectCopies()
        self._binary_rows = copy_writer()

    def open(self) -> None:
        """Connect, and check that the tables of fixed targets exist or may be created."""
        self._connections.reopen()
        with _translated():
            with self._connections.connection() as connection, connection.inner.transaction():
                connection.inner.execute("SELECT 1")
            for statement in self._config.statements:
                if statement.target_from is None and statement.target is not None and not statement.autocreate:
                    self._tables.find(statement.target, None)

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        """Write the rows in one transaction; in halves if PostgreSQL refuses one, to find it."""
        return [] if self._are_columns_copied([batch]) else self._write_rows(batch)

    def write_bulk(self, batches: Sequence[Batch]) -> Sequence[Sequence[FailedRow]]:
        """Write the rows of several batches in one transaction."""
        if self._are_columns_copied(batches):
            return [[] for _ in batches]
        return write_merged(self._write_rows, batches)

    def read_back(self, rows: Sequence[Row]) -> Sequence[StoredRow]:
        """Look up each row by its primary key."""
        binder = RowBinder(self._tables, self._converters, changes_tables=False)
        return [self._read_back(binder, row) for row in rows]

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def _read_back(self, binder: RowBinder, row: Row) -> StoredRow:
        try:
            bound = binder.bound(0, row)
            with self._connections.connection() as connection:
                return reading.read_back(connection.inner, row, bound)
        except psycopg.Error as error:
            meaning = _meaning(error)
            if meaning is Meaning.TRANSIENT:
                raise _translation(error, meaning) from error
            finding = Finding.ABSENT if isinstance(error, psycopg.errors.UndefinedTable) else Finding.UNREADABLE
            return StoredRow(finding, text=str(error).strip())
        except (RowError, SinkConfigError, ValueError, TypeError, OverflowError) as error:
            return StoredRow(Finding.UNREADABLE, text=str(error))

    def _write_rows(self, batch: Batch) -> Sequence[FailedRow]:
        failed: list[FailedRow] = []
        with _translated():
            bound = self._all_bound(batch, failed)
        if bound:
            self._write(batch, bound, failed)
        return failed

    def _write(self, batch: Batch, bound: Sequence[BoundRow], failed: list[FailedRow]) -> None:
        try:
            self._execute(batch, bound)
        except _RowsRefusedError as refused:
            if len(bound) == 1:
                failed.append(_failed_row(bound[0].row_index, refused.__cause__))
                return
            middle = len(bound) // 2
            for half in (bound[:middle], bound[middle:]):
                batch.ownership.check()
                self._write(batch, half, failed)

    def _all_bound(self, batch: Batch, failed: list[FailedRow]) -> list[BoundRow]:
        """Bind the rows of a batch; those that cannot be bound are added to `failed`."""
        bound: list[BoundRow] = []
        binder = RowBinder(self._tables, self._converters)
        for index, row in enumerate(batch.rows):
            try:
                bound.append(binder.bound(index, row))
            except RowError as error:
                failed.append(FailedRow(index, error.reason, error))
            except (ValueError, TypeError, OverflowError) as error:
                failed.append(FailedRow(index, "type", error))
        return bound

    def _execute(self, batch: Batch, bound: Sequence[BoundRow]) -> None:
        """Write rows in one transaction. Raises _RowsRefusedError, Unavailable, SinkConfigError, OwnershipLostError."""
        parts = runs(bound)
        try:
            if self._are_copied(batch, parts):
                return
            with self._connections.connection() as connection:
                staged: list[tuple[Table, str]] = []
                with connection.inner.transaction():
                    self._change_rows(connection, parts, staged)
                    batch.ownership.check()
                for table, stage in staged:
                    connection.remember_stage(table, stage)
                self._copies.note_merged(run.table.qualified for run in parts)
        except UnicodeEncodeError as error:
            raise _RowsRefusedError from error
        except psycopg.Error as error:
            meaning = _meaning(error)
            if meaning is Meaning.ROW:
                raise _RowsRefusedError from error
            if meaning is Meaning.TABLE:
                self._tables.forget({row.target for row in bound})
                raise Unavailable(f"PostgreSQL: a table has changed: {error}") from error
            raise _translation(error, meaning) from error

    def _are_copied(self, batch: Batch, parts: Sequence[Run]) -> bool:
        """Try to write rows by COPY alone; False if they have to be merged.

        Whatever PostgreSQL has against it, the merge finds out what is wrong. Raises psycopg's errors of a server that
        is not available, OwnershipLostError.
        """
        tables = {row.target: run.table for run in parts for row in run.rows[:1]}
        if any(run.is_deletion or not run.table.takes_copy for run in parts):
            return False

        def copy(cursor: psycopg.Cursor[Any]) -> None:
            for run in parts:
                _copy(cursor, run.table.qualified, run)

        return self._is_copied(tables, [batch], copy)

    def _are_columns_copied(self, batches: Sequence[Batch]) -> bool:
        """Try to write the columns of batches by COPY alone; False if their rows have to be looked at.

        Raises Unavailable, SinkConfigError, OwnershipLostError.
        """
        with _translated():
            copies = [self._columns_of(batch) for batch in batches]
            known = [copy for copy in copies if copy is not None]
            if len(known) < len(copies):
                return False

            def copy(cursor: psycopg.Cursor[Any]) -> None:
                for each in known:
                    with cursor.copy(each.statement) as writing:
                        writing.write(each.body)

            return self._is_copied({each.target: each.table for each in known}, batches, copy)

    def _columns_of(self, batch: Batch) -> _ColumnCopy | None:
        rows, write = batch.rows, self._binary_rows
        if write is None or not isinstance(rows, ColumnarRows):
            return None
        try:
            table = self._tables.find(rows.target, rows[0])
        except RowError:
            return None
        if not self._copies.is_worth_a_try([table.qualified]):
            return None
        body = binary_copy(rows, table, write)
        if body is None:
            return None
        statement = sql.copy_into(table.qualified, rows.columns, is_binary=True).encode()
        return _ColumnCopy(rows.target, table, statement, body)

    def _is_copied(
        self, tables: Mapping[str, Table], batches: Sequence[Batch], copy: Callable[[psycopg.Cursor[Any]], None]
    ) -> bool:
        """Execute COPY into tables, by target, in a transaction; False if PostgreSQL refuses it, or is not worth a try.

        Raises Unavailable if a table is not what is known of it: COPY takes bytes for any type that has so many, and
        rows whose keys no index keeps apart.
        """
        names = {table.qualified for table in tables.values()}
        if not self._copies.is_worth_a_try(names):
            return False
        try:
            with self._connections.connection() as connection, connection.inner.transaction():
                with connection.inner.cursor() as cursor:
                    copy(cursor)
                if not all(is_unchanged(table, connection.inner) for table in tables.values()):
                    raise _TableChangedError
                for batch in batches:
                    batch.ownership.check()
        except _TableChangedError as error:
            self._tables.forget(tables)
            raise Unavailable(f"PostgreSQL: one of these tables has changed: {', '.join(sorted(names))}") from error
        except psycopg.Error as error:
            if _meaning(error) is Meaning.TRANSIENT:
                raise
            self._copies.note_refused(names)
            return False
        self._copies.note_new(names)
        return True

    @staticmethod
    def _change_rows(connection: Connection, parts: Sequence[Run], staged: list[tuple[Table, str]]) -> None:
        with connection.inner.cursor() as cursor:
            for run in parts:
                if run.is_deletion:
                    cursor.executemany(sql.delete(run.table).encode(), [row.key for row in run.rows])
                    continue
                stage = connection.stage(run.table)
                _copy(cursor, sql.quoted(stage), run)
                cursor.execute(sql.merge(run.table, stage, run.columns, run.revision_column).encode())
                # Another run of the same table may follow in this transaction.
                cursor.execute(sql.clear(stage).encode())
                staged.append((run.table, stage))


def problems(config: Validated) -> list[Problem]:
    """Return what only this sink knows to be wrong in a configuration."""
    return [
        *tls.problems(config, PREFIX),
        *[
            Problem(f"{PREFIX}.kcql", f"UPSERT needs PK (in {statement.text!r})")
            for statement in config.statements
            if statement.mode == "UPSERT" and not statement.primary_key
        ],
    ]


def _copy(cursor: psycopg.Cursor[Any], qualified: str, run: Run) -> None:
    with cursor.copy(sql.copy_into(qualified, run.columns).encode()) as copy:
        for row in run.rows:
            copy.write_row(row.values or ())


@contextmanager
def _translated() -> Iterator[None]:
    """Raise psycopg's errors as those of the sink's interface."""
    try:
        yield
    except psycopg.Error as error:
        raise _translation(error, _meaning(error)) from error


def _meaning(error: psycopg.Error) -> Meaning:
    if error.sqlstate is None and isinstance(error, (psycopg.DataError, psycopg.ProgrammingError)):
        # The client itself cannot send the value: a text with a NUL.
        return Meaning.ROW
    return meaning_of(error.sqlstate)


def _translation(error: psycopg.Error, meaning: Meaning) -> Exception:
    message = f"PostgreSQL: {str(error).strip()}"
    if meaning is Meaning.TRANSIENT:
        return Unavailable(message)
    # What else is wrong with a table or with a statement about it, no later attempt repairs.
    return error if meaning is Meaning.UNKNOWN else SinkConfigError(message)


def _failed_row(index: int, error: BaseException | None) -> FailedRow:
    reason = reason_of(error.sqlstate) if isinstance(error, psycopg.Error) else "type"
    return FailedRow(index, reason, error if isinstance(error, Exception) else ValueError("refused"))
