"""While Kafka accepts no more, publishes wait; all other packets of a client are answered."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from mqtt_devices import PUBACK, Wire, connect_packet, publish_packet
from mqtt_world import WAIT_S, Proxy, opened, wait_until
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults]

_KEEP_ALIVE_S = 4
"""paho looks at its keep-alive once a second, so up to 5 s pass between its packets; 6 s are allowed."""
_CLIENTS, _MESSAGES = 120, 15


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


class Clients:
    """Clients of paho, both versions in turn, at QoS 1 and 2, and how often one of them lost its connection."""

    def __init__(self, proxy: Proxy) -> None:
        self.connected: set[str] = set()
        self.lost: list[str] = []
        self.sent: list[tuple[str, int, paho.MQTTMessageInfo]] = []
        versions = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5
        self._all = {
            f"{proxy.device}-{index}": paho.Client(
                CallbackAPIVersion.VERSION2, f"{proxy.device}-{index}", protocol=versions[index % 2]
            )
            for index in range(_CLIENTS)
        }
        for name, client in self._all.items():
            client.on_connect = lambda *_rest, name=name: self.connected.add(name)
            client.on_disconnect = lambda *rest, name=name: self.lost.append(f"{name}: {rest[2]}, {rest[3]}")
            client.connect("127.0.0.1", proxy.port, keepalive=_KEEP_ALIVE_S)
            client.loop_start()

    def publish(self) -> None:
        """Each publishes its messages, without waiting."""
        for number in range(_MESSAGES):
            for index, (name, client) in enumerate(self._all.items()):
                message = json.dumps({"id": name, "t": 20, "sequence": number})
                qos = 1 + index // 2 % 2
                self.sent.append((name, number, client.publish(f"devices/{name}/temperature", message, qos)))

    def close(self) -> None:
        """Disconnect all."""
        for client in self._all.values():
            client.disconnect()
        for client in self._all.values():
            client.loop_stop()


def test_kafka_is_away_for_longer_than_the_keep_alive_and_nobody_is_disconnected(proxy: Proxy, kafka: Kafka) -> None:
    proxy.start(limits__outstanding_records=50)
    clients = Clients(proxy)
    proxy.at_end.callback(clients.close)
    wait_until("all are connected", lambda: len(clients.connected) == _CLIENTS)
    kafka.pause()
    try:
        clients.publish()
        wait_until("the bound is reached", lambda: proxy.metric("congestions_total") == 1)
        # The length of the outage, not a wait for anything: two pings of each client go unanswered in it, or none.
        threading.Event().wait(3 * _KEEP_ALIVE_S)
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_S) as late:
            late.sendall(connect_packet(f"{proxy.device}-late", clean=True))
            assert late.recv(4) == b"\x20\x02\x00\x00", "who comes now is let in"
        assert clients.lost == []
    finally:
        kafka.resume()
    for _, _, sent in clients.sent:
        sent.wait_for_publish(WAIT_S)
    assert clients.lost == []
    found = proxy.topics.identities(proxy.device)
    assert dict(found) == {(name, number): 1 for name, number, _ in clients.sent}
    assert proxy.metric('connection_attempts_total{outcome="accepted"}') == _CLIENTS + 1
    assert proxy.metric("buffered_bytes ") == 0


def test_what_is_held_is_bounded_and_answered_in_its_order(proxy: Proxy, kafka: Kafka) -> None:
    """Beyond the limit a socket is not read; a PINGREQ is answered, a DISCONNECT waits for held publishes."""
    proxy.start(limits__outstanding_records=50, limits__buffered_bytes=65_536, limits__packet_bytes=20_000)
    payload = b'{"t": 1, "note": "%s"}' % (b"x" * 1_000)
    quick = Wire(proxy, f"{proxy.device}-quick", clean=True)
    flood = Wire(proxy, f"{proxy.device}-flood", clean=True)
    polite = Wire(proxy, f"{proxy.device}-polite", clean=True)
    kafka.pause()
    try:
        for number in range(60):
            quick.publish(f"{proxy.device}-quick", number, number + 1, qos=1)
        wait_until("the bound is reached", lambda: proxy.metric("congestions_total") == 1)
        quick.send(b"\xc0\x00")
        assert quick.receive(2) == b"\xd0\x00"
        for number in range(5):
            polite.publish(f"{proxy.device}-polite", number, 0, qos=0)
        polite.send(b"\xe0\x00")
        polite.close()
        for number in range(300):
            flood.send(publish_packet(f"devices/{proxy.device}-flood/temperature", payload, number + 1, qos=1))
        wait_until("the flood is held", lambda: proxy.metric("buffered_bytes ") > 15_000)
        assert proxy.metric("buffered_bytes ") < 65_536 + 3 * 20_000
        assert proxy.metric("messages_received_total") == 50
    finally:
        kafka.resume()
    for number in range(60):
        quick.expect(PUBACK, number + 1)
    for number in range(300):
        flood.expect(PUBACK, number + 1)
    wait_until("QoS 0 before the goodbye is stored", lambda: proxy.metric("readings_stored_total") == 365)
    assert proxy.topics.values(f"{proxy.device}-quick") == list(range(60))
    assert proxy.topics.values(f"{proxy.device}-polite") == list(range(5))
    assert proxy.metric("buffered_bytes ") == 0


def test_a_client_that_is_slowed_down_by_a_rate_is_answered_its_pings(proxy: Proxy) -> None:
    proxy.start(limits__messages_per_client="10:360000")
    wire = Wire(proxy, proxy.device, clean=True, keep_alive_s=1)
    for number in range(20):
        wire.publish(proxy.device, number, number + 1, qos=1)
    for number in range(10):
        wire.expect(PUBACK, number + 1)
    for _ in range(3):
        wire.send(b"\xc0\x00")
        assert wire.receive(2) == b"\xd0\x00"
    assert proxy.metric("messages_received_total") == 10
