"""The spans of records that a service reads from Kafka and does something with."""

from __future__ import annotations

import time
from collections.abc import Iterable

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind

from isotherm.servicekit.tracing.spans import Attributes, Tracer, context_within, end_span, is_sampled, trace_id
from isotherm.servicekit.tracing.trace_headers import carrier_of


class ConsumedTraces:
    """Makes a span of each record that comes with a sampled trace context; safe for several threads.

    `attributes` are those of every span, for example which sink it is about.
    """

    def __init__(self, tracer: Tracer, attributes: Attributes) -> None:
        self._tracer = tracer
        self._attributes = attributes

    def context_of(self, headers: Iterable[tuple[str, str | bytes | None]]) -> Context | None:
        """Return the trace context in a record's headers; None if there is none, or it is not sampled."""
        carrier = carrier_of(headers)
        context = self._tracer.context_of(carrier) if carrier else None
        return context if context is not None and is_sampled(context) else None

    def start(
        self, context: Context, topic: str, partition: int, offset: int, *, since_ms: float, operation: str = "process"
    ) -> Span:
        """Begin the span of a record, at its Kafka timestamp `since_ms` in epoch milliseconds: it waited since then."""
        # A producer's clock may be ahead of ours.
        start_ns = max(0, min(int(since_ms * 1_000_000), time.time_ns()))
        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.operation.name": operation,
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(partition),
            "messaging.kafka.offset": offset,
            **self._attributes,
        }
        return self._tracer.start(f"{operation} {topic}", SpanKind.CONSUMER, context, attributes, start_ns=start_ns)

    def record(
        self,
        context: Context,
        topic: str,
        partition: int,
        offset: int,
        *,
        since_ms: float,
        operation: str = "process",
        error: str | None = None,
    ) -> str:
        """Make the span of a record that ends now, as failed if there is an `error`; return the trace's identifier."""
        span = self.start(context, topic, partition, offset, since_ms=since_ms, operation=operation)
        end_span(span, error)
        return trace_id(span)

    def send(self, context: Context, topic: str) -> tuple[Span, list[tuple[str, str]]]:
        """Begin to send a record that follows from a traced one; return the span and the record's headers."""
        return self._tracer.start_send(topic, context, self._attributes)

    def within(self, span: Span) -> Context:
        """Return the context in which `span` is the parent."""
        return context_within(span)

    def drop(self) -> None:
        """Count a span that is not made."""
        self._tracer.drop()

    def close(self) -> None:
        """Export what has ended, for at most a second."""
        self._tracer.close()
