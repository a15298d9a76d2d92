"""Traces of readings: a span of each that the rules have seen, and the context of an alert's reading on the alert."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alerts_world import Topics, Worker, until
from otlp_collector import Collector, collecting

from isotherm.schemas import schema
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.simulators.scripted_day import temperature
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

PARENT = "b7ad6b7169203331"
DEVICES, READINGS = 20, 30
RULES = [{"kind": "above", "metric": "temperature", "threshold": 30, "hysteresis": 1, "severity": "critical"}]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def is_sampled(number: int) -> bool:
    return number % 3 == 0


def publish(topics: Topics) -> dict[int, bool]:
    """Readings of which every third one is traced; which of them there are, and whether it opens an alert."""
    encode = SchemaRegistry(topics.registry).encoder(topics.input, schema("SensorReading", 1))
    producer = clients.producer(topics.kafka, "alerts-test")
    now_ms = time.time_ns() // 1_000_000
    traced = {}
    for sequence in range(1, READINGS + 1):
        for device in range(DEVICES):
            number = sequence * DEVICES + device
            # Half of the devices open an alert in the middle, some of them by a traced reading.
            opens = device % 2 == 0 and sequence == READINGS // 2
            at_ms = now_ms - 1_000 * (READINGS - sequence)
            hot = device % 2 == 0 and sequence >= READINGS // 2
            reading = temperature(f"d{device}", 40.0 if hot else 20.0, at_ms, sequence)
            flags = "01" if is_sampled(number) else "00"
            headers: list[tuple[str, str | bytes | None]] = [("traceparent", f"00-{number:032x}-{PARENT}-{flags}")]
            producer.produce(topics.input, key=f"d{device}", value=encode(reading), headers=headers)
            if is_sampled(number):
                traced[number] = opens
    assert producer.flush(60) == 0
    producer.close()
    return traced


@pytest.mark.parametrize("code", ["compiled", "pure"])
def test_traces_go_on_through_the_rules(
    kafka: Kafka,
    registry: Registry,
    collector: Collector,
    tmp_path: Path,
    free_port: Callable[[], int],
    code: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ISOTHERM_PURE_PYTHON", "1" if code == "pure" else "")
    topics = Topics(kafka.bootstrap_servers, registry.url)
    topics.declare()
    worker = Worker(topics, tmp_path, free_port(), rules=RULES, tracing__endpoint=collector.endpoint, reorder_ms=0)
    worker.start()
    traced = publish(topics)
    until("everything is read", lambda: topics.unread() == 0)
    until("all alerts are there", lambda: len(topics.messages(topics.alerts)) >= DEVICES // 2)
    assert worker.stop() == 0, worker.log()

    found = {int(trace, 16): spans for trace, spans in collector.by_trace().items()}
    assert set(found) == set(traced)
    sent = {}
    for message in topics.messages(topics.alerts):
        headers = dict(message.headers() or [])
        if isinstance(context := headers.get("traceparent"), bytes):
            _, trace, span, flags = context.decode().split("-")
            assert flags == "01"
            sent[int(trace, 16)] = span
    assert set(sent) == {number for number, opens in traced.items() if opens}
    assert sent
    for number, spans in found.items():
        (judged,) = [span for span in spans if span.name == f"judge {topics.input}"]
        assert (judged.service, judged.kind, judged.parent) == ("alerts", "consumer", PARENT)
        alerts = [span for span in spans if span.name == f"send {topics.alerts}"]
        assert [(span.kind, span.parent, span.id) for span in alerts] == (
            [("producer", PARENT, sent[number])] if number in sent else []
        )
        assert len(spans) == 1 + len(alerts)
