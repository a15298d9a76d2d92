"""Traced readings whose spans are kept in memory."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from isotherm.aggregator.tracing.window_traces import TracedReading, WindowTraces
from isotherm.servicekit.tracing.consumed_traces import ConsumedTraces
from isotherm.servicekit.tracing.settings import TracingSettings
from isotherm.servicekit.tracing.spans import open_tracer

PARENT = "b7ad6b7169203331"


class TracedWindows:
    """The traces of windows of ten seconds, or of other ones."""

    def __init__(self, window_ms: int = 10_000, slide_ms: int | None = None) -> None:
        self.memory, self.registry = InMemorySpanExporter(), CollectorRegistry()
        endpoint = TracingSettings(endpoint="http://127.0.0.1:4318/v1/traces")
        self.tracer = open_tracer(endpoint, "aggregator", self.registry, instance="one", exporter=self.memory)
        self.traces = ConsumedTraces(self.tracer, {})
        self.windows = WindowTraces(self.traces, window_ms, slide_ms, "temperatures.aggregated")
        self._last = 0

    def reading(self, device_id: str, event_time_ms: int) -> str:
        """Remember a traced reading of the metric `m`; return its trace."""
        self._last += 1
        trace = f"{self._last:032x}"
        context = self.traces.context_of([("traceparent", f"00-{trace}-{PARENT}-01")])
        assert context is not None
        reading = TracedReading(context, "thermostat.data", 0, self._last, 1_767_225_600_000)
        self.windows.add(device_id, "m", event_time_ms, reading)
        return trace

    def spans(self) -> dict[str, list[ReadableSpan]]:
        """All ended spans by trace."""
        self.tracer.close()
        found: dict[str, list[ReadableSpan]] = {}
        for span in self.memory.get_finished_spans():
            assert span.context is not None
            found.setdefault(f"{span.context.trace_id:032x}", []).append(span)
        return found
