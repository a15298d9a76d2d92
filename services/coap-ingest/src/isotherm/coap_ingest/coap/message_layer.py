"""aiocoap's message and token layers with two repairs: unpredictable tokens, and a bounded message id cache.

aiocoap counts its tokens up from a random number of 16 bits, so that a notification over UDP can be forged by guessing.
It also starts a timer for every request before anything can limit the rate of requests (docs/adr/0021).
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from aiocoap import ACK, CON, NON, RST, Context, Message  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.message import Direction  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.messagemanager import MessageManager  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.tokenmanager import TokenManager  # type: ignore[import-untyped]  # aiocoap ships no types

from isotherm.coap_ingest.coap.message_id_cache import MessageIdCache, without_text
from isotherm.coap_ingest.coap.options import repair_options
from isotherm.coap_ingest.coap.plain.datagrams import BatchInterface
from isotherm.coap_ingest.coap.plain.notifications import Address, PlainNotifications

repair_options()

TOKEN_BYTES = 8
"""The maximum length of a token (RFC 7252 section 5.3.1, which asks for at least 32 random bits)."""

_ENDPOINT = struct.Struct("!16sHIH")
_SESSION = struct.Struct("!QH")


class RequestFilter(Protocol):
    """Decides which requests are processed, before the message layer stores anything about them."""

    def rejection_of(self, request: Any) -> Any | None:
        """Return the answer to a request that is not processed; None for a request that is."""

    def admits_duplicate(self, request: Any) -> bool:
        """Return whether a duplicate of an earlier request may be answered again."""


class RandomTokens(TokenManager):  # type: ignore[misc]  # aiocoap has no types
    """Matches responses to requests by tokens that nobody can guess (RFC 7252 section 11.4, RFC 9175 section 4.2)."""

    def next_token(self) -> bytes:
        """Return a token for a new request."""
        return secrets.token_bytes(TOKEN_BYTES)


class FilteredMessages(MessageManager):  # type: ignore[misc]  # aiocoap has no types
    """The message layer of a server: a filter decides about each request, and a bounded cache finds duplicates."""

    def __init__(self, token_manager: Any, request_filter: RequestFilter, cache: MessageIdCache) -> None:
        super().__init__(token_manager)
        self._filter = request_filter
        self._cache = cache

    def _deduplicate_message(self, message: Any) -> bool:
        """Return whether the request is finished here: it is a duplicate, or the filter rejects it."""
        key = request_key(message.remote, message.mid)
        cache = self._cache
        if key in cache:
            answer = cache.answer_to(key)
            if self._filter.admits_duplicate(message) and message.mtype is CON and answer is not None:
                again = Message.decode(answer, message.remote.as_response_address())
                again.direction = Direction.OUTGOING
                self._send_via_transport(again)
            return True
        rejection = self._filter.rejection_of(message)
        if rejection is not None:
            # A rejected request had no effect, so its duplicates need no memory.
            self._answer(message, rejection)
            return True
        cache.add(key, time.monotonic())
        return False

    def _store_response_for_duplicates(self, message: Any) -> None:
        # A separate response has a message id of our own, which does not identify the request.
        if message.mtype in (ACK, RST):
            datagram = message.encode()
            if not message.code.is_successful():
                datagram = without_text(datagram, message.payload)
            self._cache.set_answer(request_key(message.remote, message.mid), datagram)

    def _answer(self, request: Any, answer: Any) -> None:
        if request.remote.is_multicast_locally:
            return
        is_confirmable = request.mtype is CON
        answer.mtype = ACK if is_confirmable else NON
        answer.mid = request.mid if is_confirmable else self._next_message_id()
        answer.token, answer.remote = request.token, request.remote.as_response_address()
        self._send_via_transport(answer)


def request_key(remote: Any, message_id: int) -> bytes:
    """Return what identifies a request: its sender (address and port, or DTLS session) and its message id."""
    try:
        address = remote.sockaddr
    except AttributeError:
        return _SESSION.pack(remote.session_number, message_id)
    return endpoint_key(address, message_id)


def endpoint_key(address: Address, message_id: int) -> bytes:
    """Return what identifies a request over UDP; equal to the `request_key` of the same sender."""
    host, port, _, scope = address
    return _ENDPOINT.pack(socket.inet_pton(socket.AF_INET6, host.partition("%")[0]), port, scope, message_id)


class ClientContext(Context):  # type: ignore[misc]  # aiocoap has no types
    """An aiocoap context whose requests have unpredictable tokens."""

    @classmethod
    async def connect(cls, transports: Iterable[str]) -> Any:
        """Return a context for requests over `transports`, by aiocoap's names; its UDP takes plain notifications."""
        others = sorted(set(transports) - {"udp6"})
        # Without names aiocoap would open all of its transports.
        context = await cls.create_client_context(transports=others) if others else cls(loggername="coap")
        if "udp6" in transports or not others:
            await context.open_udp()
        return context

    async def open_udp(self) -> None:
        """Open a socket for requests over UDP."""

        async def make(messages: Any) -> Any:
            interface = await BatchInterface.create_client_transport_endpoint(messages, log=self.log, loop=self.loop)
            interface.notifications = PlainNotifications(interface.reply, interface.local_address)
            interface.handler = interface.notifications.handle
            return interface

        await self._append_tokenmanaged_messagemanaged_transport(make)

    async def _append_tokenmanaged_messagemanaged_transport(self, make: Callable[[Any], Awaitable[Any]]) -> None:
        tokens = RandomTokens(self)
        messages = self._messages(tokens)
        messages.message_interface = await make(messages)
        tokens.token_interface = messages
        self.request_interfaces.append(tokens)

    async def _append_tokenmanaged_transport(self, make: Callable[[Any], Awaitable[Any]]) -> None:
        tokens = RandomTokens(self)
        tokens.token_interface = await make(tokens)
        self.request_interfaces.append(tokens)

    def _messages(self, tokens: Any) -> Any:
        return MessageManager(tokens)


def notifications_of(request_interface: Any) -> PlainNotifications | None:
    """Return the registrations of a context's UDP socket; None for another transport."""
    transport = getattr(request_interface.token_interface, "message_interface", None)
    return getattr(transport, "notifications", None)


class ServerContext(ClientContext):
    """An aiocoap context that serves `site`; `request_filter` and `cache` are those of `FilteredMessages`."""

    def __init__(self, site: Any, request_filter: RequestFilter, cache: MessageIdCache) -> None:
        super().__init__(serversite=site, loggername="coap-server")
        self._filter = request_filter
        self._cache = cache

    async def listen_udp(self, host: str, port: int) -> Any:
        """Serve over UDP; return the message layer. Raises OSError when the address is not free."""
        await self._append_tokenmanaged_messagemanaged_transport(
            lambda messages: BatchInterface.create_server_transport_endpoint(
                messages, log=self.log, loop=self.loop, bind=(host, port), multicast=[]
            )
        )
        return self.request_interfaces[-1].token_interface

    def _messages(self, tokens: Any) -> Any:
        return FilteredMessages(tokens, self._filter, self._cache)
