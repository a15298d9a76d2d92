"""The rows of a batch as runs that one statement writes each, with one row for each key. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from isotherm.persisters.sinks.postgresql.sql import Table


class BoundRow(NamedTuple):
    """One row with its values as the table takes them."""

    row_index: int
    """Its index in the batch."""
    target: str
    table: Table
    columns: tuple[str, ...]
    values: tuple[Any, ...] | None
    """In the order of `columns`; None deletes the row of `key`."""
    key: tuple[Any, ...]
    """The values of the table's key."""
    revision_column: str | None
    revision: int | None


@dataclass(frozen=True)
class Run:
    """Rows of one table that one statement writes, each key once."""

    table: Table
    columns: tuple[str, ...]
    revision_column: str | None
    rows: Sequence[BoundRow]

    @property
    def is_deletion(self) -> bool:
        """Whether the rows are deleted."""
        return self.rows[0].values is None


def runs(rows: Iterable[BoundRow]) -> list[Run]:
    """Return the runs that write `rows`, to be executed in order.

    The rows of a key keep their order; rows of different tables have none. In a run a later row of a key takes the
    place of an earlier one, unless its revision is lower: a statement must not change a row twice.
    """
    by_table: dict[str, list[BoundRow]] = {}
    for row in rows:
        by_table.setdefault(row.table.qualified, []).append(row)
    return [run for of_table in by_table.values() for run in _runs_of_table(of_table)]


def _runs_of_table(rows: Sequence[BoundRow]) -> Iterable[Run]:
    current: dict[tuple[Any, ...], BoundRow] = {}
    form = _form(rows[0])
    for row in rows:
        if _form(row) != form:
            yield _run(current)
            current, form = {}, _form(row)
        earlier = current.get(row.key)
        if earlier is None or earlier.revision is None or row.revision is None or row.revision >= earlier.revision:
            current[row.key] = row
    yield _run(current)


def _form(row: BoundRow) -> tuple[Any, ...]:
    return row.columns, row.values is None, row.revision_column, row.table


def _run(rows: dict[tuple[Any, ...], BoundRow]) -> Run:
    chosen = list(rows.values())
    return Run(chosen[0].table, chosen[0].columns, chosen[0].revision_column, chosen)
