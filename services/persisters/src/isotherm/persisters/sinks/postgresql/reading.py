"""Reads rows back; PostgreSQL itself compares them with what was written."""

from __future__ import annotations

from typing import Any

import psycopg

from isotherm.persisters.api.row import Row
from isotherm.persisters.api.stored_row import Finding, StoredRow
from isotherm.persisters.sinks.postgresql import sql
from isotherm.persisters.sinks.postgresql.batches import BoundRow
from isotherm.persisters.sinks.replacement import another_row, written_columns


def read_back(connection: psycopg.Connection[Any], row: Row, bound: BoundRow) -> StoredRow:
    """Look a row up in its table. Raises psycopg's errors."""
    is_deletion = bound.values is None
    statement = sql.read_back(bound.table, () if is_deletion else bound.columns)
    with connection.transaction():
        found = connection.execute(statement.encode(), [*(bound.values or ()), *bound.key]).fetchone()
    if is_deletion:
        return StoredRow(Finding.SAME if found is None else Finding.DIFFERENT)
    if found is None:
        return StoredRow(Finding.ABSENT)
    stored, is_same = found
    if is_same:
        return StoredRow(Finding.SAME, written_columns(row, stored, bound.table.key))
    return another_row(row, stored)
