"""MQTT over WebSocket on the real proxy, with a third-party client: readings, raw payloads, sessions, TLS, limits."""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
from mqtt_devices import PUBCOMP, PUBREC, Wire
from mqtt_world import WAIT_S, Proxy, opened, wait_until
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from test_mqtt_proxy_security import certificates
from wsproto import ConnectionType, WSConnection
from wsproto.events import BytesMessage, Request

from isotherm.servicekit.kafka import clients
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

HANDSHAKE = (
    "GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAECAwQFBgcICQoLDA0ODw==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n"
)


@pytest.fixture
def web_port(free_port: Callable[[], int]) -> int:
    return free_port()


@pytest.fixture
def proxy(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int], web_port: int
) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        made.configure(name=made.device, websocket__port=web_port)
        yield made


@contextmanager
def browser(
    port: int, client_id: str, version: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv5, authority: Path | None = None
) -> Iterator[paho.Client]:
    """paho-mqtt, connected over a WebSocket; it names the origin of the very address to which it connects."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, transport="websockets")
    if authority is not None:
        client.tls_set(str(authority))
    client.connect("127.0.0.1", port)
    client.loop_start()
    wait_until("it is connected", client.is_connected)
    try:
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


def publish(client: paho.Client, topic: str, payload: bytes, qos: int) -> None:
    message = client.publish(topic, payload, qos)
    message.wait_for_publish(WAIT_S)
    assert message.is_published()


def create_topic(proxy: Proxy, name: str) -> None:
    admin = clients.admin(proxy.topics.kafka, "test")
    for done in admin.create_topics([NewTopic(name, 1, 1)]).values():
        done.result()


def test_a_real_client_publishes_readings_and_raw_payloads(proxy: Proxy, web_port: int) -> None:
    device, events = proxy.device, f"events-{proxy.device}"
    reading = f"devices/{device}/temperature"
    proxy.launch(
        routes="INSERT INTO thermostat.data SELECT t AS value FROM devices/+/temperature;"
        f"INSERT INTO {events} SELECT * FROM devices/+/event WITHFORMAT RAW"
    )
    # The registry and Kafka may still be looked up; then the topic of the raw route is missing, by name.
    wait_until("the missing topic is named", lambda: f"no topic {events}" in proxy.problems().get("kafka", ""))
    create_topic(proxy, events)
    wait_until("the proxy is ready", proxy.is_ready)
    raw: list[bytes] = []
    values: list[float] = []
    for version in (MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5):
        with browser(web_port, device, version) as client:
            for qos in (0, 1, 2):
                # Larger than one read of the server, and no reading of any kind.
                raw.append(bytes(range(256)) * 200 + bytes([version, qos]))
                publish(client, f"devices/{device}/event", raw[-1], qos)
                # Nothing is bytes as well, and no tombstone.
                raw.append(b"")
                publish(client, f"devices/{device}/event", raw[-1], qos)
                values.append(len(values) / 4)
                publish(client, reading, b'{"t": %r}' % values[-1], qos)
    wait_until("QoS 0 is stored too", lambda: proxy.metric("readings_stored_total") == 18)
    assert sorted(proxy.topics.values(device)) == values
    stored = proxy.topics.raw(events)
    assert sorted(value for _, value, _ in stored) == sorted(raw)
    assert {key for key, _, _ in stored} == {device}
    assert {headers["mqtt.topic"] for _, _, headers in stored} == {f"devices/{device}/event"}
    assert proxy.metric("dead_letters_total") == 0
    assert proxy.signal(signal.SIGTERM) == 0


class WebSocketWire(Wire):
    """A device that sends byte by byte over a WebSocket."""

    def __init__(self, proxy: Proxy, port: int, client_id: str) -> None:
        self._port = port
        self._frames = WSConnection(ConnectionType.CLIENT)
        self._data = b""
        super().__init__(proxy, client_id)

    def _open(self, _proxy: Proxy) -> socket.socket:
        opened_socket = socket.create_connection(("127.0.0.1", self._port), timeout=WAIT_S)
        opened_socket.sendall(self._frames.send(Request(host="127.0.0.1", target="/", subprotocols=["mqtt"])))
        return opened_socket

    def send(self, data: bytes) -> None:
        while self._frames.connection is None:
            self._read()
        # A packet spans two messages.
        for part in (data[:1], data[1:]):
            self.socket.sendall(self._frames.send(BytesMessage(part)))

    def receive(self, length: int) -> bytes:
        while len(self._data) < length and self._read():
            pass
        found, self._data = self._data[:length], self._data[length:]
        return found

    def _read(self) -> bool:
        if not (data := self.socket.recv(4_096)):
            return False
        self._frames.receive_data(data)
        self._data += b"".join(event.data for event in self._frames.events() if isinstance(event, BytesMessage))
        return True


def test_a_session_moves_between_tcp_and_websocket_and_processes(proxy: Proxy, web_port: int) -> None:
    proxy.start(processes=2)
    device, expected = proxy.device, []
    for number in range(6):
        expected.append(number + 0.5)
        old = Wire(proxy, device) if number % 2 else WebSocketWire(proxy, web_port, device)
        assert old.session_present is (number > 0)
        old.publish(device, expected[-1], 1)
        old.expect(PUBREC, 1)
        new = WebSocketWire(proxy, web_port, device) if number % 2 else Wire(proxy, device)
        assert new.session_present
        new.publish(device, expected[-1], 1, dup=True)
        new.expect(PUBREC, 1)
        new.release(1)
        new.expect(PUBCOMP, 1)
        assert old.receive(1) == b"", "it was taken over"
    assert proxy.topics.values(device) == expected
    assert proxy.signal(signal.SIGTERM) == 0


def test_tls_is_that_of_the_listener(proxy: Proxy, web_port: int, tmp_path: Path) -> None:
    certificates(tmp_path, proxy.device)
    proxy.start(tls__certfile=tmp_path / "server.pem", tls__keyfile=tmp_path / "server.key")
    with browser(web_port, proxy.device, authority=tmp_path / "ca.pem") as client:
        publish(client, f"devices/{proxy.device}/temperature", b'{"t": 1.5}', 2)
    assert proxy.topics.values(proxy.device) == [1.5]
    plain = socket.create_connection(("127.0.0.1", web_port), timeout=WAIT_S)
    context: Any = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
        wrapped.sendall(f"{HANDSHAKE}Origin: https://evil.example\r\n\r\n".encode())
        assert wrapped.recv(4_096).startswith(b"HTTP/1.1 403 ")


def test_limits_are_those_of_the_listener(proxy: Proxy, web_port: int) -> None:
    proxy.start(limits__connections_per_address=1, limits__connect_timeout_ms=500)
    with socket.create_connection(("127.0.0.1", web_port), timeout=WAIT_S) as slow:
        slow.sendall(HANDSHAKE.encode())
        wait_until("the slow one is counted", lambda: proxy.metric("connections ") == 1)
        with socket.create_connection(("127.0.0.1", web_port), timeout=WAIT_S) as second:
            assert is_ended(second)
        assert is_ended(slow), "the handshake took too long"
    assert proxy.metric('connection_attempts_total{outcome="too many connections of an address"}') == 1
    assert proxy.metric('connection_attempts_total{outcome="connect timeout"}') == 1


def is_ended(end: socket.socket) -> bool:
    try:
        return end.recv(1) == b""
    except ConnectionResetError:
        return True
