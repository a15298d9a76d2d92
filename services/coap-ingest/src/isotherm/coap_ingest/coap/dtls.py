"""A CoAP server over DTLS with pre-shared keys: aiocoap's experimental server with bounds, and with peers' identities.

The library keeps a DTLS context for every address from which a datagram ever came. Here only a ClientHello begins a
context. Contexts in a handshake are bounded and replace only each other; of the established ones the one that was
silent for longest goes first (docs/adr/0021).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from typing import Any

from aiocoap.error import LibraryShutdown  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.numbers import COAP_PORT  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.transports import tinydtls, tinydtls_server  # type: ignore[import-untyped]  # aiocoap ships no types

from isotherm.coap_ingest.coap.message_layer import ServerContext
from isotherm.coap_ingest.coap.psk import identity_text

MAX_HANDSHAKES = 1_024
"""Maximum number of peers that have not proved their key yet (about 2 kB each)."""
MAX_SESSIONS = 10_000
"""Maximum number of peers that have proved their key."""

_log = logging.getLogger("coap.dtls")

_HANDSHAKE, _CLIENT_HELLO, _RECORD_HEADER_BYTES = 22, 1, 13
_session_numbers = itertools.count()


def is_client_hello(datagram: bytes) -> bool:
    """Return whether a datagram begins a handshake (RFC 6347 sections 4.1 and 4.2.2: epoch 0, ClientHello)."""
    return (
        len(datagram) > _RECORD_HEADER_BYTES
        and datagram[0] == _HANDSHAKE
        and datagram[3:5] == b"\x00\x00"
        and datagram[_RECORD_HEADER_BYTES] == _CLIENT_HELLO
    )


class _Keys:
    """The keys for one connection. They record which identity the DTLS library looks up; it reports it in no other way.

    An established connection keeps its identity: a peer with another identity needs another address.
    """

    def __init__(self, keys: Mapping[bytes, bytes]) -> None:
        self._keys = keys
        self.is_established = False
        self._claims: str | None = None
        """The identity as text, under the name that aiocoap reads."""

    def keys(self) -> _Keys:
        return self

    def __contains__(self, identity: bytes) -> bool:
        return identity in self._keys and (not self.is_established or identity_text(identity) == self._claims)

    def __getitem__(self, identity: bytes) -> bytes:
        self._claims = identity_text(identity)
        return self._keys[identity]


class _Connection(tinydtls_server._AddressDTLS):  # type: ignore[misc]  # aiocoap has no types
    """The DTLS connection of one peer."""

    def __init__(self, pool: _ConnectionPool, address: Any) -> None:
        super().__init__(pool, address)
        self._psk_store = _Keys(pool._server_credentials)
        self._dtls_socket.pskStore = self._psk_store
        self._is_ended = False
        self.session_number = next(_session_numbers)
        """Separates the message ids of this session from those of the address's other sessions (RFC 7252, 9.1.1)."""

    @property
    def is_established(self) -> bool:
        return bool(self._psk_store.is_established)

    def _event(self, level: int, code: int) -> None:
        if (level, code) == (tinydtls.LEVEL_NOALERT, tinydtls.DTLS_EVENT_CONNECTED):
            self._psk_store.is_established = True
            self._protocol.note_established(self)
        elif level == tinydtls.LEVEL_FATAL:
            self._inject_error(tinydtls.FatalDTLSError(code))
        elif level != tinydtls.LEVEL_NOALERT and code == tinydtls.CODE_CLOSE_NOTIFY:
            self._inject_error(tinydtls.CloseNotifyReceived())

    def _inject_error(self, error: Exception) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._protocol.note_ended(self)
            super()._inject_error(error)


class _ConnectionPool(tinydtls_server._DatagramServerSocketSimpleDTLS):  # type: ignore[misc]  # aiocoap has no types
    """The connections of all peers, in the order of their last datagram."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._handshaking: dict[Any, _Connection] = {}

    def datagram_received(self, data: bytes, sockaddr: Any) -> None:
        connection = self._connections.get(sockaddr)
        if connection is None:
            if not is_client_hello(data):
                return
            connection = self._begin_handshake(sockaddr)
        self._connections.move_to_end(sockaddr)
        try:
            self._message_interface._received_datagram(connection, data)
        except Exception as error:  # an error of the C library concerns only the peer whose bytes caused it
            _log.warning("DTLS connection closed after an error", exc_info=error)
            connection._inject_error(error)

    def _begin_handshake(self, sockaddr: Any) -> _Connection:
        if len(self._handshaking) >= MAX_HANDSHAKES:
            self._evict(next(iter(self._handshaking.values())))
        connection = _Connection(self, sockaddr)
        self._connections[sockaddr] = self._handshaking[sockaddr] = connection
        return connection

    def note_established(self, connection: _Connection) -> None:
        """Count a connection whose peer proved its key as established."""
        self._handshaking.pop(connection._underlying_address.address, None)
        if len(self._connections) - len(self._handshaking) > MAX_SESSIONS:
            self._evict(next(other for other in self._connections.values() if other.is_established))

    def note_ended(self, connection: _Connection) -> None:
        """Drop a connection that ended."""
        self._handshaking.pop(connection._underlying_address.address, None)

    def _evict(self, connection: _Connection) -> None:
        connection._inject_error(LibraryShutdown("too many DTLS peers"))


class _Interface(tinydtls_server.MessageInterfaceTinyDTLSServer):  # type: ignore[misc]  # aiocoap has no types
    """Listens on the given port; the library would add one to it."""

    _default_port = COAP_PORT
    _serversocket = _ConnectionPool


async def listen(context: ServerContext, host: str, port: int, keys: Mapping[bytes, bytes]) -> None:
    """Serve the peers that know one of `keys` (by identity) over DTLS. Raises OSError when the address is not free."""
    await context._append_tokenmanaged_messagemanaged_transport(
        lambda manager: _Interface.create_server(
            (host, port), manager, log=context.log, loop=context.loop, server_credentials=keys
        )
    )


def count_peers(context: Any) -> tuple[int, int]:
    """Return how many peers of a DTLS server context are in a handshake, and how many have a session."""
    (tokens,) = context.request_interfaces
    pool: _ConnectionPool = tokens.token_interface.message_interface._pool
    handshaking = len(pool._handshaking)
    return handshaking, len(pool._connections) - handshaking


def identity_of(remote: Any) -> str | None:
    """Return the identity whose key the sender of a request proved; None over plain UDP."""
    claims = remote.authenticated_claims if isinstance(remote, _Connection) else []
    return str(claims[0]) if claims else None
