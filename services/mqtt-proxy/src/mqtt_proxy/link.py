"""Messages between the supervisor and its processes: JSON arrays with their length before them, over a socket."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

from mqtt_proxy.sessions import StoredState

_LENGTH = struct.Struct(">I")


class Link:
    """One end. Both ends are the same program, so what arrives is trusted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Link:
        """The link over one end of a socket pair."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, kind: str, *values: object) -> None:
        """Send a message; a StoredState among its values is taken apart. Nothing happens when the other end is gone."""
        body = json.dumps([kind, *(_apart(value) for value in values)]).encode()
        if not self._writer.is_closing():
            self._writer.write(_LENGTH.pack(len(body)) + body)

    async def receive(self) -> tuple[str, list[Any]] | None:
        """The next message as (kind, values); None when the other end is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            kind, *values = json.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None
        return kind, values

    def close(self) -> None:
        """Close this end; what was sent still goes out."""
        self._writer.close()


def _apart(value: object) -> object:
    if isinstance(value, StoredState):
        return [value.epoch, value.expiry_s, value.expires_at_ms, [*value.committed.items()]]
    return value


def to_state(value: list[Any] | None) -> StoredState | None:
    """A StoredState that was sent, or None."""
    if value is None:
        return None
    epoch, expiry_s, expires_at_ms, committed = value
    return StoredState(epoch, expiry_s, expires_at_ms, dict(committed))
