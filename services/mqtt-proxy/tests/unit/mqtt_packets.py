"""Packets as bytes, and a connection that a test drives, for the tests of the protocol."""

from __future__ import annotations

import struct

from isotherm.mqtt_proxy.codec.packets import Connect
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.protocol.events import ConnectionState, Event, Failure
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol
from isotherm.mqtt_proxy.protocol.topic_aliases import TopicAliases

MAX_PACKET_BYTES = 1_000


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def varint(value: int) -> bytes:
    out = bytearray()
    while True:
        value, low = divmod(value, 128)
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def packet(first: int, body: bytes = b"") -> bytes:
    return bytes((first,)) + varint(len(body)) + body


def connect_packet(
    client_id: str = "c",
    *,
    version: int = 4,
    flags: int = 2,
    keep_alive: int = 60,
    after: bytes = b"",
    name: str = "MQTT",
    properties: bytes | None = None,
) -> bytes:
    if properties is None:
        properties = b"\0" if version == 5 else b""
    return packet(
        0x10,
        text(name) + bytes((version, flags)) + struct.pack(">H", keep_alive) + properties + text(client_id) + after,
    )


def publish_packet(
    topic: str, payload: bytes, *, flags: int = 0, packet_id: int | None = None, properties: bytes = b""
) -> bytes:
    identifier = b"" if packet_id is None else struct.pack(">H", packet_id)
    return packet(0x30 | flags, text(topic) + identifier + properties + payload)


def events_of(protocol: ServerProtocol, data: bytes) -> list[Event]:
    protocol.feed(data)
    events = []
    while (event := protocol.next_event()) is not None:
        events.append(event)
    return events


def connected(version: int = 4, *, aliases: int = 0) -> ServerProtocol:
    protocol = ServerProtocol(max_packet_bytes=MAX_PACKET_BYTES, topic_aliases=TopicAliases(aliases))
    (event,) = events_of(protocol, connect_packet(version=version))
    assert isinstance(event, Connect)
    protocol.accept(session_present=False)
    protocol.take_outgoing()
    return protocol


def failure_of(protocol: ServerProtocol, data: bytes) -> Reason:
    event = events_of(protocol, data)[-1]
    assert isinstance(event, Failure)
    assert protocol.state is ConnectionState.CLOSED
    return event.reason
