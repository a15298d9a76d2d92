"""The traces of what devices send: from its arrival until its answer, and on through the headers of its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind

from isotherm.servicekit.throttling.rates import Rate, TokenBucket
from isotherm.servicekit.tracing.root_sampling import RootSampling
from isotherm.servicekit.tracing.spans import Attributes, Tracer, context_within, end_span, is_sampled, trace_id

Headers = list[tuple[str, bytes | str | None]]


class IngestTrace:
    """One message of a device, from its arrival until its answer.

    Attributes:
        id: of the trace, 32 hexadecimal digits; None for a context that is only passed on.
    """

    __slots__ = ("_passed", "_sends", "_span", "_tracer", "id")

    def __init__(self, tracer: Tracer, span: Span | None, passed: Headers) -> None:
        self._tracer = tracer
        self._span = span
        self._passed = passed
        self._sends: list[Span] = []
        self.id = None if span is None else trace_id(span)

    def headers_for(self, topic: str, records: int) -> Headers:
        """Begin to send so many records to a topic of Kafka; return the headers that each of them gets."""
        if self._span is None:
            return self._passed
        send, headers = self._tracer.start_send(
            topic, context_within(self._span), {"messaging.batch.message_count": records}
        )
        self._sends.append(send)
        return [*headers]

    def refuse(self, error: str) -> None:
        """End what was begun to be sent: Kafka does not take it for this reason, and something else is sent instead."""
        sends, self._sends = self._sends, []
        for send in sends:
            end_span(send, error)

    def note(self, name: str, value: str) -> None:
        """Add an attribute."""
        if self._span is not None:
            self._span.set_attribute(name, value)

    def end(self, error: str | None = None) -> None:
        """End with the answer: Kafka has all records, or why they are not stored. Only the first call counts."""
        if self._span is None:
            return
        span, self._span = self._span, None
        for send in self._sends:
            end_span(send, error)
        end_span(span, error)


class IngestTraces:
    """Decides which messages are traced, and begins their traces.

    `roots` counts the messages that bring no context. At most `per_s` traces are recorded in a second, half of them of
    devices' contexts; `clock` returns seconds of a monotonic clock.
    """

    def __init__(self, tracer: Tracer, roots: RootSampling, per_s: int, clock: Callable[[], float]) -> None:
        self.roots = roots
        self._tracer = tracer
        self._clock = clock
        # Each has its own half: a device that asks for a trace with each message must not take those that begin here.
        self._continued, self._begun = (TokenBucket(Rate(max(1, per_s // 2), 1), clock()) for _ in range(2))

    def begin(
        self,
        name: str,
        carrier: Mapping[str, str],
        attributes: Callable[[], Attributes],
        *,
        arrived_ms: int | None = None,
    ) -> IngestTrace | None:
        """Begin or continue the trace of a message that has just arrived; None when it has none.

        Args:
            name: of the span: what the message is.
            carrier: the context that the message brings (`trace_headers.carrier_of`), or nothing.
            attributes: makes those of the span.
            arrived_ms: when it has arrived, in epoch milliseconds; None for now.
        """
        context = self._tracer.context_of(carrier) if carrier else None
        if context is None:
            is_begun = self.roots.is_due() and self._may_record(self._begun)
            return self._started(name, None, attributes, arrived_ms) if is_begun else None
        if is_sampled(context) and self._may_record(self._continued):
            return self._started(name, context, attributes, arrived_ms)
        # Not sampled, so that nobody behind records a part of a trace alone.
        return IngestTrace(self._tracer, None, [*self._tracer.unsampled_headers_of(context)])

    def close(self) -> None:
        """Export what has ended, for at most a second."""
        self._tracer.close()

    def _started(
        self, name: str, context: Context | None, attributes: Callable[[], Attributes], arrived_ms: int | None
    ) -> IngestTrace:
        start_ns = None if arrived_ms is None else arrived_ms * 1_000_000
        span = self._tracer.start(name, SpanKind.SERVER, context, attributes(), start_ns=start_ns)
        return IngestTrace(self._tracer, span, [])

    def _may_record(self, limit: TokenBucket) -> bool:
        if limit.wait_s(self._clock()):
            self._tracer.drop()
            return False
        limit.take(1)
        return True
