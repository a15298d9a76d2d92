"""Live rates of every hop, from the services' own `/metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from isotherm.demo import workers


@dataclass(frozen=True)
class Hop:
    """One rate: a service's counter, summed over the samples with these labels."""

    title: str
    service: str
    counter: str
    labels: Mapping[str, str]


HOPS = (
    Hop("MQTT in", workers.MqttProxy.name, "isotherm_mqtt_proxy_messages_received", {}),
    Hop("to Kafka", workers.MqttProxy.name, "isotherm_mqtt_proxy_readings_stored", {}),
    Hop("CoAP in", workers.CoapIngest.name, "isotherm_coap_ingest_notifications", {"outcome": "new"}),
    Hop("to Kafka", workers.CoapIngest.name, "isotherm_coap_ingest_records_produced", {}),
    Hop("aggregated", workers.Aggregator.name, "isotherm_aggregator_readings_aggregated", {}),
    Hop("checked", workers.Alerts.name, "isotherm_alerts_readings_read", {}),
    Hop("windows", workers.Aggregator.name, "isotherm_aggregator_windows_emitted", {}),
    Hop("Elasticsearch", workers.ElasticsearchPersister.name, "isotherm_persisters_records", {"outcome": "written"}),
    Hop("Cassandra", workers.CassandraPersister.name, "isotherm_persisters_records", {"outcome": "written"}),
    Hop("Hazelcast", workers.HazelcastPersister.name, "isotherm_persisters_records", {"outcome": "written"}),
)


def total(page: str, counter: str, labels: Mapping[str, str]) -> float:
    """The sum of a counter's samples in a page of metrics (Prometheus text format)."""
    return sum(
        sample.value
        for family in _families(page)
        if family.name == counter
        for sample in family.samples
        if sample.name.endswith("_total") and labels.items() <= sample.labels.items()
    )


def _families(page: str) -> Iterable[Metric]:
    return text_string_to_metric_families(page)


class Rates:
    """Rates between two reads of the counters; a restarted service starts from zero."""

    def __init__(self, hops: Iterable[Hop] = HOPS) -> None:
        self._hops = tuple(hops)
        self._last: dict[int, tuple[float, float]] = {}

    def look(self, get: Callable[[str], str | None], now_s: float) -> list[tuple[str, float | None]]:
        """Rate per second of every hop since the last call; None when it is not known.

        `get` returns a service's page of metrics, or None when the service does not answer.
        """
        pages: dict[str, str | None] = {}
        rates: list[tuple[str, float | None]] = []
        for index, hop in enumerate(self._hops):
            if hop.service not in pages:
                pages[hop.service] = get(hop.service)
            page = pages[hop.service]
            rates.append((hop.title, None if page is None else self._rate(index, hop, page, now_s)))
        return rates

    def _rate(self, index: int, hop: Hop, page: str, now_s: float) -> float | None:
        count = total(page, hop.counter, hop.labels)
        last = self._last.get(index)
        self._last[index] = (now_s, count)
        if last is None or now_s <= last[0] or count < last[1]:
            return None
        return (count - last[1]) / (now_s - last[0])


def line(rates: Iterable[tuple[str, float | None]]) -> str:
    """The rates as one line of text."""
    return " · ".join(f"{title} {'-' if rate is None else f'{rate:.0f}'}/s" for title, rate in rates)
