"""Rows that are columns: a sink may take those of a batch as a whole; for any other use they are made one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import overload

from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.record import Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.hotpath import Buffers, Kind


class ColumnarRows(Sequence[Row]):
    """The rows of records of one partition, one of each, all with one plan and one target.

    A sink whose kind `reads_columns` finds the values of all rows in `columns`. Every other use makes the rows that it
    looks at by the general projection, so they are what they would be without the columns.
    """

    __slots__ = ("_made", "_project", "_project_all", "columns", "event_time", "kinds", "plan", "records", "target")

    def __init__(
        self,
        records: Sequence[Record],
        plan: Plan,
        target: str,
        columns: Mapping[str, Buffers],
        kinds: Mapping[str, Kind],
        event_time: str,
        project: Callable[[Record], Row],
        project_all: Callable[[Sequence[Record]], Sequence[Row]],
    ) -> None:
        """`project` makes the row of a record, `project_all` those of several; `event_time` names the column of kind
        LONG that has it in epoch milliseconds.
        """
        self.records = records
        self.plan = plan
        self.target = target
        self.columns = columns
        self.kinds = kinds
        self.event_time = event_time
        self._project, self._project_all = project, project_all
        self._made: Sequence[Row] | None = None
        """All rows, once somebody has asked for them."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """Make one row, or some."""
        if isinstance(index, slice):
            return list(self._all()[index])
        return self._project(self.records[index]) if self._made is None else self._made[index]

    def __iter__(self) -> Iterator[Row]:
        """Make all rows."""
        return iter(self._all())

    def _all(self) -> Sequence[Row]:
        if self._made is None:
            self._made = self._project_all(self.records)
        return self._made
