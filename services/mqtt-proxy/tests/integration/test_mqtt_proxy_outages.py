"""Kafka is away or slow, or another process takes the transactional id."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka_gate import OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaGate
from mqtt_devices import PUBACK, PUBCOMP, PUBREC, DeviceGroup, Wire, connect_packet, under_load
from mqtt_world import WAIT_S, Proxy, opened, wait_until

from isotherm.servicekit.kafka import clients
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults]

MEMORY_BOUND_MIB = 200
"""What docs/reference/behaviour/mqtt.md states for the process with 200 connections and the default limits."""


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


def kafka_killed_under_load(proxy: Proxy, kafka: Kafka, *, outage_s: float, messages: int) -> None:
    """100 devices at QoS 1 and 100 at QoS 2; Kafka is killed and stays away so long; all goes on by itself."""
    proxy.start()
    pid = proxy.pid
    with under_load(proxy, messages=messages) as until_acknowledged:
        until_acknowledged(0.2)
        kafka.kill()
        # The length of the outage, not a wait for anything.
        threading.Event().wait(outage_s)
        kafka.start()
        kafka.wait_ready()
    assert proxy.pid == pid, "the same process"
    assert proxy.is_ready()
    assert proxy.peak_resident_mib() < MEMORY_BOUND_MIB
    print(f"peak {proxy.peak_resident_mib():.0f} MiB; recoveries {proxy.metric('recoveries_total'):.0f}")  # noqa: T201  # the figure for the results


def test_kafka_is_killed_for_5_s_under_the_load_of_200_connections(proxy: Proxy, kafka: Kafka) -> None:
    kafka_killed_under_load(proxy, kafka, outage_s=5, messages=60)


@pytest.mark.long
def test_kafka_is_killed_for_30_s_under_the_load_of_200_connections(proxy: Proxy, kafka: Kafka) -> None:
    kafka_killed_under_load(proxy, kafka, outage_s=30, messages=200)


def test_an_outage_longer_than_the_delivery_timeout(proxy: Proxy, kafka: Kafka) -> None:
    proxy.start(delivery_timeout_ms=5000)
    group = DeviceGroup(proxy, f"{proxy.device}-two", devices=5, messages=200, qos=2)
    try:
        wait_until("the load flows", lambda: group.progress() >= 0.1)
        witness = Wire(proxy, f"{proxy.device}-one")
        kafka.pause()
        try:
            witness.publish(f"{proxy.device}-one", 1.0, 1, qos=1)
            assert witness.is_closed_by_the_proxy(), "Kafka did not take it in time: no acknowledgement, but the end"
        finally:
            kafka.resume()
        group.finish()
    finally:
        group.abandon()
    assert proxy.topics.identities(f"{proxy.device}-two") == Counter(group.published)


def test_a_slow_kafka_stops_the_reading_and_loses_nothing(proxy: Proxy, kafka: Kafka) -> None:
    proxy.start(limits__outstanding_records=50)
    wire = Wire(proxy, proxy.device, clean=True)
    kafka.pause()
    try:
        for number in range(200):
            wire.publish(proxy.device, number, number + 1, qos=1)
        wait_until("the bound is reached", lambda: proxy.metric("connections_waiting") == 1)
        assert proxy.metric("messages_received_total") == 50, "nothing is read beyond the bound"
    finally:
        kafka.resume()
    for number in range(200):
        wire.expect(PUBACK, number + 1)
    assert proxy.topics.values(proxy.device) == list(range(200))


@pytest.mark.parametrize("kafka_decides", [False, True], ids=["not-committed", "committed"])
def test_a_broken_producer_is_replaced_and_the_truth_is_read_from_kafka(
    proxy: Proxy, kafka: Kafka, kafka_decides: bool
) -> None:
    gate = KafkaGate(kafka.bootstrap_servers)
    proxy.at_end.callback(gate.close)
    proxy.start(kafka__bootstrap_servers=gate.bootstrap_servers)
    wire, device = Wire(proxy, proxy.device), proxy.device
    gate.break_commit(kafka_decides=kafka_decides)
    wire.publish(device, 1.0, 1)
    if not kafka_decides:
        assert wire.is_closed_by_the_proxy(), "it is certain that nothing was stored"
        wire = Wire(proxy, device)
        assert wire.session_present
        wire.publish(device, 1.0, 1, dup=True)
    wire.expect(PUBREC, 1)
    wire.release(1)
    wire.expect(PUBCOMP, 1)
    assert proxy.topics.values(device) == [1.0]
    assert proxy.metric("recoveries_total") == 1
    assert proxy.is_ready()


def test_a_fatal_error_of_the_idempotent_producer_is_cured(proxy: Proxy, kafka: Kafka) -> None:
    gate = KafkaGate(kafka.bootstrap_servers)
    proxy.at_end.callback(gate.close)
    proxy.start(kafka__bootstrap_servers=gate.bootstrap_servers)
    wire, device, acknowledged = Wire(proxy, proxy.device), proxy.device, []
    wire.publish(device, 0.0, 1, qos=1)
    wire.expect(PUBACK, 1)
    for turn in range(1, 3):
        gate.refuse_produce(OUT_OF_ORDER_SEQUENCE_NUMBER)
        for number in range(10):
            wire.publish(device, 10.0 * turn + number, number + 1, qos=1)
        assert wire.is_closed_by_the_proxy(), "what is not known to be stored is not acknowledged"
        assert gate.has_refused
        wait_until("a new producer", lambda turn=turn: proxy.metric("producers_replaced_total") == turn)  # type: ignore[misc]  # a default argument
        wait_until("it is ready", proxy.is_ready)
        wire = Wire(proxy, device)
        for number in range(10):
            wire.publish(device, 10.0 * turn + number, number + 1, qos=1, dup=True)
            wire.expect(PUBACK, number + 1)
            acknowledged.append(10.0 * turn + number)
    assert set(proxy.topics.values(device)) >= {0.0, *acknowledged}
    wire.publish(device, 99.0, 99)
    wire.expect(PUBREC, 99)


def test_a_producer_that_breaks_again_and_again_ends_the_process(proxy: Proxy, kafka: Kafka) -> None:
    gate = KafkaGate(kafka.bootstrap_servers)
    proxy.at_end.callback(gate.close)
    proxy.start(kafka__bootstrap_servers=gate.bootstrap_servers)
    for turn in range(1, 6):
        # A session that ends with its connection: nothing of it is produced but the publish.
        wire = Wire(proxy, f"{proxy.device}-{turn}", clean=True)
        gate.refuse_produce(OUT_OF_ORDER_SEQUENCE_NUMBER)
        wire.publish(proxy.device, float(turn), 1, qos=1)
        assert wire.is_closed_by_the_proxy()
        if turn < 5:
            wait_until("a new producer", lambda turn=turn: proxy.metric("producers_replaced_total") == turn)  # type: ignore[misc]  # a default argument
    assert proxy.wait() == 1
    assert "broken for good" in proxy.log()


def test_a_fenced_process_ends_loudly(proxy: Proxy) -> None:
    proxy.start()
    # A second server would wait until this one ends; somebody who takes the id nonetheless does not.
    thief = clients.producer(proxy.topics.kafka, "thief", transactional_id="isotherm-mqtt-proxy-7")
    thief.init_transactions(WAIT_S)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_S) as device:
        device.sendall(connect_packet(proxy.device))
        assert device.recv(4) == b"", "its claim was not stored, so it is not let in"
    assert proxy.wait() == 1
    assert "fenced" in proxy.log()
