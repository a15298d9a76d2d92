"""The counts of a status, made of what a process counts anyway."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from connector.reporting import counts_of


def test_counters_and_gauges_are_summed_over_their_labels() -> None:
    registry = CollectorRegistry()
    received = Counter("suite_part_received", "Received.", ["qos"], registry=registry)
    received.labels("0").inc(2)
    received.labels("1").inc(3)
    Gauge("suite_part_connections", "Open.", registry=registry).set(7)
    Counter("other_received", "Of somebody else.", registry=registry).inc()
    Histogram("suite_part_seconds", "No count.", registry=registry).observe(1.0)

    assert counts_of(registry, "suite_part_") == {"received": 5, "connections": 7}
