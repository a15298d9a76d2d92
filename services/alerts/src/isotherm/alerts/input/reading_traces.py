"""The traces of readings: a span of each that the rules have seen, and one of each alert that it opens or closes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from opentelemetry.context import Context

    from isotherm.servicekit.tracing.consumed_traces import ConsumedTraces


class Record(Protocol):
    """A record of the input."""

    @property
    def offset(self) -> int:
        """The offset."""

    @property
    def headers(self) -> Any:
        """The headers, as a list or a mapping."""


class ReadingTraces:
    """Makes the spans of one process."""

    def __init__(self, traces: ConsumedTraces) -> None:
        self._traces = traces
        self._refused: dict[int, str] = {}
        """By offset, why a record is a dead letter, until `judged`."""

    def context_of(self, record: Record) -> Context | None:
        """Return the trace context of a record; None if it has none, or it is not sampled."""
        headers = record.headers
        if not headers:
            return None
        pairs: Sequence[tuple[str, Any]] = list(headers.items()) if hasattr(headers, "items") else headers
        return self._traces.context_of(pairs)

    def judged(self, topic: str, partition: int, records: Iterable[Record], since_ms: Callable[[Any], float]) -> None:
        """Make the spans of records that the rules have seen; `since_ms` returns a record's timestamp in epoch ms."""
        for record in records:
            context = self.context_of(record)
            if context is not None:
                self._traces.record(
                    context,
                    topic,
                    partition,
                    record.offset,
                    since_ms=since_ms(record),
                    operation="judge",
                    error=self._refused.get(record.offset),
                )
        self._refused.clear()

    def refused(self, record: Record, reason: str) -> None:
        """Note why a record of those that `judged` is told of next is a dead letter."""
        if self.context_of(record) is not None:
            self._refused[record.offset] = reason

    def send(
        self, context: Context, topic: str, on_stored: Callable[[], None]
    ) -> tuple[list[tuple[str, str]], Callable[[], None]]:
        """Begin to send an alert that a traced reading opens or closes.

        Returns the headers of its record, and what is to be called when Kafka has it instead of `on_stored`.
        """
        span, headers = self._traces.send(context, topic)

        def stored() -> None:
            span.end()
            on_stored()

        return headers, stored
