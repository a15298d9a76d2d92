"""Makes spans and passes them to a collector, by OpenTelemetry's SDK."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from isotherm.servicekit import logs
from isotherm.servicekit.throttling.sparse_log import SparseLog
from isotherm.servicekit.tracing.collector_session import CollectorSession
from isotherm.servicekit.tracing.settings import TracingSettings

_log = logs.logger(__name__)

_NAMESPACE = "isotherm"
_MAX_ATTRIBUTE_CHARS = 256
"""Devices choose topics and names."""
_MAX_BATCH_SPANS = 512
_LOG_INTERVAL_S = 60.0
_CLOSE_S = 1.0
"""How long the end of the process waits for the collector."""

AttributeValue = str | bool | int | float
Attributes = Mapping[str, AttributeValue]


class Tracer:
    """Makes the spans of one process; safe for several threads.

    A span is recorded if its parent is sampled, or if it has none: callers decide which traces begin.
    """

    def __init__(self, provider: TracerProvider, drop: Callable[[], None], close: Callable[[], None]) -> None:
        """`drop` counts a span that is not made; `close` exports what has ended."""
        self.drop, self._close = drop, close
        self._provider = provider
        self._tracer = provider.get_tracer("isotherm")
        self._propagator = TraceContextTextMapPropagator()

    def context_of(self, carrier: Mapping[str, str]) -> Context | None:
        """Return the trace context of a carrier (`trace_headers.carrier_of`); None when it has no valid one."""
        context = self._propagator.extract(carrier, Context())
        return context if get_current_span(context).get_span_context().is_valid else None

    def start(
        self,
        name: str,
        kind: SpanKind,
        context: Context | None,
        attributes: Attributes,
        *,
        start_ns: int | None = None,
        links: Sequence[Link] = (),
    ) -> Span:
        """Begin a span.

        Args:
            name: of few different values.
            kind: what it is to the process that caused it.
            context: the parent's; None begins a trace.
            attributes: by the names of OpenTelemetry's semantic conventions where they have one.
            start_ns: when it began, in nanoseconds since the epoch; None for now.
            links: to spans that caused it beside its parent.
        """
        return self._tracer.start_span(
            name, Context() if context is None else context, kind, attributes, links, start_time=start_ns
        )

    def start_send(self, topic: str, context: Context, attributes: Attributes) -> tuple[Span, list[tuple[str, str]]]:
        """Begin the span of what is sent to a topic of Kafka; return it and the headers of the records."""
        all_attributes = {
            "messaging.system": "kafka",
            "messaging.operation.type": "send",
            "messaging.operation.name": "send",
            "messaging.destination.name": topic,
            **attributes,
        }
        span = self.start(f"send {topic}", SpanKind.PRODUCER, context, all_attributes)
        return span, self.headers_of(span)

    def headers_of(self, span: Span) -> list[tuple[str, str]]:
        """Return the headers that make `span` the parent of what their receiver does."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context_within(span))
        return list(carrier.items())

    def unsampled_headers_of(self, context: Context) -> list[tuple[str, str]]:
        """Return the headers that pass a context on as not sampled."""
        known = get_current_span(context).get_span_context()
        passed = SpanContext(known.trace_id, known.span_id, True, TraceFlags(0), known.trace_state)
        return self.headers_of(NonRecordingSpan(passed))

    def close(self) -> None:
        """Export what has ended, for at most a second; what is left is counted and logged."""
        self._close()


def context_within(span: Span) -> Context:
    """Return the context in which `span` is the parent."""
    return set_span_in_context(span, Context())


def is_sampled(context: Context) -> bool:
    """Whether the trace of a context is sampled."""
    return get_current_span(context).get_span_context().trace_flags.sampled


def trace_id(span: Span) -> str:
    """Return the identifier of a span's trace, 32 hexadecimal digits."""
    return f"{span.get_span_context().trace_id:032x}"


def trace_id_of(context: Context) -> str:
    """Return the identifier of a context's trace, 32 hexadecimal digits."""
    return trace_id(get_current_span(context))


def end_span(span: Span, error: str | None = None, *, end_ns: int | None = None) -> None:
    """End a span, as failed if there is an `error`."""
    if error is not None:
        # One text that cannot be encoded would cost the whole batch.
        text = error[:_MAX_ATTRIBUTE_CHARS].encode(errors="replace").decode()
        span.set_status(StatusCode.ERROR, text)
    span.end(end_ns)


def open_tracer(
    settings: TracingSettings,
    service: str,
    registry: CollectorRegistry,
    *,
    instance: str,
    exporter: SpanExporter | None = None,
) -> Tracer:
    """Return what makes the spans of this process and exports them to `settings.endpoint`.

    Args:
        settings: of which `endpoint` is given.
        service: as `service.name`, unless the environment has `OTEL_SERVICE_NAME`.
        registry: gets the metric `isotherm_spans_total`.
        instance: as `service.instance.id`.
        exporter: instead of the one for `settings.endpoint`.
    """
    attributes: dict[str, str] = {"service.namespace": _NAMESPACE, "service.instance.id": instance}
    if "OTEL_SERVICE_NAME" not in os.environ:
        attributes["service.name"] = service
    with contextlib.suppress(PackageNotFoundError):
        attributes["service.version"] = version(f"isotherm-{service}")
    provider = TracerProvider(
        sampler=ParentBased(ALWAYS_ON),
        resource=Resource.create(attributes),
        shutdown_on_exit=False,
        span_limits=SpanLimits(max_span_attribute_length=_MAX_ATTRIBUTE_CHARS),
    )
    # What it says of each wrong tracestate and each failed request is a device's or a server's to repeat at any rate.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    said = _LastError()
    session = CollectorSession()
    spans = _CountedExporter(_exporter(settings, session) if exporter is None else exporter, session, said, registry)
    provider.add_span_processor(_BoundedProcessor(spans, settings.queue_spans))

    def close() -> None:
        closing = threading.Thread(target=provider.shutdown, name="tracing-close", daemon=True)
        spans.hurry()
        closing.start()
        closing.join(_CLOSE_S)
        spans.give_up()

    return Tracer(provider, spans.drop, close)


def _exporter(settings: TracingSettings, session: CollectorSession) -> SpanExporter:
    return OTLPSpanExporter(
        endpoint=settings.endpoint,
        certificate_file=settings.ssl_ca_location,
        client_certificate_file=settings.ssl_certificate_location,
        client_key_file=settings.ssl_key_location,
        headers={name: value.get_secret_value() for name, value in settings.headers.items()},
        timeout=settings.timeout_ms / 1000,
        compression=Compression.Gzip,
        session=session,
    )


class _LastError(logging.Handler):
    """Keeps the last error that the exporter has told its log, which shows it for each batch."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""
        logger = logging.getLogger("opentelemetry.exporter.otlp.proto.http")
        logger.handlers, logger.propagate = [self], False
        logger.setLevel(logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class _CountedExporter(SpanExporter, Collector):
    """Counts what becomes of the spans that wait for another exporter."""

    def __init__(
        self, exporter: SpanExporter, session: CollectorSession, said: _LastError, registry: CollectorRegistry
    ) -> None:
        self._exporter, self._session, self._said = exporter, session, said
        self._log_failure = SparseLog(_log, "spans were not exported", interval_s=_LOG_INTERVAL_S)
        self._has_failed = False
        self._lock = threading.Lock()
        self._waiting = 0
        self._counts = dict.fromkeys(("exported", "failed", "dropped"), 0)
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the counts. Not the library's counter: its time of creation has no sum over several processes."""
        spans = CounterMetricFamily("isotherm_spans", "Ended spans by outcome.", labels=["outcome"])
        for outcome, count in self._counts.items():
            spans.add_metric([outcome], count)
        yield spans

    def has_room(self, most: int) -> bool:
        """Count a span that ended: as waiting, or as dropped when `most` wait."""
        with self._lock:
            if self._waiting < most:
                self._waiting += 1
                return True
        self.drop()
        return False

    def drop(self) -> None:
        """Count a span that is dropped."""
        with self._lock:
            self._counts["dropped"] += 1

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result, self._said.text = SpanExportResult.FAILURE, "the collector has rejected them"
        try:
            result = self._exporter.export(spans)
        except Exception as failure:
            self._said.text = f"{type(failure).__name__}: {failure}"
        self._has_failed = result is not SpanExportResult.SUCCESS
        rejected = len(spans) if self._has_failed else min(self._session.rejected, len(spans))
        with self._lock:
            self._waiting -= len(spans)
            self._counts["exported"] += len(spans) - rejected
            self._counts["failed"] += rejected
        if rejected:
            self._log_failure(spans=rejected, reason=self._said.text[:_MAX_ATTRIBUTE_CHARS])
        return result

    def hurry(self) -> None:
        """Try nothing again, if the last export has failed: the process ends."""
        if self._has_failed:
            self._exporter.shutdown()

    def give_up(self) -> None:
        """Count and log what still waits."""
        with self._lock:
            left, self._waiting = self._waiting, 0
            self._counts["dropped"] += left
        if left:
            _log.warning("spans were not exported before the end", spans=left)

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _BoundedProcessor(SpanProcessor):
    """The SDK's batches, with a bound that is counted."""

    def __init__(self, exporter: _CountedExporter, most: int) -> None:
        self._exporter = exporter
        self._most = most
        # The SDK's own queue drops the oldest span without a count.
        self._batches = BatchSpanProcessor(exporter, max_queue_size=most, max_export_batch_size=_MAX_BATCH_SPANS)

    def on_end(self, span: ReadableSpan) -> None:
        context = span.context
        if context is not None and context.trace_flags.sampled and self._exporter.has_room(self._most):
            self._batches.on_end(span)

    def shutdown(self) -> None:
        self._batches.shutdown()  # type: ignore[no-untyped-call] # The SDK's method has no annotation.
