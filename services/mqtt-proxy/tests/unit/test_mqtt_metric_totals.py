"""Metrics of several processes on one page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.processes.metric_totals import MetricTotals


def page(collector: Metrics | MetricTotals) -> str:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


def open_page(collector: Metrics | MetricTotals) -> str:
    registry = CollectorRegistry()
    registry.register(collector)
    text: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]  # it has no annotations
    return text.decode()


def process(messages: int, connections: int) -> str:
    metrics = Metrics()
    metrics.messages_received[1] = messages
    metrics.gauges["connections"] = lambda: connections
    for _ in range(messages):
        metrics.count_stored(TranslatedPublish(readings=[("thermostat.data", 2)]), 1, 0.004)
    return page(metrics)


def value(text: str, sample: str) -> float:
    (line,) = (line for line in text.splitlines() if line.startswith(f"isotherm_mqtt_proxy_{sample} "))
    return float(line.rpartition(" ")[2])


def test_sums_over_processes() -> None:
    totals = MetricTotals()
    assert page(totals) == ""
    totals.report(0, process(3, 5))
    totals.report(1, process(4, 7))
    totals.report(0, process(6, 5))
    text = page(totals)
    assert value(text, 'messages_received_total{qos="1"}') == 10
    assert value(text, 'readings_stored_total{qos="1",topic="thermostat.data"}') == 20
    assert value(text, "connections") == 12
    assert value(text, 'stored_after_seconds_bucket{le="0.005"}') == 10
    assert value(text, "stored_after_seconds_count") == 10
    assert "# TYPE isotherm_mqtt_proxy_messages_received_total counter" in text


class Traced(TranslatedPublish):
    """A publish that belongs to a trace."""

    trace_id = "0af7651916cd43dd8448eb211c80319c"


def test_the_newest_exemplar_of_all_processes_is_shown() -> None:
    totals = MetricTotals()
    pages = []
    for index, seconds in enumerate((0.004, 0.003, 0.04)):
        metrics = Metrics()
        metrics.count_stored(TranslatedPublish(readings=[("thermostat.data", 1)]), 1, seconds)
        metrics.count_stored(Traced(readings=[("thermostat.data", 1)]), 1, seconds)
        pages.append(open_page(metrics))
        assert f'# {{trace_id="{Traced.trace_id}"}} {seconds}' in pages[-1]
        # The second one of a bucket is the newer one, whoever reports first.
        totals.report(1 - index if index < 2 else index, pages[-1])
    lines = open_page(totals).splitlines()
    bucket = "isotherm_mqtt_proxy_stored_after_seconds_bucket"
    examples = {line.partition("} ")[0]: line.rpartition('"} ')[2].split()[0] for line in lines if " # {" in line}
    assert examples == {f'{bucket}{{le="0.005"': "0.003", f'{bucket}{{le="0.05"': "0.04"}
    assert f'{bucket}{{le="+Inf"}} 6.0' in lines
    assert value(page(totals), "stored_after_seconds_count") == 6


def test_what_was_counted_stays_when_a_process_ends() -> None:
    totals = MetricTotals()
    totals.report(0, process(3, 5))
    totals.report(1, process(4, 7))
    totals.ended(0)
    totals.ended(0)
    text = page(totals)
    assert value(text, 'messages_received_total{qos="1"}') == 7
    assert value(text, "connections") == 7, "the connections are gone"
    totals.report(0, process(1, 1))
    assert value(page(totals), 'messages_received_total{qos="1"}') == 8
