"""The one place that touches aiocoap: observe requests, what arrives under their tokens, and the blocks of large ones.

aiocoap's own observation is not used: its iterator keeps only the newest notification, it hides the superseded ones,
and it can neither refresh an observation under its token nor cancel it. Requests go through its Pipe, which hands out
every message (docs/adr/0020).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from aiocoap import GET, Message, Reliable, Unreliable  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.error import AnonymousHost  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.error import Error as CoapError
from aiocoap.message import UndecidedRemote  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.numbers.types import ACK  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.pipe import Pipe  # type: ignore[import-untyped]  # aiocoap ships no types

from isotherm.coap_ingest.coap import receive_buffers
from isotherm.coap_ingest.coap.messaging import ClientContext
from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.coap.psk import PreSharedKey
from isotherm.coap_ingest.coap.resource import Resource, Server
from isotherm.coap_ingest.observe.discovery import Link, parse_links
from isotherm.coap_ingest.observe.observation import MODULUS, Response

OnMessage = Callable[[Any], None]
OnFailure = Callable[[str], None]
HasRoom = Callable[[int], bool]

_OBSERVE, _STOP_OBSERVING = 0, 1
_NO_ANSWER = "no answer in this connection"
_log = logging.getLogger("coap")

# aiocoap reads datagrams into 4,096 bytes and does not say when one was longer.
_SUSPICIOUS_PAYLOAD_BYTES = 4096 - 128


_TRANSPORTS = {"coap": "udp6", "coap+tcp": "tcpclient", "coaps": "tinydtls"}
_CONNECT_TIMEOUT_S = 10.0
_LINKS_TIMEOUT_S = 30.0


class _Brief(Reliable):  # type: ignore[misc]  # aiocoap ships no types
    """The keeper tries again by itself; a request that goes on for a minute and a half would hold up all others."""

    MAX_RETRANSMIT = 1


class DiscoveryError(Exception):
    """The server's list of resources could not be had."""


class BlockwiseError(Exception):
    """The rest of a large representation could not be fetched."""


class NoRoomError(Exception):
    """There is no room for the rest of a large representation."""


class Client:
    """An endpoint for any number of observations."""

    def __init__(self, context: Any, max_payload_bytes: int) -> None:
        self._context = context
        self._connecting: dict[Server, asyncio.Lock] = {}
        self.max_payload_bytes = max_payload_bytes
        """Largest representation that `whole` fetches."""

    @classmethod
    async def open(
        cls,
        max_payload_bytes: int,
        servers: Iterable[Server],
        psk: PreSharedKey | None = None,
        *,
        receive_buffer_bytes: int | None = None,
    ) -> Client:
        """An endpoint for the transports that `servers` need; `psk` is shown to those among them that use DTLS.

        Without `receive_buffer_bytes` the system's own size counts.

        Raises OSError when there is no socket to be had.
        """
        servers = list(servers)
        transports = sorted({_TRANSPORTS[server.scheme] for server in servers})
        context = await ClientContext.create_client_context(transports=transports or ["udp6"])
        if receive_buffer_bytes is not None:
            receive_buffers.widen(context, receive_buffer_bytes)
        if psk is not None:
            keys = {"dtls": {"psk": psk.key, "client-identity": psk.identity}}
            context.client_credentials.load_from_dict({"coaps://*": keys})
        return cls(context, max_payload_bytes)

    async def close(self) -> None:
        """Free the port; requests under way end."""
        await self._context.shutdown()

    async def observe(self, resource: Resource, attempt: int, on_message: OnMessage, on_failure: OnFailure) -> Exchange:
        """Register for a resource under a new token.

        The server's addresses are resolved anew and taken in turn by `attempt`. Both callbacks are called on the
        loop: `on_message` for everything that arrives under the token, `on_failure` at most once, at the end.

        Raises OSError when the name cannot be resolved or no connection is made in time, CoapError when the request
        cannot be sent.
        """
        remote = await _remote(resource.server, attempt)
        message = _request(resource, remote, observe=_OBSERVE, transport_tuning=_Brief())
        # One connection for all resources of a server: the library would make one for each that asks meanwhile.
        async with self._connecting.setdefault(resource.server, asyncio.Lock()), asyncio.timeout(_CONNECT_TIMEOUT_S):
            interface = await self._context.find_remote_and_interface(message)
        return Exchange(interface, resource, message, on_message, on_failure)

    async def links(self, server: Server, attempt: int) -> list[Link]:
        """The server's resources, from its `/.well-known/core` (RFC 6690).

        Raises DiscoveryError.
        """
        resource = Resource(server, (".well-known", "core"))
        try:
            request = _request(resource, await _remote(server, attempt), transport_tuning=_Brief())
            async with asyncio.timeout(_LINKS_TIMEOUT_S):
                answer = await self._context.request(request).response
        except (OSError, CoapError) as error:
            raise DiscoveryError(f"{type(error).__name__}: {error}".removesuffix(": ")) from error
        if not answer.code.is_successful():
            raise DiscoveryError(f"the server answered {answer.code.dotted}")
        self._bound(len(answer.payload), DiscoveryError)
        try:
            return parse_links(answer.payload.decode("utf-8"))
        except ValueError as error:
            raise DiscoveryError(f"the list of resources cannot be read: {error}") from error

    async def whole(self, exchange: Exchange, first: Any, has_room: HasRoom) -> tuple[bytes, Any]:
        """The whole representation of which `first` is the beginning, and its last message (RFC 7959 section 2.6).

        When the representation changes in between (another ETag), it is fetched anew from its beginning. `has_room` is
        asked with the bytes that are held, after every block.

        Raises BlockwiseError, NoRoomError.
        """
        try:
            fetched = None if first.opt.block2 is None else await self._rest(exchange, first, has_room)
            if fetched is None:
                request = _request(exchange.resource, exchange.remote)
                head = await self._context.request(request, handle_blockwise=False).response
                if not head.code.is_successful():
                    raise BlockwiseError(f"the server answered {head.code.dotted}")
                fetched = await self._rest(exchange, head, has_room)
        except CoapError as error:
            raise BlockwiseError(f"{type(error).__name__}: {error}") from error
        if fetched is None:
            raise BlockwiseError("the representation changes while it is fetched")
        return fetched

    async def _rest(self, exchange: Exchange, first: Any, has_room: HasRoom) -> tuple[bytes, Any] | None:
        payload, last = bytearray(first.payload), first
        while last.opt.block2 is not None and last.opt.block2.more:
            self._bound(len(payload))
            block = (len(payload) // last.opt.block2.size, False, last.opt.block2.size_exponent)
            request = _request(exchange.resource, exchange.remote, block2=block)
            last = await self._context.request(request, handle_blockwise=False).response
            option = last.opt.block2
            if not last.code.is_successful() or option is None or last.opt.etag != first.opt.etag:
                return None
            # A block without bytes would go on for ever.
            if option.start != len(payload) or not last.payload:
                return None
            payload += last.payload
            if not has_room(len(payload)):
                raise NoRoomError
        self._bound(len(payload))
        return bytes(payload), last

    def _bound(self, size: int, error: type[Exception] = BlockwiseError) -> None:
        if size > self.max_payload_bytes:
            raise error(f"{size} bytes are over the limit of {self.max_payload_bytes}")


class Exchange:
    """One registration: a token at a server, from the first request until it is ended by us, an error or the server."""

    def __init__(
        self, interface: Any, resource: Resource, request: Any, on_message: OnMessage, on_failure: OnFailure
    ) -> None:
        self.resource = resource
        self.sent_at = time.monotonic()
        self.ended = asyncio.Event()
        self._interface = interface
        self._on_message = on_message
        self._on_failure = on_failure
        self._pipe = Pipe(request, _log)
        self._drop = self._pipe.on_event(self._on_event)
        self._pipe.on_interest_end(self.ended.set)
        interface.request(self._pipe)

    @property
    def remote(self) -> Any:
        """The server's address, as aiocoap has it."""
        return self._pipe.request.remote

    @property
    def token(self) -> bytes:
        """The token of the registration."""
        return bytes(self._pipe.request.token)

    def abandon_connection(self) -> None:
        """Give up the TCP connection or DTLS session, for all that use it: the server does not answer in it any more.

        A server that lost its state, or was cut off for long, is reached again only in a new one.
        """
        if not self.resource.server.is_connected:
            return
        remote = self.remote
        if self.resource.server.scheme == "coaps":
            remote._inject_error(ConnectionResetError(_NO_ANSWER))
        elif remote._transport is not None:
            remote._ctx._dispatch_error(remote, ConnectionResetError(_NO_ANSWER))
            remote._transport.abort()

    def refresh(self) -> None:
        """Register once more under the same token: the server keeps one observation (RFC 7641 section 3.3.1)."""
        self.sent_at = time.monotonic()
        self._send(
            observe=_OBSERVE,
            on_reset=lambda: self._fail("the server reset our request"),
            transport_tuning=_Brief(),
        )

    def cancel(self) -> None:
        """Ask the server to end the observation; `ended` is set when it has answered (RFC 7641 section 3.6)."""
        self._send(observe=_STOP_OBSERVING, on_reset=self._drop)

    def forget(self, *, tell: bool) -> None:
        """Take no more of this registration; with `tell`, ask the server to end it without waiting for an answer."""
        self._on_failure, self._on_message = _ignore, _ignore
        if tell:
            self._send(observe=_STOP_OBSERVING, on_reset=_nothing, transport_tuning=Unreliable())
        self._drop()

    def _send(self, *, observe: int, on_reset: Callable[[], None], **more: Any) -> None:
        message = _request(self.resource, self.remote, observe=observe, **more)
        message.token = self.token
        try:
            self._interface.token_interface.send_message(message, on_reset)
        except (CoapError, OSError) as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _on_event(self, event: Any) -> bool:
        if event.exception is not None:
            # aiocoap adds some as classes, some as instances.
            kind = event.exception if isinstance(event.exception, type) else type(event.exception)
            text = "" if isinstance(event.exception, type) else str(event.exception)
            self._on_failure(f"{kind.__name__}: {text}" if text else kind.__name__)
            return False
        self._on_message(event.message)
        return not event.is_last

    def _fail(self, reason: str) -> None:
        on_failure = self._on_failure
        self.forget(tell=False)
        on_failure(reason)


async def _remote(server: Server, attempt: int) -> Any:
    kind = socket.SOCK_STREAM if server.scheme == "coap+tcp" else socket.SOCK_DGRAM
    found = await asyncio.get_running_loop().getaddrinfo(server.host, server.port, type=kind)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    address = addresses[attempt % len(addresses)]
    host = f"[{address}]" if ":" in address else address
    return UndecidedRemote(server.scheme, f"{host}:{server.port}")


def _request(resource: Resource, remote: Any, **options: Any) -> Any:
    message = Message(code=GET, uri=resource.uri, **options)
    # The Uri-Host option stays as the address says (virtual hosts); the datagram goes to where it was resolved.
    message.remote = remote
    return message


def _ignore(_what: object) -> None:
    """For messages of a registration that was given up."""


def _nothing() -> None:
    """For the reset of a request that wants no answer."""


def response_of(message: Any) -> Response:
    """What the rules of an observation look at in an aiocoap message."""
    return Response(
        is_success=message.code.is_successful(),
        code=message.code.dotted,
        observe=observe_value(message),
        max_age_s=message.opt.max_age,
        is_acknowledgement=message.mtype is ACK,
        content=message.payload,
    )


def observe_value(message: Any) -> int | None:
    """The Observe option; of a value that is longer than allowed, the 24 bits that count."""
    value = message.opt.observe
    return None if value is None else int(value) % MODULUS


def is_cut(message: Any) -> bool:
    """Whether the message holds, or may hold, only the beginning of its representation."""
    block2 = message.opt.block2
    if block2 is not None:
        return bool(block2.more)
    return len(message.payload) >= _SUSPICIOUS_PAYLOAD_BYTES


def notification_of(resource: Resource, message: Any, *, arrived_ms: int, rtt_ms: int) -> Notification:
    """An aiocoap message as a notification of `resource`."""
    opt = message.opt
    return Notification(
        resource=resource,
        arrived_ms=arrived_ms,
        rtt_ms=rtt_ms,
        code=message.code.dotted,
        raw_code=int(message.code),
        message_type=None if message.mtype is None else message.mtype.name,
        message_id=message.mid,
        token=bytes(message.token),
        destination=_local(message),
        payload=bytes(message.payload),
        observe=observe_value(message),
        max_age_s=opt.max_age,
        content_format=None if opt.content_format is None else int(opt.content_format),
        accept=None if opt.accept is None else int(opt.accept),
        etags=() if opt.etag is None else (bytes(opt.etag),),
        location_path=tuple(opt.location_path),
        location_query=tuple(opt.location_query),
        proxy_uri=opt.proxy_uri,
        size1=opt.size1,
        size2=opt.size2,
        block1=block_text(opt.block1),
        block2=block_text(opt.block2),
    )


def block_text(option: Any) -> str:
    """A Block option as `number/more/size`, such as `2/1/1024`; empty when there is none."""
    return "" if option is None else f"{option.block_number}/{int(option.more)}/{option.size}"


def _local(message: Any) -> str:
    try:
        base: str = message.remote.uri_base_local
    except AnonymousHost:
        # Over TCP the client has no address that anybody could send to.
        return ""
    return base.partition("://")[2]
