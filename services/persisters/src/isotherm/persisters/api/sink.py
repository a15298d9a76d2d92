"""The interface between the task's loop and a sink: `open`, `write`, `close`.

Batches, error policies, retries and commits are the loop's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from isotherm.persisters.api.row import Batch, FailedRow


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
