"""Live rates of every hop, from the services' own `/metrics`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from isotherm.demo import workers

BURST_AVERAGE_S = 30.0
"""Over which time the rate of what comes in bursts is averaged: three windows of the demo."""
EXPLANATION = (
    f"Rates since the line before; from `aggregated` on of the last {BURST_AVERAGE_S:.0f} s, because windows are "
    "written in bursts:"
)


@dataclass(frozen=True)
class Hop:
    """One rate: a service's counter, summed over the samples with these labels."""

    title: str
    service: str
    counter: str
    labels: Mapping[str, str]
    average_s: float = 0.0
    """Seconds over which the rate is averaged; 0: since the last look."""


_WRITTEN = {"outcome": "written"}
_PERSISTED = "isotherm_persisters_records"
HOPS = (
    Hop("MQTT in", workers.MqttProxy.name, "isotherm_mqtt_proxy_messages_received", {}),
    Hop("to Kafka", workers.MqttProxy.name, "isotherm_mqtt_proxy_readings_stored", {}),
    Hop("CoAP in", workers.CoapIngest.name, "isotherm_coap_ingest_notifications", {"outcome": "new"}),
    Hop("to Kafka", workers.CoapIngest.name, "isotherm_coap_ingest_records_produced", {}),
    Hop("checked", workers.Alerts.name, "isotherm_alerts_readings_read", {}),
    Hop("aggregated", workers.Aggregator.name, "isotherm_aggregator_readings_aggregated", {}, BURST_AVERAGE_S),
    Hop("windows", workers.Aggregator.name, "isotherm_aggregator_windows_emitted", {}, BURST_AVERAGE_S),
    Hop("Elasticsearch", workers.ElasticsearchPersister.name, _PERSISTED, _WRITTEN, BURST_AVERAGE_S),
    Hop("Cassandra", workers.CassandraPersister.name, _PERSISTED, _WRITTEN, BURST_AVERAGE_S),
    Hop("Hazelcast", workers.HazelcastPersister.name, _PERSISTED, _WRITTEN, BURST_AVERAGE_S),
)


def total(families: Iterable[Metric], counter: str, labels: Mapping[str, str]) -> float:
    """The sum of a counter's samples in a page of metrics."""
    return sum(
        sample.value
        for family in families
        if family.name == counter
        for sample in family.samples
        if sample.name.endswith("_total") and labels.items() <= sample.labels.items()
    )


def families_of(page: str) -> list[Metric]:
    """Parse a page of metrics (Prometheus text format)."""
    return list(text_string_to_metric_families(page))


class Rates:
    """Rates between reads of the counters; a restarted service starts from zero."""

    def __init__(self, hops: Iterable[Hop] = HOPS) -> None:
        self._reads: list[tuple[Hop, deque[tuple[float, float]]]] = [(hop, deque()) for hop in hops]

    def look(self, get: Callable[[str], str | None], now_s: float) -> list[tuple[str, float | None]]:
        """Rate per second of every hop, since the last call or averaged; None when it is not known.

        `get` returns a service's page of metrics, or None when the service does not answer.
        """
        pages: dict[str, list[Metric] | None] = {}
        rates: list[tuple[str, float | None]] = []
        for hop, reads in self._reads:
            if hop.service not in pages:
                page = get(hop.service)
                pages[hop.service] = None if page is None else families_of(page)
            families = pages[hop.service]
            rates.append((hop.title, None if families is None else _rate(hop, reads, families, now_s)))
        return rates


def _rate(hop: Hop, reads: deque[tuple[float, float]], families: Iterable[Metric], now_s: float) -> float | None:
    """Add the counter of now to its earlier reads; the rate since the oldest one that the average needs."""
    count = total(families, hop.counter, hop.labels)
    if reads and count < reads[-1][1]:
        reads.clear()
    reads.append((now_s, count))
    while len(reads) > 2 and reads[1][0] <= now_s - hop.average_s:
        reads.popleft()
    began_s, before = reads[0]
    return (count - before) / (now_s - began_s) if now_s > began_s else None


def line(rates: Iterable[tuple[str, float | None]]) -> str:
    """The rates as one line of text."""
    return " · ".join(f"{title} {_text(rate)}/s" for title, rate in rates)


def _text(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:.1f}" if 0 < rate < 10 else f"{rate:.0f}"
