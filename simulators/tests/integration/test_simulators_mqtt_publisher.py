"""The publisher against a broker of a few lines that cuts connections exactly where it hurts."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from simulators.mqtt.devices import Reading
from simulators.mqtt.publisher import Publisher

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
        """Type, flags and body of the next packet."""
        first, length, shift = self._stream.read(1)[0], 0, 0
        while True:
            byte = self._stream.read(1)[0]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return first >> 4, first & 0x0F, self._stream.read(length)

    def accept(self, *, session_present: bool) -> None:
        assert self.read()[0] == CONNECT
        self._socket.sendall(bytes((CONNACK << 4, 2, session_present, 0)))

    def acknowledge(self, kind: int, packet_id: int) -> None:
        self._socket.sendall(struct.pack("!BBH", kind << 4, 2, packet_id))

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


class Broker:
    """Listens; connections are taken one by one by the test."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(TIMEOUT_S)
        self.port: int = self._listener.getsockname()[1]

    def connection(self) -> Connection:
        return Connection(self._listener.accept()[0])

    def close(self) -> None:
        self._listener.close()


class Device:
    """A publisher whose thread is ours, and what it reported."""

    def __init__(self, port: int) -> None:
        self.published: list[Reading] = []
        self.acknowledged: list[Reading] = []
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.publisher = Publisher(
            "device",
            "127.0.0.1",
            port,
            window=4,
            max_waiting=100,
            post=self._inbox.put,
            on_published=self.published.append,
            on_acknowledged=self.acknowledged.append,
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self, *readings: Reading) -> None:
        self.publisher.start()
        self._thread.start()
        for reading in readings:
            self._inbox.put(lambda reading=reading: self.publisher.offer(reading))  # type: ignore[misc]  # binds it

    def stop(self) -> None:
        self._stopped.set()
        self._inbox.put(lambda: None)
        self._thread.join()
        self.publisher.disconnect()
        self.publisher.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._inbox.get()()


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
        # The connection is taken and lost before CONNACK, as when a server dies while it starts.
        refused = broker.connection()
        assert refused.read()[0] == CONNECT
        refused.close()

    last = broker.connection()
    last.accept(session_present=True)
    kind, _, released = last.read()

    assert (kind, struct.unpack("!H", released)[0]) == (PUBREL, packet_id_of(body))
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
