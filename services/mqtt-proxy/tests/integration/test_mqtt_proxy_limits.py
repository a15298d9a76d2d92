"""The limits on what devices can make the proxy hold, and what happens at each limit."""

from __future__ import annotations

import json
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from mqtt_devices import PUBACK, PUBREC, DeviceGroup, Wire, publish_packet
from mqtt_world import ROUTES, WAIT_S, Proxy, opened, wait_until

from isotherm.servicekit.kafka import clients
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


def test_limits(proxy: Proxy) -> None:
    proxy.start(limits__connections=2, limits__packet_bytes=200, limits__receive_maximum=1)
    silent = Wire(proxy, f"{proxy.device}-silent", keep_alive_s=1)
    assert silent.is_closed_by_the_proxy(), "1.5 times its keep-alive is over"
    giant = Wire(proxy, f"{proxy.device}-giant")
    giant.send(b"\x30\xff\xff\xff\x7f")
    assert giant.is_closed_by_the_proxy()
    greedy = Wire(proxy, f"{proxy.device}-greedy")
    greedy.publish(proxy.device, 1, 1)
    greedy.expect(PUBREC, 1)
    greedy.publish(proxy.device, 2, 2)
    assert greedy.is_closed_by_the_proxy(), "more unreleased publishes than allowed"
    kept = [Wire(proxy, f"{proxy.device}-{index}") for index in range(2)]
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_S) as third:
        assert third.recv(1) == b""
    assert all(wire.session_present is False for wire in kept)


def test_connections_of_an_address_and_the_keep_alive_that_we_choose(proxy: Proxy) -> None:
    proxy.start(limits__connections_per_address=1, limits__keep_alive_s=600)
    wire = Wire(proxy, proxy.device, version=5)
    assert b"\x13\x02\x58" in wire.connack, "server keep-alive: 600 s"
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_S) as second:
        assert second.recv(1) == b""
    wire.close()
    wait_until("its place is free", lambda: proxy.metric("connections ") == 0)
    assert Wire(proxy, proxy.device).reason == 0


def test_beyond_a_rate_nothing_is_read_and_nothing_is_lost(proxy: Proxy) -> None:
    proxy.start(limits__messages_per_client="50:360000", limits__messages_total="80:360000")
    first, second = (Wire(proxy, f"{proxy.device}-{index}") for index in (1, 2))
    for wire, allowed in ((first, 50), (second, 30)):
        for number in range(60):
            wire.publish(proxy.device, number, number + 1, qos=1)
        for number in range(allowed):
            wire.expect(PUBACK, number + 1)
    wait_until("both wait", lambda: proxy.metric("rate_pauses_total") == 2)
    assert proxy.metric("messages_received_total") == 80
    assert proxy.metric('rate_pauses_total{of="all connections"}') == 1


def test_a_record_that_its_topic_refuses_harms_only_its_sender(proxy: Proxy) -> None:
    admin = clients.admin(proxy.topics.kafka, "test")
    small = ConfigResource(
        ResourceType.TOPIC,
        "temperature",
        incremental_configs=[ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)],
    )
    admin.incremental_alter_configs([small])[small].result()
    proxy.start(routes=f"{ROUTES}; INSERT INTO temperature SELECT v AS value, note FROM poison")
    group = DeviceGroup(proxy, proxy.device, devices=5, messages=40, qos=2)
    try:
        poison = Wire(proxy, f"{proxy.device}-poison")
        payload = json.dumps({"v": 1, "note": secrets.token_hex(4000)}).encode()
        poison.send(publish_packet("poison", payload, 1))
        poison.expect(PUBREC, 1)
        group.finish()
    finally:
        group.abandon()
        undo = ConfigResource(
            ResourceType.TOPIC,
            "temperature",
            incremental_configs=[
                ConfigEntry("max.message.bytes", None, incremental_operation=AlterConfigOpType.DELETE)
            ],
        )
        admin.incremental_alter_configs([undo])[undo].result()
    assert proxy.topics.identities(proxy.device) == Counter(group.published)
    assert proxy.metric('transactions_total{outcome="aborted"}') >= 1
