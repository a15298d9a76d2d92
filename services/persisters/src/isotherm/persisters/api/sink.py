"""The interface between the task's loop and a sink: `open`, `write`, `close`, and for some sinks up to four more.

Batches, error policies, retries and commits are the loop's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.stored_row import StoredRow


class Unavailable(Exception):
    """The sink cannot take anything now. The loop offers the batch, written in part or not at all, again."""

    def __init__(self, message: str, retry_after_ms: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
        """Shortest pause before the next attempt in milliseconds, beside the loop's own back-off."""


class SinkConfigError(Exception):
    """What the sink found does not fit its configuration (no such table, no right to write): the task stops."""


class RowError(ValueError):
    """The sink cannot write one row because of what its record says or lacks: the target, a schema."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """One word, as in FailedRow."""


class Sink(Protocol):
    """A store. Several threads call `write`, never two of them for the same partition at once."""

    def open(self) -> None:
        """Connect and check the targets. The loop calls it again with back-off after Unavailable; idempotent.

        Raises Unavailable, SinkConfigError.
        """

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        """Write the rows and return those that failed; every other row is durable on return.

        Writing a row again changes nothing. A request that the store executes late, after another task wrote newer
        rows of the same ids, must not replace these (docs/adr/0047).

        Raises Unavailable, SinkConfigError, and OwnershipLostError from `batch.ownership`. Any other exception is a
        bug and stops the task.
        """

    def close(self) -> None:
        """Release connections; safe to call at any time."""


@runtime_checkable
class BulkSink(Sink, Protocol):
    """A sink that writes the rows of several partitions in one request, transaction or commit has this method as well.

    Many partitions with few records each then do not make as many small writes. See docs/adr/0210.
    """

    def write_bulk(self, batches: Sequence[Batch]) -> Sequence[Sequence[FailedRow]]:
        """Write the rows of several batches, each of another partition, and return for each batch what `write` returns.

        Raises as `write`; then the loop offers all of the batches again.
        """


@runtime_checkable
class PartitionedSink(Sink, Protocol):
    """A sink that keeps something for each partition (a cache, a file, a transaction) has these two methods as well.

    The loop's thread calls them while it rebalances, so they must not ask the store. What they raise stops the task.
    """

    def open_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Take partitions, each a topic and a number, from which `write` may get rows from now on."""

    def close_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Forget partitions: another task may write their rows from now on.

        Their writes are answered, unless the store took longer than `drain_timeout_ms`: then `write` may still run.
        """


@runtime_checkable
class ReadableSink(Sink, Protocol):
    """A sink whose store can be asked for a row by target and id has this method as well."""

    def read_back(self, rows: Sequence[Row]) -> Sequence[StoredRow]:
        """Look up each row in the store and compare it; nothing in the store changes, and no target is made.

        A thread of its own calls it while others write. Raises Unavailable, SinkConfigError.
        """
