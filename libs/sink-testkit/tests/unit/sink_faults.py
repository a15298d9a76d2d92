"""The SQLite sink of the examples with one fault each, and the check of the kit that convicts it."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

from sqlite_sink import SQLITE, SqliteSink

from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.api.stored_row import Finding, StoredRow
from isotherm.persisters.records.documents import to_json
from isotherm.persisters.sinks.plugin import SinkCode, SinkKind

_FILE = "connect.sqlite.file"


class EarlyAnswer(SqliteSink):
    """Answers before the rows are in the store: they follow with the next batch."""

    waiting: Batch | None = None

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        earlier, self.waiting = self.waiting, batch
        return () if earlier is None else super().write(earlier)


class DroppedRetry(SqliteSink):
    """Takes the rows of a store that is away for written."""

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        try:
            return super().write(batch)
        except Unavailable:
            return ()


class SwappedOrder(SqliteSink):
    """Writes the last row of a batch first."""

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        return super().write(replace(batch, rows=batch.rows[::-1]))


class LostDeadLetter(SqliteSink):
    """Tells nobody of the rows that the store refused."""

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        super().write(batch)
        return ()


class NoIdentity(SqliteSink):
    """Gives each write of a row an id of its own."""

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        return super().write(_changed(batch, lambda row: row._replace(id=uuid.uuid4().hex)))


class CollidingIds(SqliteSink):
    """Takes different identities for one."""

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        return super().write(_changed(batch, lambda row: row._replace(id=row.id[:7])))


class PoisonStopsTheTask(SqliteSink):
    """Raises what a single row is to blame for."""

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        for one in super().write(batch):
            raise one.error
        return ()


class WrongRow(SqliteSink):
    """Blames the row behind the one that the store refused."""

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        return [replace(one, index=(one.index + 1) % len(batch.rows)) for one in super().write(batch)]


class PartialFailureIsSuccess(SqliteSink):
    """Rolls the whole batch back for one bad row, and reports only that row."""

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        failed = super().write(batch)
        if failed:
            super().write(_changed(batch, lambda row: row._replace(values=None)))
        return failed


class BlamedBatch(SqliteSink):
    """Blames every row of a batch for the bad one among them."""

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        failed = super().write(batch)
        return [replace(failed[0], index=index) for index in range(len(batch.rows))] if failed else ()


class EndlessRetry(SqliteSink):
    """Calls a row that can never be written a passing trouble."""

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        return [replace(one, transient=True) for one in super().write(batch)]


class OutageIsPoison(SqliteSink):
    """Blames the rows for a store that is away."""

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        try:
            return super().write(batch)
        except Unavailable as error:
            return [FailedRow(index, "rejected", error) for index in range(len(batch.rows))]


class OutageIsFatalAtStart(SqliteSink):
    """Takes a store that is away at the start for a mistake of the configuration."""

    def open(self) -> None:
        super().open()
        try:
            super().write(Batch("none", 0, ()))
        except Unavailable as error:
            raise SinkConfigError(str(error)) from error


class IgnoredRevision(SqliteSink):
    """Lets the row that arrives last win, though revisions say which one is newer."""

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        return super().write(_changed(batch, lambda row: row._replace(revision=None)))


class IgnoredClose(SqliteSink):
    """Remembers what it wrote to spare equal writes, also for partitions that were another task's meanwhile."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self._written: dict[str, object] = {}

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        fresh = [row for row in batch.rows if self._written.get(row.id) != row.values]
        self._written.update((row.id, row.values) for row in batch.rows)
        return super().write(replace(batch, rows=fresh)) if fresh else ()

    def open_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Do nothing."""

    def close_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Do nothing, although what is remembered of these partitions is worth nothing any more."""


class WipesAtOpen(SqliteSink):
    """Starts with an empty store each time."""

    def open(self) -> None:
        is_first = self._connection is None
        super().open()
        if is_first and self._connection is not None:
            for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                self._connection.execute(f'DELETE FROM "{name}"')


class RemembersInMemory(SqliteSink):
    """Knows only until its process ends which rows it has written."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self._seen: set[str] = set()

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        fresh = [row._replace(id=uuid.uuid4().hex) for row in batch.rows if row.id not in self._seen]
        self._seen.update(row.id for row in batch.rows)
        return super().write(replace(batch, rows=fresh)) if fresh else ()


class ClosesOnce(SqliteSink):
    """Cannot be closed when it is not open."""

    def close(self) -> None:
        if self._connection is None:
            raise RuntimeError("not open")
        super().close()


class ReadsBack(SqliteSink):
    """Has no fault: it reads back, and tells a newer row from another one."""

    def read_back(self, rows: Sequence[Row]) -> Sequence[StoredRow]:
        return [self._found(row) for row in rows]

    def _found(self, row: Row) -> StoredRow:
        assert self._connection is not None
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("ROLLBACK")
            statement = f'SELECT revision, row FROM "{row.target}" WHERE id = ?'
            found = self._connection.execute(statement, (row.id,)).fetchone()
        except sqlite3.OperationalError as error:
            raise Unavailable(str(error)) from error
        if found is None:
            return StoredRow(Finding.ABSENT)
        revision, stored = found
        values = json.loads(stored)
        if values == json.loads(to_json(row.values)):
            return StoredRow(Finding.SAME, values)
        is_newer = row.revision is not None and revision > row.revision
        return StoredRow(Finding.NEWER if is_newer else Finding.DIFFERENT, values)


class SeesWhatItHopes(ReadsBack):
    """Takes any row of the id for the one that it wrote."""

    def read_back(self, rows: Sequence[Row]) -> Sequence[StoredRow]:
        return [one._replace(finding=Finding.SAME) if one.values else one for one in super().read_back(rows)]


class MissesNewer(ReadsBack):
    """Takes a newer row for one that somebody has changed."""

    def read_back(self, rows: Sequence[Row]) -> Sequence[StoredRow]:
        return [
            one._replace(finding=Finding.DIFFERENT) if one.finding is Finding.NEWER else one
            for one in super().read_back(rows)
        ]


class OutageIsAbsence(ReadsBack):
    """Takes a store that is away for one without the row."""

    def read_back(self, rows: Sequence[Row]) -> Sequence[StoredRow]:
        try:
            return super().read_back(rows)
        except Unavailable:
            return [StoredRow(Finding.ABSENT) for _ in rows]


class SkipsAbsent(ReadsBack):
    """Says nothing of rows that are not there."""

    def read_back(self, rows: Sequence[Row]) -> Sequence[StoredRow]:
        return [one for one in super().read_back(rows) if one.finding is not Finding.ABSENT]


def _changed(batch: Batch, change: Callable[[Row], Row]) -> Batch:
    return replace(batch, rows=[change(row) for row in batch.rows])


def _kind(sink: type[SqliteSink]) -> SinkKind:
    return replace(SQLITE, load_code=lambda: SinkCode(lambda config, *_: sink(config.text(_FILE))))


CONVICTED_BY: dict[type[SqliteSink], str] = {
    EarlyAnswer: "identity",
    DroppedRetry: "outage",
    SwappedOrder: "order",
    LostDeadLetter: "poison",
    NoIdentity: "identity",
    CollidingIds: "identity",
    PoisonStopsTheTask: "poison",
    WrongRow: "poison",
    PartialFailureIsSuccess: "poison",
    BlamedBatch: "poison",
    EndlessRetry: "poison",
    OutageIsPoison: "outage",
    OutageIsFatalAtStart: "outage_at_start",
    IgnoredRevision: "revisions",
    IgnoredClose: "rebalance",
    WipesAtOpen: "accounting",
    RemembersInMemory: "kill",
    ClosesOnce: "lifecycle",
    SeesWhatItHopes: "read_back",
    MissesNewer: "read_back",
    OutageIsAbsence: "read_back",
    SkipsAbsent: "read_back",
}
"""The check that must convict each fault."""

SINKS: Sequence[type[SqliteSink]] = (ReadsBack, *CONVICTED_BY)
KINDS = SimpleNamespace(**{sink.__name__: _kind(sink) for sink in SINKS})
"""The plug-ins, by the names of their faults."""
