"""The TLS handshakes of the listener."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from isotherm.mqtt_proxy.server.connection import Connection
from isotherm.mqtt_proxy.server.server import Server


class TlsHandshakes:
    """Limits the concurrent TLS handshakes and creates a `connection` for each one.

    A socket counts against `limits.connections` from its first moment. At most `limits.tls_handshakes` handshakes run;
    the others wait. Waiting and handshake together take at most the connect timeout.
    """

    def __init__(self, server: Server, context: ssl.SSLContext, connection: Callable[[], Connection]) -> None:
        self.server = server
        self._context = context
        self._connection = connection
        self._slots = asyncio.Semaphore(server.limits.tls_handshakes)
        self._tasks: set[asyncio.Task[None]] = set()

    def socket(self) -> asyncio.Protocol:
        """Return the protocol of a new socket of the listener."""
        return _Socket(self)

    def begin(self, transport: asyncio.Transport, address: str) -> None:
        """Start the handshake of a socket that the connection limits have counted."""
        task = asyncio.get_running_loop().create_task(self._shake(transport, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _shake(self, transport: asyncio.Transport, address: str) -> None:
        encrypted: asyncio.Transport | None = None
        timeout_s = self.server.limits.connect_timeout_ms / 1000
        try:
            # A failure is counted where it happens.
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(timeout_s), self._slots:
                    connection = self._connection()
                    encrypted = await asyncio.get_running_loop().start_tls(
                        transport,
                        connection,
                        self._context,
                        server_side=True,
                        ssl_handshake_timeout=timeout_s,
                    )
        finally:
            if encrypted is None:
                transport.abort()
                self.server.connection_limits.leave(address, authenticated=False)
        if encrypted is not None:
            connection.connection_made(encrypted)


class _Socket(asyncio.Protocol):
    """A socket whose handshake has not begun. Nothing is read from it."""

    def __init__(self, handshakes: TlsHandshakes) -> None:
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server, accepted = self._handshakes.server, cast(asyncio.Transport, transport)
        address: str = (transport.get_extra_info("peername") or ("",))[0]
        if server.is_draining or not server.connection_limits.enter(address):
            accepted.abort()
            return
        accepted.pause_reading()
        self._handshakes.begin(accepted, address)
