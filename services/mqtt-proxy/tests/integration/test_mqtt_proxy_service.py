"""The proxy as a process between real MQTT clients and a real Kafka: what a consumer sees afterwards."""

from __future__ import annotations

import json
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import paho.mqtt.client as paho
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from isotherm_cli.apply import apply
from mqtt_proxy.restore import end_offsets, read_to_end
from servicekit import kafka as clients
from servicekit.avro import Decoder, SchemaRegistry
from servicekit.lifecycle import Stop
from servicekit.settings import KafkaSettings, RegistrySettings
from simulators.mqtt.publisher import ResumingClient
from stack.kafka import Kafka
from stack.registry import Registry

pytestmark = pytest.mark.integration

WAIT_S = 150.0
Headers = list[tuple[str, str | bytes | None]]
ROUTES = "INSERT INTO thermostat.data SELECT id AS device_id, t AS value FROM devices/+/temperature"


def wait_until(what: str, done: Callable[[], bool]) -> None:
    """Ask until it is so; fails loudly when it does not become so within a generous limit."""
    limit = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < limit, f"{what}: not within {WAIT_S} s"
        threading.Event().wait(0.02)


class Proxy:
    """One proxy process at a time, always on the same port; kill and start as often as wanted."""

    def __init__(self, folder: Path, kafka: Kafka, registry: Registry, port: int, http_port: int) -> None:
        self.port = port
        self.wires: list[Wire] = []
        self._http = f"http://127.0.0.1:{http_port}"
        self._log = folder / "proxy.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = {
            "listener.port": port,
            "http.port": http_port,
            "allow_anonymous": "true",
            "ordinal": 7,
            "kafka.bootstrap_servers": kafka.bootstrap_servers,
            "registry.url": registry.url,
            "routes": ROUTES,
        }

    def start(self, **settings: object) -> None:
        """Start and wait until it is ready."""
        self.launch(**settings)
        wait_until("the proxy is ready", self.is_ready)

    def launch(self, **settings: object) -> None:
        """Start; dots in keys are written as two underscores."""
        self._settings |= {key.replace("__", "."): value for key, value in settings.items()}
        pairs = [f"{key}={value}" for key, value in self._settings.items()]
        command = [sys.executable, "-m", "mqtt_proxy", "run", *(word for pair in pairs for word in ("--set", pair))]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log)

    def is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the proxy ended: {self.log()[-3000:]}"
        try:
            return httpx.get(f"{self._http}/ready").status_code == 200
        except httpx.TransportError:
            return False

    def log(self) -> str:
        return self._log.read_text()

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self._http}/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"isotherm_mqtt_proxy_{name}"))

    def signal(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(WAIT_S)

    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def wait(self) -> int:
        """The exit code, when it ends by itself."""
        assert self._process is not None
        return self._process.wait(WAIT_S)

    def stop(self) -> None:
        """Kill it and close the wires to it."""
        for wire in self.wires:
            wire.close()
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGKILL)


class Topics:
    """What a read_committed reader finds, once every transaction is decided."""

    def __init__(self, kafka: Kafka, registry: Registry) -> None:
        self.kafka = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
        self.registry = RegistrySettings(url=registry.url)
        self._decoder = Decoder(SchemaRegistry(self.registry))

    def raw(self, topic: str) -> list[tuple[str, bytes, dict[str, str]]]:
        """(key, value, headers) of every record."""
        admin = clients.admin(self.kafka, "reader")
        consumer = clients.consumer(self.kafka, "reader", f"reader-{uuid.uuid4()}", enable_partition_eof=True)
        try:
            messages = read_to_end(consumer, topic, end_offsets(admin, topic), Stop())
            return [
                (
                    (message.key() or b"").decode(),
                    message.value() or b"",
                    {name: _decoded(value) for name, value in cast(Headers, message.headers() or [])},
                )
                for message in messages
            ]
        finally:
            consumer.close()

    def readings(self, topic: str, device: str) -> list[tuple[dict[str, Any], dict[str, str]]]:
        """(reading, headers) of the devices whose id begins so, in their order."""
        return [
            (self._decoder(value).record, headers) for key, value, headers in self.raw(topic) if key.startswith(device)
        ]


def _decoded(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


@pytest.fixture(scope="module")
def topics(kafka: Kafka, registry: Registry) -> Topics:
    found = Topics(kafka, registry)
    apply(found.kafka, found.registry)
    return found


@pytest.fixture
def proxy(
    tmp_path: Path, kafka: Kafka, registry: Registry, topics: Topics, free_port: Callable[[], int]
) -> Iterator[Proxy]:
    process = Proxy(tmp_path, kafka, registry, free_port(), free_port())
    yield process
    process.stop()


@pytest.fixture
def device() -> str:
    return f"d-{uuid.uuid4().hex[:8]}"


def mosquitto_pub(proxy: Proxy, topic: str, message: str, qos: int, *more: str) -> None:
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(proxy.port), "-t", topic, "-m", message, "-q", str(qos)]
    subprocess.run([*command, *more], check=True, timeout=WAIT_S)


class Wire:
    """A device that speaks 3.1.1 byte by byte, so that a test can stop in the middle of a handshake."""

    def __init__(
        self, proxy: Proxy, client_id: str, *, clean: bool = False, keep_alive_s: int = 0, will: bytes = b""
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_S)
        proxy.wires.append(self)
        flags = (2 if clean else 0) | (0x0C if will else 0)
        body = b"\0\4MQTT\4" + bytes((flags,)) + struct.pack(">H", keep_alive_s) + _text(client_id.encode()) + will
        self.send(bytes((0x10, len(body))) + body)
        answer = self.receive(4)
        assert answer[:2] == b"\x20\x02", answer
        assert answer[3] == 0, f"refused with {answer[3]}"
        self.session_present = bool(answer[2])

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def publish(self, device: str, value: float, packet_id: int, *, qos: int = 2, dup: bool = False) -> None:
        body = _text(f"devices/{device}/temperature".encode()) + struct.pack(">H", packet_id) + b'{"t": %r}' % value
        self.send(bytes((0x30 | qos << 1 | (8 if dup else 0), len(body))) + body)

    def release(self, packet_id: int) -> None:
        self.send(b"\x62\x02" + struct.pack(">H", packet_id))

    def receive(self, length: int) -> bytes:
        """Exactly so many bytes, or what came before the end."""
        data = b""
        while len(data) < length and (more := self._socket.recv(length - len(data))):
            data += more
        return data

    def expect(self, packet_type: int, packet_id: int) -> None:
        assert self.receive(4) == bytes((packet_type << 4, 2)) + struct.pack(">H", packet_id)

    def is_closed_by_the_proxy(self) -> bool:
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._socket.close()


def _text(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


PUBREC, PUBCOMP, PUBACK = 5, 7, 4


class Fleet:
    """Paho devices, each with a thread, that publish numbered readings and reconnect as often as it takes."""

    def __init__(self, proxy: Proxy, name: str, *, devices: int, messages: int, qos: int) -> None:
        self.acknowledged: set[tuple[str, int]] = set()
        self.published = {(f"{name}-{index}", number) for index in range(devices) for number in range(messages)}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(proxy.port, f"{name}-{index}", messages, qos), daemon=True)
            for index in range(devices)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, port: int, device: str, messages: int, qos: int) -> None:
        numbers: dict[int, int] = {}
        client = ResumingClient(CallbackAPIVersion.VERSION2, device, clean_session=False)
        client.max_inflight_messages_set(10)

        def on_publish(_client: object, _data: object, packet_id: int, *_more: object) -> None:
            with self._lock:
                self.acknowledged.add((device, numbers[packet_id]))

        client.on_publish = on_publish
        waiting = iter(range(messages))
        connected = False
        while len(numbers) < messages or client.want_write() or not self._has_all(device, messages):
            if self._stop.is_set():
                return
            if not connected:
                try:
                    client.connect("127.0.0.1", port, keepalive=10) if not numbers else client.reconnect()
                    connected = True
                except OSError:
                    self._stop.wait(0.1)
                    continue
            if client.loop(0.02) is not MQTTErrorCode.MQTT_ERR_SUCCESS:
                connected = False
                continue
            if client.is_connected() and (number := next(waiting, None)) is not None:
                payload = json.dumps(
                    {"id": device, "t": 20.0, "sequence": number, "event_time": 1767225600000 + number}
                )
                numbers[client.publish(f"devices/{device}/temperature", payload, qos).mid] = number
        client.disconnect()

    def _has_all(self, device: str, messages: int) -> bool:
        with self._lock:
            return sum(1 for found, _ in self.acknowledged if found == device) == messages

    def progress(self) -> int:
        with self._lock:
            return len(self.acknowledged)

    def finish(self, supervised: Proxy | None = None) -> None:
        """Wait until everything is acknowledged; a `supervised` proxy that ended by itself is started again."""
        limit = time.monotonic() + WAIT_S
        while any(thread.is_alive() for thread in self._threads):
            assert time.monotonic() < limit, f"{self.progress()} of {len(self.published)} acknowledged"
            if supervised is not None and supervised.has_ended():
                supervised.start()
            threading.Event().wait(0.05)

    def abandon(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)


FLEET_ROUTES = (
    "INSERT INTO thermostat.data SELECT id AS device_id, t AS value, sequence, event_time FROM devices/+/temperature"
)


def identities(topics: Topics, name: str) -> Counter[tuple[str, int]]:
    return Counter(
        (reading["device_id"], reading["sequence"]) for reading, _ in topics.readings("thermostat.data", name)
    )


# -- what clients that we did not write get


def test_mosquitto_pub_at_every_qos_in_both_versions(proxy: Proxy, topics: Topics, device: str) -> None:
    proxy.start()
    sent: list[tuple[float, str]] = []
    for version in ("mqttv311", "mqttv5"):
        for qos in (0, 1, 2):
            mosquitto_pub(proxy, f"devices/{device}/temperature", json.dumps({"t": len(sent)}), qos, "-V", version)
            sent.append((float(len(sent)), str(qos)))
    wait_until("QoS 0 is stored too", lambda: proxy.metric("readings_stored_total") == len(sent))
    found = topics.readings("thermostat.data", device)
    assert [(reading["value"], headers["mqtt.qos"]) for reading, headers in found] == sent
    reading, headers = found[0]
    assert (reading["device_id"], reading["metric"], reading["unit"]) == (device, "temperature", "Cel")
    assert headers["mqtt.topic"] == f"devices/{device}/temperature"
    assert proxy.signal(signal.SIGTERM) == 0


def test_the_documents_regex_list_at_qos_2(proxy: Proxy, topics: Topics, device: str) -> None:
    proxy.start(routes="", topic_regex_list="temperature:.*temperature, brightness:.*brightness")
    mosquitto_pub(proxy, "home/temperature", "21.25", 2, "-i", device)
    mosquitto_pub(proxy, "home/brightness", '{"value": 310, "room": "hall"}', 2, "-i", device)
    ((temperature, _),) = topics.readings("temperature", device)
    ((brightness, _),) = topics.readings("brightness", device)
    assert (temperature["metric"], temperature["value"], temperature["unit"]) == ("temperature", 21.25, "Cel")
    assert (brightness["metric"], brightness["value"], brightness["unit"]) == ("brightness", 310.0, "lx")
    assert brightness["attributes"] == {"room": "hall"}


def test_what_does_not_fit_is_a_dead_letter_and_acknowledged(proxy: Proxy, topics: Topics, device: str) -> None:
    proxy.start()
    mosquitto_pub(proxy, f"devices/{device}/temperature", "{broken", 1, "-i", device)
    mosquitto_pub(proxy, f"devices/{device}/temperature", '{"t": "warm"}', 2, "-i", device)
    mosquitto_pub(proxy, "no/route", "21", 1, "-i", device)
    letters = {v: headers for key, v, headers in topics.raw("mqtt-proxy.dead-letters") if key == device}
    assert set(letters) == {b"{broken", b'{"t": "warm"}', b"21"}
    assert letters[b"21"]["__connect.errors.exception.message"] == "no route takes the topic 'no/route'"
    assert letters[b"{broken"]["__connect.errors.topic"] == f"devices/{device}/temperature"
    assert "value" in letters[b'{"t": "warm"}']["__connect.errors.exception.message"]
    assert topics.readings("thermostat.data", device) == []
    assert proxy.metric("dead_letters_total") == 3


def test_mqtt5_client_with_user_properties(proxy: Proxy, topics: Topics, device: str) -> None:
    proxy.start()
    connected: list[Any] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, device, protocol=MQTTProtocolVersion.MQTTv5)
    client.on_connect = lambda _client, _data, _flags, _reason, properties: connected.append(properties)
    client.connect("127.0.0.1", proxy.port)
    client.loop_start()
    try:
        wait_until("connected", lambda: bool(connected))
        for qos in (1, 2):
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho leaves it untyped
            properties.UserProperty = [("room", f"r{qos}")]
            properties.ContentType = "application/json"
            sent = client.publish(f"devices/{device}/temperature", b'{"t": 1}', qos, properties=properties)
            sent.wait_for_publish(WAIT_S)
    finally:
        client.disconnect()
        client.loop_stop()
    assert connected[0].ReceiveMaximum == 1000
    assert connected[0].MaximumPacketSize == 65_536
    found = [headers for _, headers in topics.readings("thermostat.data", device)]
    assert [headers["mqtt.user.room"] for headers in found] == ["r1", "r2"]
    assert {headers["mqtt.content_type"] for headers in found} == {"application/json"}


def test_subscribing_is_refused_and_sessions_are_answered_as_stored(proxy: Proxy, topics: Topics, device: str) -> None:
    proxy.start()
    first = Wire(proxy, device)
    assert not first.session_present
    first.send(b"\x82\x06\0\1\0\1#\0" + b"\xa2\x05\0\2\0\1#" + b"\xc0\0")
    assert first.receive(5 + 4 + 2) == b"\x90\x03\0\1\x80" + b"\xb0\2\0\2" + b"\xd0\0"
    second = Wire(proxy, device)
    assert second.session_present
    assert first.is_closed_by_the_proxy(), "taken over"
    proxy.signal(signal.SIGKILL)
    proxy.start()
    assert Wire(proxy, device).session_present, "also after kill -9"
    assert not Wire(proxy, device, clean=True).session_present
    assert not Wire(proxy, device).session_present, "a clean session wiped it"


def test_a_will_is_published_unless_the_device_says_goodbye(proxy: Proxy, topics: Topics, device: str) -> None:
    proxy.start()
    polite, lost = (
        Wire(proxy, name, will=_text(f"devices/{name}/temperature".encode()) + _text(b'{"t": -1}'))
        for name in (f"{device}-polite", f"{device}-lost")
    )
    polite.send(b"\xe0\0")
    assert polite.is_closed_by_the_proxy()
    lost.close()
    wait_until("the will is stored", lambda: proxy.metric("wills_total") == 1 == proxy.metric("readings_stored_total"))
    ((reading, headers),) = topics.readings("thermostat.data", device)
    assert (reading["device_id"], reading["value"], headers["mqtt.qos"]) == (f"{device}-lost", -1.0, "1")


def test_limits(proxy: Proxy, topics: Topics, device: str) -> None:
    proxy.start(limits__connections=2, limits__packet_bytes=200, limits__receive_maximum=1)
    silent = Wire(proxy, f"{device}-silent", keep_alive_s=1)
    assert silent.is_closed_by_the_proxy(), "1.5 times its keep-alive is over"
    giant = Wire(proxy, f"{device}-giant")
    giant.send(b"\x30\xff\xff\xff\x7f")
    assert giant.is_closed_by_the_proxy()
    greedy = Wire(proxy, f"{device}-greedy")
    greedy.publish(device, 1, 1)
    greedy.expect(PUBREC, 1)
    greedy.publish(device, 2, 2)
    assert greedy.is_closed_by_the_proxy(), "more unreleased publishes than allowed"
    kept = [Wire(proxy, f"{device}-{index}") for index in range(2)]
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_S) as third:
        assert third.recv(1) == b""
    assert all(wire.session_present is False for wire in kept)


def test_tls_with_client_certificates(proxy: Proxy, topics: Topics, tmp_path: Path, device: str) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    for name, host in (("server", "127.0.0.1"), ("device", device)):
        openssl("req", *new[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={host}")
        (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1")
        signed_by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
        openssl("x509", "-req", "-in", f"{name}.csr", *signed_by, "-out", f"{name}.pem")
    files = {part: str(tmp_path / name) for part, name in (("certfile", "server.pem"), ("keyfile", "server.key"))}
    proxy.start(allow_anonymous="false", tls__cafile=tmp_path / "ca.pem", **{f"tls__{k}": v for k, v in files.items()})
    ours = ("--cert", str(tmp_path / "device.pem"), "--key", str(tmp_path / "device.key"))
    topic, authority = f"devices/{device}/temperature", ("--cafile", str(tmp_path / "ca.pem"))
    mosquitto_pub(proxy, topic, '{"t": 5}', 2, *authority, *ours)
    with pytest.raises(subprocess.CalledProcessError):
        mosquitto_pub(proxy, topic, '{"t": 6}', 2, *authority)
    assert [reading["value"] for reading, _ in topics.readings("thermostat.data", device)] == [5.0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"routes": "INSERT INTO a SELECT * FORM b"}, "routes: KCQL: line 1, column"),
        ({"routes": ""}, "routes or topic_regex_list"),
        ({"topic_regex_list": "temperature:("}, "topic_regex_list:"),
        ({"allow_anonymous": "false"}, "allow_anonymous"),
        ({"listener__prt": 1}, "did you mean listener.port?"),
        ({"limits__receive_maximum": 0}, "limits.receive_maximum (--set): '0' is not allowed"),
        ({"tls__certfile": "/nowhere.pem"}, "tls.certfile"),
    ],
)
def test_bad_settings_stop_the_start(proxy: Proxy, settings: dict[str, object], says: str) -> None:
    proxy.launch(**settings)
    assert proxy.wait() == 2
    assert says in proxy.log()


# -- exactly once


def test_a_kill_at_each_step_of_the_handshake(proxy: Proxy, topics: Topics, device: str) -> None:
    proxy.start()
    wire = Wire(proxy, device)
    wire.publish(device, 1.0, 9)
    proxy.signal(signal.SIGKILL)  # before or after the commit, nobody knows

    proxy.start()
    wire = Wire(proxy, device)
    assert wire.session_present
    wire.publish(device, 1.0, 9, dup=True)
    wire.publish(device, 1.0, 9, dup=True)
    wire.expect(PUBREC, 9)
    wire.expect(PUBREC, 9)
    proxy.signal(signal.SIGKILL)  # after PUBREC

    proxy.start()
    wire = Wire(proxy, device)
    wire.release(9)
    proxy.signal(signal.SIGKILL)  # PUBREL on its way

    proxy.start()
    wire = Wire(proxy, device)
    wire.release(9)
    wire.expect(PUBCOMP, 9)
    proxy.signal(signal.SIGKILL)  # after PUBCOMP: the identifier is free

    proxy.start()
    wire = Wire(proxy, device)
    wire.publish(device, 1.0, 9)
    wire.expect(PUBREC, 9)
    # Without PUBREL: another message under the same identifier is another message.
    wire.publish(device, 2.0, 9)
    wire.expect(PUBREC, 9)
    wire.release(9)
    wire.expect(PUBCOMP, 9)
    assert [reading["value"] for reading, _ in topics.readings("thermostat.data", device)] == [1.0, 1.0, 2.0]


def test_half_open_takeover_with_a_publish_in_flight(proxy: Proxy, topics: Topics, device: str) -> None:
    proxy.start(transactions__linger_ms=300)
    for number in range(5):
        old = Wire(proxy, device)
        old.publish(device, number, number + 1)
        new = Wire(proxy, device)
        new.publish(device, number, number + 1, dup=True)
        new.expect(PUBREC, number + 1)
        new.release(number + 1)
        new.expect(PUBCOMP, number + 1)
    assert [reading["value"] for reading, _ in topics.readings("thermostat.data", device)] == [0, 1, 2, 3, 4]


def test_kill_9_under_qos_2_load_stores_each_reading_exactly_once(proxy: Proxy, topics: Topics, device: str) -> None:
    proxy.start(routes=FLEET_ROUTES)
    fleet = Fleet(proxy, device, devices=10, messages=120, qos=2)
    try:
        for share in (0.2, 0.5, 0.8):
            wait_until("the load flows", lambda: fleet.progress() >= share * len(fleet.published))  # noqa: B023  # called within the turn
            proxy.signal(signal.SIGKILL)
            proxy.start()
        fleet.finish()
    finally:
        fleet.abandon()
    assert identities(topics, device) == Counter(fleet.published)


# -- Kafka away


@pytest.mark.parametrize("qos", [1, 2])
def test_kafka_is_killed_under_load(proxy: Proxy, topics: Topics, kafka: Kafka, device: str, qos: int) -> None:
    proxy.start(routes=FLEET_ROUTES, limits__outstanding_records=200)
    fleet = Fleet(proxy, device, devices=10, messages=100, qos=qos)
    try:
        wait_until("the load flows", lambda: fleet.progress() >= 200)
        kafka.kill()
        kafka.start()
        kafka.wait_ready()
        # A broker that lost its memory of an open transaction ends the proxy (ADR 0010), which is then started again.
        fleet.finish(supervised=proxy)
    finally:
        fleet.abandon()
    stored = identities(topics, device)
    assert set(stored) == fleet.acknowledged == fleet.published
    if qos == 2:
        assert stored == Counter(fleet.published)


def test_an_outage_longer_than_the_delivery_timeout(proxy: Proxy, topics: Topics, kafka: Kafka, device: str) -> None:
    proxy.start(routes=FLEET_ROUTES, delivery_timeout_ms=5000)
    fleet = Fleet(proxy, f"{device}-two", devices=5, messages=60, qos=2)
    try:
        wait_until("the load flows", lambda: fleet.progress() >= 50)
        witness = Wire(proxy, f"{device}-one")
        kafka.pause()
        try:
            witness.publish(f"{device}-one", 1.0, 1, qos=1)
            assert witness.is_closed_by_the_proxy(), "Kafka did not take it in time: no acknowledgement, but the end"
        finally:
            kafka.resume()
        fleet.finish()
    finally:
        fleet.abandon()
    assert identities(topics, f"{device}-two") == Counter(fleet.published)


def test_a_record_that_its_topic_refuses_harms_only_its_sender(proxy: Proxy, topics: Topics, device: str) -> None:
    admin = clients.admin(topics.kafka, "test")
    small = ConfigResource(
        ResourceType.TOPIC,
        "temperature",
        incremental_configs=[ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)],
    )
    admin.incremental_alter_configs([small])[small].result()
    proxy.start(routes=f"{FLEET_ROUTES}; INSERT INTO temperature SELECT v AS value, note FROM poison")
    fleet = Fleet(proxy, device, devices=5, messages=40, qos=2)
    try:
        poison = Wire(proxy, f"{device}-poison")
        payload = json.dumps({"v": 1, "note": secrets.token_hex(4000)}).encode()
        body = _text(b"poison") + b"\0\1" + payload
        length = len(body)
        poison.send(bytes((0x34, length % 128 | 0x80, length // 128)) + body)
        assert poison.is_closed_by_the_proxy()
        fleet.finish()
    finally:
        fleet.abandon()
        undo = ConfigResource(
            ResourceType.TOPIC,
            "temperature",
            incremental_configs=[
                ConfigEntry("max.message.bytes", None, incremental_operation=AlterConfigOpType.DELETE)
            ],
        )
        admin.incremental_alter_configs([undo])[undo].result()
    assert identities(topics, device) == Counter(fleet.published)
    assert proxy.metric('transactions_total{outcome="aborted"}') >= 1


def test_a_slow_kafka_stops_the_reading_and_loses_nothing(
    proxy: Proxy, topics: Topics, kafka: Kafka, device: str
) -> None:
    proxy.start(limits__outstanding_records=50)
    wire = Wire(proxy, device, clean=True)
    kafka.pause()
    try:
        for number in range(200):
            wire.publish(device, number, number + 1, qos=1)
        wait_until("the bound is reached", lambda: proxy.metric("connections_waiting") == 1)
        assert proxy.metric("messages_received_total") == 50, "nothing is read beyond the bound"
    finally:
        kafka.resume()
    for number in range(200):
        wire.expect(PUBACK, number + 1)
    assert [reading["value"] for reading, _ in topics.readings("thermostat.data", device)] == list(range(200))


def test_sigterm_acknowledges_what_is_in_flight(proxy: Proxy, topics: Topics, device: str) -> None:
    proxy.start(transactions__linger_ms=1000)
    wire = Wire(proxy, device)
    wire.publish(device, 1, 1)
    wait_until("the publish is in flight", lambda: proxy.metric("outstanding_records") > 0)
    assert proxy.signal(signal.SIGTERM) == 0
    wire.expect(PUBREC, 1)
    assert wire.is_closed_by_the_proxy()
    assert len(topics.readings("thermostat.data", device)) == 1


def test_a_fenced_process_ends_loudly(
    proxy: Proxy, tmp_path: Path, kafka: Kafka, registry: Registry, free_port: Callable[[], int], device: str
) -> None:
    proxy.start()
    folder = tmp_path / "second"
    folder.mkdir()
    second = Proxy(folder, kafka, registry, free_port(), free_port())
    try:
        second.start()
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_S) as device_socket:
            body = b"\0\4MQTT\4\0\0\0" + _text(device.encode())
            device_socket.sendall(bytes((0x10, len(body))) + body)
            assert device_socket.recv(4) == b"", "its claim was not stored, so it is not let in"
        assert proxy.wait() == 1
        assert "fenced" in proxy.log()
    finally:
        second.stop()
