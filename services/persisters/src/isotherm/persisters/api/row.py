"""Rows: what the statements make of records, and what a sink answers about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from isotherm.persisters.api.ownership import Ownership
from isotherm.persisters.api.plan import Plan


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
    """The record's revision if its schema declares one: the highest wins, whatever the order of arrival."""
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
    """The sink checks it before every request that writes, if a batch needs several of them."""
    begin: int | None = None
    """The offset before which the task has settled everything; None if it is not known."""
    end: int | None = None
    """The offset before which everything is settled once the rows are written; None if it is not known."""
    failed_before: frozenset[int] = frozenset()
    """Offsets of records between `begin` and `end` that failed before the sink and have no row here: they could not be
    decoded, transformed or projected. A sink that notes which offsets its store holds leaves them out."""


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row that the sink did not write."""

    index: int
    """Its index in the batch."""
    reason: str
    """One word, the label under which the record is counted: `mapping`, `type`, `too_large`, `overloaded`..."""
    error: Exception
    transient: bool = False
    """Whether the same write may succeed later."""


def rows_to_retry(rows: Sequence[Row], failed: Mapping[int, FailedRow]) -> list[Row]:
    """Return the rows to write again, in order, if those at the indices `failed` were not written.

    A row that follows a failed one of the same target and id is written again after it, so that the rows of a key keep
    their order.
    """
    return [rows[index] for index, _ in with_those_behind(rows, failed)]


def with_those_behind(rows: Sequence[Row], failed: Mapping[int, FailedRow]) -> Iterator[tuple[int, FailedRow]]:
    """Yield the indices of failed rows and of the rows of their targets and ids behind them, each with the failure."""
    waiting: dict[tuple[str, str], FailedRow] = {}
    for index, row in enumerate(rows):
        identity = (row.target, row.id)
        if index in failed:
            waiting[identity] = failed[index]
        if identity in waiting:
            yield index, waiting[identity]
