"""Several batches as one, for sinks that write rows alike whichever partition they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from isotherm.persisters.api.ownership import Ownership
from isotherm.persisters.api.row import Batch, FailedRow, Row, with_those_behind

_NO_PARTITION = -1


class Ownerships(Ownership):
    """The ownership of several partitions, held while each of them is."""

    __slots__ = ("_each",)

    def __init__(self, each: Iterable[Ownership]) -> None:
        super().__init__()
        self._each = tuple(each)

    @property
    def is_held(self) -> bool:
        """Whether this task may write for all of the partitions."""
        return super().is_held and all(one.is_held for one in self._each)


def write_merged(
    write: Callable[[Batch], Sequence[FailedRow]], batches: Sequence[Batch]
) -> Sequence[Sequence[FailedRow]]:
    """Write the rows of several batches as those of one; return the rows of each batch that failed.

    Raises what `write` raises.
    """
    if len(batches) == 1:
        return [write(batches[0])]
    rows = [row for batch in batches for row in batch.rows]
    ownership = Ownerships(batch.ownership for batch in batches)
    found = _all_failed(rows, write(Batch("", _NO_PARTITION, rows, ownership)))
    failed, begin = [], 0
    for batch in batches:
        own = ((place, found.get(begin + place)) for place in range(len(batch.rows))) if found else ()
        failed.append([FailedRow(place, one.reason, one.error, one.transient) for place, one in own if one is not None])
        begin += len(batch.rows)
    return failed


def _all_failed(rows: Sequence[Row], failed: Sequence[FailedRow]) -> dict[int, FailedRow]:
    """Return the failed rows by index, and with each transient one the later rows of its target and id.

    A sink may name only the first row of an id that it could not write: within a batch the rows behind it are written
    again together with it (`rows_to_retry`). A row of another partition must be told, or it counts as written.
    """
    found = {one.index: one for one in failed}
    transient = {index: one for index, one in found.items() if one.transient}
    if transient:
        for index, one in with_those_behind(rows, transient):
            found.setdefault(index, one)
    return found
