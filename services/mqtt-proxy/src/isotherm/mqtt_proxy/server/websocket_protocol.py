"""Carries a connection over a WebSocket: the transport that a connection sees, and the protocol that a socket sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.protocol.websocket import End, Received, WebSocket
from isotherm.mqtt_proxy.sections.websocket import WebSocketSettings
from isotherm.mqtt_proxy.server.connection import Connection
from isotherm.mqtt_proxy.server.server import Server

_CLOSE_TIMEOUT_S = 2.0
"""How long the client may take to answer our Close frame before its socket is closed."""
_FREE_BYTES = 2_048
"""Bytes of a handshake or of unread frames that every connection may buffer, also beyond the bound on all of them."""


class WebSocketTransport(asyncio.Transport):
    """The transport of a connection: what it writes becomes frames, and closing begins with a Close frame.

    `read_on` is called when the connection reads again.
    """

    def __init__(self, socket: WebSocket, transport: asyncio.Transport, read_on: Callable[[], None]) -> None:
        super().__init__()
        self._socket = socket
        self._transport = transport
        self._read_on = read_on
        self.is_paused = False
        """Whether the connection wants nothing to be read."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the transport below knows."""
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Return whether nothing more is sent."""
        return self._transport.is_closing() or self._socket.is_closing

    def write(self, data: Any) -> None:
        """Send bytes as one frame; nothing when the WebSocket is not open."""
        if frame := self._socket.wrap(bytes(data)):
            self._transport.write(frame)

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        self.is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        self.is_paused = False
        self._read_on()

    def close(self) -> None:
        """Close the socket after the closing handshake, which begins here when the WebSocket is open."""
        if not (frame := self._socket.close()):
            self._transport.close()
            return
        self._transport.write(frame)
        self.resume_reading()
        asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT_S, self._transport.close)

    def abort(self) -> None:
        """Close the socket at once."""
        self._transport.abort()


class WebSocketProtocol(asyncio.BufferedProtocol):
    """A socket of the WebSocket listener. Limits and timeouts of its `connection` hold from the first byte on."""

    def __init__(self, server: Server, settings: WebSocketSettings, connection: Connection) -> None:
        self._server = server
        self._connection = connection
        self._socket = WebSocket(settings.origins, settings.message_bytes)
        self._transport: asyncio.Transport | None = None
        self._framed: WebSocketTransport | None = None
        self._turn: asyncio.Handle | None = None
        """The turn of the loop that will read the next frames."""
        self._charged = 0

    @property
    def was_made(self) -> bool:
        """Whether the socket was opened, after its TLS handshake if there is one."""
        return self._connection.was_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the open socket, or abort it when a limit is reached."""
        self._transport = cast(asyncio.Transport, transport)
        self._framed = WebSocketTransport(self._socket, self._transport, self._plan_reading)
        self._connection.connection_made(self._framed)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes, which all connections share and each one empties at once."""
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle `nbytes` bytes in the shared buffer."""
        self.data_received(bytes(self._server.read_buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client: so many frames in this turn of the loop, and the others in the next ones."""
        assert self._transport is not None
        received = self._socket.receive(data)
        if self._socket.has_more:
            self._transport.pause_reading()
            self._plan_reading()
        self._handle(received)

    def _plan_reading(self) -> None:
        """Read the frames that are there in the next turn, so that other connections have theirs; then the socket."""
        assert self._transport is not None
        if not self._socket.has_more:
            self._transport.resume_reading()
        elif self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._read_frames)

    def _read_frames(self) -> None:
        self._turn = None
        assert self._framed is not None
        assert self._transport is not None
        if self._framed.is_paused or self._transport.is_closing():
            return
        received = self._socket.read_on()
        self._plan_reading()
        self._handle(received)

    def _handle(self, received: Received) -> None:
        assert self._transport is not None
        self._charge()
        if received.answer:
            self._transport.write(received.answer)
        if received.mqtt:
            self._connection.data_received(received.mqtt)
        if received.end in (End.REFUSED, End.FAILED):
            self._count_attempt(received.end)
            self._connection.close(Reason.PROTOCOL_ERROR, f"WebSocket: {received.detail}")
            self._transport.close()
        elif received.end is End.CLOSED and not self._connection.eof_received():
            self._transport.close()

    def _count_attempt(self, end: End) -> None:
        """Count a WebSocket that fails before MQTT has accepted the client or ended the connection."""
        if not (self._connection.was_accepted or self._connection.ended):
            outcome = "WebSocket refused" if end is End.REFUSED else Reason.PROTOCOL_ERROR.words
            self._server.pipeline.metrics.connection_attempts[outcome] += 1

    def eof_received(self) -> bool:
        """Keep the socket open while the connection holds events."""
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Read again, because the client reads."""
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection, whoever closed its socket."""
        if self._turn is not None:
            self._turn.cancel()
        self._server.buffered_bytes -= self._charged
        self._charged = 0
        self._connection.connection_lost(exc)

    def _charge(self) -> None:
        """Count bytes of an incomplete handshake and unread frames; end the connection beyond the bound on all."""
        size = self._socket.buffered
        self._server.buffered_bytes += size - self._charged
        self._charged = size
        if size > _FREE_BYTES and self._server.buffered_bytes > self._server.limits.buffered_bytes:
            self._server.pipeline.metrics.connection_attempts["too many bytes buffered"] += 1
            self._connection.close(Reason.QUOTA_EXCEEDED, "all connections together buffer too much")
