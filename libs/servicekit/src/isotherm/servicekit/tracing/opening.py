"""Opens tracing where the settings ask for it. Only then is OpenTelemetry imported."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from isotherm.servicekit.tracing.settings import IngestTracingSettings, TracingSettings

if TYPE_CHECKING:
    from isotherm.servicekit.tracing.consumed_traces import ConsumedTraces
    from isotherm.servicekit.tracing.ingest_traces import IngestTraces
    from isotherm.servicekit.tracing.spans import Attributes, Tracer


def tracer_of(settings: TracingSettings, service: str, registry: CollectorRegistry, *, instance: str) -> Tracer | None:
    """Return what makes the spans of this process (`spans.open_tracer`); None when it is not to trace."""
    if not settings.endpoint:
        return None
    from isotherm.servicekit.tracing.spans import open_tracer

    return open_tracer(settings, service, registry, instance=instance)


def ingest_traces_of(
    settings: IngestTracingSettings, service: str, registry: CollectorRegistry, *, instance: str
) -> IngestTraces | None:
    """Return what traces the messages of devices; None when the process is not to trace."""
    tracer = tracer_of(settings, service, registry, instance=instance)
    if tracer is None:
        return None
    from isotherm.servicekit.tracing.ingest_traces import IngestTraces
    from isotherm.servicekit.tracing.root_sampling import RootSampling

    return IngestTraces(tracer, RootSampling(settings.sample_ratio), settings.traces_per_s, time.monotonic)


def consumed_traces_of(
    settings: TracingSettings,
    service: str,
    registry: CollectorRegistry,
    *,
    instance: str,
    attributes: Attributes,
) -> ConsumedTraces | None:
    """Return what makes spans of records that are read from Kafka; None when the process is not to trace.

    `attributes` are those of every span.
    """
    tracer = tracer_of(settings, service, registry, instance=instance)
    if tracer is None:
        return None
    from isotherm.servicekit.tracing.consumed_traces import ConsumedTraces

    return ConsumedTraces(tracer, attributes)
