"""What comes before MQTT on a socket of a listener: the PROXY header of a balancer, and the TLS handshake."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import cast

from isotherm.mqtt_proxy.access.tls import watch_handshakes
from isotherm.mqtt_proxy.balancers import TrustedBalancers
from isotherm.mqtt_proxy.protocol.proxy_header import ProxyFault, ProxyHeader, ProxyHeaderError
from isotherm.mqtt_proxy.server.connection import Connection
from isotherm.mqtt_proxy.server.server import Server
from isotherm.mqtt_proxy.server.tcp import peer_address
from isotherm.mqtt_proxy.server.websocket_protocol import WebSocketProtocol
from isotherm.servicekit import logs
from isotherm.servicekit.throttling.sparse_log import SparseLog

_log = logs.logger(__name__)

ServedSocket = Connection | WebSocketProtocol
"""What serves a socket after its admission."""
MakeServed = Callable[[str | None], ServedSocket]
"""Makes what serves a socket, of the client's address if the connection limits have counted it."""


class Admission:
    """Reads the PROXY headers and does the TLS handshakes of all listeners, within bounds.

    A socket counts against `limits.connections` from its first moment, and against the bound of its client's address
    as soon as that is known. At most `limits.tls_handshakes` handshakes run; the others wait. A header takes at most
    the connect timeout, and so do waiting and handshake together.
    """

    def __init__(self, server: Server, context: ssl.SSLContext | None) -> None:
        self._server = server
        self._limits = server.connection_limits
        self._metrics = server.pipeline.metrics
        self._context = context
        self._count_tls_failure = None if context is None else watch_handshakes(context, self._metrics)
        self._log_refused = SparseLog(_log, "connections to a PROXY protocol listener were refused")
        self._timeout_s = server.limits.connect_timeout_ms / 1000
        self._slots = asyncio.Semaphore(server.limits.tls_handshakes)
        self._tasks: set[asyncio.Task[None]] = set()

    def protocol(self, make: MakeServed, balancers: TrustedBalancers | None) -> asyncio.Protocol:
        """Return the protocol of a new socket of a listener, which with `balancers` expects a PROXY header."""
        return _Socket(self, make, balancers)

    def begin(self, transport: asyncio.BaseTransport, make: MakeServed, balancers: TrustedBalancers | None) -> None:
        """Admit a duplicate of the socket of `transport`, from which nothing was read, unless a limit is reached."""
        peer = peer_address(transport)
        if balancers is not None and not balancers.contain(peer):
            self._refuse(ProxyFault.UNTRUSTED, peer, "the address is in none of trusted_balancers")
            return
        # A balancer's address is that of many clients, and must not count as one.
        address = peer if balancers is None else None
        if self._server.is_draining or not self._limits.enter(address):
            return
        try:
            accepted = transport.get_extra_info("socket").dup()
        except OSError:
            self._metrics.connection_attempts["no descriptor is left"] += 1
            self._limits.leave(address, authenticated=False)
            return
        task = asyncio.get_running_loop().create_task(self._admit(accepted, make, peer, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _admit(self, accepted: socket.socket, make: MakeServed, peer: str, address: str | None) -> None:
        """Serve a socket, which the limits have counted for `address`, or for none when a header names the client."""
        served: ServedSocket | None = None
        try:
            if address is None:
                address = await self._read_header(accepted, peer)
            if address is not None:
                served = make(address)
                await self._open(accepted, served)
        finally:
            if served is None or not served.was_made:
                accepted.close()
                self._limits.leave(address, authenticated=False)

    async def _read_header(self, accepted: socket.socket, peer: str) -> str | None:
        """Return the client's address after the limits have counted it; None when the socket is refused or gone."""
        header, loop = ProxyHeader(), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                while header.needed:
                    # Not a byte more: what follows stays in the socket for TLS or MQTT.
                    header.feed(await loop.sock_recv(accepted, header.needed))
        except ProxyHeaderError as error:
            # Balancers also look whether a port is open, and send nothing then.
            if header.received:
                self._refuse(error.fault, peer, str(error))
            return None
        except TimeoutError:
            self._refuse(ProxyFault.LATE, peer, f"{header.needed} bytes or more are missing")
            return None
        except OSError:
            # The peer is gone.
            return None
        client = header.client or peer
        return client if self._limits.assign(client) else None

    async def _open(self, accepted: socket.socket, served: ServedSocket) -> None:
        """Let `served` have the socket, after the TLS handshake if there is one."""
        loop = asyncio.get_running_loop()
        try:
            if self._context is None:
                await loop.connect_accepted_socket(lambda: served, accepted)
                return
            async with asyncio.timeout(self._timeout_s), self._slots:
                await loop.connect_accepted_socket(
                    lambda: served, accepted, ssl=self._context, ssl_handshake_timeout=self._timeout_s
                )
        except (TimeoutError, ConnectionAbortedError):
            # uvloop raises the second one when its own timer is first.
            if self._count_tls_failure is not None:
                self._count_tls_failure("HANDSHAKE_TIMEOUT")
        except OSError:
            # The peer is gone, or the context has counted a failure of TLS.
            pass

    def _refuse(self, fault: ProxyFault, peer: str, detail: str) -> None:
        self._metrics.connection_attempts[fault.value] += 1
        self._log_refused(reason=fault.value, address=peer, detail=detail)


class _Socket(asyncio.Protocol):
    """A socket of the listener, which is given away before anything is read from it.

    uvloop starts to read after `connection_made`, also when that pauses reading. So the transport of the listener is
    ended here, and the admission gets a duplicate of its socket. Else a client's first bytes would be lost when they
    come before the handshake begins.
    """

    def __init__(self, admission: Admission, make: MakeServed, balancers: TrustedBalancers | None) -> None:
        self._admission = admission
        self._make = make
        self._balancers = balancers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._admission.begin(transport, self._make, self._balancers)
        cast(asyncio.Transport, transport).abort()
