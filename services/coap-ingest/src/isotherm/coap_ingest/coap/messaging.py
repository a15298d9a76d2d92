"""aiocoap's message and token layers, with what they leave open: unpredictable tokens, bounded memory of requests.

aiocoap counts its tokens up from a random number of 16 bits, so that notifications over UDP can be forged by guessing;
and it remembers every request with a timer of its own, before anybody can limit what comes (docs/adr/0021).
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aiocoap import ACK, CON, NON, RST, Context, Message  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.message import Direction  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.messagemanager import MessageManager  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.tokenmanager import TokenManager  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.transports.udp6 import MessageInterfaceUDP6  # type: ignore[import-untyped]  # aiocoap ships no types

from isotherm.coap_ingest.listener.message_id_cache import RememberedRequests

TOKEN_BYTES = 8
"""The most that a token may have (RFC 7252 section 5.3.1, which wants 32 random bits at least)."""

_ENDPOINT = struct.Struct("!16sHIH")
_SESSION = struct.Struct("!QH")


class Gate(Protocol):
    """Says which requests are carried out, before anything is remembered of them."""

    def refusal_of(self, request: Any) -> Any | None:
        """The answer to a request that is not carried out; None when it is."""

    def admits_repetition(self, request: Any) -> bool:
        """Whether a request that was seen before may be answered again."""


class Tokens(TokenManager):  # type: ignore[misc]  # aiocoap has no types
    """Matches responses and requests by tokens that nobody can guess (RFC 7252 section 11.4, RFC 9175 section 4.2)."""

    def next_token(self) -> bytes:
        """A token for a new request."""
        return secrets.token_bytes(TOKEN_BYTES)


class GatedMessages(MessageManager):  # type: ignore[misc]  # aiocoap has no types
    """The message layer of a server: requests pass the gate, and those that do are remembered within bounds."""

    def __init__(self, token_manager: Any, gate: Gate, remembered: RememberedRequests) -> None:
        super().__init__(token_manager)
        self._gate = gate
        self._remembered = remembered

    def _deduplicate_message(self, message: Any) -> bool:
        """Whether a request needs nothing more: it was seen before, or the gate refuses it."""
        key = request_key(message.remote, message.mid)
        remembered = self._remembered
        if key in remembered:
            answer = remembered.answer_of(key)
            if self._gate.admits_repetition(message) and message.mtype is CON and answer is not None:
                again = Message.decode(answer, message.remote.as_response_address())
                again.direction = Direction.OUTGOING
                self._send_via_transport(again)
            return True
        refusal = self._gate.refusal_of(message)
        if refusal is not None:
            # What was refused had no effect: it is not remembered, so that it takes no memory.
            self._answer(message, refusal)
            return True
        remembered.add(key, time.monotonic())
        return False

    def _store_response_for_duplicates(self, message: Any) -> None:
        # A separate response has a message id of ours, which says nothing about the request's.
        if message.mtype in (ACK, RST):
            self._remembered.answer(request_key(message.remote, message.mid), message.encode())

    def _answer(self, request: Any, answer: Any) -> None:
        if request.remote.is_multicast_locally:
            return
        is_confirmable = request.mtype is CON
        answer.mtype = ACK if is_confirmable else NON
        answer.mid = request.mid if is_confirmable else self._next_message_id()
        answer.token, answer.remote = request.token, request.remote.as_response_address()
        self._send_via_transport(answer)


def request_key(remote: Any, message_id: int) -> bytes:
    """What a request is known by: its sender, an address and port or a DTLS session, and its message id."""
    try:
        host, port, _, scope = remote.sockaddr
    except AttributeError:
        return _SESSION.pack(remote.session_number, message_id)
    return _ENDPOINT.pack(socket.inet_pton(socket.AF_INET6, host.partition("%")[0]), port, scope, message_id)


class ClientContext(Context):  # type: ignore[misc]  # aiocoap has no types
    """An aiocoap context whose requests have unpredictable tokens."""

    async def _append_tokenmanaged_messagemanaged_transport(self, make: Callable[[Any], Awaitable[Any]]) -> None:
        tokens = Tokens(self)
        messages = self._messages(tokens)
        messages.message_interface = await make(messages)
        tokens.token_interface = messages
        self.request_interfaces.append(tokens)

    async def _append_tokenmanaged_transport(self, make: Callable[[Any], Awaitable[Any]]) -> None:
        tokens = Tokens(self)
        tokens.token_interface = await make(tokens)
        self.request_interfaces.append(tokens)

    def _messages(self, tokens: Any) -> Any:
        return MessageManager(tokens)


class ServerContext(ClientContext):
    """An aiocoap context that serves `site`: requests pass the gate, and are remembered within bounds."""

    def __init__(self, site: Any, gate: Gate, remembered: RememberedRequests) -> None:
        super().__init__(serversite=site, loggername="coap-server")
        self._gate = gate
        self._remembered = remembered

    async def listen_udp(self, host: str, port: int) -> None:
        """Serve over UDP. Raises OSError when the address is not free."""
        await self._append_tokenmanaged_messagemanaged_transport(
            lambda messages: MessageInterfaceUDP6.create_server_transport_endpoint(
                messages, log=self.log, loop=self.loop, bind=(host, port), multicast=[]
            )
        )

    def _messages(self, tokens: Any) -> Any:
        return GatedMessages(tokens, self._gate, self._remembered)
