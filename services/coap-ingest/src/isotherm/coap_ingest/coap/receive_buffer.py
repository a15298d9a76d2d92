"""The size of the sockets' receive buffers.

Nobody sends a lost notification again, and the system drops datagrams that find the buffer full. Linux's default holds
about 280 small datagrams, a quarter of a second of a thousand resources.
"""

from __future__ import annotations

import socket
from typing import Any

from isotherm.servicekit import logs

_log = logs.logger(__name__)


def enlarge(context: Any, size_bytes: int) -> None:
    """Set the receive buffer of every UDP socket of an aiocoap context; log a warning when the system gives less."""
    for interface in context.request_interfaces:
        layer = getattr(getattr(interface, "token_interface", None), "message_interface", None)
        transport = getattr(layer, "transport", None) or getattr(getattr(layer, "_pool", None), "_transport", None)
        if transport is None:
            continue
        opened = transport.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)
        # Linux doubles the requested size for its own bookkeeping, and reports the double.
        given = opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        if given < size_bytes:
            _log.warning("receive buffer smaller than requested", bytes=given, requested=size_bytes, limit="rmem_max")
