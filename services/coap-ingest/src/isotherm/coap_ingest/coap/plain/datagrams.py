"""aiocoap's UDP transport, which reads all waiting datagrams in one wake-up and offers each to a handler first.

aiocoap reads one datagram for each wake-up of the event loop, and asks for network errors before each of them.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from aiocoap.transports.udp6 import (  # type: ignore[import-untyped]  # aiocoap ships no types
    MessageInterfaceUDP6,
    UDP6EndpointAddress,
)
from aiocoap.util import socknumbers  # type: ignore[import-untyped]  # aiocoap ships no types

from isotherm.coap_ingest.coap.plain.notifications import Address, PlainNotifications

Handler = Callable[[bytes, Address, bytes | None], bool]
"""Takes a datagram, its sender and its destination (IPV6_PKTINFO); returns False to leave it to aiocoap."""

_MAX_DATAGRAM_BYTES = 4_096
_MAX_ANCILLARY_BYTES = 1_024
_DATAGRAMS_PER_WAKE = 64
"""How many datagrams are read before other callbacks of the loop run, delivery reports of Kafka among them."""
_COAP_PORT = 5683
_V4_MAPPED = "::ffff:"


class BatchInterface(MessageInterfaceUDP6):  # type: ignore[misc]  # aiocoap ships no types
    """A UDP socket of aiocoap; `handler` takes the plain messages."""

    handler: Handler | None = None
    notifications: PlainNotifications | None = None
    """The registrations that use this socket; None for the socket of a server."""
    local_address: Callable[[bytes], str]
    """Returns a destination as in a URI."""
    _socket: socket.socket | None = None

    @classmethod
    async def _create_transport_endpoint(cls, sock: Any, *arguments: Any, **named: Any) -> Any:
        interface = await super()._create_transport_endpoint(sock, *arguments, **named)
        interface._socket = sock
        # This replaces the reader of aiocoap's transport, which removes it by the descriptor at its end.
        interface.loop.add_reader(sock.fileno(), interface._read_ready)
        interface.local_address = lru_cache(maxsize=64)(interface._local_address)
        return interface

    async def shutdown(self) -> None:
        """Close the socket."""
        self._socket = None
        await super().shutdown()

    def reply(self, datagram: bytes, address: Address, pktinfo: bytes) -> None:
        """Send a datagram from the local address of `pktinfo`; a failure is logged, as the network may lose it too."""
        if self._socket is None:
            return
        try:
            self._socket.sendmsg((datagram,), ((socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, pktinfo),), 0, address)
        except OSError as error:
            self.log.info("Sending a reply failed: %s", error)

    def remote(self, address: Address, pktinfo: bytes) -> Any:
        """Return a sender as aiocoap represents it."""
        return UDP6EndpointAddress(address, self, pktinfo=pktinfo)

    def _local_address(self, pktinfo: bytes) -> str:
        return str(UDP6EndpointAddress(("::", 0, 0, 0), self, pktinfo=pktinfo).hostinfo_local)

    def _read_ready(self) -> None:
        self._read_errors()
        for _ in range(_DATAGRAMS_PER_WAKE):
            if self._socket is None:
                return
            try:
                datagram, ancillary, flags, address = self._socket.recvmsg(_MAX_DATAGRAM_BYTES, _MAX_ANCILLARY_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.error_received(error)
                return
            try:
                self._dispatch(datagram, ancillary, flags, address)
            except Exception as error:
                context = {"message": "a datagram could not be processed", "exception": error}
                self.loop.call_exception_handler(context)

    def _dispatch(self, datagram: bytes, ancillary: Any, flags: int, address: Address) -> None:
        pktinfo = ancillary[0][2] if len(ancillary) == 1 and ancillary[0][1] == socket.IPV6_PKTINFO else None
        if self.handler is None or not self.handler(datagram, address, pktinfo):
            self.datagram_msg_received(datagram, ancillary, flags, address)

    def _read_errors(self) -> None:
        """Read one network error, as aiocoap does before a datagram; the loop comes back while there are more."""
        if self._socket is None or not socknumbers.HAS_RECVERR:
            return
        try:
            received = self._socket.recvmsg(_MAX_DATAGRAM_BYTES, _MAX_ANCILLARY_BYTES, socknumbers.MSG_ERRQUEUE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.error_received(error)
        else:
            self.datagram_errqueue_received(*received)


@lru_cache(maxsize=64)
def is_multicast(pktinfo: bytes) -> bool:
    """Return whether a datagram was sent to a multicast address."""
    address = ipaddress.IPv6Address(pktinfo[:16])
    return (address.ipv4_mapped or address).is_multicast


def host_of(address: Address) -> str:
    """Return the sender's address without the port, which changes; an IPv4 address in its own form."""
    return address[0].removeprefix(_V4_MAPPED)


def hostinfo_of(interface: BatchInterface, address: Address) -> str:
    """Return a sender as in a URI, without CoAP's own port."""
    host, port = address[0], address[1]
    if host.startswith(_V4_MAPPED) and "." in host:
        host = host[len(_V4_MAPPED) :]
        return host if port == _COAP_PORT else f"{host}:{port}"
    return str(UDP6EndpointAddress(address, interface).hostinfo)
