"""Devices for the proxy's tests: one that a test drives byte by byte, and groups that reconnect and resend."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, takewhile

from mqtt_world import WAIT_S, Proxy, wait_until

PUBACK, PUBREC, PUBREL, PUBCOMP = 4, 5, 6, 7
_WINDOW = 10
_RETRY_S = 0.2


def text(data: bytes) -> bytes:
    """Bytes with their length in front, as MQTT writes texts."""
    return struct.pack(">H", len(data)) + data


def packet(first: int, body: bytes) -> bytes:
    """A control packet."""
    length, size = bytearray(), len(body)
    while size > 127:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((first, *length, size)) + body


def connect_packet(
    client_id: str,
    *,
    version: int = 4,
    clean: bool = False,
    keep_alive_s: int = 0,
    will: bytes = b"",
    will_qos: int = 1,
    will_properties: bytes = b"",
    properties: bytes = b"",
    username: str | None = None,
    password: bytes | None = None,
) -> bytes:
    """A CONNECT; `will` is the will's topic and payload, each with its length. Properties are without their length."""
    flags = (2 if clean else 0) | (4 | will_qos << 3 if will else 0)
    flags |= (0 if username is None else 0x80) | (0 if password is None else 0x40)
    body = text(b"MQTT") + bytes((version, flags)) + struct.pack(">H", keep_alive_s)
    body += bytes((len(properties),)) + properties if version == 5 else b""
    body += text(client_id.encode())
    body += bytes((len(will_properties),)) + will_properties if will and version == 5 else b""
    body += will
    body += b"" if username is None else text(username.encode())
    body += b"" if password is None else text(password)
    return packet(0x10, body)


def publish_packet(
    topic: str, payload: bytes, packet_id: int, *, qos: int = 2, dup: bool = False, version: int = 4
) -> bytes:
    """A PUBLISH; MQTT 5 without properties."""
    identifier = struct.pack(">H", packet_id) if qos else b""
    properties = b"\0" if version == 5 else b""
    return packet(0x30 | qos << 1 | (8 if dup else 0), text(topic.encode()) + identifier + properties + payload)


class Wire:
    """A device that sends byte by byte, so that a test can stop in the middle of a handshake."""

    def __init__(self, proxy: Proxy, client_id: str, *, version: int = 4, **more: object) -> None:
        self._version = version
        self.socket = self._open(proxy)
        proxy.at_end.callback(self.close)
        self.send(connect_packet(client_id, version=version, **more))  # type: ignore[arg-type]  # passed on as given
        kind, self.connack = self.packet()
        assert kind == 0x20, (kind, self.connack)
        self.reason = self.connack[1]
        self.session_present = bool(self.connack[0])

    def _open(self, proxy: Proxy) -> socket.socket:
        return socket.create_connection((proxy.host, proxy.port), timeout=WAIT_S)

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def publish(self, device: str, value: float, packet_id: int, *, qos: int = 2, dup: bool = False) -> None:
        """Publish a temperature."""
        topic = f"devices/{device}/temperature"
        self.send(publish_packet(topic, b'{"t": %r}' % value, packet_id, qos=qos, dup=dup, version=self._version))

    def release(self, packet_id: int) -> None:
        """Send a PUBREL."""
        self.send(b"\x62\x02" + struct.pack(">H", packet_id))

    def receive(self, length: int) -> bytes:
        """Exactly so many bytes, or what came before the end."""
        data = b""
        while len(data) < length and (more := self.socket.recv(length - len(data))):
            data += more
        return data

    def packet(self) -> tuple[int, bytes]:
        """The next packet: first byte and body (shorter than 128 bytes); zero and nothing at the end."""
        head = self.receive(2)
        return (head[0], self.receive(head[1])) if len(head) == 2 else (0, b"")

    def expect(self, packet_type: int, packet_id: int) -> None:
        """The next packet is this answer, and successful."""
        assert self.receive(4) == bytes((packet_type << 4, 2)) + struct.pack(">H", packet_id)

    def expect_reason(self, packet_type: int, packet_id: int, reason: int) -> None:
        """The next packet is this MQTT 5 answer with this reason."""
        assert self.packet() == (packet_type << 4, struct.pack(">HB", packet_id, reason))

    def is_closed_by_the_proxy(self) -> bool:
        """Whether the connection ends without another packet."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        """Close the socket without DISCONNECT."""
        self.socket.close()


def take_over_half_open(old_at: Proxy, new_at: Proxy, device: str, number: int) -> tuple[Wire, Wire, list[float]]:
    """Publish twice at QoS 2 on a connection that breaks unnoticed, and finish both publishes on another one.

    Returns the old connection, which is still open, the new one, and the two values, which begin with `number`. The
    session is new with the number 0.
    """
    values = [number + 0.25, number + 0.5]
    old = Wire(old_at, device)
    assert old.session_present == (number > 0)
    old.publish(device, values[0], 1)
    old.expect(PUBREC, 1)
    old.publish(device, values[1], 2)
    # The link breaks here: the device knows nothing of the second publish and does not say goodbye.
    new = Wire(new_at, device)
    assert new.session_present
    for packet_id, value in enumerate(values, 1):
        new.publish(device, value, packet_id, dup=True)
        new.expect(PUBREC, packet_id)
    for packet_id in (1, 2):
        new.release(packet_id)
        new.expect(PUBCOMP, packet_id)
    return old, new, values


class DeviceGroup:
    """Devices on one event loop in a thread of its own. Each publishes numbered readings, at most ten unfinished at a
    time, reconnects as often as it takes, and then resends what is unfinished in its order (3.1.1 section 4.4).

    Without a number of `messages` each publishes on until `finish`. With a pause each waits so long after ten of them.
    """

    def __init__(
        self, proxy: Proxy, name: str, *, devices: int, messages: int | None, qos: int, pause_s: float = 0.0
    ) -> None:
        names = [f"{name}-{index}" for index in range(devices)]
        self.published = {(device, number) for device in names for number in range(messages or 0)}
        self.pause_s = pause_s
        self._is_finishing = False
        self.acknowledged: set[tuple[str, int]] = set()
        self.lost_sessions: list[str] = []
        self.on_accepted: Callable[[str, int], None] = lambda _device, _port: None
        """Is called with the name and the own port of each device whose connection the server accepted."""
        self._stop = threading.Event()
        self._devices = [_Device(self, proxy.port, device, messages, qos) for device in names]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    def progress(self) -> float:
        """The share of all readings that is acknowledged: PUBACK or PUBREC came."""
        return len(self.acknowledged) / len(self.published)

    def numbers(self, messages: int | None) -> Iterator[int]:
        """The numbers of what a device publishes."""
        return iter(range(messages)) if messages is not None else takewhile(lambda _: not self._is_finishing, count())

    def finish(self, limit_s: float = WAIT_S) -> None:
        """Wait until every handshake is finished."""
        self._is_finishing = True
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), f"{len(self.acknowledged)} of {len(self.published)} acknowledged"
        assert self.lost_sessions == [], "the proxy forgot sessions that it had promised to keep"

    def abandon(self) -> None:
        """End all devices where they are."""
        self._stop.set()
        self._thread.join(WAIT_S)

    async def _run(self) -> None:
        devices = asyncio.gather(*(device.run() for device in self._devices))
        while not devices.done() and not self._stop.is_set():
            await asyncio.wait([devices], timeout=0.1)
        if not devices.done():
            devices.cancel()
        await asyncio.gather(devices, return_exceptions=self._stop.is_set())


@contextmanager
def under_load(proxy: Proxy, *, messages: int) -> Iterator[Callable[[float], None]]:
    """100 devices at QoS 1 and 100 at QoS 2, each with so many messages; what is yielded waits until a share of all of
    them is acknowledged. Afterwards all are, and the topic holds each, those of QoS 2 exactly once.
    """
    groups = [DeviceGroup(proxy, f"{proxy.device}-{qos}", devices=100, messages=messages, qos=qos) for qos in (1, 2)]

    def until_acknowledged(share: float) -> None:
        wait_until("the load flows", lambda: all(group.progress() >= share for group in groups))

    try:
        yield until_acknowledged
        for group in groups:
            group.finish(2 * WAIT_S)
    finally:
        for group in groups:
            group.abandon()
    at_least_once, exactly_once = groups
    assert at_least_once.acknowledged == at_least_once.published
    assert set(proxy.topics.identities(f"{proxy.device}-1")) == at_least_once.published
    assert proxy.topics.identities(f"{proxy.device}-2") == Counter(exactly_once.published)


class _Device:
    """One of a group."""

    def __init__(self, group: DeviceGroup, port: int, name: str, messages: int | None, qos: int) -> None:
        self._group = group
        self._port = port
        self._name = name
        self._waiting = group.numbers(messages)
        self._qos = qos
        self._was_accepted = False
        # Number by packet identifier in order of publishing; identifiers whose PUBREL was sent.
        self._unfinished: dict[int, int] = {}
        self._released: set[int] = set()
        self._packet_id = 0

    async def run(self) -> None:
        done = False
        while not done:
            try:
                done = await self._connection()
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(_RETRY_S)

    async def _connection(self) -> bool:
        """True when everything is finished."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(connect_packet(self._name))
            answer = await reader.readexactly(4)
            if answer[3]:
                await asyncio.sleep(_RETRY_S)
                return False
            if self._was_accepted and not answer[2]:
                self._group.lost_sessions.append(self._name)
            self._was_accepted = True
            self._group.on_accepted(self._name, writer.get_extra_info("sockname")[1])
            for packet_id in self._unfinished:
                self._send(writer, packet_id, dup=True)
            while await self._fill(writer):
                head = await reader.readexactly(4)
                self._answered(writer, head[0] >> 4, head[2] << 8 | head[3])
            return True
        finally:
            writer.close()

    async def _fill(self, writer: asyncio.StreamWriter) -> bool:
        if self._group.pause_s:
            if self._unfinished:
                return True
            await asyncio.sleep(self._group.pause_s)
        while len(self._unfinished) < _WINDOW and (number := next(self._waiting, None)) is not None:
            self._packet_id = self._packet_id % 65_535 + 1
            self._unfinished[self._packet_id] = number
            self._group.published.add((self._name, number))
            self._send(writer, self._packet_id, dup=False)
        return bool(self._unfinished)

    def _send(self, writer: asyncio.StreamWriter, packet_id: int, *, dup: bool) -> None:
        if packet_id in self._released:
            writer.write(b"\x62\x02" + struct.pack(">H", packet_id))
            return
        number = self._unfinished[packet_id]
        payload = {"id": self._name, "t": 20.0, "sequence": number, "event_time": 1767225600000 + number}
        topic = f"devices/{self._name}/temperature"
        writer.write(publish_packet(topic, json.dumps(payload).encode(), packet_id, qos=self._qos, dup=dup))

    def _answered(self, writer: asyncio.StreamWriter, packet_type: int, packet_id: int) -> None:
        if packet_type in (PUBACK, PUBREC):
            self._group.acknowledged.add((self._name, self._unfinished[packet_id]))
        if packet_type == PUBREC:
            self._released.add(packet_id)
            self._send(writer, packet_id, dup=False)
        else:
            del self._unfinished[packet_id]
            self._released.discard(packet_id)
