"""Makes spans and passes them to a collector, by OpenTelemetry's SDK."""

from __future__ import annotations

import contextlib
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
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from isotherm.servicekit.tracing.settings import TracingSettings

_NAMESPACE = "isotherm"
_MAX_ATTRIBUTE_CHARS = 256
"""Devices choose topics and names."""
_MAX_BATCH_SPANS = 512
_CLOSE_S = 3.0
"""How long the end of the process waits for the collector."""

AttributeValue = str | bool | int | float
Attributes = Mapping[str, AttributeValue]


class Tracer:
    """Makes the spans of one process; safe for several threads.

    A span is recorded if its parent is sampled, or if it has none: callers decide which traces begin.
    """

    def __init__(self, provider: TracerProvider, drop: Callable[[], None]) -> None:
        """`drop` counts a span that is not made."""
        self.drop = drop
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

    def headers_of(self, span: Span) -> list[tuple[str, str]]:
        """Return the headers that make `span` the parent of what their receiver does."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span, Context()))
        return list(carrier.items())

    def close(self) -> None:
        """Export what has ended, for at most three seconds."""
        closing = threading.Thread(target=self._provider.shutdown, name="tracing-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


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
        span.set_status(StatusCode.ERROR, error[:_MAX_ATTRIBUTE_CHARS])
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
    spans = _CountedExporter(_exporter(settings) if exporter is None else exporter, registry)
    provider.add_span_processor(_BoundedProcessor(spans, settings.queue_spans))
    return Tracer(provider, spans.drop)


def _exporter(settings: TracingSettings) -> SpanExporter:
    return OTLPSpanExporter(
        endpoint=settings.endpoint,
        certificate_file=settings.ssl_ca_location,
        client_certificate_file=settings.ssl_certificate_location,
        client_key_file=settings.ssl_key_location,
        headers={name: value.get_secret_value() for name, value in settings.headers.items()},
        timeout=settings.timeout_ms / 1000,
        compression=Compression.Gzip,
    )


class _CountedExporter(SpanExporter, Collector):
    """Counts what becomes of the spans that wait for another exporter."""

    def __init__(self, exporter: SpanExporter, registry: CollectorRegistry) -> None:
        self._exporter = exporter
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
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            with self._lock:
                self._waiting -= len(spans)
                self._counts["exported" if result is SpanExportResult.SUCCESS else "failed"] += len(spans)
        return result

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
