"""Opens the tracing of one process, where its settings ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.tracing.window_traces import WindowTraces
from isotherm.servicekit.tracing.opening import consumed_traces_of

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from isotherm.servicekit.tracing.consumed_traces import ConsumedTraces


class Tracing(NamedTuple):
    """What traces readings and their windows."""

    traces: ConsumedTraces
    windows: WindowTraces


def tracing_of(settings: AggregatorSettings, registry: CollectorRegistry, *, instance: str) -> Tracing | None:
    """Return what traces readings and their windows; None when the process is not to trace."""
    traces = consumed_traces_of(
        settings.tracing, "aggregator", registry, instance=instance, attributes={"isotherm.aggregator": settings.name}
    )
    if traces is None:
        return None
    return Tracing(traces, WindowTraces(traces, settings.window_ms, settings.slide_ms, settings.output_topic))
