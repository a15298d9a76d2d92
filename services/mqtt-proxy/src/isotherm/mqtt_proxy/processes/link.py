"""Messages between the supervisor and its processes: length-prefixed JSON arrays over a socket pair."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
from typing import Any

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import WILL, decode_all, encode
from isotherm.mqtt_proxy.sessions.store import StoredState

_LENGTH = struct.Struct(">I")


class Link:
    """One end of the link. Both ends run the same program, so the messages are trusted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Link:
        """Return a link over one end of a socket pair."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, kind: str, *values: object) -> None:
        """Send a message, unless the other end is gone. A StoredState among `values` is encoded."""
        body = json.dumps([kind, *(encode_value(value) for value in values)]).encode()
        if not self._writer.is_closing():
            self._writer.write(_LENGTH.pack(len(body)) + body)

    async def receive(self) -> tuple[str, list[Any]] | None:
        """Return the next message as (kind, values); None when the other end is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            kind, *values = json.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None
        return kind, values

    def close(self) -> None:
        """Close this end after everything sent has left."""
        self._writer.close()


def encode_value(value: object) -> object:
    """Return `value` as JSON can carry it: a StoredState as a list, any other value unchanged."""
    if isinstance(value, StoredState):
        return [
            value.epoch,
            value.expiry_s,
            value.expires_at_ms,
            [*value.committed.items()],
            value.username,
            None if value.will is None else _encode_will(value.will),
            value.will_due_ms,
        ]
    return value


def _encode_will(will: Publish) -> list[object]:
    binary = [base64.b64encode(part).decode() for part in (will.payload, encode(will.properties))]
    return [will.topic, will.qos, will.retain, *binary]


def _decode_will(value: list[Any] | None) -> Publish | None:
    if value is None:
        return None
    topic, qos, retain, payload, properties = value
    return Publish(
        topic, base64.b64decode(payload), qos, retain, properties=decode_all(base64.b64decode(properties), WILL)
    )


def decode_state(value: list[Any] | None) -> StoredState | None:
    """Return the StoredState that `encode_value` encoded, or None."""
    if value is None:
        return None
    epoch, expiry_s, expires_at_ms, committed, username, will, will_due_ms = value
    return StoredState(
        epoch,
        expiry_s,
        expires_at_ms,
        dict(committed),
        username=username,
        will=_decode_will(will),
        will_due_ms=will_due_ms,
    )
