"""Several batches as one, for sinks that write rows alike whichever partition they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from isotherm.persisters.api.ownership import Ownership
from isotherm.persisters.api.row import Batch, FailedRow

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
    found = {one.index: one for one in write(Batch("", _NO_PARTITION, rows, ownership))}
    failed, begin = [], 0
    for batch in batches:
        end = begin + len(batch.rows)
        own = (found.get(index) for index in range(begin, end)) if found else ()
        failed.append(
            [FailedRow(one.index - begin, one.reason, one.error, one.transient) for one in own if one is not None]
        )
        begin = end
    return failed
