"""Room in the system for datagrams that have not been read yet.

Notifications are not repeated: what finds the socket's buffer full is lost. The system's default holds some 280 small
ones, a quarter of a second of a thousand resources.
"""

from __future__ import annotations

import socket
from typing import Any

from isotherm.servicekit import logs

_log = logs.logger(__name__)


def widen(context: Any, size_bytes: int) -> None:
    """Have the UDP sockets of an aiocoap context hold so many bytes; says what the system gave if that is less."""
    for interface in context.request_interfaces:
        layer = getattr(getattr(interface, "token_interface", None), "message_interface", None)
        transport = getattr(layer, "transport", None) or getattr(getattr(layer, "_pool", None), "_transport", None)
        if transport is None:
            continue
        opened = transport.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)
        # Linux doubles what it is asked for, for its own bookkeeping, and shows the double.
        given = opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        if given < size_bytes:
            _log.warning("a smaller receive buffer than wanted", bytes=given, wanted=size_bytes, limit="rmem_max")
