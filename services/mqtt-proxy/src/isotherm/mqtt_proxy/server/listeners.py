"""Opens the sockets on which devices connect: MQTT over TCP, and over WebSocket where it has a port."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial

from isotherm.mqtt_proxy.access.tls import watch_handshakes
from isotherm.mqtt_proxy.server.connection import Connection
from isotherm.mqtt_proxy.server.server import Server
from isotherm.mqtt_proxy.server.tls_handshakes import ServedSocket, TlsHandshakes
from isotherm.mqtt_proxy.server.websocket_protocol import WebSocketProtocol
from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.servicekit import logs
from isotherm.servicekit.settings import SettingsError

_log = logs.logger(__name__)


async def open_listeners(server: Server, settings: ProxySettings, tls: ssl.SSLContext | None) -> list[asyncio.Server]:
    """Listen for `server`, with the context `tls` if there is one. Raises SettingsError for an address in use."""
    connect: Callable[[], ServedSocket] = partial(Connection, server, is_counted=tls is not None)

    def connect_websocket() -> WebSocketProtocol:
        return WebSocketProtocol(server, settings.websocket, Connection(server, is_counted=tls is not None))

    handshakes = None
    if tls is not None:
        handshakes = TlsHandshakes(server, tls, watch_handshakes(tls, server.pipeline.metrics))
    listeners: list[asyncio.Server] = []
    for name, host, port, make in (
        ("listener", settings.listener.host, settings.listener.port, connect),
        ("websocket", settings.websocket.host, settings.websocket.port, connect_websocket),
    ):
        if port is None:
            continue
        accept: Callable[[], asyncio.BaseProtocol] = make if handshakes is None else partial(handshakes.protocol, make)
        try:
            listener = await asyncio.get_running_loop().create_server(
                accept,
                host,
                port,
                backlog=settings.listener.backlog,
                reuse_port=settings.listener.reuse_port or None,
            )
        except OSError as error:
            for other in listeners:
                other.close()
            raise SettingsError([f"{name}.host, {name}.port: {host}:{port}: {error}"]) from None
        listeners.append(listener)
        _log.info(
            "listening",
            host=host,
            port=listener.sockets[0].getsockname()[1],
            tls=tls is not None,
            websocket=name == "websocket",
        )
    return listeners
