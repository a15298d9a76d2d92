"""The publisher against a minimal broker that cuts connections at the critical moments."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from isotherm.simulators.ledger import events
from isotherm.simulators.mqtt.access import Access
from isotherm.simulators.mqtt.devices import Reading
from isotherm.simulators.mqtt.network_loop import NetworkLoop
from isotherm.simulators.mqtt.publisher import Publisher

pytestmark = pytest.mark.integration

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
TIMEOUT_S = 30.0


class Connection:
    """The server's end: reads whole packets (MQTT 3.1.1 section 2), writes acknowledgements."""

    def __init__(self, accepted: socket.socket) -> None:
        self._socket = accepted
        self._socket.settimeout(TIMEOUT_S)
        self._stream = accepted.makefile("rb")

    def read(self) -> tuple[int, int, bytes]:
        """Return type, flags and body of the next packet."""
        first, length, shift = self._stream.read(1)[0], 0, 0
        while True:
            byte = self._stream.read(1)[0]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return first >> 4, first & 0x0F, self._stream.read(length)

    def accept(self, *, session_present: bool) -> bytes:
        """Accept the client; return the body of its CONNECT."""
        kind, _, connect = self.read()
        assert kind == CONNECT
        # Protocol name with its length, then the version; MQTT 5 has properties, here none.
        properties = b"\0" if connect[6] == 5 else b""
        self._socket.sendall(bytes((CONNACK << 4, 2 + len(properties), session_present, 0)) + properties)
        return connect

    def acknowledge(self, kind: int, packet_id: int, reason: int = 0) -> None:
        """Acknowledge without a reason code, as MQTT 5 allows and 3.1.1 requires."""
        said = bytes((reason,)) if reason else b""
        self._socket.sendall(struct.pack("!BBH", kind << 4, 2 + len(said), packet_id) + said)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


class Broker:
    """A listening socket; the test accepts one connection after the other."""

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(TIMEOUT_S)
        self.port: int = self._listener.getsockname()[1]

    def connection(self) -> Connection:
        return Connection(self._listener.accept()[0])

    def close(self) -> None:
        self._listener.close()


class Device:
    """A publisher on a thread of its own, and its reports."""

    def __init__(self, port: int, access: Access | None = None, loop: NetworkLoop | None = None) -> None:
        self.published: list[Reading] = []
        self.acknowledged: list[Reading] = []
        self.refused: list[Reading] = []
        self.lost = 0
        self.answered = threading.Semaphore(0)
        self._loop = loop or NetworkLoop()
        self.publisher = Publisher(
            "device",
            "127.0.0.1",
            port,
            window=4,
            max_waiting=100,
            loop=self._loop,
            on_published=self.published.append,
            on_acknowledged=lambda reading: self._note(self.acknowledged, reading),
            on_refused=lambda reading: self._note(self.refused, reading),
            on_connection_lost=self._note_lost,
            access=access or Access(),
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _note(self, answered: list[Reading], reading: Reading) -> None:
        answered.append(reading)
        self.answered.release()

    def _note_lost(self) -> None:
        self.lost += 1

    def start(self, *readings: Reading) -> None:
        self.publisher.start()
        for reading in readings:
            self._loop.post(lambda reading=reading: self.publisher.offer(reading))  # type: ignore[misc]  # binds it
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._loop.wake()
        self._thread.join()
        self.publisher.disconnect()
        self.publisher.join()
        self._loop.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._loop.run_once(TIMEOUT_S)


def reading(sequence: int, qos: int) -> Reading:
    return Reading("dev-1", "temperature", 1_700_000_000_000 + sequence, sequence, 20.0, qos)


def packet_id_of(publish: bytes) -> int:
    (topic_bytes,) = struct.unpack_from("!H", publish)
    (packet_id,) = struct.unpack_from("!H", publish, 2 + topic_bytes)
    return int(packet_id)


@pytest.fixture
def broker() -> Iterator[Broker]:
    listening = Broker()
    yield listening
    listening.close()


@pytest.fixture
def device(broker: Broker) -> Iterator[Device]:
    made = Device(broker.port)
    yield made
    made.stop()


def test_unacknowledged_publish_is_sent_again_with_its_packet_id_and_dup(broker: Broker, device: Device) -> None:
    device.start(reading(1, 1))
    first = broker.connection()
    first.accept(session_present=False)
    kind, flags, body = first.read()
    assert (kind, flags) == (PUBLISH, 0b0010)
    first.close()

    second = broker.connection()
    second.accept(session_present=True)
    again = second.read()

    assert again == (PUBLISH, 0b1010, body)
    assert device.lost == 1
    second.acknowledge(PUBACK, packet_id_of(body))
    second.close()


def test_released_message_is_never_published_again_however_often_connecting_fails(
    broker: Broker, device: Device
) -> None:
    device.start(reading(1, 2))
    first = broker.connection()
    first.accept(session_present=False)
    _, _, body = first.read()
    first.acknowledge(PUBREC, packet_id_of(body))
    assert first.read()[0] == PUBREL
    first.close()
    for _ in range(2):
        # The broker accepts the connection and closes it before CONNACK, as a server that dies while it starts.
        refused = broker.connection()
        assert refused.read()[0] == CONNECT
        refused.close()

    last = broker.connection()
    last.accept(session_present=True)
    kind, _, released = last.read()

    assert (kind, struct.unpack("!H", released)[0]) == (PUBREL, packet_id_of(body))
    assert device.lost == 1, "an attempt to connect that fails loses no connection"
    last.acknowledge(PUBCOMP, packet_id_of(body))
    last.close()


def test_no_more_than_the_window_is_unacknowledged(broker: Broker, device: Device) -> None:
    device.start(*(reading(number, 1) for number in range(6)))
    connection = broker.connection()
    connection.accept(session_present=False)
    ids = [packet_id_of(connection.read()[2]) for _ in range(4)]

    connection.acknowledge(PUBACK, ids[0])
    fifth = connection.read()

    assert fifth[0] == PUBLISH
    assert len(device.published) == 5
    assert device.acknowledged == [reading(0, 1)]
    connection.close()


def test_a_publish_refused_by_an_mqtt_5_server_is_reported_and_not_repeated(broker: Broker) -> None:
    five = Access(
        MQTTProtocolVersion.MQTTv5, username="devices", password="correct horse", user_properties=(("k", "v"),)
    )
    device = Device(broker.port, five)
    device.start(reading(1, 1), reading(2, 1), reading(3, 2), reading(4, 2))
    connection = broker.connection()
    try:
        connect = connection.accept(session_present=False)
        assert connect[6] == 5
        assert b"devices" in connect
        assert b"correct horse" in connect
        bodies = [connection.read()[2] for _ in range(4)]
        assert all(b"\x26\0\x01k\0\x01v" in body for body in bodies), "the user property"
        ids = [packet_id_of(body) for body in bodies]
        for packet_id, kind, reason in ((ids[0], PUBACK, 0), (ids[1], PUBACK, 0x97), (ids[2], PUBREC, 0x99)):
            connection.acknowledge(kind, packet_id, reason)
        connection.acknowledge(PUBREC, ids[3])
        kind, _, released = connection.read()
        assert (kind, packet_id_of(b"\0\0" + released)) == (PUBREL, ids[3]), "no PUBREL for what was refused"
        connection.acknowledge(PUBCOMP, ids[3], 0x92)
        for _ in range(4):
            assert device.answered.acquire(timeout=TIMEOUT_S)
    finally:
        connection.close()
        device.stop()
    assert device.acknowledged == [reading(1, 1), reading(4, 2)], "0x92: the message was released before"
    assert device.refused == [reading(2, 1), reading(3, 2)]


def test_server_that_is_away_holds_up_no_other_and_is_found_when_it_is_back(broker: Broker) -> None:
    away = Broker()
    away.close()
    loop = NetworkLoop()
    first, second = Device(away.port, loop=loop), Device(broker.port, loop=loop)
    first.publisher.start()
    second.start(reading(1, 1))
    connection = broker.connection()
    connection.accept(session_present=False)
    assert connection.read()[0] == PUBLISH

    back = Broker(away.port)
    found = back.connection()

    assert found.read()[0] == CONNECT
    for opened in (connection, found, back):
        opened.close()
    second.stop()
    first.publisher.disconnect()


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_devices_connect_over_tls_with_a_login_at_mosquitto(tmp_path: Path, version: str) -> None:
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    openssl(tmp_path, "req", "-x509", *new, *names, "-keyout", "key.pem", "-out", "ca.pem")
    (tmp_path / "word").write_text("correct horse\n")
    subprocess.run(["mosquitto_passwd", "-c", "-b", "users", "devices", "correct horse"], cwd=tmp_path, check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "conf").write_text(
        f"user root\nallow_anonymous false\npassword_file {tmp_path}/users\n"
        f"listener {port} 127.0.0.1\ncertfile {tmp_path}/ca.pem\nkeyfile {tmp_path}/key.pem\n"
    )
    # Debian installs it outside a normal user's PATH.
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    mosquitto = subprocess.Popen(["mosquitto", "-c", str(tmp_path / "conf")], env=environment)
    options = ["--port", str(port), "--mqtt-version", version, "--tls-ca", str(tmp_path / "ca.pem")]
    options += ["--username", "devices", "--password-file", str(tmp_path / "word"), "--connections", "2"]
    options += ["--devices", "4", "--rate", "50", "--duration", "1", "--qos", "1:1,2:1"]
    command = [sys.executable, "-m", "isotherm.simulators", "mqtt", *options, "--ledger", str(tmp_path / "ledger")]
    try:
        assert subprocess.run(command, timeout=120, check=False).returncode == 0
    finally:
        mosquitto.kill()
        mosquitto.wait()
    found = Counter(event["event"] for event in events(tmp_path / "ledger"))
    assert found["acknowledged"] == found["published"] > 0
