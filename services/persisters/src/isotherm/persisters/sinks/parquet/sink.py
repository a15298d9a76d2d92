"""The Parquet sink: the rows of a batch become one file for each folder, written once; see docs/adr/0211."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from isotherm.connector.config.validation import Problem, Validated
from isotherm.persisters.api.columnar_rows import ColumnarRows
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import RowError, SinkConfigError
from isotherm.persisters.sinks.arrow import archives
from isotherm.persisters.sinks.arrow.columnar import event_times_of, offsets_of, table_of
from isotherm.persisters.sinks.arrow.periods import HOUR_MS, Periods
from isotherm.persisters.sinks.arrow.tables import Columns, Placed, united
from isotherm.persisters.sinks.arrow.topics import TopicIdCache
from isotherm.persisters.sinks.parquet.connector_keys import PREFIX
from isotherm.persisters.sinks.parquet.file_names import FileName, Source, folder_of
from isotherm.persisters.sinks.parquet.local_folder import LocalFolder
from isotherm.persisters.sinks.parquet.stored_offsets import Footer, Gap, StoredOffsets, read_footer
from isotherm.persisters.sinks.parquet.stores import Store

_MOST_FOLDERS = 1_000
"""Folders of a partition of which the task remembers what they hold."""


class _Sequence(NamedTuple):
    """The files of one partition in one folder."""

    folder: str
    source: Source
    stored: StoredOffsets


class ParquetSink:
    """Files that hold each row once: a name is given to one file only, and says from which offset on it holds rows.

    What a batch leaves in the store is found again by listing its folders, so a batch that is repeated, in the same cut
    or in another one, adds nothing. The task commits after the files are there.
    """

    def __init__(self, config: Validated, topic_id: Callable[[str], str]) -> None:
        """`topic_id` returns the id of a topic."""
        self._connector = config.name
        self._topic_id = TopicIdCache(topic_id)
        self._store = _store(config)
        self._periods = Periods(config.text(f"{PREFIX}.partition.by").upper())
        self._columns = Columns(self._periods.columns)
        self._compression = config.text(f"{PREFIX}.compression").lower()
        self._lock = threading.Lock()
        self._sequences: dict[tuple[str, int], dict[str, _Sequence]] = {}
        """What is known of the store, by partition and folder, as long as the task owns the partition."""

    def open(self) -> None:
        """Check that the store is there."""
        self._store.open()

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        """Write the rows that are not stored yet, a file for each folder; return those that fit no file."""
        failed: list[FailedRow] = []
        # Columns are of batches in which no record failed.
        is_columnar = isinstance(batch.rows, ColumnarRows) and not batch.failed_before
        if is_columnar and self._write_columns(batch, cast("ColumnarRows", batch.rows), failed):
            return failed
        by_folder: dict[str, list[Placed]] = {}
        topic, partition = batch.topic, batch.partition
        folders: dict[tuple[Any, ...], str | RowError] = {}
        for index, row in enumerate(batch.rows):
            # Most rows of a batch are alike, and a dictionary knows their folder quicker than `_folder`.
            alike = (row.target, row.plan, row.event_time_ms // HOUR_MS, row.values is None)
            folder = folders.get(alike)
            if folder is None:
                folder = folders[alike] = self._folder(row)
            if isinstance(folder, RowError):
                failed.append(FailedRow(index, folder.reason, folder))
            else:
                by_folder.setdefault(folder, []).append(Placed(index, row, topic, partition))
        for folder, rows in by_folder.items():
            self._write_folder(batch, folder, rows, failed)
        return failed

    def close(self) -> None:
        """Close connections."""
        self._store.close()

    def open_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Begin to remember what the store holds of partitions."""
        self._topic_id.forget(topic for topic, _ in partitions)
        with self._lock:
            for partition in partitions:
                self._sequences[partition] = {}

    def close_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Forget what the store holds of partitions: others add to it."""
        with self._lock:
            for partition in partitions:
                self._sequences.pop(partition, None)

    def _write_columns(self, batch: Batch, rows: ColumnarRows, failed: list[FailedRow]) -> bool:
        """Write the columns of a batch; False if its rows have to be looked at, before anything was written.

        Where a folder holds some of the rows already, or another task is quicker, its rows are looked at.
        """
        try:
            offsets = offsets_of(rows)
            table = table_of(self._columns, rows, batch.topic, batch.partition, offsets)
            if table is None:
                return False
            hours = event_times_of(rows) // HOUR_MS
            folders: dict[str, list[int]] = {}
            for hour in np.unique(hours).tolist():
                folder = folder_of(rows.target, self._periods.folder(hour * HOUR_MS))
                folders.setdefault(folder, []).append(hour)
        except RowError:
            return False
        for folder, of_folder in folders.items():
            places = None if len(folders) == 1 else np.flatnonzero(np.isin(hours, of_folder))
            own = offsets if places is None else offsets[places]
            sequence = self._sequence(batch, folder)
            gap = sequence.stored.gap(int(own[0]))
            is_new = False
            if gap is not None and sequence.stored.is_last(gap) and not failed:
                name, footer = FileName(int(own[0]), is_fill=False), Footer(self._connector, int(own[-1]))
                part = table if places is None else table.take(pa.array(places))
                is_new = self._create(batch, sequence, name, footer, part)
            if not is_new:
                numbers = range(len(rows)) if places is None else places.tolist()
                placed = [Placed(place, rows[place], batch.topic, batch.partition) for place in numbers]
                self._write_folder(batch, folder, placed, failed)
        return True

    def _folder(self, row: Row) -> str | RowError:
        """Return the folder of a row, or why it has none."""
        try:
            if row.values is None:
                raise RowError("tombstone", "an archive deletes nothing")
            self._columns.of(row.plan)
            return folder_of(row.target, self._periods.folder(row.event_time_ms))
        except RowError as error:
            return error

    def _write_folder(self, batch: Batch, folder: str, rows: list[Placed], failed: list[FailedRow]) -> None:
        """Write rows of one folder. Where another task has written some of them meanwhile, look again."""
        while rows:
            sequence = self._sequence(batch, folder)
            first, in_gap, rows = _first_gap(sequence.stored, rows)
            if first is None:
                return
            together = _together(self._columns, in_gap)
            rows = sorted([*rows, *in_gap[together:]])
            if not self._write_file(batch, sequence, first, in_gap[:together], failed):
                bad = {one.index for one in failed}
                rows = sorted([*rows, *(one for one in in_gap[:together] if one.place not in bad)])

    def _write_file(
        self, batch: Batch, sequence: _Sequence, gap: Gap, rows: Sequence[Placed], failed: list[FailedRow]
    ) -> bool:
        """Write rows as one file; False if there is a file of that name, whose rows are then known to be stored."""
        table = self._columns.table(rows, failed)
        bad = {batch.rows[one.index].offset for one in failed} | batch.failed_before
        whole = [one for one in rows if one.row.offset not in bad]
        if not whole:
            return True
        if len(whole) < len(rows):
            # A record is stored with all of its rows of a folder, or not at all.
            table = self._columns.table(whole, failed)
        first, last = whole[0].row.offset, whole[-1].row.offset
        # What is bad is lacking, whichever folder it would have gone to: a mended configuration may take it later.
        if gap.is_fill:
            footer = Footer(self._connector, last, offsets=frozenset(one.row.offset for one in whole))
        else:
            footer = Footer(self._connector, last, lacking=frozenset(each for each in bad if first <= each <= last))
        return self._create(batch, sequence, FileName(first, gap.is_fill), footer, table)

    def _create(self, batch: Batch, sequence: _Sequence, name: FileName, footer: Footer, table: pa.Table) -> bool:
        """Write a file; False if there is one of that name, whose rows are then known to be stored."""
        data = _encoded(table.replace_schema_metadata(footer.metadata()), self._compression)
        batch.ownership.check()
        is_new = self._store.create(f"{sequence.folder}/{name.of(sequence.source)}", data)
        sequence.stored.add(name, footer if is_new else None)
        return is_new

    def _sequence(self, batch: Batch, folder: str) -> _Sequence:
        partition = (batch.topic, batch.partition)
        with self._lock:
            of_partition = self._sequences.get(partition, {})
            known = of_partition.get(folder)
        if known is not None:
            return known
        source = Source(batch.topic, self._topic_id(batch.topic), batch.partition)
        stored = StoredOffsets(
            source,
            self._store.names(folder, source.prefix),
            lambda name: read_footer(self._store.read(f"{folder}/{name}")),
            self._connector,
        )
        made = _Sequence(folder, source, stored)
        with self._lock:
            if len(of_partition) >= _MOST_FOLDERS:
                of_partition.clear()
            of_partition[folder] = made
        return made


def _first_gap(stored: StoredOffsets, rows: list[Placed]) -> tuple[Gap | None, list[Placed], list[Placed]]:
    """Return the first gap that rows belong into, these rows, and those of other gaps; stored rows are left out."""
    first = stored.gap(rows[0].row.offset)
    if first is not None and stored.is_last(first):
        return first, rows, []
    gaps = [(one, stored.gap(one.row.offset)) for one in rows]
    first = next((gap for _, gap in gaps if gap is not None), None)
    in_gap = [one for one, gap in gaps if gap is not None and gap == first]
    return first, in_gap, [one for one, gap in gaps if gap is not None and gap != first]


def _together(columns: Columns, rows: Sequence[Placed]) -> int:
    """Return how many of the first rows have columns that go together in one file."""
    schema = columns.schema(rows[0].row.plan)
    plans = {rows[0].row.plan}
    for number, one in enumerate(rows):
        if one.row.plan not in plans:
            plans.add(one.row.plan)
            wider = united(schema, columns.schema(one.row.plan))
            if wider is None:
                return _before(rows, number)
            schema = wider
    return len(rows)


def _before(rows: Sequence[Placed], number: int) -> int:
    """Return where to cut before a row, so that the rows of its record stay together."""
    offset = rows[number].row.offset
    first = next(index for index, one in enumerate(rows) if one.row.offset == offset)
    if first == 0:
        target = rows[number].row.target
        raise SinkConfigError(
            f"two statements write rows into {target} whose columns have types that do not go together"
        )
    return first


def _encoded(table: pa.Table, compression: str) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression=compression)
    return bytes(buffer.getvalue())


def _store(config: Validated) -> Store:
    parts = urlsplit(config.text(f"{PREFIX}.url"))
    if parts.scheme == "file":
        return LocalFolder(Path(unquote(parts.path)))
    from isotherm.persisters.sinks.parquet.bucket import Bucket

    return Bucket(config, parts.netloc, parts.path.strip("/"))


def problems(config: Validated) -> list[Problem]:
    """Return what only this sink knows to be wrong in a configuration."""
    return [*_url_problems(config), *archives.problems(config, PREFIX)]


def _url_problems(config: Validated) -> list[Problem]:
    key = f"{PREFIX}.url"
    text = config.text(key)
    if not text or not config.is_resolved(key):
        return []
    parts = urlsplit(text)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return []
    if parts.scheme == "s3" and parts.netloc:
        return []
    return [Problem(key, f"{text!r} is not allowed; expected file:///FOLDER or s3://BUCKET/FOLDER")]
