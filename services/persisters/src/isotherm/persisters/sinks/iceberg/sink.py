"""The Iceberg sink: the rows of all partitions in one commit, which says whose offsets the table holds then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from isotherm.connector.config.validation import Problem, Validated
from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.row import Batch, FailedRow
from isotherm.persisters.api.sink import RowError, SinkConfigError, Unavailable
from isotherm.persisters.sinks.arrow import archives
from isotherm.persisters.sinks.arrow.periods import Periods
from isotherm.persisters.sinks.arrow.tables import Columns, Placed
from isotherm.persisters.sinks.arrow.topics import TopicIdCache
from isotherm.persisters.sinks.iceberg import commits
from isotherm.persisters.sinks.iceberg.catalogs import connect, translated
from isotherm.persisters.sinks.iceberg.connector_keys import PREFIX
from isotherm.persisters.sinks.iceberg.offset_ranges import Held, OffsetRanges, Source
from isotherm.persisters.sinks.iceberg.promotions import united_columns
from isotherm.persisters.sinks.iceberg.tables import Tables, missing_columns

_ATTEMPTS = 10
"""Commits that are tried at once if others commit at the same time; then the loop waits and tries again."""


class _Part(NamedTuple):
    """The rows of one batch for one table."""

    batch: Batch
    number: int
    """Of the batch among those of the write."""
    rows: list[Placed]


class IcebergSink:
    """Tables that hold each row once.

    A write asks the table which offsets it holds, adds the rows of the others, and commits both together. A commit that
    another one overtook is decided anew, so two writers of a row cannot both add it. See docs/adr/0212.
    """

    def __init__(self, config: Validated, topic_id: Callable[[str], str]) -> None:
        """`topic_id` returns the id of a topic."""
        self._config = config
        self._topic_id = TopicIdCache(topic_id)
        self._columns = Columns(stored=commits.as_stored)
        self._periods = Periods(config.text(f"{PREFIX}.partition.by").upper())
        self._catalog: Catalog | None = None
        self._lock = threading.Lock()
        """Held while a table is written: the threads of a task would only overtake each other."""

    def open(self) -> None:
        """Connect to the catalog, and check that the tables of fixed targets exist or may be created."""
        with self._lock:
            if self._catalog is None:
                self._catalog = connect(self._config)
            tables = self._tables()
            for statement in self._config.statements:
                if statement.target_from is None and statement.target is not None and not statement.autocreate:
                    tables.load(statement.target, None)

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        """Write the rows of one batch."""
        return self.write_bulk([batch])[0]

    def write_bulk(self, batches: Sequence[Batch]) -> Sequence[Sequence[FailedRow]]:
        """Commit the rows of the batches that the tables do not hold, once for each table."""
        failed: list[list[FailedRow]] = [[] for _ in batches]
        by_target: dict[str, list[_Part]] = {}
        for number, batch in enumerate(batches):
            of_batch: dict[str, list[Placed]] = {}
            for index, row in enumerate(batch.rows):
                try:
                    if row.values is None:
                        raise RowError("tombstone", "an archive deletes nothing")
                    self._columns.of(row.plan)
                    # Raises for a time that has no day.
                    self._periods.folder(row.event_time_ms)
                    of_batch.setdefault(row.target, []).append(Placed(index, row, batch.topic, batch.partition))
                except RowError as error:
                    failed[number].append(FailedRow(index, error.reason, error))
            for target, rows in of_batch.items():
                by_target.setdefault(target, []).append(_Part(batch, number, rows))
        with self._lock:
            for target, parts in by_target.items():
                self._write_table(target, parts, failed)
        return failed

    def close(self) -> None:
        """Close connections."""
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()

    def open_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Ask for the ids of their topics again."""
        self._topic_id.forget(topic for topic, _ in partitions)

    def close_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        """What a table holds is in the table."""

    def _tables(self) -> Tables:
        if self._catalog is None:
            raise Unavailable("Iceberg's catalog is not connected")
        return Tables(self._config, self._catalog, self._columns)

    def _write_table(self, target: str, parts: Sequence[_Part], failed: Sequence[list[FailedRow]]) -> None:
        for _ in range(_ATTEMPTS):
            try:
                table = self._tables().load(target, parts[0].rows[0].row.plan)
            except RowError as error:
                for part in parts:
                    failed[part.number].extend(FailedRow(one.place, error.reason, error) for one in part.rows)
                return
            try:
                with translated(self._config):
                    self._commit(table, parts, failed)
                return
            except CommitFailedException as overtaken:
                reason = str(overtaken)
        raise Unavailable(f"{target}: {_ATTEMPTS} commits were overtaken by those of others: {reason}")

    def _commit(self, table: Table, parts: Sequence[_Part], failed: Sequence[list[FailedRow]]) -> None:
        """Add the rows that the table lacks. Raises CommitFailedException if another commit was quicker."""
        held = commits.held(table)
        sources = [self._source(part.batch) for part in parts]
        new: list[_Part] = []
        for part, source in zip(parts, sources, strict=True):
            known = self._known(table, held, source)
            lacking = _lacking(part, failed)
            rows = [one for one in part.rows if one.row.offset not in lacking and one.row.offset not in known]
            if rows:
                new.append(part._replace(rows=rows))
        schema = self._schema(table, new, failed)
        data = self._data(new, failed)
        if data is None:
            return
        for part, source in zip(parts, sources, strict=True):
            offsets = self._known(table, held, source)
            begin, end = _settled(part.batch)
            held[source] = Held(self._config.name, offsets.plus(begin, end, without=_lacking(part, failed)))
        for part in new:
            part.batch.ownership.check()
        commits.append(table, data, schema, held)

    def _source(self, batch: Batch) -> Source:
        return Source(batch.topic, self._topic_id(batch.topic), batch.partition)

    def _known(self, table: Table, held: Mapping[Source, Held], source: Source) -> OffsetRanges:
        found = held.get(source)
        if found is None:
            return OffsetRanges()
        if found.connector != self._config.name:
            raise SinkConfigError(
                f"{'.'.join(table.name())} has rows of {source.topic} by the connector {found.connector!r}: what two "
                "connectors write into one table cannot be told apart; keep the connector's name, or give this one a "
                "table of its own"
            )
        return found.offsets

    def _schema(self, table: Table, parts: Sequence[_Part], failed: Sequence[list[FailedRow]]) -> pa.Schema | None:
        """Return the columns and types that the table must get for the rows; None if it needs none.

        Rows whose columns the table cannot get are added to `failed`, and taken out of their part.
        """
        grown = current = commits.arrow_schema(table)
        verdicts: dict[Plan, RowError | None] = {}
        for part in parts:
            for one in list(part.rows):
                plan = one.row.plan
                if plan not in verdicts:
                    verdicts[plan], grown = self._verdict(table, plan, grown)
                error = verdicts[plan]
                if error is not None:
                    part.rows.remove(one)
                    failed[part.number].append(FailedRow(one.place, error.reason, error))
        return None if grown is current else grown

    def _verdict(self, table: Table, plan: Plan, grown: pa.Schema) -> tuple[RowError | None, pa.Schema]:
        schema = self._columns.schema(plan)
        name = ".".join(table.name())
        if not plan.statement.autoevolve and (missing := missing_columns(table, schema)):
            return RowError("column", f"{name} has no column {missing[0]!r}; add it, or say AUTOEVOLVE"), grown
        wider = united_columns(grown, schema)
        if wider is None:
            return RowError("type", f"{name} has a column of a type that the row's does not go together with"), grown
        if wider.equals(grown):
            return None, grown
        if not plan.statement.autoevolve:
            return RowError("type", f"{name} has a column of a narrower type; widen it, or say AUTOEVOLVE"), grown
        return None, wider

    def _data(self, parts: Sequence[_Part], failed: Sequence[list[FailedRow]]) -> pa.Table | None:
        tables = []
        for part in parts:
            if not part.rows:
                continue
            table = self._columns.table(part.rows, failed[part.number])
            # A record is stored with all of its rows of a table, or not at all: its offset says it of all of them.
            lacking = _lacking(part, failed)
            whole = [one for one in part.rows if one.row.offset not in lacking]
            if not whole:
                continue
            if len(whole) < len(part.rows):
                table = self._columns.table(whole, failed[part.number])
            tables.append(table)
        return pa.concat_tables(tables, promote_options="permissive") if tables else None


def _lacking(part: _Part, failed: Sequence[Sequence[FailedRow]]) -> Collection[int]:
    """Return the offsets of a batch's records of which a row failed, or all before they came here."""
    rows = part.batch.rows
    return part.batch.failed_before.union(rows[one.index].offset for one in failed[part.number])


def _settled(batch: Batch) -> tuple[int, int]:
    begin = batch.rows[0].offset if batch.begin is None else batch.begin
    end = batch.rows[-1].offset + 1 if batch.end is None else batch.end
    return begin, end


def problems(config: Validated) -> list[Problem]:
    """Return what only this sink knows to be wrong in a configuration."""
    found = archives.problems(config, PREFIX)
    warehouse = f"{PREFIX}.warehouse"
    if (
        config.text(f"{PREFIX}.catalog").upper() == "SQL"
        and not config.text(warehouse)
        and config.is_resolved(warehouse)
    ):
        found.append(Problem(warehouse, "a catalog of kind SQL needs it: file:///FOLDER or s3://BUCKET/FOLDER"))
    return found
