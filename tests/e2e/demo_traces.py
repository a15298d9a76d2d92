"""The traces of a whole system: begun at devices, they go on to the rows in the stores and to the alerts."""

from __future__ import annotations

from collections.abc import Callable

from otlp_collector import Collector, Span

from isotherm.demo import workers
from isotherm.demo.system import System

SAMPLE_RATIO = 0.2
FEWEST = 30
"""Traces that must have gone all the way: some are cut off by kills, which take the newest spans of a process along."""
_TRACING = (
    workers.MqttProxy,
    workers.CoapIngest,
    workers.Aggregator,
    workers.ElasticsearchPersister,
    workers.CassandraPersister,
    workers.HazelcastPersister,
    workers.Alerts,
    workers.SinkWorkers,
)
_INGEST = (workers.MqttProxy.name, workers.CoapIngest.name)


def overrides(collector: Collector) -> dict[str, dict[str, object]]:
    """Settings by service, so that all of them trace."""
    endpoint: dict[str, object] = {"tracing.endpoint": collector.endpoint}
    traced = {kind.name: dict(endpoint) for kind in _TRACING}
    for name in _INGEST:
        traced[name]["tracing.sample_ratio"] = SAMPLE_RATIO
    return traced


def check(system: System, collector: Collector, show: Callable[[str], None]) -> None:
    """Assert that traces lead from both kinds of devices to every store of the windows, and to alerts."""
    aggregates, readings = system.addresses.aggregates_topic, system.addresses.readings_topic
    found = list(collector.by_trace().values())
    assert found
    stores = {span.attributes["isotherm.connector"] for span in _named(found, f"process {aggregates}")}
    whole = [spans for spans in found if _reaches(spans, aggregates, stores)]
    show(f"{len(found)} traces, {len(whole)} of them to the windows in {sorted(stores)}")
    assert len(stores) >= 3
    assert len(whole) >= FEWEST
    for first in ("mqtt publish", "coap notification"):
        assert any(any(span.name == first for span in spans) for spans in whole), first
    judged = [spans for spans in found if any(span.name == f"judge {readings}" for span in spans)]
    assert len(judged) > FEWEST
    assert any(any(span.name == f"send {system.addresses.alerts_topic}" for span in spans) for spans in judged)
    errors = {span.error for spans in found for span in spans if span.error}
    show(f"errors: {errors or 'none'}")


def _named(traces: list[list[Span]], name: str) -> list[Span]:
    return [span for spans in traces for span in spans if span.name == name]


def _reaches(spans: list[Span], topic: str, stores: set[str]) -> bool:
    """Whether a window's record went on with this trace into all stores, each span with a parent that is there."""
    ids = {span.id for span in spans}
    reached = {
        span.attributes["isotherm.connector"]
        for span in spans
        if span.name == f"process {topic}" and span.parent in ids
    }
    return reached == stores and all(span.parent in ids or not span.parent for span in spans)
