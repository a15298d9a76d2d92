"""The CoAP client: registrations, the list of a server's resources, the later blocks of large representations."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from typing import Any

from aiocoap.error import Error as CoapError  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.message import UndecidedRemote  # type: ignore[import-untyped]  # aiocoap ships no types

from isotherm.coap_ingest.coap import receive_buffer
from isotherm.coap_ingest.coap.link_format import Link, parse_links
from isotherm.coap_ingest.coap.message_layer import ClientContext
from isotherm.coap_ingest.coap.psk import PreSharedKey
from isotherm.coap_ingest.coap.registration import (
    OBSERVE,
    BriefRetransmission,
    OnFailure,
    OnMessage,
    Registration,
    get_request,
)
from isotherm.coap_ingest.coap.resource import Resource, Server

HasRoom = Callable[[int], bool]

_TRANSPORTS = {"coap": "udp6", "coap+tcp": "tcpclient", "coaps": "tinydtls"}
_CONNECT_TIMEOUT_S = 10.0
_LINKS_TIMEOUT_S = 30.0
FETCH_TIMEOUT_S = 247.0
"""How long a complete representation may take, in seconds: a message exchange of RFC 7252 section 4.8.2.

While its blocks are fetched, later notifications of the resource wait.
"""


class DiscoveryError(Exception):
    """The server's list of resources is not available."""


class BlockwiseError(Exception):
    """The remaining blocks of a large representation are not available."""


class NoRoomError(Exception):
    """There is no room for the remaining blocks of a large representation."""


class Client:
    """A CoAP client for any number of observations."""

    def __init__(self, context: Any, max_payload_bytes: int) -> None:
        self._context = context
        self._connecting: dict[Server, asyncio.Lock] = {}
        self.max_payload_bytes = max_payload_bytes
        """The largest representation that `fetch_complete` accepts."""

    @classmethod
    async def open(
        cls,
        max_payload_bytes: int,
        servers: Iterable[Server],
        psk: PreSharedKey | None = None,
        *,
        receive_buffer_bytes: int | None = None,
    ) -> Client:
        """Open a client for the transports that `servers` need; it shows `psk` to those that use DTLS.

        Without `receive_buffer_bytes` the sockets keep the system's default.

        Raises OSError when the system gives no socket.
        """
        servers = list(servers)
        context = await ClientContext.connect({_TRANSPORTS[server.scheme] for server in servers})
        if receive_buffer_bytes is not None:
            receive_buffer.enlarge(context, receive_buffer_bytes)
        if psk is not None:
            keys = {"dtls": {"psk": psk.key, "client-identity": psk.identity}}
            context.client_credentials.load_from_dict({"coaps://*": keys})
        return cls(context, max_payload_bytes)

    def count_dropped(self) -> int:
        """Return how many datagrams the system dropped at the client's sockets since they were opened."""
        return receive_buffer.count_dropped(self._context)

    async def close(self) -> None:
        """Free the port and end the requests in flight."""
        await self._context.shutdown()

    async def observe(
        self, resource: Resource, attempt: int, on_message: OnMessage, on_failure: OnFailure
    ) -> Registration:
        """Register for `resource` under a new token.

        Each call resolves the server's name again, and `attempt` selects among its addresses in turn. `on_message` is
        called on the event loop for every message that arrives under the token, `on_failure` at most once, at the end.

        Raises OSError when the name cannot be resolved or no connection is made in time, CoapError when the request
        cannot be sent.
        """
        remote = await _resolve(resource.server, attempt)
        message = get_request(resource, remote, observe=OBSERVE, transport_tuning=BriefRetransmission())
        # One connection for all resources of a server: without the lock, aiocoap makes one for each concurrent request.
        async with self._connecting.setdefault(resource.server, asyncio.Lock()), asyncio.timeout(_CONNECT_TIMEOUT_S):
            interface = await self._context.find_remote_and_interface(message)
        return Registration(interface, resource, message, on_message, on_failure)

    async def list_links(self, server: Server, attempt: int) -> list[Link]:
        """Return the server's resources from its `/.well-known/core` (RFC 6690).

        Raises DiscoveryError.
        """
        resource = Resource(server, (".well-known", "core"))
        try:
            remote = await _resolve(server, attempt)
            request = get_request(resource, remote, transport_tuning=BriefRetransmission())
            async with asyncio.timeout(_LINKS_TIMEOUT_S):
                answer = await self._context.request(request).response
        except (OSError, CoapError) as error:
            raise DiscoveryError(f"{type(error).__name__}: {error}".removesuffix(": ")) from error
        if not answer.code.is_successful():
            raise DiscoveryError(f"the server answered {answer.code.dotted}")
        self._check_size(len(answer.payload), DiscoveryError)
        try:
            return parse_links(answer.payload.decode("utf-8"))
        except ValueError as error:
            raise DiscoveryError(f"the list of resources cannot be read: {error}") from error

    async def fetch_complete(self, registration: Registration, first: Any, has_room: HasRoom) -> tuple[bytes, Any]:
        """Return the complete representation that begins with `first`, and its last message (RFC 7959 section 2.6).

        A representation that changes meanwhile (another ETag) is fetched again from its beginning. After every block
        `has_room` is called with the number of bytes held so far. All of it takes at most `FETCH_TIMEOUT_S`.

        Raises BlockwiseError, NoRoomError.
        """
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                return await self._fetch_representation(registration, first, has_room)
        except TimeoutError as error:
            raise BlockwiseError(f"the representation was not complete within {FETCH_TIMEOUT_S:g} s") from error
        except CoapError as error:
            raise BlockwiseError(f"{type(error).__name__}: {error}") from error

    async def _fetch_representation(
        self, registration: Registration, first: Any, has_room: HasRoom
    ) -> tuple[bytes, Any]:
        fetched = None if first.opt.block2 is None else await self._fetch_blocks(registration, first, has_room)
        if fetched is None:
            request = get_request(registration.resource, registration.remote)
            head = await self._context.request(request, handle_blockwise=False).response
            if not head.code.is_successful():
                raise BlockwiseError(f"the server answered {head.code.dotted}")
            fetched = await self._fetch_blocks(registration, head, has_room)
        if fetched is None:
            raise BlockwiseError("the representation changes while it is fetched")
        return fetched

    async def _fetch_blocks(
        self, registration: Registration, first: Any, has_room: HasRoom
    ) -> tuple[bytes, Any] | None:
        """Fetch the blocks after `first`; None when the representation changed or the server broke the transfer off."""
        payload, last = bytearray(first.payload), first
        while last.opt.block2 is not None and last.opt.block2.more:
            self._check_size(len(payload))
            block = (len(payload) // last.opt.block2.size, False, last.opt.block2.size_exponent)
            request = get_request(registration.resource, registration.remote, block2=block)
            last = await self._context.request(request, handle_blockwise=False).response
            option = last.opt.block2
            if not last.code.is_successful() or option is None or last.opt.etag != first.opt.etag:
                return None
            # An empty block that announces more would make this loop endless.
            if option.start != len(payload) or not last.payload:
                return None
            payload += last.payload
            if not has_room(len(payload)):
                raise NoRoomError
        self._check_size(len(payload))
        return bytes(payload), last

    def _check_size(self, size: int, error: type[Exception] = BlockwiseError) -> None:
        if size > self.max_payload_bytes:
            raise error(f"{size} bytes are over the limit of {self.max_payload_bytes}")


async def _resolve(server: Server, attempt: int) -> Any:
    kind = socket.SOCK_STREAM if server.scheme == "coap+tcp" else socket.SOCK_DGRAM
    found = await asyncio.get_running_loop().getaddrinfo(server.host, server.port, type=kind)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    address = addresses[attempt % len(addresses)]
    host = f"[{address}]" if ":" in address else address
    return UndecidedRemote(server.scheme, f"{host}:{server.port}")
