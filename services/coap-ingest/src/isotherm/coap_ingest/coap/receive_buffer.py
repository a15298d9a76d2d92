"""The size of the sockets' receive buffers, and the datagrams that found them full.

Nobody sends a lost notification again, and the system drops datagrams that find the buffer full. Linux's default holds
about 280 small datagrams, a quarter of a second of a thousand resources.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

from isotherm.servicekit import logs

_log = logs.logger(__name__)

_SO_MEMINFO = 55
"""Linux's include/uapi/asm-generic/socket.h; Python has no name for it."""
_MEMINFO = struct.Struct("=9I")
_DROPS = 8
"""SK_MEMINFO_DROPS of include/uapi/linux/sock_diag.h."""


def enlarge(context: Any, size_bytes: int) -> None:
    """Set the receive buffer of every UDP socket of an aiocoap context; log a warning when the system gives less."""
    for opened in _sockets(context):
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)
        # Linux doubles the requested size for its own bookkeeping, and reports the double.
        given = opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        if given < size_bytes:
            _log.warning("receive buffer smaller than requested", bytes=given, requested=size_bytes, limit="rmem_max")


def count_dropped(context: Any) -> int:
    """Return how many datagrams the system dropped at the UDP sockets of an aiocoap context since they were opened."""
    return sum(map(dropped_by, _sockets(context)))


def dropped_by(opened: Any) -> int:
    """Return how many datagrams the system dropped at a socket; 0 where the system does not say."""
    try:
        info = opened.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
    except OSError:
        return 0
    return int(_MEMINFO.unpack(info)[_DROPS]) if len(info) == _MEMINFO.size else 0


def _sockets(context: Any) -> Iterator[Any]:
    for interface in context.request_interfaces:
        layer = getattr(getattr(interface, "token_interface", None), "message_interface", None)
        transport = getattr(layer, "transport", None) or getattr(getattr(layer, "_pool", None), "_transport", None)
        if transport is not None:
            yield transport.get_extra_info("socket")
