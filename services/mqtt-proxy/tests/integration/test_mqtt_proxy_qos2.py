"""The proxy is killed at every step of QoS 2 and under load: a read_committed reader finds each reading once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka_gate import Api, KafkaGate
from mqtt_devices import PUBCOMP, PUBREC, Wire, under_load
from mqtt_world import Proxy, opened, wait_until

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults]

PACKET_ID = 9


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


@pytest.fixture
def gate(proxy: Proxy, kafka: Kafka) -> Iterator[KafkaGate]:
    made = KafkaGate(kafka.bootstrap_servers)
    yield made
    made.close()


def connected(proxy: Proxy, gate: KafkaGate) -> Wire:
    """A proxy that reaches Kafka through the gate, and a device that it accepted."""
    proxy.start(kafka__bootstrap_servers=gate.bootstrap_servers)
    return Wire(proxy, proxy.device)


def restarted(proxy: Proxy) -> Wire:
    """Kill and restart the proxy; the device reconnects."""
    proxy.kill()
    proxy.start(kafka__bootstrap_servers=proxy.topics.kafka.bootstrap_servers)
    wire = Wire(proxy, proxy.device)
    assert wire.session_present
    return wire


def published(proxy: Proxy, wire: Wire) -> None:
    """PUBLISH to PUBREC."""
    wire.publish(proxy.device, 1.0, PACKET_ID)
    wire.expect(PUBREC, PACKET_ID)


def released(wire: Wire) -> None:
    """PUBREL to PUBCOMP."""
    wire.release(PACKET_ID)
    wire.expect(PUBCOMP, PACKET_ID)


def republished_and_released(proxy: Proxy, wire: Wire) -> None:
    """What a device does that has no PUBREC; then the same reading once more, under the identifier that is free."""
    wire.publish(proxy.device, 1.0, PACKET_ID, dup=True)
    wire.publish(proxy.device, 1.0, PACKET_ID, dup=True)
    wire.expect(PUBREC, PACKET_ID)
    wire.expect(PUBREC, PACKET_ID)
    released(wire)
    assert proxy.topics.values(proxy.device) == [1.0]
    published(proxy, wire)
    released(wire)
    assert proxy.topics.values(proxy.device) == [1.0, 1.0]


def test_killed_at_produce_with_the_records_in_an_open_transaction(proxy: Proxy, gate: KafkaGate) -> None:
    wire = connected(proxy, gate)
    gate.hold_response(Api.PRODUCE)
    wire.publish(proxy.device, 1.0, PACKET_ID)
    gate.wait_until_it_holds()
    republished_and_released(proxy, restarted(proxy))


@pytest.mark.parametrize("kafka_decides", [False, True], ids=["never-sent", "answer-lost"])
def test_killed_at_commit(proxy: Proxy, gate: KafkaGate, kafka_decides: bool) -> None:
    wire = connected(proxy, gate)
    (gate.hold_response if kafka_decides else gate.hold_request)(Api.END_TXN)
    wire.publish(proxy.device, 1.0, PACKET_ID)
    gate.wait_until_it_holds()
    republished_and_released(proxy, restarted(proxy))


def test_killed_after_pubrec(proxy: Proxy, gate: KafkaGate) -> None:
    wire = connected(proxy, gate)
    published(proxy, wire)
    republished_and_released(proxy, restarted(proxy))


@pytest.mark.parametrize("kafka_decides", [False, True], ids=["never-sent", "answer-lost"])
def test_killed_at_pubrel(proxy: Proxy, gate: KafkaGate, kafka_decides: bool) -> None:
    wire = connected(proxy, gate)
    published(proxy, wire)
    (gate.hold_response if kafka_decides else gate.hold_request)(Api.END_TXN)
    wire.release(PACKET_ID)
    gate.wait_until_it_holds()
    wire = restarted(proxy)
    released(wire)
    # The identifier is free now: the same content under it is another reading.
    published(proxy, wire)
    assert proxy.topics.values(proxy.device) == [1.0, 1.0]


def test_another_message_under_an_identifier_that_was_never_released_is_another_message(proxy: Proxy) -> None:
    proxy.start()
    wire = Wire(proxy, proxy.device)
    for value in (1.0, 2.0):
        wire.publish(proxy.device, value, PACKET_ID)
        wire.expect(PUBREC, PACKET_ID)
    released(wire)
    assert proxy.topics.values(proxy.device) == [1.0, 2.0]


def test_half_open_takeover_with_a_publish_in_flight(proxy: Proxy) -> None:
    proxy.start(transactions__linger_ms=300)
    for number in range(5):
        old = Wire(proxy, proxy.device)
        old.publish(proxy.device, number, number + 1)
        new = Wire(proxy, proxy.device)
        new.publish(proxy.device, number, number + 1, dup=True)
        new.expect(PUBREC, number + 1)
        new.release(number + 1)
        new.expect(PUBCOMP, number + 1)
    assert proxy.topics.values(proxy.device) == [0, 1, 2, 3, 4]


def kill_under_load(proxy: Proxy, *, kills: int, messages: int) -> None:
    """100 devices at QoS 1 and 100 at QoS 2, the proxy killed so often, evenly over the run."""
    proxy.start()
    with under_load(proxy, messages=messages) as until_acknowledged:
        for kill in range(1, kills + 1):
            until_acknowledged(kill / (kills + 1))
            proxy.kill()
            proxy.start()


def test_kill_9_under_the_load_of_200_connections(proxy: Proxy) -> None:
    kill_under_load(proxy, kills=1, messages=40)


@pytest.mark.long
def test_five_times_kill_9_under_the_load_of_200_connections(proxy: Proxy) -> None:
    kill_under_load(proxy, kills=5, messages=240)


def test_sigterm_acknowledges_what_is_in_flight(proxy: Proxy) -> None:
    proxy.start(transactions__linger_ms=1000)
    wire = Wire(proxy, proxy.device)
    wire.publish(proxy.device, 1, 1)
    wait_until("the publish is in flight", lambda: proxy.metric("outstanding_records") > 0)
    assert proxy.signal(signal.SIGTERM) == 0
    wire.expect(PUBREC, 1)
    assert wire.is_closed_by_the_proxy()
    assert proxy.topics.values(proxy.device) == [1.0]
