"""Records the counters of services, from their metrics in Prometheus' text format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from isotherm.proofs.history.format import COAP, MQTT
from isotherm.proofs.history.recording.history_file import HistoryFile

AGGREGATOR = "aggregator"
COUNTERS = {
    (MQTT, "isotherm_mqtt_proxy_readings_stored_total"): ("stored", "topic"),
    (MQTT, "isotherm_mqtt_proxy_messages_acknowledged_total"): ("acknowledged", "qos"),
    (MQTT, "isotherm_mqtt_proxy_messages_received_total"): ("received", "qos"),
    (COAP, "isotherm_coap_ingest_records_produced_total"): ("stored", "topic"),
    (AGGREGATOR, "isotherm_aggregator_readings_aggregated_total"): ("windowed", None),
}
"""Name in a history and label, by service and metric."""
_WATERMARK = "isotherm_aggregator_watermark_seconds"
_MISSED = "isotherm_aggregator_progress_missed_total"
"""Batches that the aggregator's counters leave out."""


def record_counters(history: HistoryFile, service: str, get: Callable[[str], str | None]) -> None:
    """Write the counters of a service; `get` returns a page of its monitoring port, or None."""
    page = get("/metrics")
    if page is None:
        return
    sums: dict[tuple[str, str], float] = defaultdict(float)
    missed = 0.0
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == _WATERMARK:
                history.write("watermark", time=round(sample.value * 1000))
            missed += sample.value if sample.name == _MISSED else 0
            counter = COUNTERS.get((service, sample.name))
            if counter is not None:
                name, label = counter
                sums[name, sample.labels[label] if label else ""] += sample.value
    for (name, label), value in sums.items() if not missed else ():
        history.write("counter", service=service, name=name, label=label, value=round(value))
