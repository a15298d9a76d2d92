"""The traces of what devices send: from its arrival until its answer, and on through the headers of its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, set_span_in_context

from isotherm.servicekit.throttling.rates import Rate, TokenBucket
from isotherm.servicekit.tracing.root_sampling import RootSampling
from isotherm.servicekit.tracing.spans import Attributes, Tracer, end_span, is_sampled, trace_id
from isotherm.servicekit.tracing.trace_headers import TRACEPARENT

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
        attributes: Attributes = {
            "messaging.system": "kafka",
            "messaging.operation.type": "send",
            "messaging.operation.name": "send",
            "messaging.destination.name": topic,
            "messaging.batch.message_count": records,
        }
        send = self._tracer.start(
            f"send {topic}", SpanKind.PRODUCER, set_span_in_context(self._span, Context()), attributes
        )
        self._sends.append(send)
        return [*self._tracer.headers_of(send)]

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

    `roots` counts the messages that bring no context. A token of `limit` is taken for each trace that is recorded;
    `clock` returns seconds of a monotonic clock.
    """

    def __init__(self, tracer: Tracer, roots: RootSampling, per_s: int, clock: Callable[[], float]) -> None:
        self.roots = roots
        self._tracer = tracer
        self._clock = clock
        self._limit = TokenBucket(Rate(per_s, 1), clock())

    def begin(self, name: str, carrier: Mapping[str, str], attributes: Callable[[], Attributes]) -> IngestTrace | None:
        """Begin or continue the trace of a message that has just arrived; None when it has none.

        Args:
            name: of the span: what the message is.
            carrier: the context that the message brings (`trace_headers.carrier_of`), or nothing.
            attributes: makes those of the span.
        """
        context = self._tracer.context_of(carrier) if carrier else None
        if context is None:
            return self._started(name, None, attributes) if self.roots.is_due() and self._may_record() else None
        if is_sampled(context) and self._may_record():
            return self._started(name, context, attributes)
        return IngestTrace(self._tracer, None, _unsampled(carrier))

    def close(self) -> None:
        """Export what has ended, for at most three seconds."""
        self._tracer.close()

    def _started(self, name: str, context: Context | None, attributes: Callable[[], Attributes]) -> IngestTrace:
        span = self._tracer.start(name, SpanKind.SERVER, context, attributes())
        return IngestTrace(self._tracer, span, [])

    def _may_record(self) -> bool:
        if self._limit.wait_s(self._clock()):
            return False
        self._limit.take(1)
        return True


def _unsampled(carrier: Mapping[str, str]) -> Headers:
    """Return the context as headers, not sampled, so that nobody behind records a part of a trace alone."""
    passed: Headers = []
    for name, value in carrier.items():
        if name == TRACEPARENT:
            version, trace, parent, flags, *_later = value.split("-")
            value = f"{version}-{trace}-{parent}-{int(flags, 16) & ~1:02x}"
        passed.append((name, value))
    return passed
