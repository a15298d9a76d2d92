"""TLS on the listener: the context from its files, and handshakes that fail counted and logged."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.settings import TlsSettings
from isotherm.servicekit import logs
from isotherm.servicekit.settings import SettingsError
from isotherm.servicekit.sparse_log import SparseLog

if TYPE_CHECKING:
    from isotherm.mqtt_proxy.server.connection import Connection
    from isotherm.mqtt_proxy.server.server import FrontDoor


_log = logs.logger(__name__)


def server_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """The listener's context; None without a certificate. Raises SettingsError when the files cannot be used."""
    if tls.certfile is None:
        return None
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.certfile, tls.keyfile)
        if tls.cafile is not None:
            context.load_verify_locations(tls.cafile)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise SettingsError([f"tls.certfile, tls.keyfile, tls.cafile: {error}"]) from None
    return context


def watch_handshakes(context: ssl.SSLContext, metrics: Metrics) -> None:
    """Count and log the handshakes that fail: the event loop closes their sockets without a word."""
    log = SparseLog(_log, "TLS handshakes failed")

    class Watched(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                reason = error.reason or type(error).__name__
                metrics.tls_failures[reason] += 1
                log(reason=reason)
                raise

    context.sslobject_class = Watched


class Handshakes:
    """The TLS handshakes of a listener. A socket has its place among `limits.connections` from its first moment on;
    at most `limits.tls_handshakes` are under way, and the others wait, all together no longer than the connect timeout.
    """

    def __init__(self, door: FrontDoor, context: ssl.SSLContext, connection: Callable[[], Connection]) -> None:
        self.door = door
        self._context = context
        self._connection = connection
        self._places = asyncio.Semaphore(door.limits.tls_handshakes)
        self._tasks: set[asyncio.Task[None]] = set()

    def socket(self) -> asyncio.Protocol:
        """What a new socket of the listener gets."""
        return _Socket(self)

    def begin(self, transport: asyncio.Transport, address: str) -> None:
        """A socket came that has its place."""
        task = asyncio.get_running_loop().create_task(self._shake(transport, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _shake(self, transport: asyncio.Transport, address: str) -> None:
        encrypted: asyncio.Transport | None = None
        timeout_s = self.door.limits.connect_timeout_ms / 1000
        try:
            # What fails was counted where it failed.
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(timeout_s), self._places:
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
                self.door.admission.leave(address, authenticated=False)
        if encrypted is not None:
            connection.connection_made(encrypted)


class _Socket(asyncio.Protocol):
    """A socket whose handshake has not begun; nothing is read of it."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        door, accepted = self._handshakes.door, cast(asyncio.Transport, transport)
        address: str = (transport.get_extra_info("peername") or ("",))[0]
        if door.draining or not door.admission.enter(address):
            accepted.abort()
            return
        accepted.pause_reading()
        self._handshakes.begin(accepted, address)
