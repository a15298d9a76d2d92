"""The peer of a socket, TCP keep-alive, and whether TCP has given a connection up (RFC 9293 section 3.8.4, tcp(7))."""

from __future__ import annotations

import asyncio
import socket

_PROBES = 3
_TCP_CLOSE = 7
"""State of a socket whose peer sent a reset or did not answer the probes (tcp_states.h)."""


def peer_address(transport: asyncio.BaseTransport) -> str:
    """Return the address of the peer without its port; empty when the peer is gone."""
    address: str = (transport.get_extra_info("peername") or ("",))[0]
    return address


def probe_when_silent(transport: asyncio.BaseTransport, silent_s: int) -> None:
    """Let the kernel probe the peer after `silent_s` seconds of silence.

    The kernel breaks the connection after about as long without an answer. 0 changes nothing, nor does a transport that
    is not TCP.
    """
    end = transport.get_extra_info("socket")
    if not silent_s or end is None or end.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for option, value in (
        (socket.TCP_KEEPIDLE, silent_s),
        (socket.TCP_KEEPINTVL, max(1, silent_s // _PROBES)),
        (socket.TCP_KEEPCNT, _PROBES),
        # The bound for a peer that vanishes while data is sent to it.
        (socket.TCP_USER_TIMEOUT, 2_000 * silent_s),
    ):
        end.setsockopt(socket.IPPROTO_TCP, option, value)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def is_dead(transport: asyncio.BaseTransport) -> bool:
    """Return whether TCP has given the connection up. A peer that only stops sending is not dead."""
    end = transport.get_extra_info("socket")
    if end is None or end.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    state: bytes = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return state[0] == _TCP_CLOSE
