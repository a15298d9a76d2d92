"""Messages between the supervisor and its processes: length-prefixed JSON arrays over a socket pair."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

from isotherm.mqtt_proxy.sessions.state_json import encode_state
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
    return encode_state(value) if isinstance(value, StoredState) else value
