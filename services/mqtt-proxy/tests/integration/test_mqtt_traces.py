"""Traces of publishes: continued from MQTT 5 user properties, begun by chance, and handed on with the records."""

from __future__ import annotations

import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mqtt_devices import Wire, packet, publish_packet, text
from mqtt_world import Proxy, opened
from otlp_collector import Collector, Span, collecting

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

PARENT = "b7ad6b7169203331"
READINGS = "thermostat.data"
PUBLISHES = 3_000
RATIO = 0.1


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture
def proxy(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int], collector: Collector
) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        made.configure(tracing__endpoint=collector.endpoint, tracing__headers="Authorization=Bearer abc")
        yield made


@pytest.fixture(params=["compiled", "pure"])
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ISOTHERM_PURE_PYTHON", "1" if request.param == "pure" else "")
    return str(request.param)


def traced_packet(device: str, payload: bytes, packet_id: int, qos: int, traceparent: str) -> bytes:
    """A PUBLISH of MQTT 5 with a trace context."""
    pairs = b"".join(
        b"\x26" + text(name) + text(value)
        for name, value in ((b"traceparent", traceparent.encode()), (b"tracestate", b"vendor=1"))
    )
    identifier = struct.pack(">H", packet_id) if qos else b""
    topic = text(f"devices/{device}/temperature".encode())
    return packet(0x30 | qos << 1, topic + identifier + bytes([len(pairs)]) + pairs + payload)


def send_and_wait(wire: Wire, data: bytes, qos: int, packet_id: int) -> None:
    wire.send(data)
    if qos:
        wire.packet()
    if qos == 2:
        wire.release(packet_id)
        wire.packet()


def of_kind(spans: list[Span], kind: str) -> Span:
    (found,) = [span for span in spans if span.kind == kind]
    return found


def test_the_context_of_a_device_goes_on_with_its_records(proxy: Proxy, collector: Collector, code: str) -> None:
    proxy.start()
    wire = Wire(proxy, proxy.device, version=5)
    traces = {f"{number:032x}": number for number in range(1, 10)}
    for trace, number in traces.items():
        # Three of each QoS; of these the last one is a dead letter.
        payload = b"{broken" if number % 3 == 0 else b'{"t": %d, "sequence": %d}' % (number, number)
        qos = (number - 1) // 3
        send_and_wait(wire, traced_packet(proxy.device, payload, number, qos, f"00-{trace}-{PARENT}-01"), qos, number)
    unsampled = f"00-{99:032x}-{PARENT}-00"
    send_and_wait(wire, traced_packet(proxy.device, b'{"t": 1, "sequence": 99}', 50, 1, unsampled), 1, 50)
    wire.close()
    assert proxy.signal(signal.SIGTERM) == 0

    found = collector.by_trace()
    assert set(found) == set(traces)
    assert {headers["authorization"] for headers in collector.headers} == {"Bearer abc"}
    stored = {
        headers["traceparent"].split("-")[1]: headers
        for topic in (READINGS, "mqtt-proxy.dead-letters")
        for _, _, headers in proxy.topics.raw(topic, proxy.device)
    }
    assert stored.pop(f"{99:032x}")["traceparent"] == unsampled
    for trace, number in traces.items():
        publish, send = of_kind(found[trace], "server"), of_kind(found[trace], "producer")
        assert (publish.service, publish.name, publish.parent) == ("mqtt-proxy", "mqtt publish", PARENT)
        assert publish.attributes["messaging.client.id"] == proxy.device
        assert publish.attributes["isotherm.mqtt.qos"] == str((number - 1) // 3)
        assert send.parent == publish.id
        assert stored[trace]["traceparent"] == f"00-{trace}-{send.id}-01"
        assert stored[trace]["tracestate"] == "vendor=1"
        if number % 3 == 0:
            assert publish.attributes["isotherm.dead_letter.reason"] == "payload"
            assert send.name == "send mqtt-proxy.dead-letters"
        else:
            assert send.name == f"send {READINGS}"
    assert len(stored) == len(traces)


def test_a_share_of_plain_publishes_begins_a_trace(proxy: Proxy, collector: Collector, code: str) -> None:
    proxy.start(tracing__sample_ratio=RATIO, tracing__traces_per_s=100_000)
    wire = Wire(proxy, proxy.device)
    topic = f"devices/{proxy.device}/temperature"
    for first in range(0, PUBLISHES, 100):
        wire.send(
            b"".join(
                publish_packet(topic, b'{"t": 1, "sequence": %d}' % (first + number), number + 1, qos=1)
                for number in range(100)
            )
        )
        for _ in range(100):
            wire.packet()
    wire.close()
    assert proxy.signal(signal.SIGTERM) == 0

    readings = proxy.topics.readings(READINGS, proxy.device)
    assert [reading["sequence"] for reading, _ in readings] == list(range(PUBLISHES))
    stored = {headers["traceparent"].split("-")[1] for _, headers in readings if "traceparent" in headers}
    found = collector.by_trace()
    assert set(found) == stored
    assert all(len(spans) == 2 for spans in found.values())
    # 300 of 3,000 are expected, with a standard deviation of 16: seven of them.
    assert abs(len(stored) - RATIO * PUBLISHES) < 115


def test_a_collector_that_refuses_costs_spans_and_nothing_else(proxy: Proxy, collector: Collector) -> None:
    collector.status = 400
    proxy.start(tracing__sample_ratio=1.0)
    wire = Wire(proxy, proxy.device)
    for number in range(300):
        wire.publish(proxy.device, 1.0, number + 1, qos=1)
        wire.packet()
    wire.close()
    assert proxy.signal(signal.SIGTERM) == 0
    assert len(proxy.topics.readings(READINGS, proxy.device)) == 300
    assert collector.headers
    assert not collector.spans()
    assert "abc" not in proxy.log()
