"""Opens the sockets on which devices connect: MQTT over TCP, and over WebSocket where it has a port."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial

from isotherm.mqtt_proxy.balancers import TrustedBalancers
from isotherm.mqtt_proxy.sections.websocket import WebSocketSettings
from isotherm.mqtt_proxy.server.admission import Admission, MakeServed
from isotherm.mqtt_proxy.server.connection import Connection
from isotherm.mqtt_proxy.server.server import Server
from isotherm.mqtt_proxy.server.websocket_protocol import WebSocketProtocol
from isotherm.mqtt_proxy.settings import ListenerSettings, ProxySettings
from isotherm.servicekit import logs
from isotherm.servicekit.settings import SettingsError

_log = logs.logger(__name__)


async def open_listeners(server: Server, settings: ProxySettings, tls: ssl.SSLContext | None) -> list[asyncio.Server]:
    """Listen for `server`, with the context `tls` if there is one. Raises SettingsError for an address in use."""

    def connect(address: str | None) -> Connection:
        return Connection(server, address=address)

    def connect_websocket(address: str | None) -> WebSocketProtocol:
        return WebSocketProtocol(server, settings.websocket, connect(address))

    admission = Admission(server, tls)
    given: dict[str, tuple[ListenerSettings | WebSocketSettings, MakeServed]] = {
        "listener": (settings.listener, connect),
        "websocket": (settings.websocket, connect_websocket),
    }
    listeners: list[asyncio.Server] = []
    for name, (ours, make) in given.items():
        if ours.port is None:
            continue
        balancers = TrustedBalancers(ours.trusted_balancers) if ours.proxy_protocol else None
        accept: Callable[[], asyncio.BaseProtocol] = partial(make, None)
        if tls is not None or balancers is not None:
            accept = partial(admission.protocol, make, balancers)
        try:
            listener = await asyncio.get_running_loop().create_server(
                accept,
                ours.host,
                ours.port,
                backlog=settings.listener.backlog,
                reuse_port=settings.listener.reuse_port or None,
            )
        except OSError as error:
            for other in listeners:
                other.close()
            raise SettingsError([f"{name}.host, {name}.port: {ours.host}:{ours.port}: {error}"]) from None
        listeners.append(listener)
        _log.info(
            "listening",
            host=ours.host,
            port=listener.sockets[0].getsockname()[1],
            tls=tls is not None,
            websocket=name == "websocket",
            proxy_protocol=balancers is not None,
        )
    return listeners
