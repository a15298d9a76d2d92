"""What a sink is to the loop: `open`, `write`, `close`. All else (batches, policies, commits) lives in the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from isotherm.kcql.model import Statement
from isotherm.persisters.consuming.ownership import Ownership
from isotherm.persisters.records.plan import Plan


class Row(NamedTuple):
    """One effect on the sink: what one statement made of one record."""

    offset: int
    target: str
    id: str
    """Identity in the target, as text: PK values, else the schema's declared identity, else topic-partition-offset."""
    values: dict[str, Any] | None
    """The projected fields; None asks for a delete."""
    event_time_ms: int
    """WITHTIMESTAMP, else the schema's event time, else Kafka's timestamp."""
    revision: int | None
    """The record's revision where its schema declares one: the highest wins, whatever the order."""
    plan: Plan
    raw: bytes | None = None
    """The value as it came from Kafka."""
    pk: tuple[Any, ...] = ()
    """The values of PK, for a delete."""


@dataclass(slots=True)
class Batch:
    """Rows of one partition in the order of their offsets."""

    topic: str
    partition: int
    rows: Sequence[Row]
    ownership: Ownership = field(default_factory=Ownership)
    """To be checked before every request that writes, if a batch needs several of them."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that was not written."""

    index: int
    """Its place in the batch."""
    reason: str
    """A word for counting: `mapping`, `type`, `too_large`, `overloaded`..."""
    error: Exception
    transient: bool = False
    """Whether the same write may succeed later."""


class Unavailable(Exception):
    """The sink cannot take anything now; the batch, in part or not at all written, will be offered again."""

    def __init__(self, message: str, retry_after_ms: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class SinkConfigError(Exception):
    """What the sink found does not fit its configuration (no such table, no right to write): the task stops."""


class RefusedRowError(ValueError):
    """What a sink cannot do for one row because of what its record says, or lacks: the target, a schema."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """A word for counting, as in Rejected."""


class Sink(Protocol):
    """A store. `write` is called from several threads, never twice at once for one partition."""

    def open(self) -> None:
        """Connect and check the targets. Called again with back-off after Unavailable; idempotent.

        Raises Unavailable, SinkConfigError.
        """

    def write(self, batch: Batch) -> Sequence[Rejected]:
        """Write the rows; on return every row that is not rejected is durable. Writing a row again changes nothing.

        A request that the store executes late, after another task wrote newer rows of the same ids, must not replace
        these (docs/adr/0047).

        Raises Unavailable, SinkConfigError, and OwnershipLostError from `batch.ownership`. Any other exception is a
        bug and stops the task.
        """

    def close(self) -> None:
        """Release connections; safe to call at any time."""


def is_derived(statement: Statement) -> bool:
    """Whether each record names its target itself: one that names none must not stop the others."""
    return statement.target_from is not None or statement.dynamic_target is not None


def later_rows_of_same_id(rows: Sequence[Row], failed: Mapping[int, Rejected]) -> list[Row]:
    """The rows to offer again when those at the indices `failed` were not written, in order.

    A row that was written after a failed one of the same target and id is written again behind it, so that the order
    of a key is kept.
    """
    waiting: set[tuple[str, str]] = set()
    again = []
    for index, row in enumerate(rows):
        identity = (row.target, row.id)
        if index in failed:
            waiting.add(identity)
        if identity in waiting:
            again.append(row)
    return again
