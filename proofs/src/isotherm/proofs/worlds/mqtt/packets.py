"""The packets of a device, written from the standards and not with the server's codec (MQTT 3.1.1 and 5.0)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

CONNACK, PUBACK, PUBREC, PUBCOMP, PINGRESP, DISCONNECT = 2, 4, 5, 7, 13, 14

PINGREQ = b"\xc0\0"
GOODBYE = b"\xe0\0"


class Answer(NamedTuple):
    """A packet from the server. `packet_id` is 0 and `reason` success where the packet has none."""

    kind: int
    packet_id: int = 0
    reason: int = 0
    session_present: bool = False


def connect(client_id: str, *, version: int, clean: bool, keep_alive_s: int, expiry_s: int) -> bytes:
    """Return a CONNECT. Only version 5 has `expiry_s`, the session expiry interval."""
    properties = b"\5\x11" + struct.pack(">I", expiry_s) if version == 5 else b""
    flags = 2 if clean else 0
    return _packet(
        0x10, b"\0\4MQTT" + bytes((version, flags)) + struct.pack(">H", keep_alive_s) + properties + _text(client_id)
    )


def publish(topic: str, payload: bytes, *, version: int, qos: int, packet_id: int = 0, dup: bool = False) -> bytes:
    """Return a PUBLISH."""
    identifier = struct.pack(">H", packet_id) if qos else b""
    properties = b"\0" if version == 5 else b""
    return _packet(0x30 | qos << 1 | dup << 3, _text(topic) + identifier + properties + payload)


def release(packet_id: int) -> bytes:
    """Return a PUBREL."""
    return _packet(0x62, struct.pack(">H", packet_id))


def answers(data: bytearray) -> Iterator[Answer]:
    """Remove the complete packets from `data` and yield them."""
    while len(data) >= 2:
        length, at, shift = 0, 1, 0
        while True:
            if at == len(data):
                return
            byte = data[at]
            length |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if not byte & 0x80:
                break
        if len(data) < at + length:
            return
        kind, body = data[0] >> 4, bytes(data[at : at + length])
        del data[: at + length]
        yield _answer(kind, body)


def _answer(kind: int, body: bytes) -> Answer:
    if kind == CONNACK:
        return Answer(kind, reason=body[1], session_present=bool(body[0] & 1))
    if kind in (PUBACK, PUBREC, PUBCOMP):
        return Answer(kind, int.from_bytes(body[:2], "big"), body[2] if len(body) > 2 else 0)
    if kind == DISCONNECT:
        return Answer(kind, reason=body[0] if body else 0)
    if kind == PINGRESP:
        return Answer(kind)
    raise ValueError(f"a packet of type {kind} for a device that subscribes to nothing")


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def _packet(first: int, body: bytes) -> bytes:
    length, left = bytearray(), len(body)
    while True:
        left, low = divmod(left, 128)
        length.append(low | (0x80 if left else 0))
        if not left:
            return bytes((first, *length)) + body
