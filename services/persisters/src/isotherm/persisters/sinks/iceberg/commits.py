"""Commits to a table: rows, further columns and the offsets that the table holds then, all of it or nothing."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertTableUUID

from isotherm.persisters.sinks.iceberg.offset_ranges import Held, Source, from_property, to_property

OFFSETS = "isotherm.offsets"
"""Property of a snapshot's summary."""


def held(table: Table) -> dict[Source, Held]:
    """Return which offsets the table holds, from the newest snapshot that says it; others may have come after it.

    Raises ValueError for a property of something else.
    """
    snapshot = table.current_snapshot()
    while snapshot is not None:
        said = _property(snapshot)
        if said is not None:
            return from_property(said)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return {}


def _property(snapshot: Snapshot) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(OFFSETS)


def arrow_schema(table: Table) -> pa.Schema:
    """Return the columns of a table, without what pyiceberg adds to them."""
    return pa.schema([pa.field(field.name, as_stored(field.type)) for field in table.schema().as_arrow()])


def as_stored(kind: pa.DataType) -> pa.DataType:
    """Return a type as a table has it: times in microseconds, and nothing that pyiceberg adds to it."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(as_stored(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(as_stored(kind.key_type), as_stored(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, as_stored(field.type)) for field in kind])
    return kind


def append(table: Table, rows: pa.Table, schema: pa.Schema | None, offsets: Mapping[Source, Held]) -> None:
    """Commit rows; `schema` is what the table's columns become, None if they stay.

    Raises CommitFailedException if the table has changed since it was loaded: nothing was committed then.
    """
    transaction = Transaction(table)
    if schema is not None:
        with transaction.update_schema() as update:
            update.union_by_name(schema)
    files = written(transaction, rows)
    with transaction.update_snapshot(snapshot_properties={OFFSETS: to_property(offsets)}).fast_append() as change:
        for file in files:
            change.append_data_file(file)
    commit_once(table, transaction, files)


def replace(table: Table, old: Iterable[DataFile], rows: pa.Table) -> None:
    """Commit a table's rows in new files instead of the old ones.

    Raises CommitFailedException as `append`, and ValidationException if the table has one of the old files no more.
    """
    transaction = Transaction(table)
    files = written(transaction, rows)
    properties = {OFFSETS: to_property(held(table))}
    try:
        with transaction.update_snapshot(snapshot_properties=properties).overwrite() as change:
            for file in old:
                change.delete_data_file(file)
            for file in files:
                change.append_data_file(file)
    except ValidationException:
        _remove(table, files)
        raise
    commit_once(table, transaction, files)


def written(transaction: Transaction, rows: pa.Table) -> list[DataFile]:
    """Write rows into files of the table, which no snapshot has yet."""
    io = transaction._table.io
    return list(_dataframe_to_data_files(transaction.table_metadata, rows, io, write_uuid=uuid.uuid4()))


def commit_once(table: Table, transaction: Transaction, files: Sequence[DataFile]) -> None:
    """Commit a transaction on top of the snapshot that it was made for, or remove its files.

    pyiceberg's own commit would put it on top of a newer snapshot, which may hold the same rows.
    """
    requirements = (*transaction._requirements, AssertTableUUID(uuid=table.metadata.table_uuid))
    try:
        # Not the catalog's own commit: the table's removes metadata that is too old as well.
        table._do_commit(transaction._updates, requirements)
    except CommitFailedException:
        made = transaction.table_metadata.current_snapshot_id
        fresh = table.catalog.load_table(table.name())
        if made is not None and fresh.snapshot_by_id(made) is not None:
            # It was committed all the same: a client that asked again after a lost answer is refused.
            return
        _remove(table, files)
        for producer in transaction._snapshot_producers:
            producer._clean_all_uncommitted()
        raise


def _remove(table: Table, files: Iterable[DataFile]) -> None:
    for file in files:
        with suppress(OSError):
            table.io.delete(file.file_path)
