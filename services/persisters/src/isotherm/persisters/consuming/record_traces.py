"""The spans of traced records: from Kafka's timestamp until the sink has their rows, or they failed (ADR 271)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from isotherm.persisters.api.record import FailedRecord, Record
from isotherm.persisters.api.row import Row

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a task that does not trace has no use for.
    from opentelemetry.context import Context

    from isotherm.servicekit.tracing.consumed_traces import ConsumedTraces


class RecordTraces:
    """Makes the spans of one task's records; the writers' threads call it."""

    def __init__(self, traces: ConsumedTraces) -> None:
        self._traces = traces

    def stored(self, rows: Sequence[Row], records: Sequence[Record]) -> Iterator[tuple[Row, str]]:
        """Make the spans of records whose rows the sink has just taken; yield a row of each with the trace.

        Args:
            rows: in the order of their offsets.
            records: those that the rows were made of, and perhaps others.
        """
        contexts = ((record, self._traces.context_of(record.headers)) for record in records)
        traced = [(record, context) for record, context in contexts if context is not None]
        if not traced:
            return
        by_offset = {row.offset: row for row in rows}
        for record, context in traced:
            row = by_offset.get(record.offset)
            if row is not None:
                yield row, self._record(record, context)

    def failed(self, records: Sequence[FailedRecord]) -> None:
        """Make the spans of records that were skipped or dead-lettered."""
        for failed in records:
            context = self._traces.context_of(failed.record.headers)
            if context is not None:
                self._record(failed.record, context, f"{failed.stage} {failed.reason}: {failed.error}")

    def _record(self, record: Record, context: Context, error: str | None = None) -> str:
        return self._traces.record(
            context, record.topic, record.partition, record.offset, since_ms=record.timestamp_ms, error=error
        )
