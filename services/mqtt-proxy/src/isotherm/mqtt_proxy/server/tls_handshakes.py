"""The TLS handshakes of the listeners."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import cast

from isotherm.mqtt_proxy.server.connection import Connection
from isotherm.mqtt_proxy.server.server import Server
from isotherm.mqtt_proxy.server.websocket_protocol import WebSocketProtocol

ServedSocket = Connection | WebSocketProtocol
"""What serves a socket after its TLS handshake."""


class TlsHandshakes:
    """Limits the concurrent TLS handshakes of all listeners.

    A socket counts against `limits.connections` from its first moment. At most `limits.tls_handshakes` handshakes run;
    the others wait. Waiting and handshake together take at most the connect timeout; `on_failure` is called with the
    reason when that is over.
    """

    def __init__(
        self,
        server: Server,
        context: ssl.SSLContext,
        on_failure: Callable[[str], None],
    ) -> None:
        self.server = server
        self._context = context
        self._on_failure = on_failure
        self._slots = asyncio.Semaphore(server.limits.tls_handshakes)
        self._tasks: set[asyncio.Task[None]] = set()

    def protocol(self, make: Callable[[], ServedSocket]) -> asyncio.Protocol:
        """Return the protocol of a new socket of a listener; `make` makes what serves it after its handshake."""
        return _Socket(self, make)

    def begin(self, accepted: socket.socket, address: str, served: ServedSocket) -> None:
        """Start the handshake of a socket that the connection limits have counted. Nothing was read from it."""
        task = asyncio.get_running_loop().create_task(self._shake(accepted, address, served))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _shake(self, accepted: socket.socket, address: str, served: ServedSocket) -> None:
        timeout_s = self.server.limits.connect_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: served, accepted, ssl=self._context, ssl_handshake_timeout=timeout_s
                )
        except (TimeoutError, ConnectionAbortedError):
            # uvloop raises the second one when its own timer is first.
            self._on_failure("HANDSHAKE_TIMEOUT")
        except OSError:
            # The peer is gone, or the context has counted a failure of TLS.
            pass
        finally:
            if not served.was_made:
                accepted.close()
                self.server.connection_limits.leave(address, authenticated=False)


class _Socket(asyncio.Protocol):
    """A socket of the listener, which is given away before anything is read from it.

    uvloop starts to read after `connection_made`, also when that pauses reading. So the transport of the listener is
    ended here, and the handshake gets a duplicate of its socket. Else a client's first bytes would be lost when they
    come before the handshake begins.
    """

    def __init__(self, handshakes: TlsHandshakes, make: Callable[[], ServedSocket]) -> None:
        self._handshakes = handshakes
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server, accepted = self._handshakes.server, cast(asyncio.Transport, transport)
        address: str = (transport.get_extra_info("peername") or ("",))[0]
        if not server.is_draining and server.connection_limits.enter(address):
            try:
                self._handshakes.begin(accepted.get_extra_info("socket").dup(), address, self._make())
            except OSError:
                # No descriptor is left.
                server.connection_limits.leave(address, authenticated=False)
        accepted.abort()
